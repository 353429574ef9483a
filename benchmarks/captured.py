"""An update of the weights captured as one CUDA graph: its kernels are launched once and then replayed together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lit_transformers.mixer import map_state, state_tensors

Update = Callable[[Tensor, Tensor, Any], tuple[Tensor, Tensor, Any]]
"""Maps inputs, targets and state to the loss, the norm of the gradient and the new state, all of them detached."""

UNCAPTURED = 3
"""Updates before the capture, in which libraries allocate their workspaces and compilers generate their code."""


class Captured:
    """Calls ``update`` on buffers at fixed addresses. The first few calls run without capture; the next one is captured
    as a graph, and every later call replays it. On a CPU nothing can be captured, and all calls run without capture.

    Inputs, targets and state have the same shapes in all calls. The returned tensors are overwritten by the next call.
    """

    def __init__(self, update: Update) -> None:
        self.update = update
        self.buffers: tuple[Tensor, Tensor, Any] | None = None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream: torch.cuda.Stream | None = None
        self.calls = 0
        self.outputs: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))

    def __call__(self, inputs: Tensor, targets: Tensor, state: Any) -> tuple[Tensor, Tensor, Any]:
        if self.buffers is None:
            self.buffers = (inputs.clone(), targets.clone(), map_state(torch.clone, state))
        for buffer, tensor in zip(state_tensors(self.buffers), state_tensors((inputs, targets, state)), strict=True):
            if buffer is not tensor:  # the state that the last call returned lies in its buffers
                buffer.copy_(tensor)
        if inputs.is_cuda:
            self.on_device(inputs.device)
        else:
            self.outputs = self.run(*self.buffers)
        self.calls += 1
        return *self.outputs, self.buffers[2]

    def run(self, inputs: Tensor, targets: Tensor, state: Any) -> tuple[Tensor, Tensor]:
        """Runs one update and copies its new state over the old one."""
        loss, norm, after = self.update(inputs, targets, state)
        for old, new in zip(state_tensors(state), state_tensors(after), strict=True):
            old.copy_(new)
        return loss, norm

    def on_device(self, device: torch.device) -> None:
        """Runs, captures or replays the update. Before the replays it uses a side stream, as a capture requires."""
        assert self.buffers is not None
        self.stream = self.stream or torch.cuda.Stream(device)
        if self.calls < UNCAPTURED:
            self.stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(self.stream):
                self.outputs = self.run(*self.buffers)
            torch.cuda.current_stream(device).wait_stream(self.stream)
            return
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=self.stream):
                self.outputs = self.run(*self.buffers)
        self.graph.replay()


def capturable(optimizer: torch.optim.Optimizer) -> None:
    """Makes Adam read its learning rate from the device, where the schedule writes it between two replays."""
    for group in optimizer.param_groups:
        group["capturable"] = True
        group["lr"] = torch.tensor(group["lr"], device=group["params"][0].device)
