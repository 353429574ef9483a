"""Twenty SIGKILLs, to runs, to the fork server and to the command itself: no run is lost, and none is done twice.

The runs are those of the stand-in, which imports no torch: the test proves the command, its server and its ledger. That
the library's own runs resume bit for bit after a kill is proven in ``tests/lit_transformers/test_run.py`` and
``tests/sweeps/test_torchrun.py``.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from ordeal import Ordeal, run_command, what_training_left
from standin.run import RunConfig, fit

from ablations import catalog
from ablations.plan import Request, make_plan

pytestmark = pytest.mark.slow

KILLS, RUNS, WORKERS = 20, 8, 2
STEPS, PAUSE = 80, 0.02
STUDY = f"""
from ablations.ablation import Ablation, Metric
from standin.run import RunConfig

ABLATION = Ablation(
    question="Does recurrence help?",
    baseline=RunConfig().override({{"training.steps": {STEPS}, "training.pause": {PAUSE}}}),
    factors={{"recurrence": {{"on": {{}}, "off": {{"model.mixer.memory": 0}}}}}},
    seeds={RUNS // 2},
    metric=Metric("val/bpb", goal="minimize"),
)
"""


def test_twenty_kills_leave_every_run_finished_once_with_the_numbers_of_undisturbed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, log, runs = tmp_path / "recurrence.py", tmp_path / "commands.txt", tmp_path / "torn"
    study.write_text(STUDY)
    # Kills come faster than runs can end, so that all of them fall on a study that is not over; where the machine has
    # become faster since, as soon as there is somebody to kill.
    gap = 0.3 * RUNS * STEPS * PAUSE / WORKERS / KILLS
    with closing(Ordeal(runs, run_command(study, runs), log)) as ordeal:
        while ordeal.kills < KILLS:
            assert len(ordeal.finished) < RUNS, f"all is over after {ordeal.kills} kills"
            is_late = len(ordeal.finished) / RUNS > ordeal.kills / KILLS
            ordeal.kill_somebody(0.0 if is_late else gap)
        ordeal.go_on_undisturbed()

    assert len(ordeal.finished) == RUNS
    assert {len(path.read_text().splitlines()) for path in runs.glob("*/finishes.txt")} == {1}
    monkeypatch.setattr("standin.run.time.sleep", lambda seconds: None)
    for ticket in make_plan("recurrence", catalog.load(study), Request()).tickets():
        directory = ticket.directory(tmp_path / "quiet")
        directory.mkdir(parents=True)
        fit(RunConfig.from_dict(ticket.config), directory)
    assert what_training_left(runs) == what_training_left(tmp_path / "quiet")
    assert all(ordeal.hit.values()) and ordeal.had_checkpoint, "not everything was tried that should be"
    assert "Traceback" not in log.read_text(encoding="utf-8")
    assert not ordeal.left_behind()
