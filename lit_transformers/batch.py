"""The batch types: the only words that data and tasks share."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from jaxtyping import Bool, Int
from torch import Tensor

IGNORED = -100
"""A target that is not predicted: padding, a boundary between documents, or context already scored."""

Unit = Literal["byte", "character", "word", "piece"]


class Vocabulary(NamedTuple):
    """What a task must know of a tokenizer.

    ``boundary`` is the symbol fed before a document's first token; it is never a target.
    ``byte_lengths`` gives the UTF-8 bytes each symbol stands for (None where it cannot be known), for bits per byte.
    ``unit`` says what one symbol is, for "perplexity per word".
    """

    size: int
    boundary: int
    unit: Unit
    byte_lengths: tuple[int, ...] | None


class TextBatch(NamedTuple):
    """One segment of every lane. Row b continues row b of the previous batch of the same ``stream``.

    inputs   (b, t) symbols; 0 where padded
    targets  (b, t) the symbol after each input, or IGNORED
    keep     (b, t) True at real inputs; padding stands at the end of a row
    document (b, t) ordinal of the document within the pass, for losses per document
    fresh    (b,)   True where a document starts with this row: the lane's state is emptied first
    stream   which worker's lanes these are; each has a state of its own
    cursor   plain data: where this stream stands after the batch, enough to go on from exactly here
    """

    inputs: Int[Tensor, "b t"]
    targets: Int[Tensor, "b t"]
    keep: Bool[Tensor, "b t"]
    document: Int[Tensor, "b t"]
    fresh: Bool[Tensor, " b"]
    stream: int
    cursor: Any
