"""A report states the scores of simple predictors, whether the baseline has learned enough to answer, and the context
that it uses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from study_on_disk import key_of, name_of, product_arms, write_json, write_product

from lit_transformers.records.context_losses import ArmContext, ContextLoss, ContextUse
from lit_transformers.records.files import RESULTS
from lit_transformers.records.floors import Floors, StageFloor
from lit_transformers.records.measure import Goal
from lit_transformers.records.plan import Margin, Metric, PlannedStage
from lit_transformers.records.reference import Reference
from reports.gallery import read_entry
from reports.judge.agreement import GalleryEntry, judge_comparisons
from reports.judge.findings import Findings
from reports.read.measurements import Measurements
from reports.read.results import read_results, write_results
from reports.read.study import Study, load_study
from reports.report import find
from reports.show.answer import headline
from reports.show.distances import recovered_bits
from reports.show.figures import drawings
from reports.show.overview import not_judged, summary
from reports.show.sections import all_tables, floor_text

ON, _, OFF, _ = map(name_of, product_arms())
CELLS = [{"arm": ON, "value": 26.8}, {"arm": OFF, "value": 29.0}]
PUBLISHED = {"protocol": "WikiText-103", "metric": "perplexity", "cells": CELLS}
CONTRAST = [{"name": "recurrence on vs off", "arm": ON, "against": OFF}]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose baseline reaches about 2.5 bits per byte, and without recurrence .2 more."""
    folder = tmp_path_factory.mktemp("runs")
    write_product(folder, {"off": 0.2}, contrasts=CONTRAST, published=PUBLISHED)
    return folder


def published_alone(study: Study, folder: Path) -> GalleryEntry:
    """Returns a study as it is read from a folder of publications that holds no other."""
    (folder / "published").mkdir()
    write_results(study, folder / "published" / RESULTS)
    return read_entry(folder / "published")


def study_with(runs: Path, floors: dict[str, float] | None, key: str = key_of(ON, 0)) -> Study:
    path = runs / "studies/xl_recurrence/floors.json"
    path.unlink(missing_ok=True)
    if floors is not None:
        values = [{"name": name, "value": value} for name, value in floors.items()]
        write_json(path, {"key": key, "values": values, "reason": "no text"})
    return load_study(runs, "xl_recurrence")


def table_of(findings: Findings, name: str) -> list[list[Any]]:
    return [[cell.value for cell in row] for table in all_tables(findings) if table.name == name for row in table.rows]


def test_the_baseline_is_compared_with_the_best_floor(runs: Path) -> None:
    findings = find(study_with(runs, {"pairs": 3.6, "triples": 2.75}))
    mean = table_of(findings, "results")[0][1]
    assert table_of(findings, "floors") == [
        ["pairs", 3.6, pytest.approx(3.6 - mean)],
        ["triples", 2.75, pytest.approx(2.75 - mean)],
    ]
    assert floor_text(findings) == f"The baseline beats the best floor (triples) by {2.75 - mean:.4f}."
    assert not findings.trained_too_little and headline(findings).startswith("Better: recurrence on vs off:")
    [judged] = judge_comparisons(findings)
    assert judged.agreement == "agrees"


def test_a_baseline_below_its_floor_was_trained_too_little_and_agrees_with_nothing(runs: Path, tmp_path: Path) -> None:
    findings = find(study_with(runs, {"pairs": 3.6, "triples": 2.4}))
    mean = table_of(findings, "results")[0][1]
    assert headline(findings).startswith(
        f"Trained too little to answer: the baseline reaches {mean:.4f} bits per byte, and a simple predictor "
        "reaches 2.4000 (triples). Better: recurrence on vs off: -0."
    )
    assert floor_text(findings).startswith("The baseline does not beat the best floor (triples): it is worse by 0.")
    [judged] = judge_comparisons(findings)
    assert judged.agreement == "not judged" and judged.comparison.verdict == "better"
    assert "agrees 0, disagrees 0, unresolved 0, not judged 1" in summary([published_alone(findings.study, tmp_path)])


def test_arms_that_read_other_data_are_compared_with_the_floor_of_these(runs: Path, tmp_path: Path) -> None:
    study = study_with(runs, {"pairs": 3.6})
    _, second, _, fourth = (arm.name for arm in study.plan.arms)
    assert study.floors
    other = Floors(key_of(second, 0), (Reference("copies", 2.2),), arms=(second, fourth))
    write_results(replace(study, floors=replace(study.floors, arms=(ON, OFF), others=(other,))), tmp_path / RESULTS)
    findings = find(read_results(tmp_path / RESULTS))
    assert headline(findings).startswith(f"Trained too little to answer: {second} reaches 2.")
    assert not findings.trained_too_little and findings.can_answer([ON, OFF]) and not findings.can_answer([fourth])
    mean = findings.study.mean_of(second)
    assert mean is not None
    assert table_of(findings, "floors")[1] == [second, "copies", 2.2, pytest.approx(2.2 - mean)]


