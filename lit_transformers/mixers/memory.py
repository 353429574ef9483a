"""The memory of one layer: its inputs of earlier segments, or what keys and values were made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

EVERYTHING = 1 << 30
"""A length of memory that forgets nothing."""

Project = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Inputs (b, s, d) to keys and values (b, h, s, k)."""


class Remembered(NamedTuple):
    """Keys and values of memory and segment (b, h, s, k), a flag of each key by its name (b, s), the inputs that keys
    were made of where they are at hand (b, s, d), and the state after the segment."""

    k: Float[Tensor, "b h s k"]
    v: Float[Tensor, "b h s k"]
    flags: Mapping[str, Bool[Tensor, "b s"]]
    hidden: Float[Tensor, "b s d"] | None
    state: dict[str, Tensor]


def of_source(
    source: Float[Tensor, "b s d"], state: Any, project: Project
) -> tuple[Float[Tensor, "b h s k"], Float[Tensor, "b h s k"], dict[str, Tensor] | None]:
    """Keys and values of another sequence, and the state that spares the next call from projecting it again.

    There is none while gradients are on, for W_k and W_v learn from each call. Raises ValueError where a state that was
    made without gradients is read with them.
    """
    if state is None:
        k, v = project(source)
        return k, v, None if torch.is_grad_enabled() else {"keys": k, "values": v}
    refuse_gradients()
    return state["keys"], state["values"], state


def refuse_gradients() -> None:
    """Of a state that holds what weights have made: they could not learn from it. Raises ValueError."""
    if torch.is_grad_enabled():
        raise ValueError("this state was made without gradients: start anew, or read on under torch.no_grad()")


def some_key(keep: Bool[Tensor, "b s"] | None) -> Bool[Tensor, "b s"] | None:
    """A source that is all padding is seen whole, for a softmax over nothing is no number; none reads its result."""
    return None if keep is None else keep | ~keep.any(dim=1, keepdim=True)


def unless_all(seen: Bool[Tensor, "b s"] | None) -> Bool[Tensor, "b s"] | None:
    """None where every key is seen, so that executors need no mask. Only asked where the answer lies on the host: a
    device would be waited for."""
    if seen is None or seen.device.type != "cpu" or torch.compiler.is_compiling():
        return seen
    return None if bool(seen.all()) else seen


def remember(
    length: int,
    x: Float[Tensor, "b t d"],
    flags: Mapping[str, Bool[Tensor, "b t"]],
    state: Any,
    project: Project,
    keep_hidden: bool = False,
) -> Remembered:
    """Reads a segment after its memory of at most ``length`` tokens, without gradient (arXiv:1901.02860, section 3.2:
    the input of layer n, not its output).

    While gradients are on, inputs are projected anew in every segment, because W_k and W_v learn from them. Without,
    the projections themselves are kept, which gives the same numbers and costs less, unless ``keep_hidden``.
    Raises ValueError where gradients are on and the state was made without: W_k and W_v could not learn from it.
    """
    if state is not None:
        flags = {name: torch.cat([state[name], flag], dim=1) for name, flag in flags.items()}
    hidden = None
    if torch.is_grad_enabled() or keep_hidden if state is None else "hidden" in state:
        hidden = x if state is None else torch.cat([state["hidden"].to(x.dtype), x], dim=1)
        k, v = project(hidden)
        kept = {"hidden": hidden[:, -length:].detach()}
    else:
        k, v = project(x)
        if state is not None:
            refuse_gradients()
            k, v = torch.cat([state["keys"], k], dim=2), torch.cat([state["values"], v], dim=2)
        kept = {"keys": k[:, :, -length:], "values": v[:, :, -length:]}
    return Remembered(k, v, flags, hidden, kept | {name: flag[:, -length:] for name, flag in flags.items()})
