"""The contract of parts from outside: what is checked of each config of a plug-in, as it is of those of this library.

A part is checked with its defaults, or where it has none with the configs that the plug-in lists as ``CASES``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lit_transformers.batch import Vocabulary
from lit_transformers.checks import gates
from lit_transformers.checks.inert_fields import changes_nothing
from lit_transformers.checks.miniature import SHORTEST, VOCABULARY, seeded
from lit_transformers.config import Config, ConfigError, field_types
from lit_transformers.encodings import EncodingConfig
from lit_transformers.encodings.positions import PositionsConfig
from lit_transformers.mixer import Context, MixerConfig, Shape
from lit_transformers.mixers import AttentionConfig
from lit_transformers.models import MODELS, EncoderConfig, EncoderDecoderConfig, LanguageModelConfig, ModelConfig
from lit_transformers.models.tokens import TokenEmbeddingConfig
from lit_transformers.plugins import Plugin, configs_of, import_plugin, locate
from lit_transformers.records.record import Gate
from lit_transformers.runs.config import RunConfig
from lit_transformers.stacks import StackConfig
from lit_transformers.stacks.feedforward import TransitionConfig
from lit_transformers.tasks import TaskConfig
from lit_transformers.training.config import TrainingConfig

__all__ = ["CheckedPart", "check_plugin", "count_flops", "other_value", "require_contract"]

DIM, HEADS = 16, 2
FLOPS_TOLERANCE = 0.02
"""How far the FLOPs of a formula may be from those counted, as a share."""


class CheckedPart(NamedTuple):
    """A config of a plug-in, what it may claim, and the checks of it."""

    config: type[Config]
    claims: str
    checks: list[Gate]


def require_contract(plugin: str) -> None:
    """Checks every part of a plug-in, for a test of it. Raises AssertionError that lists what failed and why."""
    failed = [
        f"{part.config.__name__}: {check.name}: {check.detail}"
        for part in check_plugin(plugin)
        for check in part.checks
        if not check.passed
    ]
    if failed:
        raise AssertionError("\n".join(failed))


def check_plugin(name: str) -> list[CheckedPart]:
    """Checks every part of a plug-in, by its path or module. Raises ConfigError where it has none, or does not load."""
    plugin = locate(name)
    cases = getattr(import_plugin(plugin), "CASES", ())
    parts = [_check_part(config, [case for case in cases if type(case) is config]) for config in _configs(plugin)]
    if not parts:
        raise ConfigError("it defines no @final config with a kind", f"plug-in {name}")
    return parts


def _configs(plugin: Plugin) -> list[type[Config]]:
    return sorted(configs_of(plugin), key=lambda config: (config.__module__, inspect.getsourcelines(config)[1]))


def _check_part(config: type[Config], cases: list[Config]) -> CheckedPart:
    """Runs all checks of a config; one that raises has failed, with the error as detail."""
    try:
        cases = cases or [config()]
    except ConfigError as error:
        return CheckedPart(config, "", [Gate("has a case", False, f"{error}; list configs as CASES in the plug-in")])
    checks: list[Gate] = []
    for case in cases:
        for name, check in _checks_of(case):
            try:
                with seeded():
                    detail = check()
            except (gates.Broken, RuntimeError, ValueError, IndexError, TypeError, LookupError) as error:
                reason = str(error) if isinstance(error, gates.Broken) else f"{type(error).__name__}: {error}"
                checks.append(Gate(name, False, reason))
            else:
                checks.extend(detail if isinstance(detail, list) else [Gate(name, True, detail)])
    return CheckedPart(config, _claims(cases[0]), checks)


def _claims(case: Config) -> str:
    if not isinstance(case, MixerConfig):
        return ""
    promises = case.promises()
    return ", ".join([*promises.modes, *(["streams"] if promises.streams else [])])


def _checks_of(case: Config) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yields the checks of a part by its table: each returns a detail, or the results of gates."""
    yield "written and read again", lambda: _round_trip(case)
    networks = dict(_networks(case))
    for place, network in networks.items():
        prefix = f"{place}: " if len(networks) > 1 else ""
        yield f"{prefix}gates", partial(_check_gates, network, prefix)
    if isinstance(case, MixerConfig):
        yield "FLOPs equal the count", lambda: _check_flops(case)
    if networks:
        yield "every field has an effect", lambda: _check_fields(case, lambda part: next(_networks(part))[1])
    if isinstance(case, TaskConfig):
        yield "trains a model", lambda: _check_task(case)
    build = getattr(case, "build", None)
    if not networks and build is not None and not inspect.signature(build).parameters:
        yield "built twice alike", lambda: _check_same(case)
        yield "every field changes the content", lambda: _check_content(case)


