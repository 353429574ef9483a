"""Watches a computation on the device: where it waits, which kernels it chooses, and which graphs it compiles."""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._guards import TracingContext
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

from tests.ghost.build import ROOT
from tests.ghost.values import Values, unwatched

CODE = tuple(f"{ROOT}/{part}" for part in ("lit_transformers/", "datamodules/", "tests/ghost/faults.py"))
"""The files in which waits are looked for."""


class Watch:
    """The events that it has watched since it was created.

    waits: how often the host has waited for the device, by phase and line of the suite. backends: the kernels of fused
    attention that torch would choose on an H100, with cuDNN. kernels: the number of graphs that torch compiles by
    itself, in place of Inductor, by the name of the function; runs: how often each was called. steps: of a trainer, in
    order.
    """

    def __init__(self) -> None:
        self.waits: Counter[tuple[str, str]] = Counter()
        self.backends: Counter[str] = Counter()
        self.kernels: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()
        self.steps: list[int] = []
        self.name = ""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts where the host waits for the device within the block, under a name."""
        self.name = name
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def waits_of(self, phase: str) -> int:
        return sum(count for (name, _), count in self.waits.items() if name == phase)

    def hear(self, message: Warning | str, *_: Any, **__: Any) -> None:
        """Takes a warning in place of printing it. While Dynamo traces, the host may wait: it does so once."""
        if "synchronizing CUDA operation" in str(message) and TracingContext.try_get() is None:
            self.waits[self.name, place()] += 1

    def attention(self, q: Tensor, k: Tensor, v: Tensor, *arguments: Any, **keywords: Any) -> Tensor:
        """Takes the place of fused attention. The ghost has no cuDNN: it counts as chosen and another kernel runs."""
        if not torch.compiler.is_compiling():
            torch.backends.cuda.enable_cudnn_sdp(True)
            number = torch._fused_sdp_choice(q, k, v, *arguments, **keywords)
            torch.backends.cuda.enable_cudnn_sdp(False)
            self.backends[SDPBackend(number).name.removesuffix("_ATTENTION").lower()] += 1
        return SDPA(q, k, v, *arguments, **keywords)

    def compile(self, function: Any = None, **options: Any) -> Any:
        """Takes the place of ``torch.compile``: graphs are caught and cut as for Inductor, and run operation by
        operation. Their operations are one kernel or few, in which nothing waits."""
        if function is None or "backend" in options:
            return COMPILE(function, **options)
        name = function.__name__

        def backend(graph: Any, inputs: Any) -> Any:
            self.kernels[name] += 1
            return unwatched(EAGER(graph, inputs))

        compiled = COMPILE(function, backend=backend, **options)

        def call(*arguments: Any, **keywords: Any) -> Any:
            self.runs[name] += 1
            return compiled(*arguments, **keywords)

        return call


SDPA, COMPILE = F.scaled_dot_product_attention, torch.compile
EAGER: Callable[[Any, Any], Any] = torch._dynamo.lookup_backend("aot_eager")


@contextmanager
def watching() -> Iterator[Watch]:
    """The context in which the device computes numbers and a new Watch watches."""
    watch = Watch()
    with ExitStack() as stack:
        stack.enter_context(patch.object(F, "scaled_dot_product_attention", watch.attention))
        stack.enter_context(patch.object(torch, "compile", watch.compile))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("always")
        warnings.showwarning = watch.hear
        stack.enter_context(Values())
        yield watch


def place() -> str:
    """The innermost line of the suite that is running. The backward pass of torch's own operations has none: then the
    operation."""
    frames = [frame for frame, _ in traceback.walk_stack(None)]
    lines = traceback.extract_stack(
        next((frame for frame in frames if frame.f_code.co_filename.startswith(CODE)), None)
    )
    ours = [line for line in lines if line.filename.startswith(CODE)]
    if ours:
        return f"{ours[-1].filename.removeprefix(f'{ROOT}/')}:{ours[-1].lineno}: {ours[-1].line}"
    inner = [frame for frame in frames if frame.f_code.co_name == "__torch_dispatch__" and "func" in frame.f_locals]
    return str(inner[-1].f_locals["func"]) if inner else "torch"
