"""Arms get the baseline's budget by a field that is solved for, or are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from standin.run import RunConfig, describe

from ablations.ablation import Match
from ablations.matching import Measure, match_arms
from ablations.probing import measured_spending
from lit_transformers.config import Config, ConfigError

BASELINE = RunConfig()


def solve(match: Match, measure: Measure | None = None, **changes: object) -> tuple[Config, float]:
    configs: dict[str, Config] = {
        "base": BASELINE,
        "arm": BASELINE.override({k.replace("__", "."): v for k, v in changes.items()}),
    }
    solved, reached = match_arms(match, configs, "base", describe, measure)
    assert solved["base"] == BASELINE
    return solved["arm"], reached["arm"].reached / reached["arm"].target


def solve_measured(cache: Path, match: Match, **changes: object) -> tuple[Config, float]:
    return solve(match, measured_spending(match.on, "standin.run:RUNNER", cache), **changes)


def test_tokens_are_matched_by_training_longer() -> None:
    config, ratio = solve(Match("tokens", free="training.steps"), training__batch=1)
    assert (config.get("training.steps"), ratio) == (80, 1.0)


@pytest.mark.parametrize("width", [1, 3, 15, 17, 64, 1000])
def test_parameters_are_matched_from_above_and_below(width: int) -> None:
    config, ratio = solve(Match("parameters", free="model.width"), model__width=width, model__mixer__encoding=None)
    assert config.get("model.width") == 16
    assert abs(ratio - 1) < 0.02


def test_the_nearest_value_is_taken_in_steps() -> None:
    config, _ = solve(Match("parameters", free="model.width", step=6), model__width=60, model__mixer__encoding=None)
    assert config.get("model.width") == 18


def test_flops_are_matched() -> None:
    config, ratio = solve(Match("flops", free="training.steps"), model__width=8)
    assert config.get("training.steps") > 70 and abs(ratio - 1) < 0.01


def test_arms_that_differ_without_a_free_field_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"match: arm 'arm' has 640 tokens, the baseline 2,560; name a field"):
        solve(Match("tokens"), training__batch=1)


def test_a_field_that_does_not_move_the_budget_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a larger model\.mixer\.memory does not give more parameters"):
        solve(Match("parameters", free="model.mixer.memory"), model__width=8)


def test_a_field_that_is_no_integer_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"training\.pause: is solved for and must be an integer"):
        solve(Match("parameters", free="training.pause"), model__width=8)


def test_a_value_that_cannot_be_points_to_the_step() -> None:
    with pytest.raises(ConfigError, match=r"does not divide by heads 4.*step"):
        solve(Match("parameters", free="model.width"), model__width=8, model__heads=4)


def test_time_is_matched_by_the_steps_that_a_measured_one_leaves_room_for(tmp_path: Path) -> None:
    config, ratio = solve_measured(tmp_path, Match("seconds", free="training.steps"), model__width=40)
    assert config.get("training.steps") == 8 and ratio == pytest.approx(1.0)


@pytest.mark.slow
def test_memory_is_matched_by_the_width_that_holds_as_much(tmp_path: Path) -> None:
    config, ratio = solve_measured(tmp_path, Match("memory", free="model.width"), model__width=64, training__batch=8)
    assert abs(ratio - 1) < 0.05 / 5
    assert config.get("model.width") < 20


@pytest.mark.slow
def test_what_was_measured_is_kept_for_the_next_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_PROBES", str(tmp_path / "probes.txt"))
    match = Match("seconds", free="training.steps")
    solve_measured(tmp_path, match, model__width=40)
    probes = (tmp_path / "probes.txt").read_text()
    solve_measured(tmp_path, match, model__width=40)
    assert probes.count("probed") == 2 and (tmp_path / "probes.txt").read_text() == probes


@pytest.mark.slow
def test_a_run_that_cannot_be_measured_names_its_arm_and_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"arm 'arm': could not be measured: RuntimeError: something broke"):
        solve_measured(tmp_path, Match("seconds", free="training.steps"), training__fault="raise")


def test_measured_budgets_may_lie_further_apart_than_counted_ones() -> None:
    assert (Match("memory").allowed, Match("flops").allowed, Match("memory", tolerance=0.2).allowed) == (
        0.05,
        0.01,
        0.2,
    )
