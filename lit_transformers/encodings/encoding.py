"""The base of every config of an encoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lit_transformers.config import Config
from lit_transformers.mixer import Shape

if TYPE_CHECKING:
    from lit_transformers.attention.relative import Relative
    from lit_transformers.encodings.rotary import Rotary


class EncodingConfig(Config):
    """Base of every encoding's config; the table ENCODINGS lists the kinds.

    An encoding either rotates queries and keys before their product (Rotary) or adds terms to the scores (Relative).
    """

    @property
    def tells_segments(self) -> bool:
        """Hook: whether it tells the segments of a row apart, by the context's. By default it does not."""
        return False

    def build(self, shape: Shape, head_dim: int) -> Rotary | Relative:
        raise NotImplementedError
