"""Every arm spends the same budget on the same space; trials are ordinary runs, each done exactly once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import BaseStorage, InMemoryStorage
from standin.run import RunConfig as WithoutSplits
from standin.tuned import RUNNER, RunConfig, fit

from lit_transformers.config import ConfigError
from lit_transformers.records.record import parse_record
from lit_transformers.space import Interval, searched
from lit_transformers.training.search_pruning import BARS
from sweeps.launchers.local import Options, Summary
from sweeps.launchers.share import Share
from sweeps.ledger.storage import Address, Opened, find_address, find_search_address, open_storage
from sweeps.ledger.ticket import State
from sweeps.live import Row
from sweeps.survey import close
from sweeps.tuning.search import Budget
from sweeps.tuning.tune import SEED, SearchedArm, TuningGoal, TuningResult, trial_config, tune

GOAL = TuningGoal("val/bpb", "minimize")
OPTIONS = Options("standin.tuned:RUNNER", Share(workers=2, threads=1), "val/bpb")
ARMS = [
    SearchedArm(name, config, searched(config, ["model.mixer.memory"], own=True), 600)
    for name, config in (("on", RunConfig()), ("off", RunConfig().override({"model.mixer.memory": 0})))
]


@pytest.fixture(autouse=True)
def databases(monkeypatch: pytest.MonkeyPatch) -> dict[str, BaseStorage]:
    """Databases in memory, by address: a file would be written to disk a thousand times."""
    storages: dict[str, BaseStorage] = {}

    def opened(address: Address) -> Opened:
        return Opened(storages.setdefault(address.url, InMemoryStorage()), lambda: None)

    monkeypatch.setattr("sweeps.tuning.tune.open_storage", opened)
    return storages


class Launched:
    """A launcher that does runs in this process and lists them; it stops after ``stop_after`` runs."""

    def __init__(self, runs: Path, stop_after: int | None = None) -> None:
        self.runs, self.stop_after = runs, stop_after
        self.done: list[str] = []

    def __call__(self, rows: list[Row], options: Options) -> Summary:
        for row in rows:
            if row.state.over:
                continue
            if self.stop_after is not None and len(self.done) >= self.stop_after:
                row.state = State.STOPPED
                continue
            directory = row.ticket.directory(self.runs)
            close(row, parse_record(fit(RunConfig.from_dict(row.ticket.config), directory)), options.metric)
            self.done.append(row.ticket.key)
        return Summary(rows, 15 if any(row.state == State.STOPPED for row in rows) else None)


def go(
    runs: Path,
    budget: Budget,
    launched: Callable[..., Summary] | None = None,
    arms: list[SearchedArm] = ARMS,
    **how: Any,
) -> list[TuningResult]:
    results, _ = tune(runs, None, "study", arms, GOAL, budget, OPTIONS, launched or Launched(runs), **how)
    return results


def records(runs: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in runs.glob("*/record.json")]


def test_every_arm_gets_its_budget_and_a_better_value_than_it_had(tmp_path: Path) -> None:
    results = go(tmp_path, Budget(trials=16))
    assert [(result.arm, result.trials) for result in results] == [("on", 16), ("off", 16)]
    for arm, result in zip(ARMS, results, strict=True):
        untuned = fit(trial_config(arm.config, {}), tmp_path / "as it stands")
        assert result.values is not None and result.value is not None
        assert result.value < untuned["metrics"]["val/bpb"]
        assert result.values.keys() == arm.space.keys()


def test_trials_have_a_seed_and_a_split_of_their_own(tmp_path: Path) -> None:
    go(tmp_path, Budget(trials=4))
    trial_records = records(tmp_path)
    assert len(trial_records) == 8
    for record in trial_records:
        assert record["seed"] == SEED and record["config"]["data"]["evaluation"]["split"] == "validation"
        assert record["config"]["training"]["validate_every"] == 10


def test_trials_say_which_values_they_try(tmp_path: Path) -> None:
    launched = Launched(tmp_path)

    def launch(rows: list[Row], options: Options) -> Summary:
        for row in rows:
            config, levels = RunConfig.from_dict(row.ticket.config), row.ticket.levels
            assert levels["model.mixer.window"] == str(config.get("model.mixer.window"))
        return launched(rows, options)

    go(tmp_path, Budget(trials=2), launch, ARMS[:1])
    assert launched.done


def test_trials_that_lag_behind_are_pruned_and_cost_what_they_read(tmp_path: Path) -> None:
    results = go(tmp_path, Budget(trials=16))
    assert all(result.pruned > 0 and result.failed == 0 for result in results)
    spent = sum(10 * record["measured"]["steps"] for record in records(tmp_path))
    assert sum(result.tokens for result in results) == spent < 2 * 16 * 600


def test_without_pruning_all_trials_end_and_those_pruned_before_go_on(tmp_path: Path) -> None:
    assert any(result.pruned for result in go(tmp_path, Budget(trials=8)))
    renamed_arms = [replace(arm, name=f"{arm.name} again") for arm in ARMS]
    results = go(tmp_path, Budget(trials=8), arms=renamed_arms, prune=False)
    assert [(result.trials, result.pruned) for result in results] == [(8, 0), (8, 0)]
    assert not [path for result in results for path in tmp_path.glob(f"{result.key}/{BARS}")]


def test_called_again_it_does_nothing_and_finds_the_same(tmp_path: Path) -> None:
    results = go(tmp_path, Budget(trials=8))
    second = Launched(tmp_path)
    assert go(tmp_path, Budget(trials=8), second) == results and second.done == []


@pytest.mark.parametrize("stop_after", [0, 3, 7, 11])
def test_stopped_and_called_again_it_ends_as_if_undisturbed(tmp_path: Path, stop_after: int) -> None:
    undisturbed = go(tmp_path / "quiet", Budget(trials=12))
    interrupted, done_keys = tmp_path / "torn", []
    launched = Launched(interrupted, stop_after)
    _, stopped_by = tune(interrupted, None, "study", ARMS, GOAL, Budget(trials=12), OPTIONS, launched)
    assert stopped_by == 15
    done_keys += launched.done
    launched = Launched(interrupted)
    assert go(interrupted, Budget(trials=12), launched) == undisturbed
    done_keys += launched.done
    assert len(done_keys) == len(set(done_keys)) == len(records(interrupted))


def test_a_trial_that_equals_a_finished_run_is_read(tmp_path: Path, databases: dict[str, BaseStorage]) -> None:
    go(tmp_path, Budget(trials=4))
    databases.clear()
    second = Launched(tmp_path)
    assert [result.trials for result in go(tmp_path, Budget(trials=4), second)] == [4, 4]
    assert second.done == []


def test_trials_that_fail_cost_their_place_and_never_win(tmp_path: Path) -> None:
    fragile = [replace(arm, config=arm.config.override({"training.breaks_above": 2e-3})) for arm in ARMS]
    for result in go(tmp_path, Budget(trials=8), arms=fragile):
        assert result.trials == 8 and result.failed > 0
        assert result.values is not None and result.values["training.optimizer.learning_rate"] <= 2e-3


def test_another_space_is_another_search(tmp_path: Path) -> None:
    go(tmp_path, Budget(trials=4))
    narrower = [replace(arm, space=searched(arm.config, ["model.mixer"])) for arm in ARMS]
    assert [result.trials for result in go(tmp_path, Budget(trials=8), arms=narrower)] == [8, 8]
    assert [result.trials for result in go(tmp_path, Budget(trials=4))] == [4, 4]


def test_a_space_is_searched_within_the_first_quarter_of_the_steps_and_leaves_none_alone() -> None:
    space = searched(RunConfig(), own=True)
    assert space["training.schedule.warmup"].ends() == (2, 15)
    assert "model.mixer.window" in space
    assert "model.mixer.window" not in searched(RunConfig(), own=False)
    assert "model.mixer.window" not in searched(RunConfig().override({"model.mixer.window": None}), own=True)
    assert "model.mixer.window" not in searched(RunConfig(), ["model.mixer"], own=True)
    assert "training.schedule.warmup" not in searched(RunConfig().override({"training.steps": 8}))


def test_data_without_splits_cannot_be_tuned() -> None:
    with pytest.raises(ConfigError, match=r"^data\.evaluation\.split: .*selecting and reporting need a split each"):
        trial_config(WithoutSplits(), {})


def test_another_number_of_ranks_continues_the_same_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that is in no key is in no search: the stand-in has its warm-up for one."""
    runner = replace(RUNNER, placement_fields=("training.breaks_above",))
    monkeypatch.setattr("sweeps.tuning.tune.load_runner", lambda _: runner)
    first = go(tmp_path, Budget(trials=4))
    others = [replace(arm, config=arm.config.override({"training.breaks_above": 2.0})) for arm in ARMS]
    launched = Launched(tmp_path)
    assert go(tmp_path, Budget(trials=4), launched, others) == first and not launched.done
    monkeypatch.setattr("sweeps.tuning.tune.load_runner", lambda _: RUNNER)
    go(tmp_path, Budget(trials=4), launched, others)
    assert launched.done


