"""How long runs will take: from runs that were done here, else from a moment's measurement."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ablations.plan import Plan

__all__ = ["Estimate", "estimate"]

SMALL_MODEL_SHARE = 0.5
"""The part of the speed of a plain matrix product that training small models reaches: attention, norms and loops."""


class Estimate(NamedTuple):
    """Seconds a run, by key, and where that comes from in a few words."""

    seconds: dict[str, float]
    basis: str


def estimate(plan: Plan, runs: Path) -> Estimate:
    """Seconds for every run of the plan, in proportion to its training FLOPs."""
    rates = list(_rates(plan, runs))
    rate = statistics.median(rates) if rates else SMALL_MODEL_SHARE * _measured_rate()
    basis = f"from {len(rates)} runs done here" if rates else "roughly, no such run was done here yet"
    return Estimate(
        {
            run["key"]: plan.costs[arm["name"]]["train_flops"] / rate
            for arm in plan.document["arms"]
            for run in arm["runs"]
        },
        basis,
    )


def _rates(plan: Plan, runs: Path) -> Iterator[float]:
    """Training FLOPs a second of finished runs: those of this plan where there are any, else all that are kept.

    What measuring took is left out: a run that only writes token by token says nothing of how fast others train.
    """
    own = [runs / key / "record.json" for key in plan.configs]
    kept = [path for path in own if path.exists()] or sorted(runs.glob("*/record.json"))
    for path in kept:
        with suppress(OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["outcome"] == "finished":
                cost = record["cost"]
                rate = cost["train_flops"] / cost["tokens"] * record["measured"]["tokens_per_second"]
                if rate > 0:
                    yield rate


def _measured_rate(width: int = 256, seconds: float = 0.3) -> float:
    """FLOPs a second of matrix products of a small model's size, at best, on one core or on the CUDA device."""
    import torch  # only this needs it, and only where nothing was ever run

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    left, right = torch.randn(4 * width, width, device=device), torch.randn(width, 4 * width, device=device)
    best, begun = math.inf, time.monotonic()
    while time.monotonic() - begun < seconds:
        start = time.perf_counter()
        float((left @ right)[0, 0])  # reading an element waits for the device
        best = min(best, time.perf_counter() - start)
    return 2 * (4 * width) * width * (4 * width) / best
