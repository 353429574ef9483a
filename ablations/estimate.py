"""Estimates how long runs will take: from finished runs, else from a short measurement on this machine.

The time of a short run is mostly that of its start, so short runs are not used for other plans. Where a plan needs a
CUDA device and there is none, a named one is assumed.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ablations.plan import PlannedStudy
from lit_transformers.machine.processor import processor
from lit_transformers.records.files import RECORD
from lit_transformers.records.record import load_record
from sweeps.launchers.devices import cuda_devices, cuda_models
from sweeps.process.call import call_forked

__all__ = ["ASSUMED_RATE", "ENOUGH_SECONDS", "TimeEstimate", "estimate"]

SMALL_MODEL_SHARE = 1 / 3
"""The fraction of a plain matrix product's speed that training small models reaches: attention, norms and loops."""
SECONDS_BESIDE_TRAINING = 3.0
"""Seconds of a run in addition to its training, until a run of the same plan has finished."""
ENOUGH_RUNS = 100
"""Of an arm, that are looked at for the median of their times."""
ENOUGH_SECONDS = 20.0
"""Seconds of training that a run needs before its speed is used for others. A start takes a few seconds."""
ASSUMED_DEVICE = "one A100 of 40 GB"
ASSUMED_RATE = 31e12
"""Training FLOPs per second of the assumed device: the rate of NVIDIA's own Transformer-XL (base, mixed precision).
It is 59,961 tokens a second by its README, at the 0.52 GFLOPs a training token that ``models.cost`` counts.
"""


class TimeEstimate(NamedTuple):
    """The seconds of each run by key, the basis of the estimate in words, and whether it is for a CUDA device."""

    seconds: dict[str, float]
    basis: str
    cuda: bool = False


class FinishedRun(NamedTuple):
    """A finished run: training FLOPs per second, which are not a number where FLOPs are not known, seconds of training
    only, seconds in total, its hardware, and the seconds of the pass that filled a cache, 0 if another run filled
    it."""

    rate: float
    training: float
    whole: float
    hardware: str
    caching: float


def estimate(planned: PlannedStudy, runs: Path) -> TimeEstimate:
    """Estimates the seconds of every run: the median of its arm's runs, else in proportion to its training FLOPs, plus
    the time that finished runs of the plan took besides training, for start, gates and evaluation. A run that takes
    over the training of another one takes only this further time. Of the runs that share the features of a frozen
    network, the first also takes the time of computing them. Where FLOPs are not known, finished runs alone count."""
    devices = {(config.get("training") or {}).get("device") for config in planned.configs.values()}
    needs_cuda = "cuda" in devices or ("auto" in devices and bool(cuda_devices()))
    finished = _finished_by_key(planned, runs, needs_cuda)
    if all(planned.costs[name]["train_flops"] is None for name in planned.keys_by_name()):
        return _by_finished_runs(planned, finished, needs_cuda)
    besides = [done.whole - done.training for done in finished.values()]
    beside = statistics.median(besides) if besides else SECONDS_BESIDE_TRAINING
    rate, basis = _rate(list(finished.values()), runs, needs_cuda, planned.runner)
    seconds: dict[str, float] = {}
    for name, keys in planned.keys_by_name().items():
        trains = name not in planned.repeated
        durations = [done.whole - (0 if trains else done.training) for key in keys if (done := finished.get(key))]
        flops = planned.costs[name]["train_flops"]
        in_proportion = beside + trains * (math.nan if flops is None else flops) / rate
        seconds_per_run = statistics.median(durations) if durations else in_proportion
        seconds |= dict.fromkeys(keys, seconds_per_run)
    for key, of_pass in _passes(planned, finished, needs_cuda).items():
        seconds[key] += of_pass
    return TimeEstimate(seconds, basis, needs_cuda)


