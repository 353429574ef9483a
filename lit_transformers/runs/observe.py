"""Observes the mechanisms of a trained network: learned spans and alphas, halting, and maps of attention.

Observing changes nothing: a few evaluation batches are read again, from the beginning, with a separate random state,
and the reports of the modules for the last batch are the result. So it is the same for a run that was interrupted.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.batch import row_lengths
from lit_transformers.config import Plain
from lit_transformers.mixer import Context, map_state
from lit_transformers.mixers.qkv import QKVMixer
from lit_transformers.observable import ModuleCall, Observable, recorded_calls
from lit_transformers.precision import full_precision
from lit_transformers.tasks import Task

READ = 4
"""Batches that are read, so that memory is filled when the last of them is observed."""
LONGEST = 512
"""The most tokens of a row that are observed."""
SIDE = 32
"""The number of parts that a map divides queries and keys into."""
MOST_HEADS = 8
LEAST = 4
"""A row of fewer tokens has no map."""
SEES_NOTHING = 1e-3
"""A query whose weights sum to less does not count in the mean distance that a head looks back."""


def observe(task: Task, batches: Iterable[Any]) -> dict[str, Plain]:
    """Returns the reports of the evaluated network on the last of the first few batches; empty if it reports nothing.

    The result is plain data: {"tokens": real tokens of that batch, "parts": [{"part", "values", "maps"}]}, under 50 kB.
    """
    was_training, first_batches = task.training, list(islice(batches, READ))
    if not first_batches:
        return {}
    task.eval()
    task.begin_evaluation()
    with torch.no_grad(), torch.random.fork_rng(), torch.compiler.set_stance("force_eager"):
        torch.manual_seed(0)
        *earlier_batches, last_batch = (task.transfer_batch_to_device(batch, task.device, 0) for batch in first_batches)
        for batch in earlier_batches:
            task.evaluation_output(batch)
        with recorded_calls(reporting_modules(task.evaluator())) as calls:
            task.evaluation_output(last_batch)
        parts = list(module_reports(calls))
    task.begin_evaluation()
    task.train(was_training)
    return {"tokens": int(last_batch.padding_mask.sum()), "parts": parts} if parts else {}


def reporting_modules(network: nn.Module) -> dict[str, nn.Module]:
    """Returns the modules that have something to report, by their paths."""
    modules: dict[str, nn.Module] = dict(network.named_modules())
    return {name: module for name, module in modules.items() if isinstance(module, Observable | QKVMixer)}


def module_reports(calls: Sequence[ModuleCall]) -> Iterator[dict[str, Plain]]:
    """Yields the reports of calls, each with the path of its module; only the first and last attention have maps."""
    attention = [place for place, call in enumerate(calls) if isinstance(call.module, QKVMixer)]
    mapped = {*attention[:1], *attention[-1:]}
    results = [call_report(call, place in mapped) for place, call in enumerate(calls)]
    reports = [(call, part) for call, part in zip(calls, results, strict=True) if part]
    for place, (call, part) in enumerate(reports):
        steps = [index for index, (other_call, _) in enumerate(reports) if other_call.name == call.name]
        step = f", step {steps.index(place) + 1}" if len(steps) > 1 else ""
        yield {"part": place_of(call.name) + step, **part}


def place_of(name: str) -> str:
    """Returns the path of a module with layers counted from 1: layer 1 is stack.blocks.0."""
    path = re.sub(r"(?:\bstack\.)?\bblocks\.(\d+)", lambda match: f"layer {int(match[1]) + 1}", name)
    return path.replace(".", " ")


def call_report(call: ModuleCall, with_maps: bool) -> dict[str, Plain]:
    """Returns the report of one call as plain data; ``with_maps``: includes attention maps."""
    values: dict[str, Tensor] = {}
    maps: list[Plain] = []
    if isinstance(call.module, Observable):
        values |= call.module.observed(call.inputs, call.output)
    if isinstance(call.module, QKVMixer) and (summary := attention_summary(call)) is not None:
        if call.inputs[1].causal:
            values["Mean distance that each head looks back, in tokens"] = summary.back
        if float(summary.weight.min()) < 1 - 1e-3:
            values["Share of the weight that each head keeps"] = summary.weight
        maps = [as_levels(weights) for weights in summary.map[:MOST_HEADS]] if with_maps else []
    plain = {name: [float(f"{number:.4g}") for number in numbers.tolist()] for name, numbers in values.items()}
    return ({"values": plain} if plain else {}) | ({"maps": maps} if maps else {})


class AttentionSummary(NamedTuple):
    """The attention of each head: the mean distance in tokens that queries look back, the mean sum of a query's
    weights, and the map of mean weights between n parts of the queries and n parts of the keys."""

    back: Float[Tensor, " h"]
    weight: Float[Tensor, " h"]
    map: Float[Tensor, "h n n"]


def attention_summary(call: ModuleCall) -> AttentionSummary | None:
    """Summarises how one row's queries weigh its keys; None for a row that is too short, and for cross-attention."""
    mixer, (x, ctx, *rest) = call.module, call.inputs
    assert isinstance(mixer, QKVMixer)
    row, length = longest_row(x, ctx)
    if length < LEAST or ctx.source is not None:
        return None
    marked = None if ctx.marked is None else ctx.marked[row, :length]
    real = None if ctx.padding_mask is None else ctx.padding_mask[row, :length]
    real = None if real is None or bool(real.all()) else real
    row_ctx = Context(ctx.positions[row, :length], ctx.causal, real, marked=marked, unbroken=ctx.unbroken)
    state = map_state(lambda tensor: tensor[row], rest[0]) if rest else None
    weights, places = weights_by_part(mixer, x[row, :length], row_ctx, state)
    totals, queries, side = weights.sum(dim=-1), weights.size(1), weights.size(2)
    sees = totals > SEES_NOTHING
    query_places = torch.arange(queries, device=x.device) - queries  # the last key stands at -1
    reach = ((query_places - places / totals.clamp(min=SEES_NOTHING)) * sees).sum(dim=-1) / sees.sum(dim=-1).clamp(
        min=1
    )
    rows = torch.arange(queries, device=x.device) * side // queries
    pooled = weights.new_zeros(weights.size(0), side, side).index_add(1, rows, weights)
    return AttentionSummary(reach, totals.mean(dim=-1), pooled / rows.bincount(minlength=side)[:, None])


