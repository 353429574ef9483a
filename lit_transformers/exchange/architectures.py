"""The architectures whose weights can be read and written, and why some others cannot."""

from __future__ import annotations

from lit_transformers.exchange.alternating import MODERNBERT
from lit_transformers.exchange.decoders import GPT2
from lit_transformers.exchange.encoder_decoders import MARIAN
from lit_transformers.exchange.encoders import ALBERT, BERT, DISTILBERT, ELECTRA, ROBERTA
from lit_transformers.exchange.long_encoders import BIG_BIRD, LONGFORMER
from lit_transformers.exchange.permuted import XLNET

__all__ = ["ARCHITECTURES", "REFUSED"]

ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (
        *(BERT, ALBERT, ELECTRA, DISTILBERT, ROBERTA, LONGFORMER, BIG_BIRD, MODERNBERT, XLNET, GPT2, MARIAN),
    )
}
"""The mappings by ``model_type``, in the order in which an export tries them."""

REFUSED = {
    "reformer": "its last norm reads both residual streams side by side, where they are averaged here, and its "
    "positions are axial",
    "t5": "its norms subtract no mean and have no bias",
}
"""Architectures that users would expect here, and their properties that no part of this suite has."""
