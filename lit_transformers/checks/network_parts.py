"""Checks of the parts of networks from outside: mixers, encodings, positions, stacks, feed-forwards, embeddings, and
whole families."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lit_transformers.adapters import AdapterConfig, LowRankConfig, adapter_names
from lit_transformers.adapters.low_rank import LowRank
from lit_transformers.attention.executors import Inputs, attend, dense, with_tables
from lit_transformers.attention.patterns import Band
from lit_transformers.attention.relative import Relative
from lit_transformers.batch import IGNORED
from lit_transformers.checks.part_checks import PartChecks, require_effects
from lit_transformers.config import Config, ConfigError, field_types
from lit_transformers.encodings import EncodingConfig
from lit_transformers.encodings.positions import PositionError, PositionsConfig
from lit_transformers.gates import gates
from lit_transformers.gates.gates import Broken, is_small, largest
from lit_transformers.gates.inert_fields import changes_nothing
from lit_transformers.gates.miniature import SHORTEST, VOCABULARY, Probe, miniature, probe_length
from lit_transformers.maps import LinearMap
from lit_transformers.mixer import Context, LengthError, MixerConfig, Mode, Shape
from lit_transformers.mixers import AttentionConfig
from lit_transformers.models import EncoderConfig, EncoderDecoderConfig, LanguageModelConfig, ModelConfig
from lit_transformers.models.capabilities import CausalNetwork, PairNetwork, RowNetwork
from lit_transformers.models.tokens import TokenEmbeddingConfig
from lit_transformers.records.record import Gate
from lit_transformers.runs.config import RunConfig
from lit_transformers.stacks import StackConfig
from lit_transformers.stacks.feedforward import TransitionConfig
from lit_transformers.tasks import TaskConfig

__all__ = ["DIM", "HEADS", "checks", "count_flops", "modes_are_promised_or_refused", "objectives"]

DIM, HEADS = 16, 2
FLOPS_TOLERANCE = 0.02
"""How far the FLOPs of a formula may be from those counted, as a share."""
EXPLAINED: tuple[Mode, ...] = ("causal", "bidirectional", "cross")
"""The modes that a mixer promises or refuses with a reason; of "permuted" it may say nothing."""


def checks(case: Config) -> PartChecks:
    """Yields the checks of a part of a network, or of a whole one; none of another part."""
    networks = dict(_networks(case))
    for place, network in networks.items():
        prefix = f"{place}: " if len(networks) > 1 else ""
        yield f"{prefix}gates", partial(_check_gates, network, prefix)
        yield f"{prefix}weights tell all", partial(weights_tell_all, network)
    match case:
        case MixerConfig():
            yield "modes", lambda: modes_are_promised_or_refused(case)
            yield "FLOPs equal the count", lambda: _check_flops(case)
        case TransitionConfig():
            yield "FLOPs equal the count", lambda: _check_transition_flops(case)
        case StackConfig() | ModelConfig():
            yield "FLOPs equal the count", lambda: _check_network_flops(next(_networks(case))[1])
        case AdapterConfig():
            for place, network in networks.items():
                yield f"{place}: adds nothing at its start", partial(adds_nothing_at_its_start, network)
                yield f"{place}: learns from its start", partial(learns_from_its_start, network)
                yield f"{place}: FLOPs equal the count", partial(_check_network_flops, network)
        case EncodingConfig():
            yield "the distance alone counts", lambda: distance_alone_counts(case)
            yield "order counts", lambda: order_counts(case)
            yield "longer rows", lambda: reads_longer_rows(case)
            yield "blocks equal dense scores", lambda: blocks_equal_dense(case)
        case PositionsConfig():
            yield "every position differs", lambda: every_position_differs(case)
            yield "longer rows", lambda: places_longer_rows(case)
        case TokenEmbeddingConfig():
            yield "probabilities sum to one", lambda: probabilities_sum_to_one(case)
            yield "loss is the probability's", lambda: loss_is_of_the_probability(case)
    if networks:
        yield "every field has an effect", lambda: require_effects(case, _alike, "losses, weights or memory")


def modes_are_promised_or_refused(case: MixerConfig) -> str:
    """Checks that a mixer promises each mode or says why it has not got it, for whoever puts it there."""
    promises = case.promises()
    if missing := [mode for mode in EXPLAINED if mode not in promises.modes and not promises.refusals.get(mode)]:
        raise Broken(
            f"it neither promises nor refuses to be {' or '.join(missing)}; give the reason in refusals of promises(), "
            "by the name of the mode, or the mode in modes"
        )
    if both := [mode for mode in promises.refusals if mode in promises.modes]:
        raise Broken(f"it promises to be {' and '.join(both)} and refuses it; remove the mode or the refusal")
    refused = [mode for mode in EXPLAINED if mode not in promises.modes]
    return f"refused with a reason: {', '.join(refused)}" if refused else "all are promised"


def _networks(case: Config) -> Iterator[tuple[str, ModelConfig]]:
    """Yields small models that hold a part, each after a name for its use of the part; none for a config that is no
    part of a model."""
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
        case AdapterConfig():
            yield small.kind, small.override({"adapter": case})
            yield EncoderDecoderConfig.kind, EncoderDecoderConfig(dim=DIM, heads=HEADS, depth=2, adapter=case)


def _check_gates(network: ModelConfig, prefix: str) -> list[Gate]:
    """Returns the gates of a model, each with a prefix of its name."""
    return [Gate(f"{prefix}{gate.name}", gate.passed, gate.detail) for gate in gates.check(network)]


def weights_tell_all(config: ModelConfig) -> str:
    """Checks that a newly built network computes the outputs of another one once it has the weights of that network. A
    run that resumes from a checkpoint relies on this."""
    length = probe_length(config)
    probe = Probe(miniature(config, length), length)
    first, second = (probe.config.build(probe.data).double().eval() for _ in range(2))
    symbols = probe.symbols()
    expected = _hidden(first, symbols)
    second.load_state_dict(first.state_dict())
    difference = largest(_hidden(second, symbols) - expected)
    if not is_small(difference):
        raise Broken(
            f"with the weights of a checkpoint it differs by {difference:.3g} from the network that wrote it; hold all "
            "that is drawn or learned as parameters or buffers"
        )
    return f"largest difference {difference:.1g}"


def _hidden(network: nn.Module, symbols: Tensor) -> Tensor:
    """Returns the vectors of a network for rows of symbols, by the same random numbers in every call."""
    torch.manual_seed(0)
    with torch.no_grad():
        return _read(network, symbols)


def _read(network: nn.Module, symbols: Tensor) -> Tensor:
    match network:
        case CausalNetwork():
            return network(symbols).hidden
        case RowNetwork():
            return network.read_row(symbols, None, gates.first(symbols)).hidden
        case PairNetwork():
            return network(symbols.flip(0), symbols).hidden
    raise TypeError(f"{type(network).__name__} is no network of a capability; build on one of models/capabilities.py")


def count_flops(module: Callable[..., Any], *inputs: Any) -> int:
    """Counts the FLOPs of a forward pass; the unfused kernel is the one whose products the counter sees on every
    device."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(*inputs)
    return counter.get_total_flops()


