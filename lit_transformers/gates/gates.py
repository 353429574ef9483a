"""Gates: checks that a model must pass before its results may enter a table. They take seconds and train nothing.

The model is built small, in float64, with all its mechanisms, and reads rows long enough for all of them to act.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn

from lit_transformers.batch import LabelledDescription, SpanLabels
from lit_transformers.config import ConfigError, Memory, Segments
from lit_transformers.gates.miniature import Probe, covering, enlarged, miniature, probe_length, seeded
from lit_transformers.mixer import empty_rows
from lit_transformers.models.capabilities import (
    CausalModelConfig,
    CausalNetwork,
    OrderedRows,
    PairModelConfig,
    PairNetwork,
    RowModelConfig,
    RowNetwork,
    require,
)
from lit_transformers.models.model import ModelConfig, ModelOutput
from lit_transformers.models.tokens import TokenEmbedding
from lit_transformers.printing.error_lines import first_line
from lit_transformers.records.record import Gate
from lit_transformers.training.reporting import Progress, Report

TOLERANCE = 1e-9


def check(config: ModelConfig, report: Report | None = None) -> list[Gate]:
    """Runs all gates of a model's config, in order. A gate that raises has failed, with the error as detail."""
    length = probe_length(config)
    probe = Probe(miniature(config, length), length)
    gates = gates_of(config)
    results = []
    for number, (name, run_gate) in enumerate(gates.items()):
        if report:
            report(Progress(number, len(gates), math.nan, {}, None, "gates"))
        try:
            with seeded():
                detail = run_gate(probe)
            results.append(Gate(name, True, detail))
        except Broken as error:
            results.append(Gate(name, False, str(error)))
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            results.append(Gate(name, False, f"{type(error).__name__}: {error}"))
    return results


def largest(*differences: Tensor | float) -> float:
    """Returns the size of the largest difference; NaN where one is no number, which ``max`` would pass over."""
    sizes = [size.abs().max().item() if isinstance(size, Tensor) else size for size in differences]
    return math.nan if any(map(math.isnan, sizes)) else max(sizes)


def is_small(difference: float, tolerance: float = TOLERANCE) -> bool:
    """Whether a difference is within rounding; NaN is not, though it is not larger than anything either."""
    return difference <= tolerance


class Broken(AssertionError):
    """A gate has failed; the message gives its measurement."""


def causal(probe: Probe) -> CausalNetwork:
    """Builds the network of a probe that reads segments in order, with enlarged weights."""
    return enlarged(require(probe.config, CausalModelConfig, "this gate checks").build(probe.data))


def bidirectional(probe: Probe) -> RowNetwork:
    """Builds the network of a probe that reads whole rows, with enlarged weights."""
    return enlarged(require(probe.config, RowModelConfig, "this gate checks").build(probe.data))


def paired(probe: Probe) -> tuple[PairNetwork, Tensor]:
    """Builds the network of a probe that reads pairs, with enlarged weights, and returns it with random sources."""
    network = require(probe.config, PairModelConfig, "this gate checks").build(probe.data)
    return enlarged(network), probe.symbols()


def no_future_by_change(probe: Probe) -> str:
    """Checks that changing a language model's symbols after t leaves its outputs up to t unchanged."""
    network = causal(probe)
    return check_causality(probe, lambda symbols: network(symbols).hidden)


def no_later_symbol_where_causal(probe: Probe) -> str:
    """Checks that changing a row's symbols after t leaves the outputs of a causal encoder up to t unchanged, and that
    they have no gradient with respect to these."""
    if require(probe.config, RowModelConfig, "this gate checks").first_sees_all:
        return "not asked: every symbol sees every other"
    network = bidirectional(probe)

    def read(symbols: Tensor) -> Tensor:
        return network.read_row(symbols, None, first(symbols)).hidden

    detail = check_causality(probe, read)
    check_gradients(probe, network.tokens, read)
    return detail


def no_later_target_by_change(probe: Probe) -> str:
    """Checks that changing an encoder-decoder's target after t leaves its outputs up to t unchanged."""
    network, source = paired(probe)
    return check_causality(probe, lambda symbols: network(source, symbols).hidden)


