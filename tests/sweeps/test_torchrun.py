"""Runs of two ranks, started by the command as any other: on CPU, with gloo, and with all that may happen to them.

torchrun starts three processes that import torch, which takes most of the time of a command here. Behaviour that does
not depend on how ranks are started is proven with forked ranks, and behaviour that does not depend on their
computations with the stand-in.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import standin_runs
from forked import training
from standin.frequent_checkpoints import CHECKPOINT_SECONDS, RunConfig
from standin_runs import finishes, go, metrics, never_interrupted, states, tickets
from waiting import when

from lit_transformers.config import ConfigError
from lit_transformers.runs import evaluate, run_key
from sweeps.launchers.local import Options
from sweeps.launchers.share import Share
from sweeps.ledger.ticket import State, Ticket
from sweeps.process import torchrun
from sweeps.process.order import RunOrder

pytestmark = pytest.mark.slow
OPTIONS = Options("standin.frequent_checkpoints:RUNNER", Share(workers=1, threads=1), metric="val/bpb")
"""It is the library's own runner, with a checkpoint every moment."""


@pytest.fixture(scope="module")
def ticket(tmp_path_factory: pytest.TempPathFactory) -> Ticket:
    """A small run with dropout, so that every rank's random numbers matter."""
    folder = tmp_path_factory.mktemp("corpus")
    words = random.Random(0)
    for number in range(31):
        lines = [" ".join(words.choices(["alpha", "beta", "gamma"], k=6)) for _ in range(words.randint(2, 20))]
        (folder / f"{number}.txt").write_text("\n".join(lines))
    mixer = {"kind": "attention", "memory": 8, "encoding": "xl"}
    config = RunConfig.from_dict(
        {
            "model": {"kind": "language_model", "dim": 16, "heads": 2, "depth": 1, "dropout": 0.1, "mixer": mixer},
            "data": {
                "source": {"kind": "files", "path": str(folder), "validation": 0.2},
                "segment_length": 8,
                "batch_size": 4,
                "evaluation": {"documents": 3},
            },
            "training": {"steps": 40, "device": "cpu", "devices": 2},
        }
    )
    return Ticket(run_key(config), "plain", 0, config.to_dict())


def read_record(runs: Path, ticket: Ticket) -> dict[str, Any]:
    return json.loads((ticket.directory(runs) / "record.json").read_text())


def ranks_of(runs: Path) -> list[psutil.Process]:
    """The processes that train: those below torchrun whose output is the run's log."""
    ranks = []
    for process in psutil.process_iter():
        try:
            is_ours = str(Path(f"/proc/{process.pid}/fd/1").readlink()).startswith(str(runs))
            if (
                is_ours
                and "sweeps.process.rank" in process.cmdline()
                and "torch.distributed.run" not in process.cmdline()
            ):
                ranks.append(process)
        except (OSError, psutil.Error):
            continue
    return ranks


@pytest.fixture(scope="module")
def uninterrupted_run(ticket: Ticket, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing happened to."""
    runs = tmp_path_factory.mktemp("uninterrupted")
    training(RunConfig.from_dict(ticket.config), ticket.directory(runs)).finish()
    return runs


def test_ranks_of_which_one_is_killed_all_end_and_go_on_from_their_checkpoint(
    uninterrupted_run: Path, ticket: Ticket, tmp_path: Path
) -> None:
    """The others wait for it in a collective."""
    directory = ticket.directory(tmp_path)
    with when((directory / "checkpoint.ckpt").exists, lambda: ranks_of(tmp_path)[-1].kill()):
        summary = go(tmp_path, [ticket], OPTIONS)
    assert states(summary) == [State.FINISHED] and summary.rows[0].taken == 2
    assert "a rank was killed" in (directory / "log.txt").read_text()
    assert not ranks_of(tmp_path)
    assert read_record(tmp_path, ticket)["metrics"] == read_record(uninterrupted_run, ticket)["metrics"]


def test_ranks_that_are_stopped_go_on_with_the_next_command(tmp_path: Path) -> None:
    runs, options = tmp_path / "runs", standin_runs.OPTIONS
    (two_ranks,) = run_tickets = tickets(1, fault="wait", devices=2)
    with when((two_ranks.directory(runs) / "checkpoint.ckpt").exists, lambda: os.kill(os.getpid(), signal.SIGTERM)):
        summary = go(runs, run_tickets, options)
    assert summary.stopped_by == signal.SIGTERM and states(summary) == [State.STOPPED]
    assert not ranks_of(runs) and not (two_ranks.directory(runs) / "record.json").exists()
    step, _ = json.loads((two_ranks.directory(runs) / "checkpoint.ckpt").read_text())
    assert step > 3, "they were killed, and the checkpoint is that of every third step"
    assert states(go(runs, run_tickets, options)) == [State.FINISHED]
    assert not ranks_of(runs) and finishes(runs, two_ranks) == 1
    assert metrics(runs, run_tickets) == never_interrupted(tmp_path / "quiet", run_tickets)


def test_a_run_that_is_stopped_before_its_ranks_connect_begins_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The process that starts them requests the stop as soon as it runs, and would start them much later."""
    begun = tmp_path / "begun"
    code = f"import os, time, pathlib; os.kill(os.getppid(), 15); time.sleep(5); pathlib.Path({str(begun)!r}).touch()"
    monkeypatch.setattr(torchrun, "_torchrun", lambda order: [sys.executable, "-c", code])
    (two_ranks,) = tickets(1, devices=2)
    options = standin_runs.OPTIONS
    order = RunOrder(two_ranks, tmp_path, options.runner, 1, None, False, "stopped", "disabled")
    assert torchrun.perform_together(order, lambda news: None) is None
    assert not begun.exists()


def test_ranks_that_hold_a_part_each_learn_what_whole_ones_do_and_go_on_where_they_stopped(
    uninterrupted_run: Path, ticket: Ticket, tmp_path: Path
) -> None:
    """Gradients are summed in another order, so float32 weights differ in their last bits: 1e-5, not equality."""
    config = RunConfig.from_dict(ticket.config).override({"training.strategy": "fsdp"})
    directory = tmp_path / "parts"
    ranks = training(config, directory, CHECKPOINT_SECONDS)
    ranks.until((directory / "checkpoint.ckpt").exists)
    ranks.send(signal.SIGTERM)
    assert ranks.wait() == [143, 143], ranks.log.read_text()
    training(config, directory).finish()
    metrics = json.loads((directory / "record.json").read_text())["metrics"]
    assert metrics == pytest.approx(read_record(uninterrupted_run, ticket)["metrics"], rel=1e-5)
    single_process = evaluate(directory / "checkpoint.ckpt")
    assert single_process["val/bpb"] == pytest.approx(metrics["val/bpb"], rel=1e-6), "one process reads the checkpoint"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"training.devices": 1},
            "training: strategy fsdp cuts a network over several devices; set training.devices too, or "
            "training.strategy to ddp",
        ),
        ({"training.compile": True}, "training: strategy fsdp and compile do not go together"),
        ({"task.evaluation": {"mixer.memory": 16}}, "training.strategy fsdp cannot measure another network"),
    ],
)
def test_what_parts_cannot_do_is_refused(ticket: Ticket, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        RunConfig.from_dict(ticket.config).override({"training.strategy": "fsdp", **changes})
    assert str(error.value).startswith(message)
