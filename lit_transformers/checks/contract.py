"""The contract of parts from outside: the checks of each config of a plug-in, which also hold for the configs of this
library.

A part is checked with its defaults, or, where it has none, with the configs that the plug-in lists as ``CASES``. The
table of a part determines its checks. The other modules of this package hold the checks of networks, objectives,
training, decoding, compressions and data.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from itertools import chain
from typing import NamedTuple

from lit_transformers.checks import compression_parts, data_parts, network_parts, objective_parts, training_parts
from lit_transformers.checks.part_checks import PartChecks, is_written_and_read
from lit_transformers.config import Config, ConfigError
from lit_transformers.gates import gates
from lit_transformers.gates.miniature import seeded
from lit_transformers.mixer import MixerConfig
from lit_transformers.plugins import Plugin, configs_of, import_plugin, locate
from lit_transformers.records.record import Gate

__all__ = ["CheckedPart", "check_part", "check_plugin", "checks_of", "require_contract", "run_check"]

ERRORS = (RuntimeError, ValueError, ArithmeticError, IndexError, TypeError, LookupError, AttributeError)


class CheckedPart(NamedTuple):
    """A config of a plug-in, the claims that it makes, and the results of its checks."""

    config: type[Config]
    claims: str
    checks: list[Gate]

    @property
    def failures(self) -> list[str]:
        """A line for each check that failed."""
        return [f"{self.config.__name__}: {check.name}: {check.detail}" for check in self.checks if not check.passed]


def require_contract(plugin: str) -> None:
    """Checks every part of a plug-in, for a test of the plug-in. Raises AssertionError with the failed checks and their
    reasons."""
    if failures := list(chain.from_iterable(part.failures for part in check_plugin(plugin))):
        raise AssertionError("\n".join(failures))


def check_plugin(name: str) -> list[CheckedPart]:
    """Checks every part of a plug-in, by its path or module. Raises ConfigError where it has none, or does not load."""
    plugin = locate(name)
    cases = getattr(import_plugin(plugin), "CASES", ())
    parts = [check_part(config, [case for case in cases if type(case) is config]) for config in _configs(plugin)]
    if not parts:
        raise ConfigError("it defines no @final config with a kind", f"plug-in {name}")
    return parts


def _configs(plugin: Plugin) -> list[type[Config]]:
    return sorted(configs_of(plugin), key=lambda config: (config.__module__, inspect.getsourcelines(config)[1]))


def check_part(config: type[Config], cases: Iterable[Config] = ()) -> CheckedPart:
    """Runs all checks of a config, with its defaults where no cases are given."""
    try:
        cases = list(cases) or [config()]
    except ConfigError as error:
        return CheckedPart(config, "", [Gate("has a case", False, f"{error}; list configs as CASES in the plug-in")])
    results = [gate for case in cases for name, check in checks_of(case) for gate in run_check(name, check)]
    return CheckedPart(config, _claims(cases[0]), results)


def run_check(name: str, check: Callable[[], str | list[Gate]]) -> list[Gate]:
    """Returns the results of a check; one that raises has failed, with the error as detail."""
    try:
        with seeded():
            detail = check()
    except gates.Broken as error:
        return [Gate(name, False, str(error))]
    except ERRORS as error:
        return [Gate(name, False, f"{type(error).__name__}: {error}")]
    return detail if isinstance(detail, list) else [Gate(name, True, detail)]


def _claims(case: Config) -> str:
    if not isinstance(case, MixerConfig):
        return ""
    promises = case.promises()
    return ", ".join([*promises.modes, *(["streams"] if promises.streams else [])])


def checks_of(case: Config) -> PartChecks:
    """Yields the checks of a part by its table."""
    yield "written and read again", lambda: is_written_and_read(case)
    yield from network_parts.checks(case)
    yield from objective_parts.checks(case)
    yield from training_parts.checks(case)
    yield from compression_parts.checks(case)
    yield from data_parts.checks(case)