def test_searches_are_beside_the_ledger_and_those_begun_in_it_stay_there(tmp_path: Path) -> None:
    """optuna-dashboard lists all studies of a storage; the ledger's own is none of a search."""
    assert find_search_address(None, tmp_path).path == tmp_path / "ledger-searches.db"
    assert find_search_address("postgresql://user@host/runs", tmp_path).name.startswith("ledger postgresql")
    opened = open_storage(find_address(None, tmp_path))
    optuna.create_study(study_name="attempts", storage=opened.storage)
    assert find_search_address(None, tmp_path).path == tmp_path / "ledger-searches.db"
    optuna.create_study(study_name="tune study on 0123", storage=opened.storage)
    opened.close()
    assert find_search_address(None, tmp_path).path == tmp_path / "ledger.db"


def test_a_search_with_costs_has_a_front_and_prunes_nothing(tmp_path: Path) -> None:
    """Of the stand-in, more steps cost more, and a higher learning rate is better up to its best one."""
    space = ARMS[0].space | {"training.steps": Interval(20, 60)}
    arm, goal = replace(ARMS[0], space=space), TuningGoal("val/bpb", "minimize", ("train_flops",))
    (result,), _ = tune(tmp_path, None, "study", [arm], goal, Budget(trials=16), OPTIONS, Launched(tmp_path))
    assert (result.trials, result.pruned, result.failed) == (16, 0, 0)
    ended = {
        (record["metrics"]["val/bpb"], record["cost"]["train_flops"])
        for record in records(tmp_path)
    }  # fmt: skip
    front = [(point.value, *point.costs) for point in result.front]
    beaten = {one for one in ended for other in ended if other != one and other[0] <= one[0] and other[1] <= one[1]}
    assert {*front} == ended - beaten and front == sorted(front, key=lambda point: point[1])
    assert all(point.values.keys() == space.keys() for point in result.front)
    assert result.values in [point.values for point in result.front]
