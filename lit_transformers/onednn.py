"""The float32 product of oneDNN, for passes without gradients on a CPU.

torch multiplies by MKL, which uses no AVX-512 on processors of AMD: there oneDNN takes less than half of its time.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lit_transformers.machine.processor import vendor

__all__ = ["is_faster", "packed", "product"]

CACHES = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
"""The variables by which torch and oneDNN read how many products of one shape they keep in memory."""
SHAPES = 128
"""The most products that each keeps. By default these are 1,024, which takes 240 MiB more for texts of all lengths
(``python -m benchmarks.bad_requests --requests 20000``). To compile a product anew takes half a millisecond."""


def is_faster() -> bool:
    """Whether oneDNN multiplies float32 faster than torch does by default on this processor."""
    return torch.backends.mkldnn.is_available() and vendor() == "AuthenticAMD"


@cache
def limit_caches() -> None:
    """Limits the products that are kept, where the user has set no limit. It has no effect after the first product."""
    for name in CACHES:
        os.environ.setdefault(name, str(SHAPES))


def packed(weight: Float[Tensor, "o i"]) -> Any:
    """Returns a copy of a matrix in the layout of oneDNN."""
    limit_caches()
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach())


def product(x: Float[Tensor, "*n i"], weight: Any, bias: Float[Tensor, " o"] | None) -> Float[Tensor, "*n o"]:
    """Returns W x + b for a ``packed`` matrix W, without a gradient. The other vectors do not change a product."""
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y
