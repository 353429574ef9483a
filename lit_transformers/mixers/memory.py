"""The memory of one layer: its inputs in earlier segments, or the keys and values computed from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

EVERYTHING = 1 << 30
"""A memory length that keeps every token."""

Project = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Maps inputs (b, s, d) to keys and values (b, h, s, k)."""


class MemoryOutput(NamedTuple):
    """Keys and values of memory and segment (b, h, s, k), named flags of each key (b, s), the inputs that keys were
    computed from if they are available (b, s, d), and the state after the segment."""

    k: Float[Tensor, "b h s k"]
    v: Float[Tensor, "b h s k"]
    flags: Mapping[str, Bool[Tensor, "b s"]]
    hidden: Float[Tensor, "b s d"] | None
    state: dict[str, Tensor]


def of_source(
    source: Float[Tensor, "b s d"], state: Any, project: Project
) -> tuple[Float[Tensor, "b h s k"], Float[Tensor, "b h s k"], dict[str, Tensor] | None]:
    """Returns keys and values of another sequence, and a state with which the next call need not project it again.

    The state is None while gradients are on, for W_k and W_v learn from each call. Raises ValueError where a state that
    was computed without gradients is read with gradients on.
    """
    if state is None:
        k, v = project(source)
        return k, v, None if torch.is_grad_enabled() else {"keys": k, "values": v}
    refuse_gradients()
    return state["keys"], state["values"], state


def refuse_gradients() -> None:
    """Raises ValueError if gradients are on: the weights could not learn from a state that holds their outputs."""
    if torch.is_grad_enabled():
        raise ValueError("this state was made without gradients: start anew, or read on under torch.no_grad()")


def some_key(padding_mask: Bool[Tensor, "b s"] | None) -> Bool[Tensor, "b s"] | None:
    """Unmasks every key of a source that is all padding, for a softmax over no key is NaN; its result is not used."""
    return None if padding_mask is None else padding_mask | ~padding_mask.any(dim=1, keepdim=True)


def needs_mask(state: Any, unbroken: int) -> bool:
    """Whether a query may not see every token of memory: ``unbroken`` (``Context.unbroken``) are fewer than it holds.
    The values of the mask are not read, for which a device would have to be waited for."""
    return state is not None and bool(state["key_mask"].size(1) > unbroken)


def remember(
    length: int,
    x: Float[Tensor, "b t d"],
    flags: Mapping[str, Bool[Tensor, "b t"]],
    state: Any,
    project: Project,
    keep_hidden: bool = False,
    reused: int | None = None,
) -> MemoryOutput:
    """Reads a segment after its memory of at most ``length`` tokens, without gradient (arXiv:1901.02860, section 3.2:
    the input of layer n, not its output).

    While gradients are on, inputs are projected again in every segment, because W_k and W_v learn from them. Otherwise
    the state holds the projections, which gives the same numbers and costs less, unless ``keep_hidden`` is set.
    reused: how many tokens of the segment, the first ones, enter memory (reuse_len of XLNet's code); None: all.
    Raises ValueError if gradients are on and the state was computed without: W_k and W_v could not learn from it.
    """
    if state is not None:
        flags = {name: torch.cat([state[name], flag], dim=1) for name, flag in flags.items()}
    stop = next(iter(flags.values())).size(1) - (0 if reused is None else x.size(1) - reused)
    kept = slice(max(0, stop - length), stop)
    hidden = None
    if torch.is_grad_enabled() or keep_hidden if state is None else "hidden" in state:
        hidden = x if state is None else torch.cat([state["hidden"].to(x.dtype), x], dim=1)
        k, v = project(hidden)
        new_state = {"hidden": hidden[:, kept].detach()}
    else:
        k, v = project(x)
        if state is not None:
            refuse_gradients()
            k, v = torch.cat([state["keys"], k], dim=2), torch.cat([state["values"], v], dim=2)
        new_state = {"keys": k[:, :, kept], "values": v[:, :, kept]}
    new_state |= {name: flag[:, kept] for name, flag in flags.items()}
    # Laid out as in ``empty_rows``, for code is compiled for a layout; and the tokens that were cut off are released.
    return MemoryOutput(k, v, flags, hidden, {name: part.contiguous() for name, part in new_state.items()})


def holds_each_token(state: Any, tokens: int) -> bool:
    """Whether a state is made of nothing but keys and values of each of the ``tokens`` tokens that were read."""
    match state:
        case None:
            return True
        case Mapping() if is_of_keys(state):
            return bool(state["key_mask"].size(1) == tokens)
        case Mapping():
            return all(holds_each_token(part, tokens) for part in state.values())
        case tuple() | list():
            return all(holds_each_token(part, tokens) for part in state)
    return False


def first_tokens(state: Any, tokens: int) -> Any:
    """Returns the state after the first ``tokens`` tokens, given one that holds each (``holds_each_token``)."""
    match state:
        case Mapping() if is_of_keys(state):
            return {name: part.narrow(2 if part.dim() > 2 else 1, 0, tokens) for name, part in state.items()}
        case Mapping():
            return {name: first_tokens(part, tokens) for name, part in state.items()}
        case tuple() | list():
            return type(state)(first_tokens(part, tokens) for part in state)
    return None


def is_of_keys(state: Mapping[str, Any]) -> bool:
    """Whether a part of a state holds keys, values and flags of tokens, as ``remember`` returns it, and no more."""
    flags = [part for name, part in state.items() if name not in ("keys", "values")]
    return {"keys", "values", "key_mask"} <= state.keys() and all(
        isinstance(flag, Tensor) and flag.dtype == torch.bool for flag in flags
    )