def compare_flops(formula: float, counted: float, place: str) -> float:
    """Returns the share by which a formula misses a count. Raises Broken where that is more than FLOPS_TOLERANCE."""
    error = abs(formula - counted) / max(counted, 1)
    if error > FLOPS_TOLERANCE:
        raise Broken(f"{place}: the formula says {formula:,.0f}, counted are {counted:,.0f}; correct flops")
    return error


def _check_flops(case: MixerConfig) -> str:
    """Compares formula and count for a row that is read in one pass, in each direction that the mixer promises, without
    adapters and with adapters on all of its maps that have a role."""
    worst, length = 0.0, 2 * SHORTEST
    for mode in ("causal", "bidirectional"):
        if mode not in case.promises().modes:
            continue
        mixer = case.build(Shape(DIM, HEADS, length, shared={}))
        ctx = Context(torch.arange(length)[None], causal=mode == "causal")
        for adapted in ("", ADAPTED):
            if adapted and not adapt_maps(mixer):
                break
            counted = count_flops(mixer, torch.randn(1, length, DIM), ctx)
            formula = mixer.flops(length, 0, causal=mode == "causal")
            worst = max(worst, compare_flops(formula, counted, f"{mode}, {length} tokens{adapted}"))
    return f"within {worst:.1%}"


