"""Every mode of the Transformer-XL benchmark computes the same as eager mode, and the check would notice a mode that
did not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.captured import Captured
from benchmarks.transformer_xl import BASE, TINY, TINY_VOCABULARY, Mode, Training, check, zipf

SMALL = BASE.override(TINY | {"model.depth": 1})
TEXT = zipf(TINY_VOCABULARY, 4, 8 * 16 + 1, torch.device("cpu"))


def compare_with_eager(mode: Mode) -> dict[str, Any]:
    return check(SMALL, TINY_VOCABULARY, TEXT, mode)


def test_an_update_on_fixed_buffers_computes_what_eager_does() -> None:
    result = compare_with_eager(Mode.GRAPHS)
    assert result["agrees"], result["apart"]
    losses = result["losses"]["eager"]
    assert losses[9] < losses[1], "the text begins anew after eight segments, and nothing was learned of it"


class Waits(TorchDispatchMode):
    """Counts operations that would wait for a device: reading sizes and values, and copying the host's tensors."""

    ASKING = frozenset({"aten::nonzero", "aten::_local_scalar_dense", "aten::masked_select", "aten::lift_fresh"})

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_masked_index = func._schema.name == "aten::index" and any(
            i is not None and i.dtype is torch.bool for i in args[1]
        )
        self.count += func._schema.name in self.ASKING or is_masked_index
        return func(*args, **(kwargs or {}))


def test_an_update_that_is_captured_waits_for_no_device_and_one_of_eager_does() -> None:
    waits = {}
    for mode in (Mode.EAGER, Mode.GRAPHS):
        training = Training(SMALL, TINY_VOCABULARY, TEXT, mode)
        training()
        with Waits() as waiting:
            training()
        waits[mode] = waiting.count
    assert waits[Mode.GRAPHS] == 0 and waits[Mode.EAGER] > 0


@pytest.mark.slow
def test_an_update_that_is_compiled_computes_what_eager_does() -> None:
    """A network that is compiled without the update computes the same as a run with ``training.compile``."""
    torch.compiler.reset()
    result = compare_with_eager(Mode.COMPILED_GRAPHS)
    torch.compiler.reset()
    assert result["agrees"], result["apart"]


def test_memory_that_is_not_carried_from_update_to_update_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_state(self: Captured, inputs: Tensor, targets: Tensor, state: Any) -> tuple[Tensor, Tensor]:
        return self.update(inputs, targets, state)[:2]

    monkeypatch.setattr(Captured, "run", without_state)
    result = compare_with_eager(Mode.GRAPHS)
    assert not result["agrees"]
    assert result["apart"]["loss"][Mode.GRAPHS] > 1e-5, result["apart"]
