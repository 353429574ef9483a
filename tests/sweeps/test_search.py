"""A search proposes within its space, spends its budget and no more, and resumes where it stopped."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import optuna
import pytest
from optuna.pruners import MedianPruner

from lit_transformers.space import Choice, Conditional, Interval
from sweeps.tuning.search import JUDGES, ROUND, Budget, Outcome, Search, Trial

SPACE = {"rate": Interval(1e-4, 1e-1, log=True), "width": Interval(1, 64), "way": Choice(("one", "other"))}
STEPS, PRICE = 60, 600


@pytest.fixture
def make() -> Callable[..., Search]:
    """Makes a search by name and place. A second call returns the same search, read again from its storage."""
    storages: dict[str, optuna.storages.BaseStorage] = {}

    def search(name: str = "arm", goal: str = "minimize", place: str = "here") -> Search:
        storage = storages.setdefault(place, optuna.storages.InMemoryStorage())
        study = optuna.create_study(study_name=name, storage=storage, direction=goal, load_if_exists=True)
        return Search(study, SPACE, PRICE)

    return search


def value_of(trial: Trial) -> float:
    """The metric of a run with these values: best at a rate of 1e-2."""
    return abs(math.log10(trial.values["rate"]) + 2) + trial.values["width"] / 640


def ended(trial: Trial, **changes: Any) -> Outcome:
    value = value_of(trial)
    curve = {step: value + 1 / step for step in range(10, STEPS + 1, 10)}
    return Outcome(f"key{trial.number}", "finished", value, curve, PRICE)._replace(**changes)


def spend(search: Search, budget: Budget) -> list[Trial]:
    """All that the search proposes until its budget is spent."""
    trials: list[Trial] = []
    while proposed := search.round(budget):
        for trial in proposed:
            search.tell(trial.number, ended(trial))
        trials += proposed
    return trials


def test_what_is_proposed_lies_in_the_space(make: Callable[..., Search]) -> None:
    trials = spend(make(), Budget(trials=20))
    assert len(trials) == 20
    for trial in trials:
        assert trial.values.keys() == SPACE.keys()
        assert all(knob.holds(trial.values[path]) for path, knob in SPACE.items())
    assert len({trial.values["rate"] for trial in trials}) == 20


def test_later_rounds_are_nearer_to_the_best_than_the_random_ones(make: Callable[..., Search]) -> None:
    values = [value_of(trial) for trial in spend(make(), Budget(trials=40))]
    assert sum(values[-16:]) < 0.6 * sum(values[:16])


def test_the_first_trial_is_the_arm_as_it_stands(make: Callable[..., Search]) -> None:
    search = make()
    search.begin({"rate": 3e-3, "width": 7})
    search.begin({"rate": 3e-3, "width": 7})
    first, second, *_ = search.round(Budget(trials=4))
    assert (first.values["rate"], first.values["width"]) == (3e-3, 7)
    assert second.values["rate"] != 3e-3


def test_a_budget_of_tokens_is_never_exceeded(make: Callable[..., Search]) -> None:
    search = make()
    assert len(spend(search, Budget(tokens=10 * PRICE + 599))) == 10
    assert search.tokens() == 10 * PRICE


def test_tokens_that_pruning_saved_buy_further_trials(make: Callable[..., Search]) -> None:
    search = make()
    while proposed := search.round(Budget(tokens=8 * PRICE)):
        for trial in proposed:
            search.tell(trial.number, ended(trial, outcome="pruned", tokens=PRICE // 2))
    assert len(search.outcomes()) == 15 and search.tokens() == 15 * PRICE // 2  # the last half buys no whole run


def test_a_larger_budget_goes_on_and_keeps_what_was_tried(make: Callable[..., Search]) -> None:
    few = spend(make("few"), Budget(trials=8))
    assert make("few").round(Budget(trials=8)) == []
    more = spend(make("few"), Budget(trials=16))
    assert [trial.number for trial in few + more] == list(range(16))


@pytest.mark.parametrize("told", range(ROUND))
def test_a_search_that_was_stopped_proposes_what_an_undisturbed_one_does(
    make: Callable[..., Search], told: int
) -> None:
    undisturbed = spend(make(), Budget(trials=16))
    interrupted: dict[int, Trial] = {}
    while proposed := make(place="torn").round(Budget(trials=16)):
        interrupted |= {trial.number: trial for trial in proposed}
        for trial in proposed[:told]:
            make(place="torn").tell(trial.number, ended(trial))
        for trial in proposed[told:]:
            assert trial in make(place="torn").round(Budget(trials=16))
            make(place="torn").tell(trial.number, ended(trial))
    assert list(interrupted.values()) == undisturbed


def test_a_pending_trial_is_proposed_again_with_its_values(make: Callable[..., Search]) -> None:
    before = make().round(Budget(trials=8))
    search = make()
    search.tell(before[1].number, ended(before[1]))
    proposed = make().round(Budget(trials=8))
    assert proposed == [before[0], before[2], before[3]]


def test_a_proposal_that_was_cut_short_costs_nothing(make: Callable[..., Search]) -> None:
    search = make()
    search._study.ask()  # died before it had its values
    assert len(spend(make(), Budget(trials=8))) == 8
    assert len(search.outcomes()) == 8


def test_bars_are_those_of_optunas_median_pruner(make: Callable[..., Search]) -> None:
    """Asked at each step about a run whose best value so far is just above or just below the bar."""
    search = make()
    spend(search, Budget(trials=JUDGES + 4))
    (trial, *_) = search.round(Budget(trials=JUDGES + 5))
    bars = search.bars(trial.number, STEPS)
    assert sorted(bars) == [20, 30, 40, 50]
    pruner = MedianPruner(n_startup_trials=JUDGES, n_warmup_steps=STEPS // 3)
    for step, bar in bars.items():
        for offset, is_pruned in ((1e-6, True), (-1e-6, False)):
            study = make()._study
            optuna_trial = study.ask()
            optuna_trial.report(bar + offset, step)
            assert bool(pruner.prune(study, study.trials[optuna_trial.number])) is is_pruned


def test_bars_wait_for_finished_runs_and_leave_out_the_trials_own_round(make: Callable[..., Search]) -> None:
    search = make()
    first = search.round(Budget(trials=12))
    assert search.bars(first[0].number, STEPS) == {}
    for trial in first:
        search.tell(trial.number, ended(trial))
    assert search.bars(first[-1].number, STEPS) == {}
    second = search.round(Budget(trials=12))
    bars = search.bars(second[-1].number, STEPS)
    for trial in second[:-1]:
        search.tell(trial.number, ended(trial))
    assert bars and search.bars(second[-1].number, STEPS) == bars


def test_the_best_is_a_finished_trial_by_the_studys_goal(make: Callable[..., Search]) -> None:
    for goal, expected in (("minimize", 1), ("maximize", 2)):
        search = make(goal, goal)
        values = [3.0, 1.0, 4.0, math.nan]
        for trial, value in zip(search.round(Budget(trials=4)), values, strict=True):
            outcome = "pruned" if value == 4.0 and goal == "minimize" else "finished"
            search.tell(trial.number, ended(trial, value=value, outcome=outcome))
        best = search.best()
        assert best is not None and best[0].number == expected


def test_without_a_finished_trial_there_is_no_best(make: Callable[..., Search]) -> None:
    search = make()
    for trial in search.round(Budget(trials=2)):
        search.tell(trial.number, ended(trial, outcome="failed", value=None, curve={}, reason="out of memory"))
    assert search.best() is None
    assert [attributes["reason"] for _, attributes in search.outcomes()] == ["out of memory"] * 2


def test_a_conditional_knob_exists_only_where_its_condition_holds() -> None:
    space = {"way": Choice(("one", "other")), "depth": Conditional(Interval(1, 8), "way", "other")}
    storage = optuna.storages.InMemoryStorage()
    study = optuna.create_study(study_name="arm", storage=storage, direction="minimize")
    search = Search(study, space, PRICE)
    search.begin({"way": "other", "depth": 3})
    trials: list[Trial] = []
    while proposed := search.round(Budget(trials=16)):
        assert search.round(Budget(trials=16)) == proposed, "a trial without the knob is as whole as one with it"
        for trial in proposed:
            search.tell(trial.number, Outcome(str(trial.number), "finished", trial.values.get("depth", 4), {}, PRICE))
        trials += proposed
    assert trials[0].values == {"way": "other", "depth": 3} and len(trials) == 16
    assert {trial.values["way"] for trial in trials} == {"one", "other"}
    assert all(("depth" in trial.values) == (trial.values["way"] == "other") for trial in trials)