SMALL_STEP = 1e-4
"""The largest change of a weight in an update that shows which weights learn; a larger one would silence a ReLU."""
ADAPTED = ", with adapters on its maps, whose FLOPs LinearMap.flops has"


def adapt_maps(sublayer: nn.Module) -> int:
    """Puts an adapter of low rank on each map of a sublayer that has a role. Returns the number of these maps."""
    linears = [module for module in sublayer.modules() if isinstance(module, LinearMap)]
    for linear in linears:
        linear.adapter = LowRank(LowRankConfig(), linear)
    return len(linears)


def _check_transition_flops(case: TransitionConfig) -> str:
    layer, worst = case.build(Shape(DIM, HEADS, SHORTEST)), 0.0
    for adapted in ("", ADAPTED):
        if adapted and not adapt_maps(layer):
            break
        counted = count_flops(layer, torch.randn(1, 9, DIM), Context(torch.arange(9)[None], causal=True))
        worst = max(worst, compare_flops(layer.flops(9), counted, f"9 tokens{adapted}"))
    return f"within {worst:.1%}"


def _check_network_flops(config: ModelConfig) -> str:
    """Compares formula and count for a row, without the softmax, or for a source and a target of equal lengths."""
    length = probe_length(config)
    probe = Probe(miniature(config, length), length)
    network, row = probe.config.build(probe.data).eval(), probe.symbols(1)
    source = length if isinstance(network, PairNetwork) else 0
    counted = count_flops(lambda: _hidden(network, row))
    place = f"{length} tokens"
    return (
        f"within {compare_flops(network.flops(length, 0, source) - network.softmax_flops(length), counted, place):.1%}"
    )


def adds_nothing_at_its_start(config: ModelConfig) -> str:
    """Checks that a network with adapters starts with the outputs of the network without them."""
    probe = Probe(miniature(config, SHORTEST), SHORTEST)
    network = probe.config.build(probe.data).double().eval()
    plain = probe.config.override({"adapter": None}).build(probe.data).double().eval()
    own = adapter_names(network)
    if not own:
        raise Broken("the network has no adapter; return an Adapter, or set that of a LinearMap")
    plain.load_state_dict({name: tensor for name, tensor in network.state_dict().items() if name not in own})
    symbols = probe.symbols()
    difference = largest(_hidden(network, symbols) - _hidden(plain, symbols))
    if not is_small(difference):
        raise Broken(
            f"at its start it changes the output of the network by {difference:.3g}; start its last map at zero, by "
            "reset_parameters"
        )
    return f"largest difference {difference:.1g}"


def learns_from_its_start(config: ModelConfig) -> str:
    """Checks that in a few updates every weight of a network's adapters gets a gradient, though at their start they
    add nothing."""
    probe = Probe(miniature(config, SHORTEST), SHORTEST)
    network = probe.config.build(probe.data).double().eval()
    own, symbols = adapter_names(network), probe.symbols()
    weights = {name: weight for name, weight in network.named_parameters() if name in own and weight.requires_grad}
    direction, learned = torch.randn_like(_hidden(network, symbols)), set[str]()
    for _ in range(3):
        loss = (_read(network, symbols) * direction).sum()
        gradients = torch.autograd.grad(loss, [*weights.values()], allow_unused=True)
        for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
            if gradient is not None and gradient.any():
                learned.add(name)
                weight.data -= SMALL_STEP * gradient / gradient.abs().max()
    if unlearned := [name for name in weights if name not in learned]:
        raise Broken(f"in three updates no gradient reaches {', '.join(unlearned)}; start one of two factors at zero")
    return f"{len(weights)} tensors"


def _attention(case: EncodingConfig, length: int) -> nn.Module:
    """Builds a layer of attention with an encoding, in float64, with weights large enough to matter."""
    mixer = AttentionConfig(encoding=case).build(Shape(DIM, HEADS, length, shared={})).double().eval()
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return mixer


