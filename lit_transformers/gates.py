"""Probes that a variant must pass before its number may enter a table. They take seconds and train nothing.

The model is built small (few channels, two layers, a tiny vocabulary), with every other knob as it is, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_transformers.callbacks import Progress, Report
from lit_transformers.config import ConfigError
from lit_transformers.mixer import Mixer, empty_rows
from lit_transformers.models.language_model import LanguageModel, LanguageModelConfig
from lit_transformers.models.model import ModelConfig
from lit_transformers.models.tokens import AdaptiveTokensConfig

VOCABULARY, LENGTH, TOLERANCE = 23, 24, 1e-9


class Gate(NamedTuple):
    """One probe: what it is called, whether it passed, and what it saw."""

    name: str
    passed: bool
    detail: str


def check(config: ModelConfig, report: Report | None = None) -> list[Gate]:
    """All gates of a language model's config, in order. A gate that raises has failed, with the error as detail."""
    small = shrink(config)
    found = []
    for number, (name, probe) in enumerate(GATES.items()):
        if report:
            report(Progress(number, len(GATES), math.nan, {}, None, "gates"))
        try:
            with seeded():
                detail = probe(small)
            found.append(Gate(name, True, detail))
        except Broken as error:
            found.append(Gate(name, False, str(error)))
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            found.append(Gate(name, False, f"{type(error).__name__}: {error}"))
    return found


class Broken(AssertionError):
    """A gate's finding."""


def shrink(config: ModelConfig) -> ModelConfig:
    """The same model at a size that takes milliseconds; no mechanism is switched off."""
    changes: dict[str, Any] = {"dim": 8 * config.heads, "depth": min(config.depth, 2), "dropout": 0.0}
    for path, value in config.leaves():
        name = path.rsplit(".", 1)[-1]
        if name == "dropout":
            changes[path] = 0.0
        elif name == "memory" and value:
            changes[path] = min(value, LENGTH)
        elif name == "width" and value:
            changes[path] = 16
        elif name == "groups":
            changes[path] = min(value, changes["depth"])
        elif name == "head_dim" and value:
            changes[path] = 8
    if isinstance(config.tokens, AdaptiveTokensConfig):
        changes["tokens.cutoffs"] = [VOCABULARY // 3, 2 * VOCABULARY // 3]
        changes["tokens.shrink"] = 2
    return config.override(changes)


@contextmanager
def seeded() -> Iterator[None]:
    """Random numbers of its own, and the caller's untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def build(config: ModelConfig) -> LanguageModel:
    """The network in float64, ready to be measured, its small weights made large enough to matter."""
    if not isinstance(config, LanguageModelConfig):
        raise ConfigError(f"gates probe a language_model, not a {config.kind}", "model")
    network = config.build(VOCABULARY, LENGTH).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.mul_(10)
    return network


def symbols(rows: int = 2, length: int = LENGTH) -> Tensor:
    """Random text of the tiny vocabulary."""
    return torch.randint(1, VOCABULARY, (rows, length))


def no_future_by_change(config: ModelConfig) -> str:
    """Other symbols after t leave what is said up to t as it was."""
    network, before = build(config), symbols()
    worst = 0.0
    for t in (0, LENGTH // 2, LENGTH - 2):
        after = before.clone()
        after[:, t + 1 :] = (after[:, t + 1 :] + 7) % VOCABULARY
        seen = network(before).hidden[:, : t + 1] - network(after).hidden[:, : t + 1]
        worst = max(worst, seen.abs().max().item())
    if worst > TOLERANCE:
        raise Broken(f"symbols after t change what is said up to t by {worst:.3g}")
    return f"largest change {worst:.1g}"


def no_future_by_gradient(config: ModelConfig) -> str:
    """No output has a gradient with respect to a later input."""
    network = build(config)
    x = network.tokens.embed(symbols()).detach()
    leaves: list[Tensor] = []

    def embed(_: Tensor) -> Tensor:
        leaves.append(x.clone().requires_grad_())
        return leaves[-1]

    network.tokens.embed = embed  # type: ignore[method-assign, assignment]
    for t in (0, LENGTH // 2):
        network(symbols()).hidden[:, t].square().sum().backward()
        gradient = leaves[-1].grad
        leak = 0.0 if gradient is None else gradient[:, t + 1 :].abs().max().item()
        if leak > TOLERANCE:
            raise Broken(f"the output at {t} has a gradient of {leak:.3g} with respect to later inputs")
    return "no gradient from later inputs"


def padding_changes_nothing(config: ModelConfig) -> str:
    """What stands at padded positions is not seen at real ones."""
    network, before = build(config), symbols()
    real = LENGTH - 5
    keep = torch.arange(LENGTH).expand_as(before) < real
    after = before.masked_fill(~keep, 0)
    one, other = (network(s, keep=keep).hidden[:, :real] for s in (before, after))
    alone = network(before[:, :real]).hidden
    worst = max((one - other).abs().max().item(), (one - alone).abs().max().item())
    if worst > TOLERANCE:
        raise Broken(f"padding changes real positions by {worst:.3g}")
    return f"largest change {worst:.1g}"


def streams(config: ModelConfig) -> str:
    """Segments with state say what one pass says, where memory holds the whole history."""
    leaves = dict(config.leaves())
    memories = {path: LENGTH for path in leaves if path.rsplit(".", 1)[-1] == "memory"}
    if any(path.endswith("same_length") and value for path, value in leaves.items()):
        return "not asked: every query sees a fixed number of tokens"
    network, text = build(config.override(memories)), symbols()
    if not all(module.streams for module in network.modules() if isinstance(module, Mixer)):
        return "not asked: the mixer makes no such promise"
    whole = network(text).hidden
    worst = 0.0
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            state, parts = None, []
            for start, stop in ((0, 7), (7, 8), (8, 20), (20, LENGTH)):
                read = network(text[:, start:stop], state)
                state = read.state
                parts.append(read.hidden)
            worst = max(worst, (torch.cat(parts, dim=1) - whole).abs().max().item())
    if worst > TOLERANCE:
        raise Broken(f"four segments and one pass differ by {worst:.3g}")
    return f"largest difference {worst:.1g}"


def emptied_lanes_start_anew(config: ModelConfig) -> str:
    """A lane whose state was emptied says what a first segment says."""
    network, first, second = build(config), symbols(), symbols()
    state = empty_rows(network(first).state, torch.tensor([True, False]))
    worst = (network(second, state).hidden[0] - network(second).hidden[0]).abs().max().item()
    if worst > TOLERANCE:
        raise Broken(f"a lane that was emptied remembers: it differs by {worst:.3g}")
    return f"largest difference {worst:.1g}"


def every_parameter_learns(config: ModelConfig) -> str:
    """Every parameter has a gradient over two segments."""
    network = build(config).train()
    first = network(symbols(4))
    read = network(symbols(4), first.state)
    loss = network.tokens.nats(first.hidden, symbols(4)).sum() + network.tokens.nats(read.hidden, symbols(4)).sum()
    (loss + sum(read.aux.values())).backward()
    idle = [name for name, p in network.named_parameters() if p.grad is None or not p.grad.any()]
    if idle:
        raise Broken(f"no gradient reaches {', '.join(idle)}")
    return f"{sum(1 for _ in network.parameters())} tensors"


GATES: dict[str, Callable[[ModelConfig], str]] = {
    "no future (change)": no_future_by_change,
    "no future (gradient)": no_future_by_gradient,
    "padding changes nothing": padding_changes_nothing,
    "segments equal one pass": streams,
    "emptied lanes start anew": emptied_lanes_start_anew,
    "every parameter learns": every_parameter_learns,
}