def after_a_stage(runs: Path, folder: Path, values: dict[int, float], goal: Goal = "minimize") -> Findings:
    """Returns the findings, read from a file of results, of the study where OFF starts from a stage that reaches these
    values of val/nats by seed, and a simple predictor 2.0."""
    study = study_with(runs, {"pairs": 3.6})
    record = next(run.record for run in study.runs if run.record)
    stages = tuple(PlannedStage("stage 1", f"{OFF}: start.network", seed, f"pretrained-{seed}") for seed in range(3))
    arms = tuple(
        replace(arm, runs=tuple(replace(run, sources=(f"pretrained-{run.seed}",)) for run in arm.runs))
        if arm.name == OFF
        else arm
        for arm in study.plan.arms
    )
    records = {
        f"pretrained-{seed}": replace(record, key=f"pretrained-{seed}", seed=seed, metrics={"val/nats": value})
        for seed, value in values.items()
    }
    assert study.floors
    floor = StageFloor("stage 1", "pretrained-0", "val/nats", goal, Reference("pairs", 2.0))
    floors = replace(study.floors, stages=(floor,))
    plan = replace(study.plan, stages=stages, arms=arms)
    write_results(replace(study, plan=plan, floors=floors, stages=records), folder / RESULTS)
    return find(read_results(folder / RESULTS))


def test_a_stage_below_its_floor_was_trained_too_little_for_the_arms_that_start_from_it(
    runs: Path, tmp_path: Path
) -> None:
    findings = after_a_stage(runs, tmp_path, {0: 2.2, 2: 2.4})
    assert headline(findings).startswith(
        f"Trained too little to answer: stage 1, from which {OFF} starts, reaches 2.3 val/nats, and a simple predictor "
        "reaches 2 (pairs). Better: recurrence on vs off:"
    )
    assert not findings.can_answer([ON, OFF]) and findings.can_answer([ON]) and not findings.trained_too_little
    assert table_of(findings, "stages") == [["stage 1", OFF, "val/nats", pytest.approx(2.3), "pairs", 2.0]]
    cases: list[tuple[dict[int, float], Goal]] = [
        ({0: 1.8, 1: 1.7}, "minimize"),
        ({0: 2.2}, "maximize"),
        ({}, "minimize"),
    ]
    for values, goal in cases:
        learned = after_a_stage(runs, tmp_path, values, goal)
        assert learned.can_answer([ON, OFF]) and "stage" not in headline(learned)
    [table] = [table for table in all_tables(learned) if table.name == "stages"]
    assert table.rows[0][3].missing == "no finished run"


def test_what_the_whole_document_would_give_is_shown_and_decides_nothing(runs: Path, tmp_path: Path) -> None:
    study = study_with(runs, {"pairs": 3.6})
    assert study.floors
    document = (Reference("cache of the whole document", 1.2),)
    write_results(replace(study, floors=replace(study.floors, document=document)), tmp_path / RESULTS)
    findings = find(read_results(tmp_path / RESULTS))
    [table] = [table for table in all_tables(findings) if table.name == "floors"]
    assert [row[0].value for row in table.rows] == ["pairs", "cache of the whole document"]
    assert table.notes[-1] == "More than its networks see, and no floor: cache of the whole document."
    assert not findings.trained_too_little
    assert floor_text(findings).startswith("The baseline beats the best floor (pairs)")


def test_an_arm_that_sees_less_of_the_same_data_is_compared_with_a_floor_that_does_too(runs: Path) -> None:
    study = study_with(runs, {"cache of 96 symbols": 2.6})
    mean = study.mean_of(OFF)
    assert study.floors and mean is not None and mean > 2.6
    for floor, is_below in ((mean + 0.01, False), (mean - 0.01, True)):
        other = Floors(key_of(OFF, 0), (Reference("cache of 32 symbols", floor),), arms=(OFF,))
        findings = Findings(replace(study, floors=replace(study.floors, arms=(ON,), others=(other,))), ())
        assert [*findings.below_floor] == [OFF] * is_below and not findings.trained_too_little
        assert findings.can_answer([ON]) and findings.can_answer([OFF]) == (not is_below)


