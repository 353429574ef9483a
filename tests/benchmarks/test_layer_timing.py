"""Layers that fail are recorded and stop nothing; measurements are on disk; kernels compute the same as ours."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks import layers, peers
from benchmarks.layer_timing import DIM, HEADS, Layer, Step, Work, row_on_device
from lit_transformers.mixer import Context, MixerConfig, Shape
from lit_transformers.mixers import AttentionConfig, LinearConfig

CPU = torch.device("cpu")


def working(work: Work, device: torch.device) -> Step:
    return lambda: None


def greedy(work: Work, device: torch.device) -> Step:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 GiB.\nSee the documentation")


def absent(work: Work, device: torch.device) -> Step:
    import no_such_package  # noqa: F401

    return lambda: None


def unable(work: Work, device: torch.device) -> Step:
    def step() -> None:
        raise RuntimeError("No available kernel.\nAborting execution.")

    return step


def rows_of(candidates: dict[str, Layer], patience: float = 4.0) -> list[dict[str, Any]]:
    works = [Work(1, 64), Work(1, 128)]
    return list(layers.measured(candidates, works, CPU, rounds=1, patience=patience, peaked=False))


def test_a_layer_that_fails_is_recorded_with_the_reason_and_not_tried_at_the_next_length() -> None:
    rows = rows_of({"working": working, "greedy": greedy, "absent": absent, "unable": unable})
    assert [list(row["milliseconds"]) for row in rows] == [["working"], ["working"]]
    no_kernel = "RuntimeError: No available kernel. ... Aborting execution."
    missing = "not installed: no_such_package"
    assert rows[0]["failed"] == {"greedy": "out of memory", "absent": missing, "unable": no_kernel}
    assert rows[1]["failed"] == {"greedy": "at 64: out of memory", "absent": missing, "unable": f"at 64: {no_kernel}"}


def test_a_layer_that_took_too_long_is_left_out_at_the_next_length_with_the_reason() -> None:
    rows = rows_of({"working": working}, patience=0.0)
    assert rows[0]["milliseconds"].keys() == {"working"} and not rows[0]["failed"]
    assert not rows[1]["milliseconds"] and rows[1]["failed"]["working"].startswith("left out: took 0.0 s at 64")


@pytest.mark.slow
def test_on_a_device_that_a_layer_left_unusable_no_other_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of torch.cuda are replaced by stand-ins."""
    broken = []

    def synchronize(device: torch.device) -> None:
        if broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def illegal(work: Work, device: torch.device) -> Step:
        broken.append(True)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    for name, answer in {"memory_allocated": 2**20, "max_memory_allocated": 3 * 2**20}.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, answer=answer: answer)
    for name in ("empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *device: None)
    candidates = {"greedy": greedy, "working": working, "illegal": illegal, "after": working}
    times, peaks = row_on_device(candidates, Work(1, 64), torch.device("cuda"), rounds=2, patience=4.0)
    assert list(times) == ["working"] and peaks.mib == {"working": 2.0}
    assert peaks.failed["greedy"] == "out of memory"
    assert peaks.failed["illegal"].startswith("RuntimeError: CUDA error")
    assert peaks.failed["after"] == "not tried: the device failed in illegal"


def test_every_length_is_on_disk_before_the_next_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(work: Work, device: torch.device) -> Step:
        if work.length == 128:
            raise KeyboardInterrupt
        return lambda: None

    monkeypatch.setattr(layers, "layers", lambda only, beside: {"killed": killed})
    path = tmp_path / "layers.json"
    with pytest.raises(KeyboardInterrupt):
        layers.main(
            lengths="64,128",
            only="",
            beside=None,
            rounds=1,
            threads=1,
            patience=4.0,
            device="cpu",
            peaked=False,
            json=str(path),
        )
    assert [row["length"] for row in json.loads(path.read_text())["rows"]] == [64]


def naive_linear(q: Tensor, k: Tensor, v: Tensor, scale: float, normalize: bool) -> tuple[Tensor, None]:
    """flash-linear-attention's function on (b, t, h, k), as its own reference computes it."""
    weights = torch.einsum("bihk,bjhk->bhij", q * scale, k).tril()
    y = torch.einsum("bhij,bjhv->bihv", weights, v)
    return (y / weights.sum(-1).transpose(1, 2)[..., None] if normalize else y), None


@pytest.mark.parametrize(
    ("config", "peer"),
    [
        (AttentionConfig(), partial(peers.fused, "FLASH_ATTENTION")),
        (LinearConfig(), peers.running_sums),
        (LinearConfig(), peers.flash_linear_attention),
    ],
)
def test_a_kernel_between_projections_computes_what_our_layer_does(
    config: MixerConfig, peer: Layer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepper_calls: list[tuple[nn.ModuleList, Tensor, Callable[[], Tensor]]] = []
    monkeypatch.setattr(peers, "stepper", lambda *parts: stepper_calls.append(parts))
    package = types.ModuleType("fla.ops.linear_attn")
    package.chunk_linear_attn = naive_linear  # type: ignore[attr-defined]
    for name in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "fla.ops.linear_attn", package)
    torch.manual_seed(0)
    peer(Work(2, 24), CPU)
    projections, x, forward = stepper_calls[0]
    layer = config.build(Shape(DIM, HEADS, 24))
    for name, projection in zip(("query", "key", "value", "merge"), projections, strict=True):
        layer.get_submodule(name).load_state_dict(projection.state_dict())
    expected = layer(x, Context(torch.arange(24).expand(2, -1), True)).y
    torch.testing.assert_close(forward(), expected, atol=1e-5, rtol=1e-4)
