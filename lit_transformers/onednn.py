"""The float32 product of oneDNN, for passes without gradients on a CPU, and how many products oneDNN remembers.

torch multiplies by MKL, which uses no AVX-512 on processors of AMD: there oneDNN takes less than half of its time.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lit_transformers.machine.processor import vendor

__all__ = ["is_faster", "limit_caches", "packed", "product"]

CACHES = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
"""The environment variables by which torch and oneDNN limit how many compiled products stay in memory."""
SHAPES = 128
"""The most compiled products of each, one for each shape. By default these are 1,024, which takes 240 MiB more for
texts of all lengths (``python -m benchmarks.bad_requests --requests 20000``). To compile one anew takes half a
millisecond."""


def is_faster() -> bool:
    """Whether oneDNN multiplies float32 faster than torch does by default on this processor."""
    return torch.backends.mkldnn.is_available() and vendor() == "AuthenticAMD"


def limit_caches() -> None:
    """Limits how many compiled products stay in memory, unless the user has set a limit. It has no effect after the
    first product of the process."""
    for name in CACHES:
        os.environ.setdefault(name, str(SHAPES))


def packed(weight: Float[Tensor, "o i"]) -> Any:
    """Returns a copy of a matrix in the layout of oneDNN."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach())


def product(x: Float[Tensor, "*n i"], weight: Any, bias: Float[Tensor, " o"] | None) -> Float[Tensor, "*n o"]:
    """Returns W x + b for a ``packed`` matrix W, without a gradient. The other vectors do not change a product."""
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y