def study_with_own_data(
    runs: Path,
    training: tuple[float, ...],
    floor: float = 3.6,
    arms: tuple[str, ...] = (OFF,),
    possible: tuple[Reference, ...] = (),
) -> Study:
    """A study whose baseline reaches about 2.5, and OFF about 2.7, where the floor of OFF's data is 2.6.

    floor: of the baseline's data. training: the loss at the end of each run of OFF, in the unit of the metric; a run
    after these has no curve.
    """
    study = study_with(runs, {"pairs": floor})
    assert study.floors
    levels = iter(training)
    curves = {
        run.key: {"train/bpb": np.array([[step, 8.0 if step < 9 else level] for step in range(12)])}
        for run in study.of(OFF)
        for level in [next(levels, None)]
        if level is not None
    }
    measured = tuple(replace(run, measurements=Measurements(curves.get(run.key, {}))) for run in study.runs)
    own = Floors(key_of(OFF, 0), (Reference("pairs", 2.6),), arms=arms)
    plan = replace(study.plan, references=possible)
    return replace(study, plan=plan, runs=measured, floors=replace(study.floors, arms=(ON,), others=(own,)))


def test_an_arm_that_memorized_its_training_rows_is_an_answer(runs: Path, tmp_path: Path) -> None:
    study = study_with_own_data(runs, (0.25, 0.5, 0.75))
    entry = published_alone(study, tmp_path)
    mean = entry.findings.study.mean_of(OFF)
    assert headline(entry.findings).startswith("Better: recurrence on vs off: -0.")
    assert headline(entry.findings).endswith(
        f" {OFF} learned its training rows by heart (training loss 0.5000, measured {mean:.4f})."
    )
    assert [judged.agreement for judged in entry.judged] == ["agrees"] and not not_judged([entry], "report.md").rows


def test_an_arm_whose_training_rows_are_of_another_kind_memorized_none(runs: Path) -> None:
    known = (Reference("frequencies", 8.0), Reference("everything", 1.0))
    for training, possible, memorized in ((1.5, (), True), (1.5, known, False), (0.5, known, True)):
        [gap] = Findings(study_with_own_data(runs, (training,) * 3, possible=possible), ()).gaps.values()
        assert gap.memorized == memorized
    findings = find(study_with_own_data(runs, (1.5,) * 3, possible=known))
    assert f"{OFF} learned its training rows, and little of that holds for the rows that are" in headline(findings)


@pytest.mark.parametrize(
    "changes",
    [
        {"training": (0.5, 0.5, 2.2)},
        {"training": (0.5, 0.5)},
        {"training": (0.5,) * 3, "arms": (OFF, name_of(product_arms()[3]))},
        {"training": (0.5,) * 3, "floor": 2.4},
    ],
    ids=["one run learned too little", "one run without a curve", "data of several arms", "baseline below its floor"],
)
def test_an_arm_was_trained_too_little_where_its_training_loss_does_not_refute_it(
    runs: Path, changes: dict[str, Any]
) -> None:
    findings = Findings(study_with_own_data(runs, **changes), ())
    assert not findings.gaps and not findings.can_answer([OFF]) and OFF in findings.below_floor


def test_of_a_metric_that_rises_the_highest_floor_is_the_best(runs: Path) -> None:
    for highest, expected in ((2.9, True), (2.3, False)):
        study = study_with(runs, {"one": highest, "another": 2.1})
        rising = replace(study.plan, metric=Metric("val/bpb", "maximize"))
        assert Findings(replace(study, plan=rising), ()).trained_too_little == expected


@pytest.mark.parametrize(
    ("floors", "key", "expected"),
    [
        (None, key_of(ON, 0), "The floor was not measured."),
        ({"pairs": 2.4}, "of-other-data", "The floor was not measured."),
        ({}, key_of(ON, 0), "There is no floor: no text."),
    ],
    ids=["of a study before", "of another baseline", "without one"],
)
def test_without_a_floor_the_report_says_so_and_verdicts_count(
    runs: Path, floors: dict[str, float] | None, key: str, expected: str
) -> None:
    findings = find(study_with(runs, floors, key))
    [results] = [table for table in all_tables(findings) if table.name == "results"]
    assert expected in results.notes and not table_of(findings, "floors")
    [judged] = judge_comparisons(findings)
    assert judged.agreement == "agrees"


def test_floors_are_part_of_the_results_and_are_published(runs: Path, tmp_path: Path) -> None:
    for floors in ({"pairs": 3.6, "triples": 2}, None):
        study = study_with(runs, floors)
        assert (study.floors is None) == (floors is None)
        write_results(study, tmp_path / RESULTS)
        assert read_results(tmp_path / RESULTS).floors == study.floors


def test_a_damaged_file_of_floors_is_noted(runs: Path) -> None:
    (runs / "studies/xl_recurrence/floors.json").write_text('{"key": 7}')
    study = load_study(runs, "xl_recurrence")
    [note] = [note for note in study.notes if "floors.json" in note]
    assert note.startswith("xl_recurrence/floors.json: damaged (key: ") and study.floors is None