def _context(rows: int, length: int, padding_mask: Tensor | None = None) -> Context:
    return Context(torch.arange(length).expand(rows, length), False, padding_mask)


def distance_alone_counts(case: EncodingConfig) -> str:
    """Checks that a row gives the same wherever it stands: behind hidden tokens as at the beginning."""
    mixer, x, before = _attention(case, 2 * SHORTEST), torch.randn(2, 12, DIM).double(), 7
    expected = mixer(x, _context(2, 12)).y
    later, mask = torch.cat([torch.randn(2, before, DIM).double(), x], dim=1), torch.arange(12 + before) >= before
    y = mixer(later, _context(2, 12 + before, mask.expand(2, -1))).y[:, before:]
    difference = largest(y - expected)
    if not is_small(difference):
        raise Broken(
            f"a row that stands {before} tokens further on gives another output, by {difference:.3g}; compute scores "
            "from i - j alone, or make it a kind of positions"
        )
    return f"largest difference {difference:.1g}"


def order_counts(case: EncodingConfig) -> str:
    """Checks that attention with an encoding tells the order of the tokens that it reads."""
    mixer, x, order = _attention(case, SHORTEST), torch.randn(2, 12, DIM).double(), torch.randperm(12)
    difference = largest(mixer(x[:, order], _context(2, 12)).y - mixer(x, _context(2, 12)).y[:, order])
    if math.isnan(difference):
        raise Broken("its scores give outputs that are no numbers; keep them finite")
    if is_small(difference):
        raise Broken("tokens in another order give the same outputs in that order; use the distances in the scores")
    return f"outputs differ by {difference:.1g}"


def reads_longer_rows(case: EncodingConfig) -> str:
    """Checks that rows four times as long as those it was built for give finite outputs, or are refused."""
    mixer, x = _attention(case, SHORTEST), torch.randn(1, 4 * SHORTEST, DIM).double()
    remedy = "clip distances, or raise LengthError"
    return _finite_or_refused(
        lambda: mixer(x, _context(1, 4 * SHORTEST)).y, (LengthError, PositionError, ConfigError), "outputs", remedy
    )


def _finite_or_refused(
    compute: Callable[[], Tensor | None], refusals: tuple[type[Exception], ...], of: str, remedy: str
) -> str:
    """Returns whether the numbers computed from rows four times as long as a part was built for are finite or refused.

    refusals: the errors that refuse such rows. of: the computed numbers, in words. Raises Broken with the remedy
    otherwise.
    """
    longer = f"rows of {4 * SHORTEST} tokens, but it was built for {SHORTEST}"
    try:
        values = compute()
    except refusals as error:
        return f"refused: {error}"
    except (RuntimeError, IndexError) as error:
        raise Broken(f"{longer}: {error}; {remedy}") from None
    if values is None or not values.isfinite().all():
        raise Broken(f"{longer}: {of} are not finite; {remedy}")
    return "finite"


def blocks_equal_dense(case: EncodingConfig) -> str:
    """Checks that scores that are computed block by block, as training does, are those of the whole matrix."""
    width = DIM // HEADS
    encoding = case.build(Shape(DIM, HEADS, SHORTEST, shared={}), width).double()
    if not isinstance(encoding, Relative):
        return "not asked: it changes queries and keys, not scores"
    worst = 0.0
    for queries, keys, size in ((13, 13, 4), (7, 18, 3), (1, 9, 5)):
        q, k, v = (torch.randn(2, HEADS, count, width).double() for count in (queries, keys, keys))
        inputs = with_tables(encoding, Inputs(q, k, v, None), causal=True)
        blocked = attend(Band(None, 0), inputs, encoding=encoding, scale=0.3, size=size)
        worst = largest(worst, blocked - dense(Band(None, 0), inputs, encoding=encoding, scale=0.3))
    if not is_small(worst):
        raise Broken(
            f"block by block its scores give other outputs, by {worst:.3g}; read distances from the tables that "
            "added_scores receives, whose first row is that of the last query and the first key"
        )
    return f"largest difference {worst:.1g}"