def _networks(case: Config) -> Iterator[tuple[str, ModelConfig]]:
    """Yields small models with a part in its place, by what they make of it. None where it is no part of a model."""
    small, reader = LanguageModelConfig(dim=DIM, heads=HEADS, depth=2), EncoderConfig(dim=DIM, heads=HEADS, depth=2)
    match case:
        case ModelConfig():
            yield case.kind, case
        case MixerConfig():
            modes = case.promises().modes
            if "causal" in modes:
                yield "causal", small.override({"mixer": case})
            if "bidirectional" in modes:
                yield "bidirectional", reader.override({"mixer": case})
            if "cross" in modes:
                yield "cross", EncoderDecoderConfig(dim=DIM, heads=HEADS, depth=2, cross_mixer=case)
        case EncodingConfig():
            base = reader if case.tells_segments else small
            yield base.kind, base.override({"mixer": AttentionConfig(encoding=case)})
        case PositionsConfig():
            yield small.kind, small.override({"positions": case})
        case StackConfig():
            yield small.kind, small.override({"stack": case})
        case TokenEmbeddingConfig():
            yield small.kind, small.override({"tokens": case})
        case TransitionConfig():
            yield small.kind, small.override({"feedforward": case})


def _check_gates(network: ModelConfig, prefix: str) -> list[Gate]:
    """Returns the gates of a model, each with a prefix of its name."""
    return [Gate(f"{prefix}{gate.name}", gate.passed, gate.detail) for gate in gates.check(network)]


def _round_trip(case: Config) -> str:
    again = type(case).from_dict(case.to_dict())
    if again != case:
        raise gates.Broken(f"{case.to_dict()} is read as {again.to_dict()}")
    return "equal"


