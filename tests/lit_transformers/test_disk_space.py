"""Room for checkpoints: their size is known beforehand, and an error names the place that is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from lit_transformers.config import ConfigError
from lit_transformers.runs import RunConfig, fit
from lit_transformers.training.disk_space import checkpoint_bytes, lack_of_space, what_is_full


def disk(free: int, blocks: int = 1 << 20) -> SimpleNamespace:
    return SimpleNamespace(f_bavail=free, f_frsize=1, f_blocks=blocks)


@pytest.mark.parametrize(
    ("optimizer", "copies"),
    [("adamw", 3), ("sgd", 2), pytest.param({"kind": "sgd", "momentum": 0.0}, 1, marks=pytest.mark.slow)],
)
def test_a_checkpoint_takes_what_is_foreseen(
    small_run: RunConfig, tmp_path: Path, optimizer: object, copies: int
) -> None:
    """While it trains, and where the optimizer of a run that has ended is kept."""
    trained = {"training.steps": 2, "training.optimizer": optimizer, "training.keep_optimizer": True}
    config = small_run.override(trained | {"model.dim": 128, "model.depth": 2})
    parameters = float(fit(config, tmp_path)["cost"]["parameters"])  # type: ignore[call-overload, index, arg-type]
    size, foreseen = (
        (tmp_path / "checkpoint.ckpt").stat().st_size,
        checkpoint_bytes(parameters, config.to_dict()["training"]),
    )  # type: ignore[arg-type]
    assert foreseen > 4 * copies * parameters and 0.9 * foreseen < size < 1.1 * foreseen


def test_a_run_without_room_for_its_checkpoint_is_refused_before_it_begins(
    small_run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: disk(1000))
    with pytest.raises(
        ConfigError, match=r"the disk has 0\.0 MB left and a checkpoint takes about 0\.\d MB; make room"
    ):
        fit(small_run, tmp_path / "new" / "run")
    assert not (tmp_path / "new").exists()
    monkeypatch.setattr(os, "statvfs", lambda path: disk(0, blocks=0))
    assert lack_of_space(tmp_path, 10) is None, "of a file system that does not say its size"


def full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def semaphore_without_room() -> None:
    """As the C code of a semaphore raises it, whose caller is the last frame."""
    exec(compile("raise error", "/usr/lib/python3/multiprocessing/synchronize.py", "exec"), {"error": full()})


def fail(error: Exception) -> None:
    raise error


BUS = "DataLoader worker (pid 7) is killed by signal: Bus error. Perhaps workers are out of shared memory."
SHARED = "unable to allocate shared memory(shm) for file </torch_1_2>: No space left on device (28)"


@pytest.mark.parametrize(
    ("act", "name"),
    [
        (lambda: fail(full()), "the disk is full"),
        (lambda: fail(OSError(errno.EDQUOT, "Disk quota exceeded")), "the disk is full"),
        (
            lambda: fail(RuntimeError("[enforce fail] PytorchStreamWriter failed writing file data/3")),
            "the disk is full",
        ),
        (semaphore_without_room, "shared memory is full (/dev/shm)"),
        (lambda: fail(RuntimeError(BUS)), "shared memory is full (/dev/shm)"),
        (lambda: fail(RuntimeError(f"Caught RuntimeError in DataLoader worker process 0.\n{SHARED}")), "shared memory"),
        (lambda: fail(OSError(errno.ENOSPC, "No space left on device", "/dev/shm/psm_1")), "shared memory is full"),
        (lambda: fail(OSError(errno.EIO, "Input/output error")), None),
        (lambda: fail(RuntimeError("something broke")), None),
    ],
)
def test_what_is_full_is_named(act: object, name: str | None) -> None:
    with pytest.raises(Exception) as raised:
        act()  # type: ignore[operator]
    named = what_is_full(raised.value)
    assert named is None if name is None else named is not None and named.startswith(name)
