"""Runs of the suite on one device, each in a separate process: ``python -m benchmarks.gpu.runs_on_device COMMAND``.

    resumed --runs DIR --json FILE      # a run in bfloat16 that is killed, and resumed in another process
    shared --runs DIR --json FILE       # a run of xl_recurrence alone, and two at the same time

Processes are forked before CUDA is initialised. A line is printed every second or so while a run trains.
"""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import shutil
import signal
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ablations.baselines import GPU, LAGS, TRANSFORMER_XL
from lit_transformers.records.files import CURVES, RECORD, write_json
from lit_transformers.records.record import load_record
from lit_transformers.runs import RunConfig, fit
from lit_transformers.training.reporting import Progress

LEARNED_SHARE = 0.8
"""The last losses of a run that has learned are below this share of its first."""
app = typer.Typer(add_completion=False, help=__doc__)
Runs = Annotated[Path, typer.Option(help="Where the runs are; they are done anew.")]
Json = Annotated[Path, typer.Option("--json", help="Where the result is written.")]
Small = Annotated[bool, typer.Option("--rehearse", help="A few steps of a small network, on any device.")]


def run_once(config: RunConfig, folder: Path, killed_at: int | None) -> None:
    """Does a run. killed_at: the step after which its process kills itself, with a checkpoint of every step; None to
    train to the end."""
    said = 0.0

    def report(progress: Progress) -> None:
        nonlocal said
        if progress.phase != "fit":
            return
        if time.monotonic() - said > 1:
            said = time.monotonic()
            line = f"{folder.name}: step {progress.step} of {progress.steps}, loss {progress.loss:.3f}"
            print(line, flush=True)
        if killed_at is not None and progress.step >= killed_at:
            print(f"{folder.name}: killed at step {progress.step}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    record = fit(config, folder, report, keep_every=30.0 if killed_at is None else 0.0)
    if record["outcome"] != "finished":
        raise SystemExit(f"{folder.name} {record['outcome']}: {record['reason']}")


def run_together(configs: Sequence[RunConfig], folders: Sequence[Path], killed_at: int | None = None) -> list[int]:
    """Does runs at the same time, and returns the exit status of each."""
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=run_once, args=(config, folder, killed_at))
        for config, folder in zip(configs, folders, strict=True)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode or 0 for process in processes]


def numbers_of(folder: Path) -> dict[str, Any] | None:
    """Returns the speed, the memory and the kernels of attention of a run; None where it has not finished."""
    record = load_record(folder / RECORD) if (folder / RECORD).exists() else None
    if record is None or record.outcome != "finished":
        return None
    return {
        "tokens_per_second": record.measured["tokens_per_second"],
        "peak_memory_bytes": record.measured["peak_memory_bytes"],
        "seconds": record.measured["seconds"],
        "metrics": record.metrics,
        "environment": dict(record.environment),
    }


def losses_of(folder: Path) -> list[float]:
    """Returns the losses of training in the order of their steps."""
    with (folder / CURVES).open(encoding="utf-8") as file:
        return [float(row["value"]) for row in csv.DictReader(file) if row["name"] == "train/nats"]


def small(config: RunConfig) -> RunConfig:
    """Returns a config that takes seconds, on a CPU where there is no device."""
    few = {"training.steps": 40, "training.log_every": 2, "training.schedule.warmup": 2}
    few |= {"data.evaluation.bytes": 512, "data.evaluation.last": "cut"}
    narrow = {"model.dim": 16, "model.heads": 2, "model.depth": 1, "model.mixer.memory": 16, "data.batch_size": 4}
    place = {"training.device": "auto", "training.precision": "32", "data.segment_length": 16}
    return config.override({**few, **narrow, **place})


@app.command()
def resumed(runs: Runs, json_file: Json, rehearse: Small = False) -> None:
    """Kills a run in bfloat16 and resumes it. Exits with 1 where it does not end, or has not learned."""
    config = TRANSFORMER_XL.override(
        {
            **LAGS,
            "training.steps": 300,
            "training.log_every": 5,
            "training.device": "cuda",
            "training.precision": "bf16",
        }
    )
    config = small(config) if rehearse else config
    steps, folder = config.training.steps, runs / "resumed"
    shutil.rmtree(folder, ignore_errors=True)
    (killed,) = run_together([config], [folder], killed_at=steps // 3)
    run_together([config], [folder])
    result: dict[str, Any] = {"killed": killed == -signal.SIGKILL}
    numbers = numbers_of(folder)
    if numbers is not None:
        losses = losses_of(folder)
        first, last = statistics.mean(losses[:4]), statistics.mean(losses[-4:])
        whole = len(losses) == steps // config.training.log_every
        result |= numbers | {"first_loss": first, "last_loss": last, "whole_curve": whole}
        result["learned"] = last < LEARNED_SHARE * first
    write_json(json_file, result)
    print(json.dumps(result), flush=True)
    passed = result["killed"] and result.get("whole_curve") and (rehearse or result["learned"])
    raise SystemExit(int(not passed))


@app.command()
def shared(runs: Runs, json_file: Json, rehearse: Small = False) -> None:
    """Trains one run of xl_recurrence at the scale gpu for 150 steps, and then two at the same time. The ratio
    compares the tokens a second of both together with the single run."""
    short = {"training.steps": 150, "training.validate_every": None, "training.schedule.warmup": 15}
    config = TRANSFORMER_XL.override({**GPU, **short, "data.evaluation.bytes": 65_536})
    config = small(config) if rehearse else config
    result: dict[str, Any] = {}
    failed = 0
    for name, seeds in (("one", [0]), ("two", [1, 2])):
        folders = [runs / f"{name}-{seed}" for seed in seeds]
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        failed |= any(run_together([config.override({"seed": seed}) for seed in seeds], folders))
        finished = [numbers for folder in folders if (numbers := numbers_of(folder)) is not None]
        speed = sum(run["tokens_per_second"] for run in finished) if len(finished) == len(seeds) else None
        result[name] = {"tokens_per_second": speed, "runs": finished}
        if speed is not None:
            peak = max(run["peak_memory_bytes"] for run in finished)
            print(f"{name}: {speed:,.0f} tokens a second, {peak / 2**30:.2f} GiB a run at most", flush=True)
        write_json(json_file, result)
    one, two = (result[name]["tokens_per_second"] for name in ("one", "two"))
    if one and two:
        result["ratio"] = two / one
        print(f"two runs train {result['ratio']:.2f} times the tokens of one", flush=True)
        write_json(json_file, result)
    raise SystemExit(int(failed))


if __name__ == "__main__":
    app()