def every_position_differs(case: PositionsConfig) -> str:
    """Checks that the first layer adds another vector at each position of a row, and finite ones."""
    positions = torch.arange(SHORTEST)[None]
    vectors = case.build(Shape(DIM, HEADS, SHORTEST)).double().eval().vectors(0, positions, torch.float64)
    if vectors is None or not vectors.isfinite().all():
        raise Broken("it adds nothing finite to the first layer; return vectors (b, t, d) from at for layer 0")
    rows = vectors[0]
    if len(rows.unique(dim=0)) < len(rows):
        raise Broken(
            f"of {len(rows)} positions some have the same vector, and no network tells them apart; give each its own"
        )
    return f"{len(rows)} vectors"


def places_longer_rows(case: PositionsConfig) -> str:
    """Checks that positions beyond those it was built for give finite vectors, or are refused."""
    positions = case.build(Shape(DIM, HEADS, SHORTEST)).eval()
    places = torch.arange(4 * SHORTEST)[None]
    remedy = "raise PositionError, and name the field to set"
    return _finite_or_refused(lambda: positions.vectors(0, places, torch.float32), (PositionError,), "vectors", remedy)


def _tokens(case: TokenEmbeddingConfig) -> tuple[Any, Tensor]:
    """Builds embeddings at the size of a probe, and returns them with random vectors (4, 6, d)."""
    tokens = case.override(case.shrunk(VOCABULARY)).build(VOCABULARY, DIM).double()
    for parameter in tokens.parameters():
        nn.init.normal_(parameter, std=0.5)
    return tokens, torch.randn(4, 6, DIM).double()


def probabilities_sum_to_one(case: TokenEmbeddingConfig) -> str:
    """Checks that the probabilities of all symbols sum to one."""
    tokens, hidden = _tokens(case)
    worst = largest(tokens.log_probabilities(hidden).exp().sum(dim=-1) - 1)
    if not is_small(worst, 1e-6):
        raise Broken(
            f"they sum to one but for {worst:.3g}, so that losses compare with no other; normalise over all symbols"
        )
    return f"within {worst:.1g}"


def loss_is_of_the_probability(case: TokenEmbeddingConfig) -> str:
    """Checks that the loss of a target is -log p of it, and 0 where there is none."""
    tokens, hidden = _tokens(case)
    targets = torch.arange(24).remainder(VOCABULARY).view(4, 6)
    expected = -tokens.log_probabilities(hidden).gather(-1, targets[..., None])[..., 0]
    targets, expected = targets.clone(), expected.clone()
    targets[0, 0], expected[0, 0] = IGNORED, 0.0
    worst = largest(tokens.nll(hidden, targets) - expected)
    if not is_small(worst, 1e-6):
        raise Broken(
            f"nll and log_probabilities differ by {worst:.3g}: training and decoding would see two models; compute "
            "both from the same logits, 0 where the target is IGNORED"
        )
    return f"largest difference {worst:.1g}"


def objectives() -> Iterator[tuple[str, type[TaskConfig], type[Any]]]:
    """Yields each objective by its kind, with the first kind of data that it reads."""
    data_kinds = field_types(RunConfig)["data"].kinds.values()
    for kind, task in TaskConfig.kinds.items():
        data = next((data for data in data_kinds if data.describes is task.reads), None)  # type: ignore[attr-defined]
        if data is not None:
            yield kind, task, data  # type: ignore[misc]


def _alike(part: Config, case: Config) -> bool:
    """Whether models with two parts compute the same, in a run of the first objective that trains both. One that no
    objective trains, or that cannot read the rows, is another one."""
    (_, arm), (_, baseline) = next(_networks(part)), next(_networks(case))
    refusals = []
    for kind, _, data in objectives():
        try:
            run = RunConfig.from_dict({"model": baseline, "task": kind, "data": data()})
        except ConfigError as error:
            refusals.append(str(error))
            continue
        try:
            return changes_nothing(run.override({"model": arm}), run)
        except (ConfigError, PositionError, LengthError):
            continue
    if len(refusals) == sum(1 for _ in objectives()):
        raise Broken(f"no objective trains a {baseline.kind}: {refusals[-1]}; list a config that can be as CASES")
    return False
