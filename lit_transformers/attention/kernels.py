"""The kernels by which torch computes ``scaled_dot_product_attention``: the one that a run may use, and those it used.

PyTorch chooses a kernel by device, type, width, mask and dropout. An operator that runs while a call is dispatched is
named after its kernel. This is looked at once for each kind of call, when it is first made or first compiled; nothing
waits for the device.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch._dynamo.comptime import comptime
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from lit_transformers.config import ConfigError

__all__ = ["FLASH", "KernelName", "attention_kernel", "cuda_only", "note", "sdpa", "used_kernels"]

KernelName = Literal["auto", "flash", "efficient", "cudnn", "math"]
BACKENDS = MappingProxyType(
    {
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "math": SDPBackend.MATH,
    }
)
FLASH, MATH = "flash", "math"
OPERATOR = re.compile(r"aten::_scaled_dot_product_(\w+?)_attention")
REFUSALS = ("No available kernel", "No viable backend")
"""How torch says that none of the kernels it may use supports a call."""

_used: set[str] = set()
_seen: set[tuple[object, ...]] = set()


def sdpa(
    q: Float[Tensor, "b h t k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float,
) -> Float[Tensor, "b h t v"]:
    """Returns ``F.scaled_dot_product_attention``, and notes the kernel that computes it.

    Raises ConfigError where the only kernel that ``attention_kernel`` allows does not support the call.
    """
    if torch.compiler.is_compiling():
        comptime(_note_compiled)
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale)
    kind = (
        q.device.type, q.dtype, q.size(-1), v.size(-1), q.size(-2) == k.size(-2), causal, dropout > 0,
        None if mask is None else (mask.dtype, mask.requires_grad), torch.is_grad_enabled() and q.requires_grad,
        torch.is_autocast_enabled(q.device.type) if q.device.type != "meta" else False,
    )  # fmt: skip
    try:
        if kind in _seen:
            return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale)
        with _Noting():
            output = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale)
    except RuntimeError as error:
        if not any(refusal in str(error) for refusal in REFUSALS):
            raise
        why = _reason(q, k, v, mask, dropout, causal)
        raise ConfigError(f"{why}; set it to auto", "training.attention_kernel") from error
    _seen.add(kind)
    return output


def note(kernel: str) -> None:
    """Notes that a kernel was used, where code calls one without ``sdpa``."""
    _used.add(kernel)


@contextmanager
def used_kernels() -> Iterator[set[str]]:
    """Yields the names of the kernels that are used within the block, to which each is added when it is first used."""
    _used.clear()
    _seen.clear()
    yield _used


@contextmanager
def attention_kernel(name: KernelName) -> Iterator[None]:
    """Allows one kernel within the block; "auto" allows all. A kernel of CUDA devices is not required where there is no
    such device: a trained network may be read on another machine.

    Raises ConfigError where a network calls torch by itself, or is compiled, and the kernel does not support the call.
    """
    if name == "auto" or (cuda_only(name) and not torch.cuda.is_available()):
        yield
        return
    try:
        with sdpa_kernel(BACKENDS[name]):
            yield
    except RuntimeError as error:
        if not any(refusal in str(error) for refusal in REFUSALS):
            raise
        reason = f"{name} does not support this attention, and torch's warnings say why; set it to auto"
        raise ConfigError(reason, "training.attention_kernel") from error


def cuda_only(name: str) -> bool:
    """Whether a kernel exists for CUDA devices alone."""
    return name in ("efficient", "cudnn")


class _Noting(TorchDispatchMode):
    """Notes the kernel of a single call. No operator is named after the products of matrices."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernel = MATH

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        if exception[0] is None:
            note(self.kernel)

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if match := OPERATOR.match(function.name()):
            self.kernel = match[1]
        return function(*arguments, **(keywords or {}))


def _note_compiled(context: Any) -> None:
    """Notes the kernel of a call that is being compiled, by its stand-ins for tensors."""
    variables = {name: context.get_local(name) for name in ("q", "k", "v", "mask", "dropout", "causal")}
    q, k, v = (variables[name].as_fake() for name in ("q", "k", "v"))
    mask = None if variables["mask"].python_type() is type(None) else variables["mask"].as_fake()
    dropout, causal = (variables[name].as_python_constant() for name in ("dropout", "causal"))
    with q.fake_mode, _Noting():
        F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)


def _reason(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool) -> str:
    """Returns why the one kernel that is allowed does not support a call, in torch's words."""
    cuda = torch.backends.cuda
    kernels: dict[str, tuple[bool, Callable[..., bool]]] = {
        "flash": (cuda.flash_sdp_enabled(), cuda.can_use_flash_attention),
        "efficient": (cuda.mem_efficient_sdp_enabled(), cuda.can_use_efficient_attention),
        "cudnn": (cuda.cudnn_sdp_enabled(), cuda.can_use_cudnn_attention),
    }
    allowed, ask = next((name, ask) for name, (is_allowed, ask) in kernels.items() if is_allowed)
    if q.device.type != "cuda":
        return f"{allowed} does not support this attention on a {q.device.type}"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ask(cuda.SDPAParams(q, k, v, mask, dropout, causal, False), debug=True)
    lines = [str(warning.message).partition(" (Triggered")[0] for warning in caught]
    return f"{allowed} does not support this attention: {' '.join(lines) or 'torch gives no reason'}"
