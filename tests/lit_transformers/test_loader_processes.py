"""Processes that load data: a run whose loader is killed is cut off and not failed, and none outlives its run."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch.utils.data import DataLoader, IterableDataset
from waiting import wait_for

from lit_transformers.lightning_runs import LightningRunConfig
from lit_transformers.lightning_runs.fit import fit as fit_module
from lit_transformers.records.files import CHECKPOINT, RECORD
from lit_transformers.runs import RunConfig, fit
from lit_transformers.training.loader_processes import LoaderDied, loader_death
from lit_transformers.training.reporting import Progress


class Items(IterableDataset[Any]):
    """Items of a worker that does something before it yields the first one."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    def __iter__(self) -> Iterator[Any]:
        self.act()
        yield 0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def lose_connection() -> None:
    raise ConnectionResetError("the data base is away")


def lose_end() -> None:
    raise EOFError("the file ends early")


def caught(act: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as raised:
        act()
    return raised.value


def first_item(act: Callable[[], object]) -> Callable[[], object]:
    return lambda: next(iter(DataLoader(Items(act), batch_size=None, num_workers=1)))


def test_a_loader_that_was_killed_is_known_by_whatever_error_it_leaves() -> None:
    """torch says it, or a connection ends that a batch comes by or a worker is started by."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    sender.close()
    for act in (first_item(die), lambda: Client("nowhere"), receiver.recv):
        death = loader_death(caught(act))
        assert death is not None and "a process that loads data has died (" in str(death)
    try:
        raise ValueError("one batch cannot be trained") from caught(receiver.recv)
    except ValueError as error:
        assert loader_death(error) is not None


@pytest.mark.parametrize("act", [first_item(lose_connection), first_item(lose_end), lose_connection, lose_end])
def test_an_error_of_ones_own_is_no_death_of_a_loader(act: Callable[[], object]) -> None:
    assert loader_death(caught(act)) is None


def test_room_that_is_lacking_is_no_death_of_a_loader() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    code = compile("raise error", "/usr/lib/python3/multiprocessing/synchronize.py", "exec")
    assert loader_death(caught(lambda: exec(code, {"error": full}))) is None
    assert loader_death(caught(lambda: exec(code, {"error": ConnectionResetError()}))) is not None


@pytest.mark.parametrize("kind", [pytest.param("a task", marks=pytest.mark.slow), "a LightningModule"])
def test_a_run_whose_loader_is_killed_leaves_no_record_and_resumes_from_its_checkpoint(
    small_run: RunConfig, tmp_path: Path, kind: str
) -> None:
    def kill(progress: Progress) -> None:
        if not died and (tmp_path / CHECKPOINT).exists():
            died.extend(multiprocessing.active_children())
            for child in multiprocessing.active_children():
                child.kill()

    died: list[Any] = []
    if kind == "a task":
        config = small_run.override({"data.workers": 1})

        def go() -> dict[str, Any]:
            return fit(config, tmp_path, kill, keep_every=0.0)
    else:
        plane = {"class_path": "foreign_module.Plane", "init_args": {"kind": "workers"}}
        training = {"steps": 17, "device": "cpu"}
        module = LightningRunConfig(model={"class_path": "foreign_module.Net"}, data=plane, training=training)

        def go() -> dict[str, Any]:
            return fit_module(module, tmp_path, kill, keep_every=0.0)

    with pytest.raises(LoaderDied):
        go()
    assert died and (tmp_path / CHECKPOINT).exists() and not (tmp_path / RECORD).exists()
    assert go()["outcome"] == "finished"


def test_a_notice_that_arrives_while_the_death_is_handled_leaves_no_record(
    small_run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch raises it in the handler of the signal, which runs between any two instructions."""

    def interrupted(error: BaseException) -> None:
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")

    monkeypatch.setattr("lit_transformers.runs.recording.loader_death", interrupted)
    with pytest.raises(LoaderDied, match="pid 7"):
        fit(small_run, tmp_path, lambda progress: lose_connection())
    assert not (tmp_path / RECORD).exists()


RUN = """
import json, os, signal, sys, time
import multiprocessing
from lit_transformers.training.loader_processes import set_loaders_apart

if __name__ == "__main__":
    set_loaders_apart()
    kinds = map(multiprocessing.get_context, ("forkserver", "fork"))
    loaders = [kind.Process(target=time.sleep, args=(600,)) for kind in kinds]
    for loader in loaders:
        loader.start()
    print(json.dumps([loader.pid for loader in loaders]), flush=True)
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_loaders_are_in_a_group_of_their_own_and_end_with_their_run(tmp_path: Path) -> None:
    """Of the two, torch's own watch ends the one that is forked from the run."""
    script = tmp_path / "run.py"
    script.write_text(RUN)
    run = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert run.stdin is not None and run.stdout is not None
    served, forked = (psutil.Process(pid) for pid in json.loads(run.stdout.readline()))
    server = served.parent()
    assert server is not None and server.pid != run.pid
    try:
        wait_for(lambda: os.getpgid(forked.pid) != os.getpgid(run.pid))
        assert os.getpgid(served.pid) == os.getpgid(server.pid) != os.getpgid(run.pid)
        run.stdin.close()
        run.wait()
        wait_for(lambda: not (alive(served) or alive(server)), "the loader has outlived its run")
    finally:
        for process in (served, forked):
            if alive(process):
                process.kill()


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
