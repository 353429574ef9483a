"""The values by which a study's arms are compared, and the cases in which they may not be compared."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from study_on_disk import (
    BYTES,
    key_of,
    name_of,
    product_arms,
    write_json,
    write_plan,
    write_product,
    write_rows,
    write_run,
)

from lit_transformers.scores import ENTITY_COLUMNS
from reports.judge.comparisons import Comparison, compare
from reports.judge.evidence import Evidence
from reports.judge.measures import measure_of
from reports.judge.normality import WIDENING
from reports.judge.statistics import holm
from reports.read.measurements import as_documents
from reports.read.study import load_study

ON, ON_ABSOLUTE, OFF, OFF_ABSOLUTE = map(name_of, product_arms())
OFF_AGAINST_ON = "recurrence=off against the baseline"


def compare_arms(runs: Path, unmatched: bool = False) -> tuple[dict[str, Comparison], list[str]]:
    notes: list[str] = []
    return {c.name: c for c in compare(load_study(runs, "xl_recurrence"), notes, unmatched)}, notes


def change_records(runs: Path, arm: str, **changes: object) -> None:
    for seed in range(3):
        path = runs / key_of(arm, seed) / "record.json"
        write_json(path, json.loads(path.read_text()) | changes)


def test_every_arm_is_set_against_the_baseline_unless_contrasts_are_named(tmp_path: Path) -> None:
    write_product(tmp_path, {})
    comparisons, _ = compare_arms(tmp_path)
    contrasts = [c.weights for c in comparisons.values() if c.kind == "contrast"]
    assert "recurrence=off positions=absolute against the baseline" in comparisons
    assert contrasts == [{arm: 1.0, ON: -1.0} for arm in (ON_ABSOLUTE, OFF, OFF_ABSOLUTE)]


def test_named_contrasts_stand_alone(tmp_path: Path) -> None:
    write_product(tmp_path, {}, contrasts=[{"name": "on vs off", "arm": ON, "against": OFF}])
    comparisons, _ = compare_arms(tmp_path)
    assert [c.name for c in comparisons.values() if c.kind == "contrast"] == ["on vs off"]


def test_a_difference_is_the_mean_of_the_paired_ones(tmp_path: Path) -> None:
    write_plan(tmp_path, product_arms()[::2], design="explicit")
    for seed, (on, off) in enumerate([(2.0, 2.1), (2.2, 2.4), (2.1, 2.4)]):
        write_run(tmp_path, ON, seed, on * BYTES * math.log(2))
        write_run(tmp_path, OFF, seed, off * BYTES * math.log(2))
    comparisons, _ = compare_arms(tmp_path)
    estimate = comparisons[OFF_AGAINST_ON].estimate
    assert estimate is not None and estimate.interval is not None
    half_width = WIDENING * 4.302653 * 0.1 / math.sqrt(3)
    assert estimate.difference == pytest.approx(0.2)
    assert estimate.interval == pytest.approx((0.2 - half_width, 0.2 + half_width), rel=1e-5)
    assert comparisons[OFF_AGAINST_ON].documents == 10


def test_lower_bits_are_better_and_a_goal_to_maximise_turns_it_round(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.3})
    assert compare_arms(tmp_path)[0][OFF_AGAINST_ON].verdict == "worse"
    write_product(tmp_path, {"off": 0.3}, metric={"name": "val/bpb", "goal": "maximize"})
    assert compare_arms(tmp_path)[0][OFF_AGAINST_ON].verdict == "better"


def test_a_small_difference_between_noisy_seeds_is_unresolved(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.01}, noise=0.1)
    assert compare_arms(tmp_path)[0][OFF_AGAINST_ON].verdict == "unresolved"


def test_a_main_effect_averages_over_the_other_factor_and_an_interaction_takes_differences_of_differences(
    tmp_path: Path,
) -> None:
    write_plan(tmp_path, seeds=2)
    levels = {ON: 2.0, ON_ABSOLUTE: 2.1, OFF: 2.3, OFF_ABSOLUTE: 2.6}
    for arm, level in levels.items():
        for seed in range(2):
            write_run(tmp_path, arm, seed, (level + 0.001 * seed * level**2) * BYTES * math.log(2))
    comparisons, _ = compare_arms(tmp_path)
    main, interaction = comparisons["recurrence: off against on"], comparisons["recurrence=off with positions=absolute"]
    assert main.weights == {OFF: 0.5, ON: -0.5, OFF_ABSOLUTE: 0.5, ON_ABSOLUTE: -0.5}
    assert main.estimate is not None and main.estimate.difference == pytest.approx((0.3 + 0.5) / 2, abs=2e-3)
    assert interaction.weights == {OFF_ABSOLUTE: 1.0, ON_ABSOLUTE: -1.0, OFF: -1.0, ON: 1.0}
    assert interaction.estimate is not None and interaction.estimate.difference == pytest.approx(0.2, abs=2e-3)
    assert interaction.verdict in ("differs", "unresolved")


def test_a_main_effect_uses_the_pairs_that_exist_and_says_so(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.2})
    change_records(tmp_path, OFF_ABSOLUTE, outcome="failed", reason="out of memory")
    comparisons, _ = compare_arms(tmp_path)
    assert "recurrence: off against on (over 1 of 2 combinations)" in comparisons
    assert comparisons["recurrence=off with positions=absolute"].estimate is None


def test_contrasts_and_effects_of_a_study_are_one_family(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.01, "absolute": 0.02})
    comparisons = list(compare_arms(tmp_path)[0].values())
    assert {comparison.kind for comparison in comparisons} == {"contrast", "main effect", "interaction"}
    p = [
        comparison.estimate.p for comparison in comparisons if comparison.estimate and comparison.estimate.p is not None
    ]
    assert [comparison.adjusted for comparison in comparisons] == holm(p)


def test_a_study_that_names_its_effects_compares_nothing_else(tmp_path: Path) -> None:
    plan = write_product(tmp_path, {"off": 0.01})
    plan_path = tmp_path / "studies" / "xl_recurrence" / "plan.json"
    write_json(plan_path, plan | {"effects": ["recurrence"]})
    assert list(compare_arms(tmp_path)[0]) == ["recurrence: off against on"]
    contrasts = [{"name": "on vs off", "arm": ON, "against": OFF}]
    write_json(plan_path, plan | {"effects": ["positions"], "contrasts": contrasts})
    assert list(compare_arms(tmp_path)[0]) == ["on vs off", "positions: absolute against relative"]


def test_only_seeds_that_both_arms_finished_are_paired(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.2})
    (tmp_path / key_of(OFF, 0) / "record.json").unlink()
    estimate = compare_arms(tmp_path)[0][OFF_AGAINST_ON].estimate
    assert estimate is not None and estimate.seeds == 2
    assert Evidence({("a", 0): 1.0, ("a", 1): 1.0, ("b", 1): 1.0}).seeds(["a", "b"]) == [1]


def test_an_arm_that_failed_leaves_its_reason_in_the_comparison(tmp_path: Path) -> None:
    write_product(tmp_path, {})
    change_records(tmp_path, OFF, outcome="failed", reason="not-a-number")
    comparison = compare_arms(tmp_path)[0][OFF_AGAINST_ON]
    assert comparison.estimate is None and comparison.reason == f"{OFF}: failed: not-a-number"


def test_arms_that_do_not_match_get_no_verdict_unless_told(tmp_path: Path) -> None:
    match = {
        "on": "parameters",
        "per_arm": {ON: {"target": 1e6, "reached": 1e6}, OFF: {"target": 1e6, "reached": 1.02e6}},
    }
    write_product(tmp_path, {"off": 0.3}, match=match)
    comparison = compare_arms(tmp_path)[0][OFF_AGAINST_ON]
    assert comparison.verdict is None and comparison.reason == "not matched: parameters differ by 2.0%"
    assert compare_arms(tmp_path)[0]["positions=absolute against the baseline"].verdict is not None
    assert compare_arms(tmp_path, unmatched=True)[0][OFF_AGAINST_ON].verdict == "worse"


def test_arms_that_saw_other_data_get_no_verdict(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.3})
    change_records(tmp_path, OFF, data={"name": "stdlib", "fingerprint": "beef"})
    comparison = compare_arms(tmp_path)[0][OFF_AGAINST_ON]
    assert comparison.verdict is None and comparison.reason is not None and "fingerprints" in comparison.reason


def test_an_effect_is_judged_over_two_corpora_where_each_is_compared_within_itself(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.3})
    for arm in (ON_ABSOLUTE, OFF_ABSOLUTE):
        change_records(tmp_path, arm, data={"name": "stdlib", "fingerprint": "beef"})
    comparisons = compare_arms(tmp_path)[0]
    assert comparisons["recurrence: off against on"].verdict == "worse"
    assert comparisons["recurrence=off with positions=absolute"].verdict is not None
    for name in ("positions: absolute against relative", "positions=absolute against the baseline"):
        assert comparisons[name].verdict is None and "fingerprints" in str(comparisons[name].reason)


def test_documents_that_do_not_sum_to_the_metric_are_not_used(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.3})
    change_records(tmp_path, ON, metrics={"val/bpb": 9.0})
    comparisons, notes = compare_arms(tmp_path)
    assert comparisons[OFF_AGAINST_ON].documents == 0
    assert any("3 of 12 runs have losses per document that do not sum to val/bpb" in note for note in notes)


def test_runs_evaluated_on_other_documents_are_compared_over_seeds_only(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.3})
    path = tmp_path / key_of(OFF, 1) / "documents.csv"
    path.write_text(path.read_text().replace("module3.py", "module99.py"))
    comparisons, notes = compare_arms(tmp_path)
    assert comparisons[OFF_AGAINST_ON].documents == 0
    assert comparisons["positions=absolute against the baseline"].documents == 10
    assert any("1 of 12 runs were evaluated on other documents" in note for note in notes)


def test_perplexity_is_resampled_as_the_exponential_of_nats_per_token(tmp_path: Path) -> None:
    write_plan(tmp_path, product_arms()[::2], design="explicit", metric={"name": "val/perplexity", "goal": "minimize"})
    for arm, level in ((ON, 1.0), (OFF, 1.2)):
        for seed in range(3):
            nats = (level + 0.01 * seed + 0.1 * np.arange(10) * level) * BYTES
            write_run(tmp_path, arm, seed, nats, metrics={"val/perplexity": math.exp(nats.sum() / BYTES.sum())})
    comparisons, notes = compare_arms(tmp_path)
    estimate = comparisons[OFF_AGAINST_ON].estimate
    assert notes == [] and comparisons[OFF_AGAINST_ON].documents == 10
    assert estimate is not None and estimate.interval is not None and estimate.over_seeds is not None
    assert estimate.interval.low < estimate.over_seeds.low


def test_rates_may_be_compared_by_their_ratio(tmp_path: Path) -> None:
    metric = {"name": "speed", "goal": "maximize", "compare": "ratio"}
    write_plan(tmp_path, product_arms()[::2], design="explicit", metric=metric)
    for seed, factor in enumerate((1.0, 1.1, 1.3)):
        write_run(tmp_path, ON, seed, BYTES, metrics={"speed": 10.0 * factor})
        write_run(tmp_path, OFF, seed, BYTES, metrics={"speed": 1000.0 * factor * (1 + 0.01 * seed)})
    comparison = compare_arms(tmp_path)[0][OFF_AGAINST_ON]
    assert comparison.estimate is not None
    assert math.exp(comparison.estimate.difference) == pytest.approx(101.0, rel=1e-3)
    assert comparison.verdict == "better"


def test_a_run_that_has_no_ratio_is_named_and_not_left_out(tmp_path: Path) -> None:
    write_plan(
        tmp_path,
        product_arms()[::2],
        seeds=4,
        design="explicit",
        metric={"name": "score", "goal": "minimize", "compare": "ratio"},
    )
    for arm, scores in ((ON, (0.5, 0.52, 0.48, 0.51)), (OFF, (0.6, 0.61, 0.0, 0.62))):
        for seed, score in enumerate(scores):
            write_run(tmp_path, arm, seed, BYTES, metrics={"score": score})
    comparison = compare_arms(tmp_path)[0][OFF_AGAINST_ON]
    assert comparison.estimate is None and comparison.verdict is None
    assert (
        comparison.reason == f"the value of {OFF} (seed 2) is not positive, so it has no ratio; compare by difference"
    )


COUNTS = ([2, 0, 1, 1], [3, 1, 1, 1], [2, 2, 1, 3], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 2])
ENTITIES: dict[str, list[float]] = dict(zip(ENTITY_COLUMNS, COUNTS, strict=True))  # type: ignore[arg-type]
"""Of four examples the entities that are right, predicted and there, and the same of those that were not seen."""
EXAMPLES: dict[str, tuple[dict[str, list[float]], float]] = {
    "val/accuracy": ({"tokens": [2, 3, 5, 2], "correct": [1, 3, 4, 2]}, 10 / 12),
    "val/sequence_accuracy": ({"tokens": [2, 3, 5, 2], "correct": [1, 3, 4, 2]}, 2 / 4),
    "val/accuracy@20": ({"tokens": [2, 3, 5, 2], "correct": [1, 3, 4, 2], "length": [20, 10, 20, 20]}, 7 / 9),
    "val/matthews": ({"tokens": [1] * 4, "predicted": [0, 1, 0, 1], "label": [0, 1, 1, 1]}, 2 / 12**0.5),
    **{
        f"val/{name}": ({"tokens": [4] * 4, **ENTITIES}, value)
        for name, value in (("f1", 8 / 14), ("precision", 4 / 6), ("unseen_recall", 1 / 4), ("seen_f1", 6 / 8))
    },
    "val/mse": ({"tokens": [1, 1, 1, 1], "squared_error": [0.5, 1.0, 0.25, 2.25]}, 1.0),
    "val/nats": ({"tokens": [2, 3, 5, 2]}, 6 / 12),
}


@pytest.mark.parametrize("metric", EXAMPLES)
def test_metrics_of_examples_are_ratios_of_their_sums(metric: str) -> None:
    columns, expected = EXAMPLES[metric]
    sums = {"nats": [1, 2, 1, 2], "bytes": [0] * 4, **columns}
    documents = as_documents(list("abcd"), {name: np.array(column, float) for name, column in sums.items()})
    measure = measure_of(metric)
    assert measure is not None
    assert float(measure.value(np.nansum(measure.sums(documents), axis=0))) == pytest.approx(expected)


def test_accuracy_gets_its_interval_over_examples_and_seeds(tmp_path: Path) -> None:
    metric = {"name": "val/accuracy", "goal": "maximize"}
    write_plan(tmp_path, product_arms()[::2], design="explicit", metric=metric)
    generator = np.random.default_rng(0)
    for arm, accuracy in ((ON, 0.9), (OFF, 0.6)):
        usually_correct = generator.random(400) < accuracy
        for seed in range(3):
            correct = np.where(generator.random(400) < 0.05, ~usually_correct, usually_correct).astype(int)
            write_run(tmp_path, arm, seed, BYTES, metrics={"val/accuracy": float(correct.mean())})
            rows = [[number, f"row{number}", 0.5, 1, 0, int(is_correct)] for number, is_correct in enumerate(correct)]
            path = tmp_path / key_of(arm, seed) / "documents.csv"
            write_rows(path, ["document", "name", "nats", "tokens", "bytes", "correct"], rows)
    comparisons, notes = compare_arms(tmp_path)
    estimate = comparisons[OFF_AGAINST_ON].estimate
    assert (
        notes == [] and comparisons[OFF_AGAINST_ON].documents == 400 and comparisons[OFF_AGAINST_ON].verdict == "worse"
    )
    assert estimate is not None and estimate.interval is not None and estimate.over_seeds is not None
    assert estimate.interval.high - estimate.interval.low > estimate.over_seeds.high - estimate.over_seeds.low


@pytest.mark.parametrize(
    ("metric", "columns"),
    [
        ("val/film_accuracy", ("film_nats", "film_tokens", "film_correct")),
        ("val/film_f1", ("film_nats", "film_tokens", "film_f1")),
        ("val/film_accuracy", ("film", "correct", "cut")),
        ("val/accuracy@20", ("length", "correct", "cut")),
    ],
)
def test_a_metric_of_some_documents_is_resampled_over_their_clusters(
    metric: str, columns: tuple[str, ...], tmp_path: Path
) -> None:
    """Half of the documents are of another task, group or length; each cluster of four holds both kinds."""
    write_plan(tmp_path, product_arms()[::2], design="explicit", metric={"name": metric, "goal": "maximize"})
    generator = np.random.default_rng(0)
    own = np.arange(160) % 2 == 0
    for arm, accuracy in ((ON, 0.9), (OFF, 0.6)):
        for seed in range(3):
            correct = (generator.random(160) < accuracy) & own
            write_run(tmp_path, arm, seed, BYTES, metrics={metric: float(correct[own].mean())})
            values = {"nats": own * 0.5, "tokens": own * 1, "correct": correct * 1, "f1": correct * 1.0}
            cells = {name: values.get(name.removeprefix("film_"), own * 1) for name in columns}
            cells |= {"length": np.where(own, 20, 10)} if "length" in columns else {}
            rows = [
                [
                    number,
                    f"passage {number // 4}, question {number}",
                    0.5,
                    1,
                    0,
                    *(cells[name][number] for name in columns),
                ]
                for number in range(160)
            ]
            path = tmp_path / key_of(arm, seed) / "documents.csv"
            write_rows(path, ["document", "name", "nats", "tokens", "bytes", *columns], rows)
    comparisons, notes = compare_arms(tmp_path)
    estimate = comparisons[OFF_AGAINST_ON].estimate
    assert notes == [] and comparisons[OFF_AGAINST_ON].documents == 40
    assert estimate is not None and estimate.interval is not None and estimate.over_seeds is not None
    assert estimate.interval.high - estimate.interval.low > estimate.over_seeds.high - estimate.over_seeds.low


def test_runs_without_the_sums_of_their_metric_are_noted(tmp_path: Path) -> None:
    write_product(tmp_path, {}, metric={"name": "val/accuracy", "goal": "maximize"})
    for arm in (ON, ON_ABSOLUTE, OFF, OFF_ABSOLUTE):
        change_records(tmp_path, arm, metrics={"val/accuracy": 0.5})
    assert compare_arms(tmp_path)[1] == [
        "12 of 12 runs have no correct per document; intervals that need them are over seeds only"
    ]