def count_flops(module: nn.Module, *inputs: Any) -> int:
    """Counts the FLOPs of a forward pass; the unfused kernel is the one whose products the counter sees on every
    device."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(*inputs)
    return counter.get_total_flops()


def _check_flops(case: MixerConfig) -> str:
    """Compares formula and count for a row that is read in one pass, in each direction that the mixer promises."""
    worst, length = 0.0, 2 * SHORTEST
    for mode in ("causal", "bidirectional"):
        if mode not in case.promises().modes:
            continue
        mixer = case.build(Shape(DIM, HEADS, length, shared={}))
        ctx = Context(torch.arange(length)[None], causal=mode == "causal")
        counted = count_flops(mixer, torch.randn(1, length, DIM), ctx)
        formula = mixer.flops(length, 0, causal=mode == "causal")
        worst = max(worst, abs(formula - counted) / max(counted, 1))
        if worst > FLOPS_TOLERANCE:
            raise gates.Broken(f"{mode}, {length} tokens: the formula says {formula:,}, counted are {counted:,}")
    return f"within {worst:.1%}"


def other_value(value: Any, hint: Any) -> Any:
    """Returns a value of the type of a field that is not ``value``. Raises TypeError where none follows from the
    type."""
    if get_origin(hint) is Annotated:
        return other_value(value, get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        members = [member for member in get_args(hint) if member is not NoneType]
        return 2 if members == [int] or get_origin(members[0]) is Annotated else other_value(value, members[0])
    if get_origin(hint) is Literal:
        return next(choice for choice in get_args(hint) if choice != value)
    if hint is bool:
        return not value
    if hint is int:
        return value + 1
    if hint is float:
        return 2 * value if value >= 0.5 else value + 0.3
    raise TypeError(f"no other value follows from {hint}")


def _changed(case: Config) -> Iterator[tuple[str, Config]]:
    """Yields a config for each field whose other value follows from its type, with that value."""
    for name, hint in field_types(type(case)).items():
        try:
            yield name, case.override({name: other_value(getattr(case, name), hint)})
        except (TypeError, ConfigError):
            continue


def _check_fields(case: Config, network_of: Callable[[Any], ModelConfig]) -> str:
    """Raises Broken with the fields that change neither losses nor weights of a small run."""
    changed = dict(_changed(case))
    inert = [name for name, part in changed.items() if _is_inert(network_of(part), network_of(case))]
    if inert:
        raise gates.Broken(f"no effect on losses, weights or memory: {', '.join(inert)}")
    skipped = [name for name in field_types(type(case)) if name not in changed]
    return f"{len(changed)} fields{', not tried: ' + ', '.join(skipped) if skipped else ''}"


def _is_inert(arm: ModelConfig, baseline: ModelConfig) -> bool:
    """Whether two models compute the same, in a run of the first objective that trains both."""
    for kind, task in TaskConfig.kinds.items():
        try:
            data = next(data for data in _data_kinds() if data.describes is task.reads)  # type: ignore[attr-defined]
            runs = [RunConfig.from_dict({"model": model, "task": kind, "data": data()}) for model in (arm, baseline)]
            return changes_nothing(*runs)
        except (ConfigError, StopIteration):
            continue
    raise ValueError(f"no objective trains a {baseline.kind}")


def _data_kinds() -> Iterator[type[Any]]:
    """Yields the kinds of data, of which a run's config names the table."""
    yield from field_types(RunConfig)["data"].kinds.values()


def _check_task(case: TaskConfig) -> str:
    """Takes a step of training with the first family of models that the objective can train."""
    vocabulary = Vocabulary(size=VOCABULARY, boundary=0, unit="byte", byte_lengths=None)
    data, refusals = case.reads.for_probe(vocabulary, SHORTEST), []
    for model in MODELS.values():
        try:
            config = model(dim=DIM, heads=HEADS, depth=2)
            task = case.build(config, data, TrainingConfig())
        except (ConfigError, TypeError) as error:
            refusals.append(str(error))
            continue
        loss = task.training_step(case.random_batch(data), 0)["loss"]
        loss.backward()
        if not loss.isfinite():
            raise gates.Broken(f"the loss of random symbols is {loss.item()}")
        if all(parameter.grad is None or not parameter.grad.any() for parameter in task.parameters()):
            raise gates.Broken("no parameter has a gradient")
        return f"{config.kind}, loss {loss.item():.3g}"
    raise gates.Broken(f"it trains no family of models: {refusals[-1] if refusals else 'there are none'}")


def _check_same(case: Any) -> str:
    first, second = _content(case), _content(case)
    if first != second:
        raise gates.Broken("built a second time, its content is another one")
    return "equal content"


def _check_content(case: Any) -> str:
    """Raises Broken with the fields that leave the fingerprint of data as it is."""
    original, changed = _content(case), dict(_changed(case))
    inert = [name for name, part in changed.items() if _content(part) == original]
    if inert:
        raise gates.Broken(f"the content stays the same with another {', '.join(inert)}")
    return f"{len(changed)} fields"


def _content(case: Any) -> Any:
    """Returns the fingerprint of data, or where a part has none, its config."""
    return getattr(case.build(), "fingerprint", case)