def _finished_by_key(planned: PlannedStudy, runs: Path, needs_cuda: bool) -> dict[str, FinishedRun]:
    """Returns finished runs of a plan by key: of ENOUGH_RUNS of each arm, and of all that share a cache."""
    wanted = {key for of_pass in planned.passes.values() for key in of_pass}
    for keys in planned.keys_by_name().values():
        wanted.update(keys[:: max(len(keys) // ENOUGH_RUNS, 1)])
    paths = {key: runs / key / RECORD for key in planned.configs if key in wanted}
    return {key: done for key, path in paths.items() for done in _finished_runs([path], needs_cuda)}


def _by_finished_runs(planned: PlannedStudy, finished: dict[str, FinishedRun], needs_cuda: bool) -> TimeEstimate:
    """Estimates the seconds of runs whose FLOPs are not known: the median of the finished runs of an arm or, without
    any, of all arms."""
    seconds: dict[str, float] = {}
    for keys in planned.keys_by_name().values():
        durations = [finished[key].whole for key in keys if key in finished] or [one.whole for one in finished.values()]
        seconds |= dict.fromkeys(keys, statistics.median(durations) if durations else math.nan)
    number = {0: "no run", 1: "1 run"}.get(len(finished), f"{len(finished)} runs")
    basis = f"from {number} of this plan" if finished else "not known before a run of it has finished"
    return TimeEstimate(seconds, basis, needs_cuda)


def _passes(planned: PlannedStudy, finished: dict[str, FinishedRun], needs_cuda: bool) -> dict[str, float]:
    """Returns the seconds of each forward pass that runs share by a cache, by the run that is done first of those that
    share it. Passes of which a run has finished take no time: the cache is filled."""
    left = [runs for runs in planned.passes.values() if not finished.keys() & runs.keys()]
    if not left:
        return {}
    flops = {key: flops for runs in planned.passes.values() for key, flops in runs.items()}
    known = [flops[key] / done.caching for key, done in finished.items() if key in flops and done.caching > 0]
    rate = statistics.median(known) if known else _assumed_rate(planned.runner, needs_cuda)[0]
    order = [ticket.key for ticket in planned.tickets()]
    first = [min(runs, key=order.index) for runs in left]
    return {key: flops[key] / rate for key in first}


def _rate(plan_runs: list[FinishedRun], runs: Path, needs_cuda: bool, runner: str) -> tuple[float, str]:
    """Returns training FLOPs per second, and the basis of that number in words.

    The time of evaluation is left out, since a run that only writes token by token does not tell how fast others train.
    """
    records = sorted(runs.glob("*/record.json")) if not plan_runs else []
    others = (done for done in _finished_runs(records, needs_cuda) if done.training >= ENOUGH_SECONDS)
    samples = [done for done in plan_runs or others if done.rate > 0]
    if samples:
        machine = statistics.mode(done.hardware for done in samples)
        rates = [done.rate for done in samples if done.hardware == machine]
        number = "1 run" if len(rates) == 1 else f"{len(rates)} runs"
        basis = f"from {number} of {'this plan' if plan_runs else 'other plans'} on {machine}"
        return statistics.median(rates), basis
    return _assumed_rate(runner, needs_cuda)


def _assumed_rate(runner: str, needs_cuda: bool) -> tuple[float, str]:
    """Returns FLOPs per second of training without finished runs, and the basis of that number in words."""
    if needs_cuda and not cuda_devices():
        basis = f"assuming {ASSUMED_DEVICE} at {ASSUMED_RATE / 1e12:.0f} TFLOP/s: no CUDA device here"
        return ASSUMED_RATE, basis
    machine = "this machine's CUDA device" if needs_cuda else processor()
    basis = (
        "rough estimate, too long where rows are shorter than their limit: "
        f"no run of {ENOUGH_SECONDS:.0f} s or more has finished on {machine}"
    )
    device = "cuda" if needs_cuda else "cpu"
    here = "torch" in sys.modules  # otherwise the runner's server has imported it, or is about to
    rate = matrix_product_rate(device) if here else call_forked(runner, matrix_product_rate, device)
    return SMALL_MODEL_SHARE * rate, basis


def _finished_runs(records: Iterable[Path], needs_cuda: bool) -> Iterator[FinishedRun]:
    """Yields the finished runs on the required hardware: this machine's processor, or a CUDA device, of the models that
    this machine has if it has any."""
    models = cuda_models() if needs_cuda else ()
    for path in records:
        with suppress(OSError, ValueError, RecursionError, KeyError, TypeError, ZeroDivisionError):
            record = load_record(path)
            cost, measured = record.cost, record.measured
            tokens, flops = cost["tokens"], record.planned_flops
            training = measured["training_seconds"] if tokens is None else tokens / measured["tokens_per_second"]
            hardware = record.environment["hardware"]
            rate = math.nan if flops is None else flops / training
            caching = float(measured.get("feature_seconds", 0.0))
            done = FinishedRun(rate, training, measured["seconds"], hardware, caching)
            is_device = " CPU, " not in hardware and (not models or hardware in models)
            is_wanted = is_device if needs_cuda else hardware == processor()
            if record.outcome == "finished" and is_wanted and training > 0:
                yield done


def matrix_product_rate(device: str, width: int = 256, seconds: float = 0.3) -> float:
    """Returns the best FLOPs per second of matrix products of a small model's size, on one core or the CUDA device."""
    import torch  # imported here, since it is needed only where there are no runs yet

    torch.set_num_threads(1)
    left, right = torch.randn(4 * width, width, device=device), torch.randn(width, 4 * width, device=device)
    best, loop_start = math.inf, time.monotonic()
    while time.monotonic() - loop_start < seconds:
        start = time.perf_counter()
        float((left @ right)[0, 0])  # reading an element waits for the device
        best = min(best, time.perf_counter() - start)
    return 2 * (4 * width) * width * (4 * width) / best
