"""What a trained network is seen to do: learned spans and alphas, halting, and maps of attention.

It changes nothing: a few batches of evaluation are read once more, from the beginning, with random numbers of their
own, and what modules tell of the last of them is kept. So a run tells the same whether or not it was ever stopped.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.config import Plain
from lit_transformers.mixer import Context, full_precision, map_state
from lit_transformers.mixers.qkv import QKVMixer
from lit_transformers.observable import Observable
from lit_transformers.tasks import Task

READ = 4
"""Batches that are read, so that memory is filled when the last of them is looked at."""
LONGEST = 512
"""Tokens of a row that are looked at, at most."""
SIDE = 32
"""Parts that a map divides queries and keys into."""
MOST_HEADS = 8
LEAST = 4
"""A row of fewer tokens has no map."""
SEES_NOTHING = 1e-3
"""Of a query whose weights sum to less it is not asked how far it looks."""


class Call(NamedTuple):
    """One call of a module."""

    name: str
    module: nn.Module
    given: Sequence[Any]
    made: Any


def observe(task: Task, batches: Iterable[Any]) -> dict[str, Plain]:
    """What the network, as it is measured, tells of the last of the first few batches; nothing where it tells nothing.

    Plain data: {"tokens": real tokens of that batch, "parts": [{"part", "values", "maps"}]}, under 50 kB.
    """
    was_training, first = task.training, list(islice(batches, READ))
    if not first:
        return {}
    task.eval()
    task.begin_evaluation()
    with torch.no_grad(), torch.random.fork_rng(), torch.compiler.set_stance("force_eager"):
        torch.manual_seed(0)
        *before, last = (task.transfer_batch_to_device(batch, task.device, 0) for batch in first)
        for batch in before:
            task.measured(batch)
        with listened(task.evaluator()) as calls:
            task.measured(last)
        parts = list(told(calls))
    task.begin_evaluation()
    task.train(was_training)
    return {"tokens": int(last.keep.sum()), "parts": parts} if parts else {}


@contextmanager
def listened(network: nn.Module) -> Iterator[list[Call]]:
    """Every call, in the block, of a module that has something to tell."""
    calls: list[Call] = []

    def listen(name: str, module: Any) -> Any:
        return module.register_forward_hook(lambda module, given, made: calls.append(Call(name, module, given, made)))

    telling = [(name, part) for name, part in network.named_modules() if isinstance(part, Observable | QKVMixer)]
    handles = [listen(name, part) for name, part in telling]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def told(calls: Sequence[Call]) -> Iterator[dict[str, Plain]]:
    """What the calls tell, each part under the name of its place; maps of the first and of the last attention."""
    attention = [place for place, call in enumerate(calls) if isinstance(call.module, QKVMixer)]
    drawn = {*attention[:1], *attention[-1:]}
    found = [tell(call, place in drawn) for place, call in enumerate(calls)]
    telling = [(call, part) for call, part in zip(calls, found, strict=True) if part]
    for place, (call, part) in enumerate(telling):
        same = [other for other, (one, _) in enumerate(telling) if one.name == call.name]
        step = f", step {same.index(place) + 1}" if len(same) > 1 else ""
        yield {"part": place_of(call.name) + step, **part}


def place_of(name: str) -> str:
    """The path of a module as a reader counts: layer 1 is stack.blocks.0."""
    counted = re.sub(r"(?:\bstack\.)?\bblocks\.(\d+)", lambda found: f"layer {int(found[1]) + 1}", name)
    return counted.replace(".", " ")


def tell(call: Call, drawn: bool) -> dict[str, Plain]:
    """What one call tells, as plain data; ``drawn``: with maps."""
    values: dict[str, Tensor] = {}
    maps: list[Plain] = []
    if isinstance(call.module, Observable):
        values |= call.module.observed(call.given, call.made)
    if isinstance(call.module, QKVMixer) and (seen := looked_at(call)) is not None:
        if call.given[1].causal:
            values["Mean distance that each head looks back, in tokens"] = seen.back
        if float(seen.weight.min()) < 1 - 1e-3:
            values["Share of the weight that each head keeps"] = seen.weight
        maps = [as_levels(one) for one in seen.map[:MOST_HEADS]] if drawn else []
    plain = {name: [float(f"{number:.4g}") for number in numbers.tolist()] for name, numbers in values.items()}
    return ({"values": plain} if plain else {}) | ({"maps": maps} if maps else {})


class Looked(NamedTuple):
    """Of each head: the mean over queries of how far back they look, of the sum of their weights, and both cut into
    parts, queries by keys."""

    back: Float[Tensor, " h"]
    weight: Float[Tensor, " h"]
    map: Float[Tensor, "h n n"]


def looked_at(call: Call) -> Looked | None:
    """How one row's queries weigh its keys; None for a row too short, and where queries and keys are two sequences'."""
    mixer, (x, ctx, *rest) = call.module, call.given
    assert isinstance(mixer, QKVMixer)
    row, length = longest_row(x, ctx)
    if length < LEAST or ctx.source is not None:
        return None
    marked = None if ctx.marked is None else ctx.marked[row, :length]
    alone = Context(ctx.positions[row, :length], ctx.causal, marked=marked)
    state = map_state(lambda of_rows: of_rows[row], rest[0]) if rest else None
    weights, places = weights_by_part(mixer, x[row, :length], alone, state)
    total, queries, side = weights.sum(dim=-1), weights.size(1), weights.size(2)
    seeing = total > SEES_NOTHING
    own = torch.arange(queries, device=x.device) - queries  # the last key stands at -1
    back = ((own - places / total.clamp(min=SEES_NOTHING)) * seeing).sum(dim=-1) / seeing.sum(dim=-1).clamp(min=1)
    rows = torch.arange(queries, device=x.device) * side // queries
    gathered = weights.new_zeros(weights.size(0), side, side).index_add(1, rows, weights)
    return Looked(back, total.mean(dim=-1), gathered / rows.bincount(minlength=side)[:, None])


def weights_by_part(
    mixer: QKVMixer, x: Float[Tensor, "1 t d"], ctx: Context, state: Any
) -> tuple[Float[Tensor, "h t n"], Float[Tensor, "h t"]]:
    """The weight of each query on each of n equal runs of keys, and the sum of weight times the place of the key, which
    counts back from -1, the last.

    Attention is linear in its values, so values that say where a key stands come out as the weight that it is given,
    whatever pattern, encoding or softmax made it; what an encoding adds to the output by itself is taken off. What
    reaches the output by another way than the values of the keys (projections of global tokens) is not seen.
    """
    inputs, _, heard = mixer.prepared(x, ctx, state)
    queries, keys, width = inputs.q.size(-2), inputs.k.size(-2), inputs.v.size(-1)
    side, place = min(SIDE, queries), torch.arange(keys, device=x.device)
    runs = F.one_hot(place * side // keys, side)
    said = torch.cat([runs, (place - keys)[:, None]], dim=1).to(inputs.v.dtype)

    def answered(v: Float[Tensor, "s k"]) -> Float[Tensor, "h t k"]:
        y, _ = mixer.attend(inputs._replace(v=F.pad(v, (0, width - v.size(1))).expand_as(inputs.v)), ctx, heard)
        return y[0, ..., : v.size(1)]

    found = torch.cat([answered(v) - answered(torch.zeros_like(v)) for v in said.split(width, dim=1)], dim=-1)
    weights, places = full_precision(found).split([side, 1], dim=-1)
    return weights, places.squeeze(-1)


def longest_row(x: Float[Tensor, "b t d"], ctx: Context) -> tuple[slice, int]:
    """The first row with the most real tokens, and how many of them are looked at."""
    if ctx.keep is None:
        return slice(0, 1), min(LONGEST, x.size(1))
    real = ctx.keep.sum(dim=1)
    row = int(real.argmax())
    return slice(row, row + 1), min(LONGEST, int(real[row]))


def as_levels(weights: Float[Tensor, "n n"]) -> dict[str, Plain]:
    """A map in a byte each, 255 for its largest weight."""
    weights = weights.clamp(min=0)
    peak = float(weights.max())
    levels = (weights * (255 / max(peak, 1e-12))).round().to(torch.uint8).cpu()
    return {
        "side": weights.size(0),
        "peak": float(f"{peak:.4g}"),
        "levels": base64.b64encode(levels.numpy().tobytes()).decode(),
    }
