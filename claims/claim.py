"""A claim: a number in the text, the commands that measure it, and the file that holds their results.

A results file names its commands, the commit and hardware they ran on, and a hash of the code and configs on their
path. A claim whose code has changed since is older than the code, and has to be measured again before it is repeated.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lit_transformers.config import Plain, canonical_hash
from lit_transformers.records.files import write_json
from lit_transformers.runs import RunConfig
from lit_transformers.runs.code import code_hash
from lit_transformers.runs.environment import environment
from lit_transformers.runs.keys import ROOTS
from lit_transformers.training.config import TrainingConfig

__all__ = ["RESULTS", "ROOT", "Claim", "ClaimError", "current_commit", "values_of"]

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_name("results")
PACKAGES = ("lit_transformers", "datamodules", "ablations", "reports", "benchmarks", "claims")
WRITTEN = ("claims/results", "README.md", "docs", "published")
"""Paths that a measurement writes to and that no result depends on."""


class ClaimError(ValueError):
    """A claim that is unknown, was not measured, or cannot be measured now. The message is one line."""


@dataclass(frozen=True)
class Claim:
    """Numbers that are measured together.

    commands: shell lines to run from the root of a checkout, where ``{folder}`` is the folder they may write to.
    measure: runs the commands in such a folder and returns the values, numbers or text, by name. configs: returns the
    configs of the runs whose code matters; roots: further modules whose code matters. minutes: the approximate duration
    on two cores.
    """

    name: str
    commands: tuple[str, ...]
    measure: Callable[[Path, tuple[str, ...]], dict[str, Plain]]
    configs: Callable[[], list[RunConfig]]
    roots: tuple[str, ...] = ()
    minutes: float = 1.0
    results: Path = RESULTS

    @property
    def path(self) -> Path:
        """The path of the results file."""
        return self.results / f"{self.name}.json"

    def code(self) -> str:
        """Returns a hash of the configs and of the code on the claim's path, as they are now."""
        roots = (*ROOTS, *self.roots)
        return canonical_hash([[config.to_dict(), code_hash(config, roots, PACKAGES)] for config in self.configs()])

    def read(self) -> dict[str, Plain] | None:
        """Returns the results of the last measurement; None where there is none."""
        try:
            result: dict[str, Plain] = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return result

    def is_older_than_code(self) -> bool:
        """Whether the code on the claim's path has changed since it was measured, or it was never measured."""
        result = self.read()
        return result is None or result["code"] != self.code()

    def measure_and_write(self, folder: Path) -> dict[str, Plain]:
        """Measures the claim, replaces its results file once everything has been measured, and returns the results.

        Raises ClaimError where the checkout has uncommitted changes or a command fails.
        """
        commit, code = current_commit(), self.code()
        folder.mkdir(parents=True, exist_ok=True)
        values = self.measure(folder, self.commands)
        training = TrainingConfig()
        surroundings = environment(training.device, code, training.tf32)
        result: dict[str, Plain] = {
            "claim": self.name,
            "commands": [command.format(folder="FOLDER") for command in self.commands],
            "commit": commit,
            "code": code,
            "date": datetime.now(UTC).date().isoformat(),
            "environment": {name: surroundings[name] for name in ("python", "torch", "lightning", "hardware")},
            "values": values,
        }
        write_json(self.path, result)
        return result


def current_commit() -> str:
    """Returns the commit that is checked out. Raises ClaimError where files that results depend on differ from it."""
    excluded = [f":(exclude){path}" for path in WRITTEN]
    changed = _git("status", "--porcelain", "--", ".", *excluded)
    if changed:
        first = changed.splitlines()[0][3:]
        raise ClaimError(f"{first} differs from the commit that a result would name; commit first, then measure")
    return _git("rev-parse", "--short=12", "HEAD").strip()


def _git(*words: str) -> str:
    """Returns the output of a git command. Raises ClaimError where it fails."""
    try:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise ClaimError(f"claims are measured in a git checkout: git {words[0]} failed ({error})") from None


def values_of(claims: Mapping[str, Claim]) -> dict[str, Plain]:
    """Returns every measured value under ``claim.value``.

    The commit, date and hardware of each measurement are under ``claim.commit``, ``claim.date`` and ``claim.hardware``.
    """
    values: dict[str, Plain] = {}
    for name, claim in claims.items():
        result = claim.read()
        if result is not None:
            metadata = {key: result[key] for key in ("commit", "date")} | {
                "hardware": result["environment"]["hardware"]
            }
            values |= {f"{name}.{key}": value for key, value in (metadata | result["values"]).items()}
    return values
