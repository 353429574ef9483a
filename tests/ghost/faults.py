"""Planted faults that the ghost must report: a sweep that reports none of them proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lit_transformers.mixer import Context, MixerOutput
from tests.ghost.cases import DEVICE, DIM, Findings, GhostCase, compiled, counted, mixed, mixer_context
from tests.ghost.watch import Watch

Fault = Callable[["PlantedMixer", Tensor], Tensor] | None


class PlantedMixer(nn.Module):
    """A map of each token, and a fault, which changes the right output."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.map = nn.Linear(DIM, DIM)
        self.fault = fault
        self.calls: tuple[int, ...] = ()

    def forward(self, x: Tensor, ctx: Context, state: Any = None) -> MixerOutput:
        y = self.map(x)
        return MixerOutput(self.fault(self, y) if self.fault else y)


def on_the_host(mixer: PlantedMixer, y: Tensor) -> Tensor:
    return y.cpu()


def read_by_the_host(mixer: PlantedMixer, y: Tensor) -> Tensor:
    return y * (2.0 if y.sum().item() > 0 else 1.0)


def wide(mixer: PlantedMixer, y: Tensor) -> Tensor:
    return y.double()


def without_gradient(mixer: PlantedMixer, y: Tensor) -> Tensor:
    return y.detach() + mixer.map.bias


def of_two_devices(mixer: PlantedMixer, y: Tensor) -> Tensor:
    return y + torch.zeros(DIM)


def by_a_mask(mixer: PlantedMixer, y: Tensor) -> Tensor:
    """Has torch read a mask on the device, which is a wait for each of the two times."""
    chosen = torch.arange(y.size(1), device=y.device) % 3 == 0
    assert len(y[0, chosen]) == 3, "the numbers of the device are wrong"
    return y.index_put((torch.zeros(3, dtype=torch.long, device=y.device), chosen), y[1, :3])


def graph_break(mixer: PlantedMixer, y: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    return y


def recompilation(mixer: PlantedMixer, y: Tensor) -> Tensor:
    mixer.calls = (*mixer.calls, 0)
    return y * len(mixer.calls)


FAULTS = {
    "no fault": None,
    "a tensor on the host": on_the_host,
    "a value read by the host": read_by_the_host,
    "a wide dtype": wide,
    "no gradient": without_gradient,
    "tensors of two devices": of_two_devices,
    "a mask": by_a_mask,
}
COMPILED_FAULTS = {"no fault": None, "a graph break": graph_break, "a recompilation": recompilation}


def run_planted(fault: Fault, watch: Watch) -> Findings:
    mixer, ctx = PlantedMixer(fault).to(DEVICE), mixer_context(9, "causal", False)
    found = mixed(mixer, ctx, False, "bf16", watch)
    return found | counted(watch, ("forward", "backward", "evaluate"))


def compile_planted(fault: Fault, watch: Watch) -> Findings:
    mixer, ctx = PlantedMixer(fault).to(DEVICE), mixer_context(9, "causal", False)
    return compiled(mixer, lambda: mixer(torch.ones(2, 9, DIM, device=DEVICE), ctx).y)


def fault_cases() -> list[GhostCase]:
    """A case for each fault, and one without."""
    return [
        *(GhostCase(name, partial(run_planted, fault)) for name, fault in FAULTS.items()),
        *(GhostCase(f"compiled {name}", partial(compile_planted, fault)) for name, fault in COMPILED_FAULTS.items()),
    ]