def test_what_lies_beyond_each_context_is_a_table_of_the_report(runs: Path, tmp_path: Path) -> None:
    path = runs / "studies/xl_recurrence/context.json"
    losses = [
        {"length": length, "bits": bits, "beyond": bits - 2.5, "error": 0.01} for length, bits in ((1, 3.5), (2, 2.5))
    ]
    for key, rows in ((key_of(ON, 0), [[1, 3.5, 1.0], [2, 2.5, 0.0]]), ("of-other-data", [])):
        write_json(path, {"key": key, "losses": losses})
        study = study_with(runs, None)
        write_results(study, tmp_path / RESULTS)
        assert read_results(tmp_path / RESULTS).context == study.context
        assert table_of(Findings(study, ()), "context") == rows
    path.write_text("{}")
    study = load_study(runs, "xl_recurrence")
    assert study.context is None and [note for note in study.notes if note.startswith("xl_recurrence/context.json: ")]


@pytest.mark.parametrize(
    ("reach", "margin", "metric", "expected"),
    [
        (24, 0.4, "val/bpb", 16),
        (16, 0.3, "val/bpb", None),
        (24, None, "val/bpb", None),
        (64, None, "val/bpb", 32),
        (128, 0.4, "val/bpb", None),
        (None, 0.4, "val/bpb", None),
        (24, 0.4, "measured/tokens_per_second", None),
    ],
    ids=[
        "gain below the margin", "gain above it", "gain of many errors", "gain of one error", "nothing longer measured",
        "no windows", "no loss",
    ],
)  # fmt: skip
def test_arms_that_see_more_than_the_baseline_uses_cannot_answer(
    runs: Path, reach: int | None, margin: float | None, metric: str, expected: int | None
) -> None:
    study = study_with(runs, None)
    losses = [ContextLoss(16, 2.25, 0.25, 0.01), ContextLoss(32, 2.01, 0.01, 0.01), ContextLoss(128, 2.0, 0.0, 0.0)]
    stated = replace(study.plan.metric, name=metric, margin=Margin(margin, "it is small") if margin else None)
    study = replace(study, plan=replace(study.plan, reach=reach), context=ContextUse(key_of(ON, 0), tuple(losses)))
    assert Findings(replace(study, plan=replace(study.plan, metric=stated)), ()).gains_nothing_beyond == expected


def test_what_cannot_answer_says_so_first_and_is_not_asked(runs: Path, tmp_path: Path) -> None:
    study = study_with(runs, None)
    losses = (ContextLoss(8, 2.0, 0.001, 0.01), ContextLoss(16, 2.0, 0.0, 0.0))
    study = replace(study, plan=replace(study.plan, reach=8), context=ContextUse(key_of(ON, 0), losses))
    entry = published_alone(study, tmp_path)
    assert headline(entry.findings).startswith(
        "Cannot answer: the baseline gains nothing beyond 8 symbols. Better: recurrence"
    )
    assert [judged.agreement for judged in entry.judged] == ["not judged"]


def test_that_one_arm_gains_from_far_back_lets_the_others_answer(runs: Path) -> None:
    study = study_with(runs, None)
    nothing = (ContextLoss(8, 2.0, 0.001, 0.01), ContextLoss(16, 2.0, 0.0, 0.0))
    much = (ContextLoss(8, 2.0, 1.0, 0.01), ContextLoss(16, 1.0, 0.0, 0.0))
    for losses, expected in ((nothing, 8), (much, None)):
        arms = (ArmContext(ON, key_of(ON, 0), nothing), ArmContext(OFF, key_of(OFF, 0), losses))
        context = ContextUse(key_of(ON, 0), nothing, arms=arms)
        measured = replace(study, plan=replace(study.plan, reach=8), context=context)
        assert Findings(measured, ()).gains_nothing_beyond == expected


def test_bits_are_recovered_against_the_distance_where_what_can_be_known_is_known(runs: Path) -> None:
    study = study_with(runs, None)
    losses = (ContextLoss(8, 2.0, 1.0, 0.01), ContextLoss(16, 1.0, 0.0, 0.0))
    context = ContextUse(key_of(ON, 0), losses, arms=(ArmContext(OFF, key_of(OFF, 0), losses),))
    references = (Reference("no context", 3.0), Reference("16 symbols back", 0.5))
    known = replace(study, plan=replace(study.plan, references=references), context=context)
    assert recovered_bits(known) == {OFF: ((8, 1.0), (16, 2.0))}
    assert "distances" in [drawing.name for drawing in drawings(Findings(known, ()))]
    assert recovered_bits(replace(known, plan=study.plan)) == {}
