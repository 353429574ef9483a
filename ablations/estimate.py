"""How long runs will take, and on what machine: from runs that were done, else from a moment's measurement.

A short run tells of its start more than of its speed, so that quick looks say nothing of other plans. Where a plan
needs a CUDA device and there is none, a named one is assumed.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ablations.plan import Plan
from lit_transformers.files import RECORD
from lit_transformers.machine import processor
from sweeps.share import cuda_devices

__all__ = ["ASSUMED_RATE", "ENOUGH_SECONDS", "Estimate", "estimate"]

SMALL_MODEL_SHARE = 0.5
"""The part of the speed of a plain matrix product that training small models reaches: attention, norms and loops."""
ENOUGH_SECONDS = 20.0
"""Of training, from which on a run tells how fast others will be. A start takes a few seconds."""
ASSUMED_DEVICE = "one A100 of 40 GB"
ASSUMED_RATE = 31e12
"""Training FLOPs a second of the assumed device: what NVIDIA's own Transformer-XL (base, mixed precision) reaches.
That is 59,961 tokens a second by its README, at the 0.52 GFLOPs a training token that ``lit_transformers.cost`` counts.
"""


class Estimate(NamedTuple):
    """Seconds a run, by key, where that comes from in a few words, and whether it is of a CUDA device."""

    seconds: dict[str, float]
    basis: str
    cuda: bool = False


class Done(NamedTuple):
    """A finished run: training FLOPs a second, seconds of training alone, and seconds with all that was measured."""

    rate: float
    training: float
    whole: float
    hardware: str


def estimate(plan: Plan, runs: Path) -> Estimate:
    """Seconds for every run of the plan: as an arm's own runs took, else in proportion to its training FLOPs."""
    needs_cuda = any((config.get("training") or {}).get("device") == "cuda" for config in plan.configs.values())
    own = {key: done for key in plan.configs for done in _done([runs / key / RECORD], needs_cuda)}
    rate, basis = _rate(list(own.values()), runs, needs_cuda)
    seconds: dict[str, float] = {}
    for arm in plan.document["arms"]:
        keys = [run["key"] for run in arm["runs"]]
        taken = [own[key].whole for key in keys if key in own]
        each = statistics.median(taken) if taken else plan.costs[arm["name"]]["train_flops"] / rate
        seconds |= dict.fromkeys(keys, each)
    return Estimate(seconds, basis, needs_cuda)


def _rate(own: list[Done], runs: Path, needs_cuda: bool) -> tuple[float, str]:
    """Training FLOPs a second, and where that comes from.

    What measuring took is left out: a run that only writes token by token says nothing of how fast others train.
    """
    records = sorted(runs.glob("*/record.json")) if not own else []
    told = own or [done for done in _done(records, needs_cuda) if done.training >= ENOUGH_SECONDS]
    if told:
        machine = statistics.mode(done.hardware for done in told)
        of_one = [done.rate for done in told if done.hardware == machine]
        basis = f"from runs done on {machine}: {len(of_one)} of {'this plan' if own else 'other plans'}"
        return statistics.median(of_one), basis
    if needs_cuda and not cuda_devices():
        basis = f"assuming {ASSUMED_DEVICE} at {ASSUMED_RATE / 1e12:.0f} TFLOP/s: there is no CUDA device here"
        return ASSUMED_RATE, basis
    machine = "this machine's CUDA device" if needs_cuda else processor()
    basis = f"roughly, for {machine}: no run that is long enough to tell was done here yet"
    return SMALL_MODEL_SHARE * _measured_rate("cuda" if needs_cuda else "cpu"), basis


def _done(records: Iterable[Path], needs_cuda: bool) -> Iterator[Done]:
    """What finished runs tell of the hardware that is wanted: this machine's processor, or a CUDA device."""
    for path in records:
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
            record = json.loads(path.read_text(encoding="utf-8"))
            cost, measured = record["cost"], record["measured"]
            training = cost["tokens"] / measured["tokens_per_second"]
            hardware = record["environment"]["hardware"]
            done = Done(cost["train_flops"] / training, training, measured["seconds"], hardware)
            is_wanted = " CPU, " not in hardware if needs_cuda else hardware == processor()
            if record["outcome"] == "finished" and is_wanted and done.rate > 0:
                yield done


def _measured_rate(device: str, width: int = 256, seconds: float = 0.3) -> float:
    """FLOPs a second of matrix products of a small model's size, at best, on one core or on the CUDA device."""
    import torch  # only this needs it, and only where nothing was ever run

    torch.set_num_threads(1)
    left, right = torch.randn(4 * width, width, device=device), torch.randn(width, 4 * width, device=device)
    best, begun = math.inf, time.monotonic()
    while time.monotonic() - begun < seconds:
        start = time.perf_counter()
        float((left @ right)[0, 0])  # reading an element waits for the device
        best = min(best, time.perf_counter() - start)
    return 2 * (4 * width) * width * (4 * width) / best
