"""Probes that a variant must pass before its number may enter a table. They take seconds and train nothing.

The model is built small, in float64, with every mechanism as it is, and reads rows long enough for all of them to act.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lit_transformers.callbacks import Progress, Report
from lit_transformers.config import ConfigError
from lit_transformers.miniature import Probe, covering, enlarged, probe_length, seeded, shrink
from lit_transformers.mixer import Mixer, empty_rows
from lit_transformers.models.encoder import Encoder, EncoderConfig
from lit_transformers.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from lit_transformers.models.language_model import LanguageModel, LanguageModelConfig
from lit_transformers.models.model import ModelConfig, Read
from lit_transformers.models.tokens import Tokens

TOLERANCE = 1e-9


class Gate(NamedTuple):
    """One probe: what it is called, whether it passed, and what it saw."""

    name: str
    passed: bool
    detail: str


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


def paired(probe: Probe) -> tuple[EncoderDecoder, Tensor]:
    """The encoder-decoder of a probe, and sources for it."""
    network = probe.config.build(probe.vocabulary, probe.length)
    assert isinstance(network, EncoderDecoder)
    return enlarged(network), probe.symbols()


def no_future_by_change(probe: Probe) -> str:
    """Other symbols after t leave what is said up to t as it was."""
    network = causal(probe)
    return unforeseen(probe, lambda symbols: network(symbols).hidden)


def no_later_target_by_change(probe: Probe) -> str:
    """The same of the targets of an encoder-decoder."""
    network, source = paired(probe)
    return unforeseen(probe, lambda symbols: network(source, symbols).hidden)


def unforeseen(probe: Probe, read: Callable[[Tensor], Tensor]) -> str:
    """Compares what is said of rows with other symbols after t."""
    before, worst = probe.symbols(), 0.0
    for t in (0, probe.length // 2, probe.length - 2):
        after = before.clone()
        after[:, t + 1 :] = (after[:, t + 1 :] + 7) % probe.vocabulary
        seen = read(before)[:, : t + 1] - read(after)[:, : t + 1]
        worst = max(worst, seen.abs().max().item())
    if worst > TOLERANCE:
        raise Broken(f"symbols after t change what is said up to t by {worst:.3g}")
    return f"largest change {worst:.1g}"


def no_future_by_gradient(probe: Probe) -> str:
    """No output has a gradient with respect to a later input."""
    network = causal(probe)
    return ungrounded(probe, network.tokens, lambda symbols: network(symbols).hidden)


def no_later_target_by_gradient(probe: Probe) -> str:
    """The same of the targets of an encoder-decoder."""
    network, source = paired(probe)
    encoded = network.encode(source).hidden.detach()
    return ungrounded(probe, network.tokens, lambda symbols: network.decode(symbols, encoded).hidden)


def ungrounded(probe: Probe, tokens: Tokens, read: Callable[[Tensor], Tensor]) -> str:
    """Looks at the gradients of what is said at t with respect to the vectors of all symbols."""
    x = tokens.embed(probe.symbols()).detach()
    leaves: list[Tensor] = []

    def embed(_: Tensor) -> Tensor:
        leaves.append(x.clone().requires_grad_())
        return leaves[-1]

    tokens.embed = embed  # type: ignore[method-assign, assignment]
    for t in (0, probe.length // 2):
        read(probe.symbols())[:, t].square().sum().backward()
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


def padding_of_sources_changes_nothing(probe: Probe) -> str:
    """The same of the sources of an encoder-decoder: of all that is said of a target."""
    network, target = paired(probe)
    return unseen(probe, lambda symbols, keep: network(symbols, target, keep).hidden)


def padding_of_targets_changes_nothing(probe: Probe) -> str:
    """The same of its targets."""
    network, source = paired(probe)
    return unseen(probe, lambda symbols, keep: network(source, symbols, keep=keep).hidden)


def unseen(probe: Probe, read: Callable[[Tensor, Tensor | None], Tensor]) -> str:
    """Compares rows with other symbols in their padding, and with none."""
    before, real = probe.symbols(), probe.length - 5
    keep = torch.arange(probe.length).expand_as(before) < real
    after = before.masked_fill(~keep, 0)
    one, other, alone = (
        read(symbols, seen)[:, :real] for symbols, seen in ((before, keep), (after, keep), (before[:, :real], None))
    )
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
    cuts = [0, length * 7 // 24, length * 7 // 24 + 1, length * 20 // 24, length]
    worst = 0.0
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            worst = max(worst, in_pieces(network, text, cuts))
    if worst > TOLERANCE:
        raise Broken(f"four segments and one pass differ by {worst:.3g}")
    return f"largest difference {worst:.1g}"


def decoding_equals_one_pass(probe: Probe) -> str:
    """A target that is read symbol by symbol says what it says whole, where memory holds all of it."""
    leaves = dict(probe.config.leaves())
    if leaves.get("decoder_mixer.same_length"):
        return "not asked: every query sees a fixed number of tokens"
    memories = [path for path in leaves if path.startswith("decoder_mixer.") and path.rsplit(".", 1)[-1] == "memory"]
    longer = {path: covering(probe.length) for path in memories if leaves[path]}
    network, source = paired(probe._replace(config=probe.config.override(longer)))
    if not network.streams:
        return "not asked: the decoder's mixer makes no such promise"
    with torch.no_grad():
        encoded = network.encode(source).hidden
        read = partial(network.decode, source=encoded)
        worst = in_pieces(lambda symbols, state: read(symbols, state=state), probe.symbols(), range(probe.length + 1))
    if worst > TOLERANCE:
        raise Broken(f"symbol by symbol and in one pass differ by {worst:.3g}")
    return f"largest difference {worst:.1g}"


def in_pieces(read: Callable[[Tensor, Any], Read], text: Tensor, cuts: Sequence[int]) -> float:
    """How far text that is read in pieces differs from text that is read whole."""
    whole, state, parts = read(text, None).hidden, None, []
    for start, stop in pairwise(cuts):
        piece = read(text[:, start:stop], state)
        state = piece.state
        parts.append(piece.hidden)
    return (torch.cat(parts, dim=1) - whole).abs().max().item()


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


def every_parameter_of_both_sides_learns(probe: Probe) -> str:
    """Every parameter of an encoder-decoder has a gradient, but those that no part of it reads."""
    network, source = paired(probe)
    read = network.train()(probe.symbols(2), probe.symbols(2))
    return learning(network, network.tokens.nats(read.hidden, source).sum() + sum(read.aux.values()))


def learning(network: nn.Module, loss: Tensor) -> str:
    """Names the parameters that should learn and that a loss does not reach."""
    loss.backward()
    trained = [(name, p.grad) for name, p in network.named_parameters() if p.requires_grad]
    idle = [name for name, gradient in trained if gradient is None or not gradient.any()]
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


PAIRED: dict[str, Callable[[Probe], str]] = {
    "no future (change)": no_later_target_by_change,
    "no future (gradient)": no_later_target_by_gradient,
    "padding of sources changes nothing": padding_of_sources_changes_nothing,
    "padding of targets changes nothing": padding_of_targets_changes_nothing,
    "decoding equals one pass": decoding_equals_one_pass,
    "every parameter learns": every_parameter_of_both_sides_learns,
}


def gates_of(config: ModelConfig) -> dict[str, Callable[[Probe], str]]:
    """The gates of a kind of model. Raises ConfigError where there are none."""
    match config:
        case LanguageModelConfig():
            return CAUSAL
        case EncoderConfig():
            return BIDIRECTIONAL
        case EncoderDecoderConfig():
            return PAIRED
    raise ConfigError(f"no gates are known of a model of kind {config.kind}: it cannot be a run", "model")
