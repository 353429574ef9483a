"""What the metrics of a run were measured on, and in which units: what a comparison of two runs asks of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Measurement"]


@dataclass(frozen=True)
class Measurement:
    """The split that was measured; a fingerprint of its ``documents`` or examples, whatever tokenizer reads them, and
    how many ``examples`` there were, None where these are not known.

    units: by the name of each metric without its split, what it is a mean over: "symbol", "byte", "example" and others;
    empty where nothing is known of the metrics. definitions: what a unit is in this run, where that follows from its
    data: a symbol is "byte" or "word" and a fingerprint of its tokenizer.
    """

    split: str
    documents: str | None = None
    examples: int | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    definitions: Mapping[str, str] = field(default_factory=dict)
