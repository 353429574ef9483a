"""The kernels by which torch computes ``scaled_dot_product_attention``: the one that a run may use, and those it used.

PyTorch chooses a kernel by device, type, width, mask and dropout. An operator that runs while a call is dispatched is
named after its kernel. This is looked at once for each kind of call, when it is first made or first compiled; nothing
waits for the device.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import takewhile
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
HEADLINES = MappingProxyType(
    {
        "flash": "Flash attention kernel not used because",
        "efficient": "Memory efficient kernel not used because",
        "cudnn": "cuDNN attention kernel not used because",
    }
)
"""The warnings of torch that precede its reasons."""

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
    call = partial(F.scaled_dot_product_attention, q, k, v, mask, dropout, causal, scale=scale)
    try:
        if kind in _seen:
            return call()
        with _Noting():
            output = call()
    except RuntimeError as error:
        if not any(refusal in str(error) for refusal in REFUSALS):
            raise
        why = _reason(call, q.device.type)
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


def _reason(call: Callable[[], Tensor], device: str) -> str:
    """Returns why the one kernel that is allowed does not support a call, which is repeated for torch's warnings."""
    enabled = {
        "flash": torch.backends.cuda.flash_sdp_enabled(),
        "efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "cudnn": torch.backends.cuda.cudnn_sdp_enabled(),
    }
    name = next(name for name, is_enabled in enabled.items() if is_enabled)
    with warnings.catch_warnings(record=True) as caught, suppress(RuntimeError):
        warnings.simplefilter("always")
        call()
    lines = [str(warning.message).partition(" (Triggered")[0].strip() for warning in caught]
    start = next((number for number, line in enumerate(lines) if line.startswith(HEADLINES[name])), len(lines))
    why = " ".join(takewhile(lambda line: not line.endswith("not used because:"), lines[start + 1 :])).rstrip(".")
    return f"{name} does not support this attention on a {device}: {why or 'torch gives no reason'}"