def check_causality(probe: Probe, read: Callable[[Tensor], Tensor]) -> str:
    """Compares the outputs up to t of rows that differ after t."""
    original, worst = probe.symbols(), 0.0
    for t in (0, probe.length // 2, probe.length - 2):
        changed = original.clone()
        changed[:, t + 1 :] = (changed[:, t + 1 :] + 7) % probe.vocabulary
        difference = read(original)[:, : t + 1] - read(changed)[:, : t + 1]
        worst = largest(worst, difference)
    if not is_small(worst):
        raise Broken(f"symbols after t change predictions up to t by {worst:.3g}")
    return f"largest change {worst:.1g}"


def no_future_by_gradient(probe: Probe) -> str:
    """Checks that no output of a language model has a gradient with respect to a later input."""
    network = causal(probe)
    return check_gradients(probe, network.tokens, lambda symbols: network(symbols).hidden)


def no_later_target_by_gradient(probe: Probe) -> str:
    """Checks that no output of an encoder-decoder has a gradient with respect to a later target symbol."""
    network, source = paired(probe)
    encoded = network.encode(source).hidden.detach()
    return check_gradients(probe, network.tokens, lambda symbols: network.decode(symbols, encoded).hidden)


def check_gradients(probe: Probe, tokens: TokenEmbedding, read: Callable[[Tensor], Tensor]) -> str:
    """Checks the gradients of the output at t with respect to the embeddings of all symbols."""
    x = tokens.embed(probe.symbols()).detach()
    leaves: list[Tensor] = []

    def embed(_: Tensor) -> Tensor:
        leaves.append(x.clone().requires_grad_())
        return leaves[-1]

    tokens.embed = embed  # type: ignore[method-assign, assignment]
    for t in (0, probe.length // 2):
        read(probe.symbols())[:, t].square().sum().backward()
        gradient = leaves[-1].grad
        leak = 0.0 if gradient is None else largest(gradient[:, t + 1 :])
        if not is_small(leak):
            raise Broken(f"the output at {t} has a gradient of {leak:.3g} with respect to later inputs")
    return "no gradient from later inputs"


def padding_changes_nothing(probe: Probe) -> str:
    """Checks that symbols at padded positions do not affect the real positions of a language model."""
    network = causal(probe)
    return check_padding(probe, lambda symbols, padding_mask: network(symbols, padding_mask=padding_mask).hidden)


def padding_is_not_read(probe: Probe) -> str:
    """Checks that symbols at padded positions do not affect the real positions of an encoder."""
    network = bidirectional(probe)
    return check_padding(
        probe, lambda symbols, padding_mask: network.read_row(symbols, padding_mask, first(symbols)).hidden
    )


def padding_of_sources_changes_nothing(probe: Probe) -> str:
    """Checks that padding in the sources of an encoder-decoder does not affect any output for the target."""
    network, target = paired(probe)
    return check_padding(probe, lambda symbols, padding_mask: network(symbols, target, padding_mask).hidden)


def padding_of_targets_changes_nothing(probe: Probe) -> str:
    """Checks that padding in the targets of an encoder-decoder does not affect the real positions."""
    network, source = paired(probe)
    return check_padding(
        probe, lambda symbols, padding_mask: network(source, symbols, padding_mask=padding_mask).hidden
    )


def check_padding(probe: Probe, read: Callable[[Tensor, Tensor | None], Tensor]) -> str:
    """Compares the outputs of rows with different symbols in their padding, and of rows without padding."""
    original, real_length = probe.symbols(), probe.length - 5
    padding_mask = torch.arange(probe.length).expand_as(original) < real_length
    zeroed = original.masked_fill(~padding_mask, 0)
    padded, zero_padded, unpadded = (
        read(symbols, mask)[:, :real_length]
        for symbols, mask in ((original, padding_mask), (zeroed, padding_mask), (original[:, :real_length], None))
    )
    worst = largest(padded - zero_padded, padded - unpadded)
    if not is_small(worst):
        raise Broken(f"padding changes real positions by {worst:.3g}")
    return f"largest change {worst:.1g}"


def first(symbols: Tensor) -> Tensor:
    """Returns a mask (b, t) that is True at the first token of every row."""
    return (torch.arange(symbols.size(1)) == 0).expand_as(symbols)


def streams(probe: Probe) -> str:
    """Checks that segments with state give the outputs of one pass, where memory holds the whole history."""
    length = probe.length
    memories = {path: covering(length) for path, _ in probe.config.leaves_with(Memory)}
    if probe.config.mixer.promises().constant_reach:
        return "not asked: every query sees a fixed number of tokens"
    try:
        config = probe.config.override(memories)
    except ConfigError:  # a mixer with a field for memory that has no use for it in this configuration
        config = probe.config
    network, symbols = causal(probe._replace(config=config)), probe.symbols()
    if not config.mixer.promises().streams:
        return "not asked: the mixer makes no such promise"
    cuts = [0, length * 7 // 24, length * 7 // 24 + 1, length * 20 // 24, length]
    worst = 0.0
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            worst = largest(worst, in_pieces(network, symbols, cuts))
    if not is_small(worst):
        raise Broken(f"four segments and one pass differ by {worst:.3g}")
    return f"largest difference {worst:.1g}"


def decoding_equals_one_pass(probe: Probe) -> str:
    """Checks that reading a target symbol by symbol gives the outputs of one pass, where memory holds all of it."""
    decoder_mixer = probe.config.get("decoder_mixer")
    if decoder_mixer.promises().constant_reach:
        return "not asked: every query sees a fixed number of tokens"
    memories = decoder_mixer.leaves_with(Memory, "decoder_mixer.")
    changes = {path: covering(probe.length) for path, value in memories if value}
    network, source = paired(probe._replace(config=probe.config.override(changes)))
    if network.unreadable:
        return "not asked: the decoder's mixer makes no such promise"
    with torch.no_grad():
        encoded = network.encode(source).hidden
        decode = partial(network.decode, source=encoded)
        worst = in_pieces(lambda symbols, state: decode(symbols, state=state), probe.symbols(), range(probe.length + 1))
    if not is_small(worst):
        raise Broken(f"symbol by symbol and in one pass differ by {worst:.3g}")
    return f"largest difference {worst:.1g}"


def in_pieces(read: Callable[[Tensor, Any], ModelOutput], text: Tensor, cuts: Sequence[int]) -> float:
    """Returns the largest difference between the outputs of text read in pieces and of text read in one pass."""
    expected, state, outputs = read(text, None).hidden, None, []
    for start, stop in pairwise(cuts):
        output = read(text[:, start:stop], state)
        state = output.state
        outputs.append(output.hidden)
    return largest(torch.cat(outputs, dim=1) - expected)


def emptied_lanes_start_anew(probe: Probe) -> str:
    """Checks that a lane whose state was emptied gives the outputs of a first segment."""
    network, first, second = causal(probe), probe.symbols(), probe.symbols()
    state = empty_rows(network(first).state, torch.tensor([True, False]))
    worst = largest(network(second, state).hidden[0] - network(second).hidden[0])
    if not is_small(worst):
        raise Broken(f"a lane that was emptied remembers: it differs by {worst:.3g}")
    return f"largest difference {worst:.1g}"


def every_parameter_learns(probe: Probe) -> str:
    """Checks that every parameter of a language model has a gradient, over enough segments that tokens leave memory."""
    network = causal(probe).train()
    memories = [value for _, value in probe.config.leaves_with(Memory)]
    state, loss = None, torch.zeros((), dtype=torch.float64)
    for _ in range(2 + max(memories, default=0) // probe.length):
        output = network(probe.symbols(4), state)
        state = output.state
        loss = loss + network.tokens.nll(output.hidden, probe.symbols(4)).sum() + sum(output.aux.values())
    return learning(network, loss)


def every_parameter_of_an_encoder_learns(probe: Probe) -> str:
    """Checks that every parameter of an encoder has a gradient where each position predicts a symbol, in an order of
    the row too if it can."""
    network = bidirectional(probe).train()
    symbols = probe.symbols(4)
    segments = halves(probe, symbols)
    output = network.read_row(symbols, None, first(symbols), segments)
    nats = network.tokens.nll(network.predict(output.hidden), probe.symbols(4))
    loss = nats.sum() + sum(output.aux.values())
    if predicts_in_order(probe):
        ordered = network.read_in_order(in_order(symbols, random_places(symbols))._replace(segments=segments))
        loss = loss + network.tokens.nll(network.predict(ordered.hidden), symbols).sum()
    return learning(network, loss)


def predicts_in_order(probe: Probe) -> bool:
    """Whether the network of a probe predicts symbols in an order of their row."""
    return require(probe.config, RowModelConfig, "this gate checks").predicts_in_order


def halves(probe: Probe, symbols: Tensor) -> Tensor:
    """Returns segments (b, t): two halves of each row, or one where a field of the config allows for no second one."""
    fewest = min((count for _, count in probe.config.leaves_with(Segments) if count), default=2)
    is_second = torch.arange(symbols.size(1)) >= symbols.size(1) // 2
    return (is_second & (fewest > 1)).long().expand_as(symbols)


def random_places(symbols: Tensor) -> Tensor:
    """Returns the places (b, t) of symbols in a random order of each row."""
    return torch.rand(symbols.shape).argsort(dim=1)


def in_order(symbols: Tensor, places: Tensor) -> OrderedRows:
    """Returns rows in which each symbol is predicted from those of lower places."""
    at = torch.arange(symbols.size(1)).expand_as(symbols)
    return OrderedRows(symbols, places, at, None, first(symbols))


def predictions_in_order_see_what_is_before_them(probe: Probe) -> str:
    """Checks that no prediction in an order of a row changes with its own symbol or with those after it, and that it
    changes with those before it. The row is read with the state of an earlier row."""
    network = bidirectional(probe)
    if not predicts_in_order(probe):
        return "not asked: it predicts in no order of a row"
    symbols, earlier = probe.symbols(), probe.symbols()
    places, worst, least = random_places(symbols), 0.0, math.inf
    state = network.read_in_order(in_order(earlier, random_places(earlier))).state
    for place in (0, probe.length // 2, probe.length - 1):
        changed = torch.where(places < place, symbols, (symbols + 7) % probe.vocabulary)
        original, other = (network.read_in_order(in_order(row, places), state).hidden for row in (symbols, changed))
        difference = (original - other).abs().amax(dim=-1)
        worst = largest(worst, difference[places <= place])
        if place < probe.length - 1:
            least = min(least, difference[places == probe.length - 1].min().item())
    if not is_small(worst):
        raise Broken(f"symbols that a prediction is not to see, its own or later ones, change it by {worst:.3g}")
    if not least > TOLERANCE:
        raise Broken("the last prediction of a row does not depend on the symbols before it")
    return f"largest change {worst:.1g}"


def divided(probe: Probe, question_width: int) -> tuple[RowNetwork, Tensor, Tensor] | None:
    """Builds the network of a probe for questions of a width, with enlarged weights. Returns it with random symbols and
    the segments of their rows; None where all of its layers read whole rows."""
    labels, vocabulary = SpanLabels(), probe.data.vocabulary
    data = LabelledDescription(
        vocabulary=vocabulary, length=probe.length, labels=labels, segments=2, question_width=question_width
    )
    network, symbols = require(probe.config, RowModelConfig, "this gate checks").build(data), probe.symbols()
    segments = (torch.arange(probe.length) >= question_width).long().expand_as(symbols)
    return (enlarged(network), symbols, segments) if network.apart else None


def texts_pass_the_lower_layers_apart(probe: Probe) -> str:
    """Checks that no output of the lower layers of a deformer for a text changes with the other text of its row."""
    built = divided(probe, probe.length // 3)
    if built is None:
        return "not asked: every layer reads whole rows"
    network, symbols, segments = built
    original, worst = network.read_layers(symbols, None, first(symbols), segments).layers, 0.0
    for changed_text in (0, 1):
        changed = torch.where(segments == changed_text, (symbols + 7) % probe.vocabulary, symbols)
        layers = network.read_layers(changed, None, first(symbols), segments).layers
        others = segments[0] != changed_text
        differences = [largest((a - b)[:, others]) for a, b in zip(original, layers, strict=True)]
        worst = largest(worst, *differences[: network.apart + 1])
    if not is_small(worst):
        raise Broken(f"a text changes the states of the other in the lower layers by {worst:.3g}")
    return f"largest change {worst:.1g}"


def passages_are_read_before_their_questions(probe: Probe) -> str:
    """Checks that a deformer reads questions with the states of passages that were computed before, without their
    padding, as it reads the rows of both, and that padding between the texts changes nothing."""
    width = probe.length // 3
    built = divided(probe, width)
    if built is None:
        return "not asked: every layer reads whole rows"
    network, symbols, segments = built
    places, end = torch.arange(probe.length), probe.length - 3
    real = ((places < width - 2) | (places >= width)) & (places < end)
    mask = real.expand_as(symbols)
    zeroed = symbols.masked_fill(~mask, 0)
    row, other = (network.read_row(rows, mask, first(symbols), segments * mask).hidden for rows in (symbols, zeroed))
    states = network.lower_states(symbols[:, width:end])
    read = network.read_with(symbols[:, :width], mask[:, :width], states).hidden
    worst = largest((row - other)[:, real], (row[:, :end] - read)[:, real[:end]])
    if not is_small(worst):
        raise Broken(f"rows and states of passages computed before differ by {worst:.3g}")
    return f"largest difference {worst:.1g}"


def every_parameter_of_both_sides_learns(probe: Probe) -> str:
    """Checks that every parameter of an encoder-decoder has a gradient, except those that no part of it reads."""
    network, source = paired(probe)
    output = network.train()(probe.symbols(2), probe.symbols(2))
    aux = sum((*output.source_aux.values(), *output.aux.values()))
    return learning(network, network.tokens.nll(output.hidden, source).sum() + aux)


def learning(network: nn.Module, loss: Tensor) -> str:
    """Raises Broken with the names of the trainable parameters that the gradient of a loss does not reach, or whose
    gradient is not finite."""
    loss.backward()
    gradients = {name: p.grad for name, p in network.named_parameters() if p.requires_grad}
    unreached = [name for name, gradient in gradients.items() if gradient is None or not gradient.any()]
    if unreached:
        raise Broken(f"no gradient reaches {', '.join(unreached)}")
    if broken := not_finite(gradients):
        raise Broken(f"the gradient of {', '.join(broken)} is not finite")
    return f"{sum(1 for _ in network.parameters())} tensors"


def not_finite(tensors: Mapping[str, Tensor | None]) -> list[str]:
    """Returns the names of tensors that hold NaN or infinity."""
    return [name for name, tensor in tensors.items() if tensor is not None and not tensor.isfinite().all()]


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
    "no future where causal": no_later_symbol_where_causal,
    "predictions in order see the symbols before them": predictions_in_order_see_what_is_before_them,
    "every parameter learns": every_parameter_of_an_encoder_learns,
}
DIVIDED: dict[str, Callable[[Probe], str]] = {
    **BIDIRECTIONAL,
    "texts pass the lower layers apart": texts_pass_the_lower_layers_apart,
    "passages are read before their questions": passages_are_read_before_their_questions,
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
    """Returns the gates of a family. Raises ConfigError where it names none, or none that exist."""
    if not config.gates:
        raise ConfigError(f"no gates are known of a model of kind {config.kind}: it cannot be a run", "model")
    try:
        gates: dict[str, Callable[[Probe], str]] = resolve_name(config.gates)
    except (ImportError, AttributeError) as error:
        way_out = f"name a table of gates in gates of {type(config).__name__}, such as {__name__}:CAUSAL"
        raise ConfigError(f"{config.gates} cannot be imported: {first_line(error)}; {way_out}", "model") from None
    return gates
