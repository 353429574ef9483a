"""The batch types and what describes them: the only types that data and tasks share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from jaxtyping import Bool, Float, Int
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


class DataDescription(NamedTuple):
    """What a task must know of its data before it reads a batch.

    vocabulary     the vocabulary of the inputs; for pairs, of the targets
    length         tokens of the longest training row (for pairs, of a target): ``Shape.max_length`` of the network
    classes        the number of labels that an example may have; 0 where the data has none
    source         pairs only: the vocabulary of the sources; the same object where both sides share one vocabulary
    source_length  pairs only: tokens of the longest training source
    written        pairs only: a function that turns the symbols of a target into its text
    """

    vocabulary: Vocabulary
    length: int
    classes: int = 0
    source: Vocabulary | None = None
    source_length: int = 0
    detokenize: Callable[[Sequence[int]], str] | None = None


class TextBatch(NamedTuple):
    """One segment of every lane. Row b continues row b of the previous batch of the same ``stream``.

    inputs        (b, t) symbols; 0 where padded
    targets       (b, t) the symbol after each input, or IGNORED
    padding_mask  (b, t) True at real inputs, False at padding, which stands at the end of a row
    document      (b, t) ordinal of the document within the pass, for losses per document
    fresh         (b,)   True where a document starts with this row: the lane's state is emptied first
    stream        the worker whose lanes these are; each stream has a state of its own
    cursor        plain data: the position of this stream after the batch, from which it can resume exactly
    """

    inputs: Int[Tensor, "b t"]
    targets: Int[Tensor, "b t"]
    padding_mask: Bool[Tensor, "b t"]
    document: Int[Tensor, "b t"]
    fresh: Bool[Tensor, " b"]
    stream: int
    cursor: Any


class StringBatch(NamedTuple):
    """Whole strings, each a question and its answer. Rows do not depend on each other.

    inputs        (b, t) symbols; 0 where padded
    targets       (b, t) the symbol after each input where it belongs to the answer, else IGNORED
    padding_mask  (b, t) True at real inputs, False at padding, which stands at the end of a row
    example       (b,)   ordinal of the string within the pass
    asked         (b,)   the requested length; results are reported for each length
    stream, cursor as in TextBatch
    """

    inputs: Int[Tensor, "b t"]
    targets: Int[Tensor, "b t"]
    padding_mask: Bool[Tensor, "b t"]
    example: Int[Tensor, " b"]
    requested_length: Int[Tensor, " b"]
    stream: int
    cursor: Any


class LabelledBatch(NamedTuple):
    """Whole sequences, each with one label. Rows do not depend on each other.

    inputs        (b, t) symbols, the boundary first; 0 where padded
    padding_mask  (b, t) True at real inputs, False at padding, which stands at the end of a row
    labels        (b,)   classes from 0, or numbers where the data describe no classes
    marked        (b, t) True at inputs that the data single out; None where they single out nothing
    example       (b,)   ordinal of the example within its split
    stream, cursor as in TextBatch
    """

    inputs: Int[Tensor, "b t"]
    padding_mask: Bool[Tensor, "b t"]
    labels: Int[Tensor, " b"] | Float[Tensor, " b"]
    marked: Bool[Tensor, "b t"] | None
    example: Int[Tensor, " b"]
    stream: int
    cursor: Any


class PairBatch(NamedTuple):
    """Whole sources, each with a target. Rows do not depend on each other.

    A target is read after the boundary of its vocabulary, and the boundary ends it: ``inputs`` is [boundary, *target]
    and ``targets`` is [*target, boundary]. A source ends with the boundary of its own vocabulary. Where a target was
    cut, both hold the symbols that are read, and ``targets`` has no boundary at the end; a source that was cut still
    ends with one.

    source               (b, s) symbols; 0 where padded
    source_padding_mask  (b, s) True at real symbols, False at padding, which stands at the end of a row
    inputs               (b, t) symbols; 0 where padded
    targets              (b, t) the symbol after each input, or IGNORED
    padding_mask         (b, t) True at real inputs, False at padding, which stands at the end of a row
    example              (b,)   ordinal of the pair within its split
    asked                (b,)   the length that results are reported for; 0 where they are not reported by length
    references           the texts that a row's output is compared with; empty in training
    stream, cursor as in TextBatch
    """

    source: Int[Tensor, "b s"]
    source_padding_mask: Bool[Tensor, "b s"]
    inputs: Int[Tensor, "b t"]
    targets: Int[Tensor, "b t"]
    padding_mask: Bool[Tensor, "b t"]
    example: Int[Tensor, " b"]
    requested_length: Int[Tensor, " b"]
    references: tuple[tuple[str, ...], ...]
    stream: int
    cursor: Any
