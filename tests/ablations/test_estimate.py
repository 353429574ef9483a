"""How long a plan takes is estimated from runs that lasted long enough, and the machine assumed is named."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ablations import estimate as estimates
from ablations import show
from ablations.estimate import ASSUMED_RATE, ENOUGH_SECONDS, SECONDS_BESIDE_TRAINING, estimate
from ablations.plan import PlannedStudy, joined_parts, shared_parts
from ablations.show import plan_view
from lit_transformers.machine.processor import processor
from lit_transformers.read_once import read_once, reads_shared
from lit_transformers.records.plan import Metric, Plan, PlannedArm, PlannedRun
from lit_transformers.trust import class_paths_in
from sweeps.ledger.ticket import State
from sweeps.live import Row

FLOPS = 1e12
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture(autouse=True)
def _no_cuda_and_a_measured_rate_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "cuda_devices", lambda: ())
    monkeypatch.setattr(estimates, "matrix_product_rate", lambda device: 2e10 / estimates.SMALL_MODEL_SHARE)


def planned(device: str = "cpu") -> PlannedStudy:
    """Two arms of two seeds; a run of the second computes twice as much."""
    arms = tuple(PlannedArm(name, runs=tuple(PlannedRun(seed, f"{name}{seed}") for seed in (0, 1))) for name in "ab")
    costs = {
        name: {"train_flops": flops, "parameters": 1, "flops_per_token": 1, "tokens": 1}
        for name, flops in (("a", FLOPS), ("b", 2 * FLOPS))
    }
    plan = Plan(study="s", scale="gpu", question="", metric=Metric("val/bpb", goal="minimize"), baseline="a", arms=arms)
    configs = {key: {"training": {"device": device}} for key in plan.by_key()}
    return PlannedStudy(plan, configs, costs, "standin.run:RUNNER")


def finish(runs: Path, key: str, seconds: float, rate: float, measuring: float = 0.0, **environment: Any) -> None:
    """Writes the record of a run that trained for ``seconds`` at a rate of ``rate`` FLOP/s and was then measured."""
    record = {
        "version": 1,
        "key": key,
        "seed": 0,
        "outcome": "finished",
        "cost": {"tokens": 1000, "train_flops": rate * seconds},
        "measured": {"tokens_per_second": 1000 / seconds, "seconds": seconds + measuring},
        "environment": {"hardware": processor()} | environment,
    }
    (runs / key).mkdir()
    (runs / key / "record.json").write_text(json.dumps(record))


def without_the_rest(seconds: dict[str, float]) -> dict[str, float]:
    """Subtracts the time that every unfinished run is expected to need in addition to its training."""
    return {key: value - SECONDS_BESIDE_TRAINING for key, value in seconds.items()}


def test_quick_looks_change_nothing(tmp_path: Path) -> None:
    expected = estimate(planned(), tmp_path)
    assert without_the_rest(expected.seconds) == pytest.approx({"a0": 50, "a1": 50, "b0": 100, "b1": 100})
    for number in range(4):
        finish(tmp_path, f"quick{number}", 2.0, rate=1e9)
    assert estimate(planned(), tmp_path) == expected
    assert expected.basis.startswith("rough estimate, too long where rows are shorter than their limit: no run of 20 s")


def test_a_long_run_of_this_machine_tells_how_fast_others_are_and_one_of_another_does_not(tmp_path: Path) -> None:
    finish(tmp_path, "long", ENOUGH_SECONDS, rate=1e11, measuring=1000.0)
    finish(tmp_path, "elsewhere", 100.0, rate=1e15, hardware="abacus CPU, 512 cores")
    finish(tmp_path, "on a device", 100.0, rate=1e15, hardware=H100)
    result = estimate(planned(), tmp_path)
    assert without_the_rest(result.seconds) == pytest.approx({"a0": 10, "a1": 10, "b0": 20, "b1": 20})
    assert result.basis == f"from 1 run of other plans on {processor()}"


def test_what_a_run_did_of_its_plan_tells_how_fast_others_are_however_few_tokens_it_read(tmp_path: Path) -> None:
    finish(tmp_path, "long", ENOUGH_SECONDS, rate=1e11)
    path = tmp_path / "long" / "record.json"
    record = json.loads(path.read_text())
    record["cost"] = {"tokens": 1000, "train_flops": record["cost"]["train_flops"] / 4, "planned_tokens": 4000}
    path.write_text(json.dumps(record))
    seconds = without_the_rest(estimate(planned(), tmp_path).seconds)
    assert seconds == pytest.approx({"a0": 10, "a1": 10, "b0": 20, "b1": 20})


def test_runs_of_the_plan_count_alone_however_short_and_with_what_measuring_took(tmp_path: Path) -> None:
    finish(tmp_path, "long", 100.0, rate=1e9)
    finish(tmp_path, "a0", 4.0, rate=FLOPS / 4, measuring=30.0)
    result = estimate(planned(), tmp_path)
    assert result.seconds == pytest.approx({"a0": 34, "a1": 34, "b0": 38, "b1": 38})
    assert result.basis == f"from 1 run of this plan on {processor()}"


def test_a_run_that_takes_over_its_training_takes_what_it_needs_beside(tmp_path: Path) -> None:
    repeating = replace(planned(), repeated=["b"])
    assert without_the_rest(estimate(repeating, tmp_path).seconds)["b0"] == pytest.approx(0)
    finish(tmp_path, "b0", 4.0, rate=FLOPS / 4, measuring=3.0)
    assert estimate(repeating, tmp_path).seconds["b1"] == pytest.approx(3)


def test_the_first_run_that_reads_cached_features_takes_the_time_of_computing_them(tmp_path: Path) -> None:
    caching = replace(planned(), passes={"one": {"a0": FLOPS, "a1": FLOPS}, "two": {"b1": FLOPS, "a1": FLOPS}})
    seconds = without_the_rest(estimate(caching, tmp_path).seconds)
    assert seconds == pytest.approx({"a0": 100, "a1": 100, "b0": 100, "b1": 100})
    finish(tmp_path, "a0", 4.0, rate=FLOPS / 4)
    path = tmp_path / "a0" / "record.json"
    record = json.loads(path.read_text())
    record["measured"] |= {"feature_seconds": 20.0}
    path.write_text(json.dumps(record))
    assert estimate(caching, tmp_path).seconds == pytest.approx({"a0": 4, "a1": 24, "b0": 8, "b1": 8})


def test_a_plan_for_a_device_that_is_not_here_names_the_one_it_assumes(tmp_path: Path) -> None:
    finish(tmp_path, "long", 100.0, rate=1e9)
    result = estimate(planned("cuda"), tmp_path)
    assert without_the_rest(result.seconds)["a0"] == pytest.approx(FLOPS / ASSUMED_RATE)
    footer = str(plan_view(planned("cuda"), result, set(), 1).renderables[-1])
    assert "with 1 worker (assuming one A100 of 40 GB at 31 TFLOP/s: no CUDA device here)" in footer


def test_runs_that_were_done_on_a_device_elsewhere_are_worth_more_than_an_assumption(tmp_path: Path) -> None:
    finish(tmp_path, "there", 100.0, rate=1e14, hardware=H100)
    result = estimate(planned("cuda"), tmp_path)
    assert result.basis == f"from 1 run of other plans on {H100}"
    assert without_the_rest(result.seconds)["a0"] == pytest.approx(FLOPS / 1e14)


def test_of_two_models_of_a_device_the_one_that_is_here_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "cuda_devices", lambda: ("0",))
    monkeypatch.setattr(estimates, "cuda_models", lambda: ("T4",))
    for key in ("there", "there again"):
        finish(tmp_path, key, 100.0, rate=1e14, hardware=H100)
    finish(tmp_path, "here", 100.0, rate=1e12, hardware="T4")
    assert estimate(planned("cuda"), tmp_path).basis == "from 1 run of other plans on T4"


def test_of_many_runs_of_an_arm_some_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "ENOUGH_RUNS", 1)
    finish(tmp_path, "a0", 40.0, 1e10)
    finish(tmp_path, "a1", 80.0, 1e10)
    assert estimate(planned(), tmp_path).seconds["a1"] == 40.0


def test_equal_parts_of_configs_are_written_once_and_looked_through_once() -> None:
    study = planned()
    plain = json.loads(json.dumps(study.to_dict()))
    assert plain["configs"]["parts"] == [{"device": "cpu"}]
    read = PlannedStudy.from_dict(plain)
    assert read.configs == study.configs
    named = [{"model": {"class_path": "a.B"}, "seed": seed} for seed in (0, 1)]
    shared = joined_parts(shared_parts({str(config["seed"]): config for config in named}))
    assert [*class_paths_in([*shared.values()])] == ["a.B"]
    command = {"command": "rm", "metrics": {}}
    assert len({*class_paths_in([command, {**command, "command": "ls"}])}) == 2


def test_of_many_runs_a_line_shows_those_of_an_arm_in_the_same_state(monkeypatch: pytest.MonkeyPatch) -> None:
    study = planned()
    rows = [Row(ticket) for ticket in study.tickets()]
    rows[0].state, rows[0].value = State.FINISHED, 2.0
    monkeypatch.setattr(show, "MOST_LINES", 3)
    console = Console(file=StringIO(), width=80)
    console.print(show.status_view(study.plan, rows, {}))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.split() for line in lines[1:4]] == [
        ["a", "0", "a0", "2", "finished"],
        ["b", "2", "seeds", "waiting"],
        ["a", "1", "a1", "waiting"],
    ]


def test_what_runs_share_is_read_once_while_they_are_planned() -> None:
    reads: list[str] = []

    def read() -> int:
        reads.append("read")
        return len(reads)

    with reads_shared():
        assert read_once("key", read) == read_once("key", read) == 1
        assert read_once("other", read) == 2
    assert read_once("key", read) == 3
    with reads_shared():
        assert read_once("key", read) == 4
