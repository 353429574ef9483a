"""The kit for a borrowed GPU: jobs have limits, calls resume where the last one ended, and all needed files travel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import job_queue
from benchmarks.gpu.job import KitJob
from benchmarks.gpu.job_queue import RESULTS, Kit, attempts_in
from benchmarks.gpu.session import pack, unpack

pytestmark = pytest.mark.slow

CHILD = """
import json, os, subprocess, sys, time
what, work = sys.argv[1:]
with open(f"{work}/begun.txt", "a") as file:
    file.write(what + "\\n")
if what == "measure":
    json.dump({"value": 3}, open(f"{work}/measured.json", "w"))
elif what == "surroundings":
    import torch
    touched = torch.cuda.is_initialized() or torch.cuda._is_in_bad_fork()
    answer = {"threads": torch.get_num_threads(), "devices": os.environ["CUDA_VISIBLE_DEVICES"], "touched": touched}
    json.dump(answer, open(f"{work}/measured.json", "w"))
elif what == "fail":
    sys.exit("the last line of the error")
elif what == "hang":  # with a separate process, as a study has
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    open(f"{work}/child.txt", "w").write(str(child.pid))
    time.sleep(60)
"""


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    """A kit whose jobs are scripts of this file."""
    (tmp_path / "kit_child.py").write_text(CHILD)
    monkeypatch.setattr(job_queue, "code_fingerprint", lambda: "code")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return Kit(tmp_path / "out", work, lambda line: None)


def job(name: str, limit: float = 20, least: float = 0, resumable: bool = False) -> KitJob:
    writes = "measured.json" if name in ("measure", "surroundings") else None
    return KitJob("a", name, "kit_child", (name, "{work}"), 5, limit, least, resumable, writes)


def status_of(process: int) -> str:
    """The system's status of a process; "zombie" for one that is gone."""
    try:
        return Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "zombie"


def begun_jobs(kit: Kit) -> list[str]:
    """The jobs that were begun, in order, over all calls."""
    return (kit.work / "begun.txt").read_text().split()


def test_what_a_job_measured_is_in_the_results_when_it_ends(kit: Kit) -> None:
    kit.run([job("measure")], 60)
    (attempt,) = attempts_in(kit.out)
    assert attempt.outcome == "finished" and attempt.result == {"value": 3}


def test_a_later_job_runs_though_an_earlier_one_fails(kit: Kit) -> None:
    kit.run([job("fail"), job("measure")], 60)
    failed, measured = attempts_in(kit.out)
    assert failed.outcome == "failed" and failed.tail[-1] == "the last line of the error"
    assert measured.outcome == "finished"


def test_a_job_that_hangs_is_ended_at_its_limit_with_all_that_it_started(kit: Kit) -> None:
    kit.run([job("hang", limit=1)], 60)
    (attempt,) = attempts_in(kit.out)
    assert attempt.outcome == "timed out"
    assert "zombie" in status_of(int((kit.work / "child.txt").read_text()))


def test_a_job_has_the_environment_and_the_threads_that_it_asks_for(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    kit.run([job("surroundings")], 60)
    (attempt,) = attempts_in(kit.out)
    assert attempt.result == {"threads": 2, "devices": "5", "touched": False}


def test_a_call_begins_nothing_that_the_time_left_does_not_hold(kit: Kit) -> None:
    waiting = kit.run([job("measure", least=90), job("fail", least=1)], 60)
    assert [waiting_job.name for waiting_job in waiting] == ["measure"] and begun_jobs(kit) == ["fail"]


def test_the_next_call_repeats_what_the_last_one_did_not_finish(kit: Kit) -> None:
    jobs = [job("measure"), job("fail"), job("hang", limit=0.2), job("hang", limit=0.2, resumable=True)]
    jobs[3] = jobs[3].__class__(**vars(jobs[3]) | {"name": "goes on"})
    kit.run(jobs, 90)
    assert [pending_job.name for pending_job in kit.pending(jobs)] == ["fail", "hang", "goes on"]
    assert len(kit.pending(jobs, again=True)) == 4


def test_a_job_that_the_end_of_the_call_stopped_is_still_to_do(kit: Kit) -> None:
    kit.run([job("hang", limit=50)], 0.5)
    assert attempts_in(kit.out)[0].outcome == "stopped"
    assert len(kit.pending([job("hang", limit=50)])) == 1


def test_a_call_that_a_person_stops_says_what_was_under_way(kit: Kit) -> None:
    """By the signal that ends a call: the job's processes end with it."""

    def interrupt_once_it_runs(*_: object) -> None:
        if child.exists() and child.read_text():
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt  # not SIGINT, which is ignored where the tests run in the background

    child = kit.work / "child.txt"
    before = signal.signal(signal.SIGALRM, interrupt_once_it_runs)
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    with pytest.raises(KeyboardInterrupt):
        kit.run([job("hang", limit=50)], 60)
    signal.signal(signal.SIGALRM, before)
    assert [(attempt.name, attempt.outcome) for attempt in attempts_in(kit.out)] == [("hang", "stopped")]
    assert "zombie" in status_of(int(child.read_text()))


def test_a_result_that_was_torn_is_left_out_and_overwritten_by_the_next(kit: Kit) -> None:
    kit.run([job("measure"), job("fail")], 60)
    path = kit.out / RESULTS
    path.write_bytes(path.read_bytes()[:-10])
    assert [attempt.name for attempt in attempts_in(kit.out)] == ["measure"]
    kit.run([job("fail")], 60)
    assert [attempt.name for attempt in attempts_in(kit.out)] == ["measure", "fail"]
    path.write_bytes(b"no attempt\n" + path.read_bytes())
    with pytest.raises(ValueError, match=r"results\.jsonl, line 1: not an attempt of the kit"):
        attempts_in(kit.out)


def test_records_travel_to_another_machine_and_weights_do_not(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "0a1b"
    run.mkdir(parents=True)
    (run / "record.json").write_text("{}")
    (run / "checkpoint.ckpt").write_bytes(b"w" * 1000)
    pack(tmp_path / "runs", tmp_path / "runs.tar.gz")
    unpack(tmp_path / "runs.tar.gz", tmp_path / "elsewhere")
    assert [path.name for path in (tmp_path / "elsewhere" / "0a1b").iterdir()] == ["record.json"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--part", "z"), "error: --part z: there are a, b, c, d, e, f, g, h, i, j, k, l, m, n"),
        (
            ("--wheels", "nowhere"),
            "error: nowhere holds no wheels; python -m benchmarks.gpu.wheels --to nowhere makes them",
        ),
    ],
    ids=["an unknown part", "no wheels"],
)
def test_bad_input_is_one_line_and_status_2(options: tuple[str, ...], error: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--list", *options, "--out", str(tmp_path)]
    completed = subprocess.run([*command, "--work", str(tmp_path)], capture_output=True, text=True)
    assert (completed.returncode, completed.stderr) == (2, f"{error}\n")
