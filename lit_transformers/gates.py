"""Probes that a variant must pass before its number may enter a table. They take seconds and train nothing.

The model is built small (few channels, two layers, a tiny vocabulary), with every other knob as it is, in float64, and
reads rows long enough for every length that its config names to act.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from lit_transformers.callbacks import Progress, Report
from lit_transformers.config import ConfigError
from lit_transformers.mixer import Mixer, empty_rows
from lit_transformers.models.encoder import Encoder, EncoderConfig
from lit_transformers.models.language_model import LanguageModel, LanguageModelConfig
from lit_transformers.models.model import ModelConfig
from lit_transformers.models.tokens import AdaptiveTokensConfig

VOCABULARY, TOLERANCE = 23, 1e-9
SHORTEST, LONGEST = 24, 256
"""Rows of a probe, in tokens."""
ROUND = 64
"""Memories are cut to multiples of it: a mixer that divides its memory finds it divisible."""

N = TypeVar("N", bound=nn.Module)


class Gate(NamedTuple):
    """One probe: what it is called, whether it passed, and what it saw."""

    name: str
    passed: bool
    detail: str


class Probe(NamedTuple):
    """A small model, and the length of the rows that it is shown."""

    config: ModelConfig
    length: int

    @property
    def vocabulary(self) -> int:
        """Enough symbols for a row without repetitions."""
        return max(VOCABULARY, self.length + 1)

    def symbols(self, rows: int = 2) -> Tensor:
        """Random text in which no symbol comes twice: of equal keys, a mixer that keeps some would have its choice."""
        return torch.stack([1 + torch.randperm(self.vocabulary - 1)[: self.length] for _ in range(rows)])


def check(config: ModelConfig, report: Report | None = None) -> list[Gate]:
    """All gates of a model's config, in order. A gate that raises has failed, with the error as detail."""
    length = probe_length(config)
    probe = Probe(shrink(config, length), length)
    gates = gates_of(config)
    found = []
    for number, (name, look) in enumerate(gates.items()):
        if report:
            report(Progress(number, len(gates), math.nan, {}, None, "gates"))
        try:
            with seeded():
                detail = look(probe)
            found.append(Gate(name, True, detail))
        except Broken as error:
            found.append(Gate(name, False, str(error)))
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            found.append(Gate(name, False, f"{type(error).__name__}: {error}"))
    return found


class Broken(AssertionError):
    """A gate's finding."""


