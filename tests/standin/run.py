"""A stand-in for the library's runner without torch: deterministic, checkpointing, and able to fail on demand."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Client
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Literal, NamedTuple

from lit_transformers.config import (
    Config,
    ConfigError,
    NonNegative,
    NonNegativeFloat,
    Plain,
    Positive,
    PositiveFloat,
    canonical_hash,
)
from lit_transformers.runner import RetentionConfigs, Runner

LEAKED: list[bytes] = []
RELEASED = "released"
"""The file in the directory of a run with the fault "wait" for which its first attempt waits, or for a stop."""
HEALED = "healed"
"""The file in the directory of a run whose fault shows no more."""
WAIT_SECONDS = 120.0
"""How long it waits: by then the code that should have stopped it has failed, and the test with it."""
DATA = "0"
"""The fingerprint of the data of its runs, which have none."""


class EncodingConfig(Config, kind="relative"):
    clamp: NonNegative = 0


class MixerConfig(Config):
    memory: NonNegative = 8
    encoding: EncodingConfig | None = EncodingConfig()


class ModelConfig(Config):
    width: Positive = 16
    heads: Positive = 1
    mixer: MixerConfig = MixerConfig()

    def conflicts(self) -> Any:
        if self.width % self.heads:
            yield f"width {self.width} does not divide by heads {self.heads}"


class DataConfig(Config):
    segment: Positive = 32
    path: str = ""


class TrainingConfig(Config):
    steps: Positive = 20
    batch: Positive = 4
    devices: Positive = 1
    pause: NonNegativeFloat = 0.0
    rate: PositiveFloat | None = None
    fault: Literal[
        "none",
        "nan",
        "memory",
        "raise",
        "kill",
        "kill always",
        "loader",
        "full",
        "exit",
        "exit 255",
        "hang",
        "leak",
        "gate",
        "wait",
    ] = "none"


class RunConfig(Config):
    """source: a run that it starts from, whose seed is its own."""

    runner: ClassVar[str] = "standin.run:RUNNER"

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    seed: NonNegative = 0
    source: SourceConfig | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source is not None:
            seeded = SourceConfig(run=self.source.run.override({"seed": self.seed}))
            object.__setattr__(self, "source", seeded)


class SourceConfig(Config):
    run: RunConfig


class Interrupted(Exception):
    """The run stopped on request and left a checkpoint."""


class Progress(NamedTuple):
    step: int
    steps: int
    loss: float
    metrics: dict[str, float]
    seconds_left: float | None
    phase: str


class Gate(NamedTuple):
    name: str
    passed: bool
    detail: str


class StepProbe(NamedTuple):
    seconds: float
    memory: float


class Description(NamedTuple):
    parameters: int
    embedding_parameters: int
    flops_per_token: float
    train_flops: float
    tokens: int
    state_bytes: int


def run_key(config: RunConfig) -> str:
    path = Path(config.data.path)
    if config.data.path and not path.is_file():
        raise ConfigError(f"no file {str(path)!r}", "data.path")
    text = path.read_text() if config.data.path else ""
    return canonical_hash([config.to_dict(), text])


def describe(config: RunConfig) -> Description:
    parameters = 4 * config.model.width**2 + (0 if config.model.mixer.encoding is None else config.model.width)
    tokens = config.training.steps * config.training.batch * config.data.segment
    return Description(parameters, 0, 6.0 * parameters, 6.0 * parameters * tokens, tokens, config.model.mixer.memory)


def changes_nothing(arm: RunConfig, baseline: RunConfig) -> bool:
    """A pause changes no number."""
    quick = {"training.pause": 0.0}
    return arm.override(quick) == baseline.override(quick)


_ENDINGS = {"nan": ("failed", "not-a-number"), "gate": ("invalid", "a gate failed: no future leak")}


def check(config: RunConfig) -> list[Gate]:
    """A width of 13 leaks."""
    return [Gate("no future leak", config.model.width != 13, "token 3 changes with token 5"), Gate("trains", True, "")]


def probe(config: RunConfig) -> StepProbe:
    """Time and memory by a formula, and a count of how often they are requested."""
    if config.training.fault == "raise":
        raise RuntimeError("something broke")
    if counter_path := os.environ.get("STANDIN_PROBES"):
        with Path(counter_path).open("a") as file:
            file.write("probed\n")
    return StepProbe(1e-3 * config.model.width * config.training.batch, 1e6 + 100.0 * config.model.width**2)


def fit(
    config: RunConfig,
    directory: Path,
    progress: Callable[[Progress], None] | None = None,
    *,
    wandb_config: None = None,
    logger_config: None = None,
) -> dict[str, Plain]:
    """The first of several ranks writes the files; the others only go through the same steps."""
    stop, is_first = False, os.environ.get("RANK", "0") == "0"

    def on_term(number: int, frame: FrameType | None) -> None:
        nonlocal stop
        stop = True

    previous_handler = signal.signal(signal.SIGTERM, on_term)
    report = progress or (lambda news: None)
    checkpoint, released = directory / "checkpoint.ckpt", directory / RELEASED
    step, state = json.loads(checkpoint.read_text()) if checkpoint.exists() else (0, start_of(config, directory.parent))
    report(Progress(step, config.training.steps, math.nan, {}, None, "gates"))
    started = step
    while step < config.training.steps:
        increment = config.model.width + config.model.mixer.memory + int(1000 * ((config.training.rate or 1) - 1))
        state = (state * 6364136223846793005 + increment) % 2**61
        step += 1
        time.sleep(config.training.pause)
        _break("none" if (directory / HEALED).exists() else config.training.fault, step, started)
        waited_since = time.monotonic()
        while config.training.fault == "wait" and (started, step) == (0, 5) and not (stop or released.exists()):
            time.sleep(0.01)
            if time.monotonic() - waited_since > WAIT_SECONDS:
                break
        if is_first and (stop or step % 3 == 0 or step == config.training.steps):
            _write(checkpoint, [step, state])
        if stop:
            raise Interrupted
        seconds_left = (config.training.steps - step) * config.training.pause
        report(Progress(step, config.training.steps, state / 2**61, {}, seconds_left, "fit"))
    report(Progress(step, config.training.steps, state / 2**61, {}, 0.0, "evaluate"))
    outcome, reason = _ENDINGS.get(config.training.fault, ("finished", None))
    failed = outcome != "finished"
    record = {
        "version": 1,
        "key": run_key(config),
        "outcome": outcome,
        "reason": reason,
        "seed": config.seed,
        "config": config.to_dict(),
        "data": {"name": "none", "fingerprint": DATA},
        "metrics": {} if failed else {"val/bpb": state / 2**61},
        "protocol": {},
        "cost": describe(config)._asdict(),
        "gates": [],
        "environment": {},
        "measured": {"seconds": config.training.steps * config.training.pause, "attempts": 1},
    }
    if is_first:
        _write(directory / "record.json", record)
        with (directory / "finishes.txt").open("a") as file:
            file.write(f"{os.getpid()}\n")
    signal.signal(signal.SIGTERM, previous_handler)
    return record


def start_of(config: RunConfig, runs: Path) -> int:
    """Returns the state that a run begins with: that at the end of its source, if it has one."""
    if config.source is None:
        return config.seed + 1
    folder = runs / run_key(config.source.run)
    assert json.loads((folder / "record.json").read_text())["outcome"] == "finished"
    steps, state = json.loads((folder / "checkpoint.ckpt").read_text())
    assert steps == config.source.run.training.steps
    return int(state)


def _break(fault: str, step: int, started: int) -> None:
    if fault == "memory":
        raise MemoryError
    if fault == "raise" and step == 2:
        raise RuntimeError("something broke\nin two lines")
    if step == 5 and (fault == "kill always" or (fault == "kill" and started == 0)):
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "full" and step == 5:
        raise OSError(errno.ENOSPC, "No space left on device")
    if fault == "loader" and started == 0 and step == 5:
        Client("nowhere")  # as where a worker is gone that a batch is taken from
    if fault.startswith("exit") and step == 2:
        os._exit(255 if fault == "exit 255" else 3)
    if fault == "hang" and started == 0 and step == 5:
        time.sleep(1000)
    while fault == "leak" and step == 5:
        LEAKED.append(b"x" * (8 << 20))
        time.sleep(0.02)


def _write(path: Path, plain: Plain) -> None:
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(plain))
    partial.replace(path)


def data_content(config: RunConfig) -> str:
    """Returns the fingerprint of data that its records hold."""
    return DATA


def sources(config: RunConfig) -> dict[str, RunConfig]:
    source = getattr(config, "source", None)  # the stand-in of searches starts from no run
    return {} if source is None else {"source": source.run}


def retention(config: RunConfig, measured: RunConfig) -> RetentionConfigs | None:
    """Returns the measured run twice: with a start from the first stage of a run, and with a start from the run."""
    if config.source is None:
        return None
    first = config.source.run
    while first.source is not None:
        first = first.source.run
    measured = measured.override({"seed": config.seed})
    return RetentionConfigs(*(replace(measured, source=SourceConfig(run=run)) for run in (first, config)))


def rate_fields(config: RunConfig) -> list[str]:
    return ["training.rate"] if getattr(config.training, "rate", None) is not None else []


RUNNER = Runner(
    RunConfig,
    Interrupted,
    run_key,
    describe,
    changes_nothing,
    fit,
    probe,
    check,
    data_content=data_content,
    sources=sources,
    retention=retention,
    rate_fields=rate_fields,
)