def weights_by_part(
    mixer: QKVMixer, x: Float[Tensor, "1 t d"], ctx: Context, state: Any
) -> tuple[Float[Tensor, "h t n"], Float[Tensor, "h t"]]:
    """Returns the weight of each query on each of n equal runs of keys, and the sum of weight times the place of the
    key, which counts back from -1 at the last key."""
    inputs, _, segment = mixer.prepared(x, ctx, state)
    queries, keys = inputs.q.size(-2), inputs.k.size(-2)
    side, place = min(SIDE, queries), torch.arange(keys, device=x.device)
    runs = F.one_hot(place * side // keys, side)
    sums = mixer.weighted_sums(torch.cat([runs, (place - keys)[:, None]], dim=1), inputs, ctx, segment)
    weights, places = full_precision(torch.cat([part[0] for part in sums], dim=-1)).split([side, 1], dim=-1)
    return weights, places.squeeze(-1)


def longest_row(x: Float[Tensor, "b t d"], ctx: Context) -> tuple[slice, int]:
    """Returns the first of the longest rows without their padding at the end, as a slice, and how many of its tokens
    are observed."""
    if ctx.padding_mask is None:
        return slice(0, 1), min(LONGEST, x.size(1))
    lengths = row_lengths(ctx.padding_mask)
    row = int(lengths.argmax())
    return slice(row, row + 1), min(LONGEST, int(lengths[row]))


def as_levels(weights: Float[Tensor, "n n"]) -> dict[str, Plain]:
    """Encodes a map with one byte for each weight, 255 for the largest."""
    weights = weights.clamp(min=0)
    peak = float(weights.max())
    levels = (weights * (255 / max(peak, 1e-12))).round().to(torch.uint8).cpu()
    return {
        "side": weights.size(0),
        "peak": float(f"{peak:.4g}"),
        "levels": base64.b64encode(levels.numpy().tobytes()).decode(),
    }