def probe_length(config: ModelConfig) -> int:
    """Twice the longest length that the mixer or the stack names (a window, a block, a rank), and a little more.

    At most LONGEST, and no longer than a table of positions. Memories count apart: they are shortened.
    """
    parts = [*config.mixer.leaves("mixer."), *config.stack.leaves("stack.")]
    named = [
        number for path, value in parts if path.rsplit(".", 1)[-1] not in ("memory", "seed") for number in whole(value)
    ]
    length = max(SHORTEST, min(LONGEST, 2 * max(named, default=0) + 3))
    table = dict(config.leaves()).get("positions.max_length")
    return length if table is None else min(length, table // 2)


def whole(value: Any) -> list[int]:
    """The whole numbers that a field holds."""
    values = value if isinstance(value, tuple) else (value,)
    return [number for number in values if type(number) is int]


def keeps_depth(config: ModelConfig) -> bool:
    """Whether some field has a value for each layer, so that the number of layers cannot be another."""
    return any(isinstance(value, tuple) and len(value) == config.depth > 1 for _, value in config.leaves())


def shrink(config: ModelConfig, length: int) -> ModelConfig:
    """The same model at a size that takes milliseconds; no mechanism is switched off.

    Lengths that a mixer names stay; layers and memories become fewer where the model can be built so.
    """
    narrow: dict[str, Any] = {"dim": 8 * config.heads, "dropout": 0.0}
    shallow: dict[str, Any] = {} if keeps_depth(config) else {"depth": min(config.depth, 2)}
    short: dict[str, Any] = {}
    for path, value in config.leaves():
        name = path.rsplit(".", 1)[-1]
        if name == "dropout":
            narrow[path] = 0.0
        elif name == "memory" and value:
            short[path] = min(value, covering(length))
        elif path == "feedforward.width" and value:
            narrow[path] = 16
        elif path == "stack.groups" and shallow:
            shallow[path] = min(value, shallow["depth"])
        elif name == "head_dim" and value:
            narrow[path] = 8
    if isinstance(config.tokens, AdaptiveTokensConfig):
        narrow["tokens.cutoffs"] = [VOCABULARY // 3, 2 * VOCABULARY // 3]
        narrow["tokens.shrink"] = 2
    return first_that_builds(config, [narrow | short | shallow, narrow | short, narrow | shallow, narrow], length)


def covering(length: int) -> int:
    """A round length of memory that holds as many tokens."""
    return math.ceil(length / ROUND) * ROUND


def first_that_builds(config: ModelConfig, attempts: Sequence[Mapping[str, Any]], length: int) -> ModelConfig:
    """The config with the first of these changes that it can be built with; with the last where none can."""
    *attempts, last = attempts
    for changes in attempts:
        try:
            small = config.override(changes)
            with torch.random.fork_rng(devices=[]), torch.device("meta"):
                small.build(VOCABULARY, length)
        except ConfigError:
            continue
        return small
    return config.override(last)


@contextmanager
def seeded() -> Iterator[None]:
    """Random numbers of its own, and the caller's untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def enlarged(network: N) -> N:
    """The network in float64, ready to be measured, its small weights made large enough to matter."""
    network = network.double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.mul_(10)
    return network


def causal(probe: Probe) -> LanguageModel:
    """The language model of a probe."""
    network = probe.config.build(probe.vocabulary, probe.length)
    assert isinstance(network, LanguageModel)
    return enlarged(network)


def bidirectional(probe: Probe) -> Encoder:
    """The encoder of a probe."""
    network = probe.config.build(probe.vocabulary, probe.length)
    assert isinstance(network, Encoder)
    return enlarged(network)


def no_future_by_change(probe: Probe) -> str:
    """Other symbols after t leave what is said up to t as it was."""
    network, before = causal(probe), probe.symbols()
    worst = 0.0
    for t in (0, probe.length // 2, probe.length - 2):
        after = before.clone()
        after[:, t + 1 :] = (after[:, t + 1 :] + 7) % probe.vocabulary
        seen = network(before).hidden[:, : t + 1] - network(after).hidden[:, : t + 1]
        worst = max(worst, seen.abs().max().item())
    if worst > TOLERANCE:
        raise Broken(f"symbols after t change what is said up to t by {worst:.3g}")
    return f"largest change {worst:.1g}"


def no_future_by_gradient(probe: Probe) -> str:
    """No output has a gradient with respect to a later input."""
    network = causal(probe)
    x = network.tokens.embed(probe.symbols()).detach()
    leaves: list[Tensor] = []

    def embed(_: Tensor) -> Tensor:
        leaves.append(x.clone().requires_grad_())
        return leaves[-1]

    network.tokens.embed = embed  # type: ignore[method-assign, assignment]
    for t in (0, probe.length // 2):
        network(probe.symbols()).hidden[:, t].square().sum().backward()
        gradient = leaves[-1].grad
        leak = 0.0 if gradient is None else gradient[:, t + 1 :].abs().max().item()
        if leak > TOLERANCE:
            raise Broken(f"the output at {t} has a gradient of {leak:.3g} with respect to later inputs")
    return "no gradient from later inputs"


def padding_changes_nothing(probe: Probe) -> str:
    """What stands at padded positions is not seen at real ones of a language model."""
    network = causal(probe)
    return unseen(probe, lambda symbols, keep: network(symbols, keep=keep).hidden)


def padding_is_not_read(probe: Probe) -> str:
    """The same of an encoder."""
    network = bidirectional(probe)
    return unseen(probe, lambda symbols, keep: network(symbols, keep, first(symbols)).hidden)


def unseen(probe: Probe, read: Callable[[Tensor, Tensor | None], Tensor]) -> str:
    """Compares rows with other symbols in their padding, and with none."""
    before, real = probe.symbols(), probe.length - 5
    keep = torch.arange(probe.length).expand_as(before) < real
    after = before.masked_fill(~keep, 0)
    one, other = (read(symbols, keep)[:, :real] for symbols in (before, after))
    alone = read(before[:, :real], None)
    worst = max((one - other).abs().max().item(), (one - alone).abs().max().item())
    if worst > TOLERANCE:
        raise Broken(f"padding changes real positions by {worst:.3g}")
    return f"largest change {worst:.1g}"


def first(symbols: Tensor) -> Tensor:
    """Marks the first token of every row."""
    return (torch.arange(symbols.size(1)) == 0).expand_as(symbols)


def streams(probe: Probe) -> str:
    """Segments with state say what one pass says, where memory holds the whole history."""
    leaves, length = dict(probe.config.leaves()), probe.length
    memories = {path: covering(length) for path in leaves if path.rsplit(".", 1)[-1] == "memory"}
    if any(path.endswith("same_length") and value for path, value in leaves.items()):
        return "not asked: every query sees a fixed number of tokens"
    try:
        config = probe.config.override(memories)
    except ConfigError:  # what has a field for memory and, configured so, no use for it
        config = probe.config
    network, text = causal(probe._replace(config=config)), probe.symbols()
    if not all(module.streams for module in network.modules() if isinstance(module, Mixer)):
        return "not asked: the mixer makes no such promise"
    whole = network(text).hidden
    cuts = [0, length * 7 // 24, length * 7 // 24 + 1, length * 20 // 24, length]
    worst = 0.0
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            state, parts = None, []
            for start, stop in pairwise(cuts):
                read = network(text[:, start:stop], state)
                state = read.state
                parts.append(read.hidden)
            worst = max(worst, (torch.cat(parts, dim=1) - whole).abs().max().item())
    if worst > TOLERANCE:
        raise Broken(f"four segments and one pass differ by {worst:.3g}")
    return f"largest difference {worst:.1g}"


def emptied_lanes_start_anew(probe: Probe) -> str:
    """A lane whose state was emptied says what a first segment says."""
    network, first, second = causal(probe), probe.symbols(), probe.symbols()
    state = empty_rows(network(first).state, torch.tensor([True, False]))
    worst = (network(second, state).hidden[0] - network(second).hidden[0]).abs().max().item()
    if worst > TOLERANCE:
        raise Broken(f"a lane that was emptied remembers: it differs by {worst:.3g}")
    return f"largest difference {worst:.1g}"


def every_parameter_learns(probe: Probe) -> str:
    """Every parameter of a language model has a gradient over so many segments that what memory gives up is read."""
    network = causal(probe).train()
    memories = [value for path, value in probe.config.leaves() if path.rsplit(".", 1)[-1] == "memory"]
    state, loss = None, torch.zeros((), dtype=torch.float64)
    for _ in range(2 + max(memories, default=0) // probe.length):
        read = network(probe.symbols(4), state)
        state = read.state
        loss = loss + network.tokens.nats(read.hidden, probe.symbols(4)).sum() + sum(read.aux.values())
    return learning(network, loss)


def every_parameter_of_an_encoder_learns(probe: Probe) -> str:
    """Every parameter has a gradient where each position predicts a symbol."""
    network = bidirectional(probe).train()
    symbols = probe.symbols(4)
    read = network(symbols, marked=first(symbols))
    return learning(network, network.tokens.nats(read.hidden, probe.symbols(4)).sum() + sum(read.aux.values()))


def learning(network: nn.Module, loss: Tensor) -> str:
    """Names the parameters that a loss does not reach."""
    loss.backward()
    idle = [name for name, p in network.named_parameters() if p.grad is None or not p.grad.any()]
    if idle:
        raise Broken(f"no gradient reaches {', '.join(idle)}")
    return f"{sum(1 for _ in network.parameters())} tensors"


CAUSAL: dict[str, Callable[[Probe], str]] = {
    "no future (change)": no_future_by_change,
    "no future (gradient)": no_future_by_gradient,
    "padding changes nothing": padding_changes_nothing,
    "segments equal one pass": streams,
    "emptied lanes start anew": emptied_lanes_start_anew,
    "every parameter learns": every_parameter_learns,
}
BIDIRECTIONAL: dict[str, Callable[[Probe], str]] = {
    "padding changes nothing": padding_is_not_read,
    "every parameter learns": every_parameter_of_an_encoder_learns,
}


def gates_of(config: ModelConfig) -> dict[str, Callable[[Probe], str]]:
    """The gates of a kind of model. Raises ConfigError where there are none."""
    match config:
        case LanguageModelConfig():
            return CAUSAL
        case EncoderConfig():
            return BIDIRECTIONAL
    raise ConfigError(f"no gates are known of a model of kind {config.kind}: it cannot be a run", "model")
