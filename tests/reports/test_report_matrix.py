"""A product of two factors whose cells are accuracies: the averages, the missing cells, and the figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from study_on_disk import BYTES, name_of, write_json, write_plan, write_product, write_run

from lit_transformers.records.files import RESULTS
from reports.judge.matrix import accuracy_matrix, is_accuracy
from reports.judge.statistics import estimate
from reports.read.results import read_results, write_results
from reports.read.study import load_study
from reports.report import find
from reports.show.charts import cost_points, state_against_accuracy, state_points
from reports.show.curves import battery_curves
from reports.show.matrix import accuracies
from reports.show.sections import all_tables, ranking

TASKS, MIXERS = ("copy", "recall"), ("attention", "lstm", "window")
STATES = {"attention": 4096, "lstm": 128, "window": 1024}
CHANCE = {"copy": 0.5, "recall": 0.2}
ACCURACIES = {
    ("copy", "attention"): (0.9, 0.8, 0.7),
    ("copy", "lstm"): (0.2, 0.3, 0.4),
    ("copy", "window"): (1.0, 1.0, 1.0),
    ("recall", "attention"): (0.6, 0.8, 0.4),
    ("recall", "lstm"): (0.9, 0.8, 1.0),
}


def write_accuracies(
    runs: Path,
    factors: tuple[str, str] = ("task", "mixer"),
    data: Mapping[str, str] | None = None,
    mixers: tuple[str, ...] = MIXERS,
    left_out: bool = False,
) -> None:
    """Writes a study in which window has not finished on recall.

    data: the fingerprint of each task's data; mixers: those that have finished at all; left_out: whether the arm that
    has not finished is not even planned.
    """
    first, second = factors
    levels = {"task": TASKS, "mixer": MIXERS}
    arms = [{first: a, second: b} for a in levels[first] for b in levels[second]]
    if left_out:
        arms = arms[:-1]
    metric = {"name": "val/accuracy", "goal": "maximize", "label": "accuracy"}
    plan = write_plan(runs, arms, metric=metric, factors={name: levels[name] for name in factors})
    for arm in plan["arms"]:
        known = {"chance": CHANCE[arm["levels"]["task"]], "every answer": 1.0}
        arm["references"] = [{"name": name, "value": value} for name, value in known.items()]
    write_json(runs / "studies/xl_recurrence/plan.json", plan)
    for arm in arms:
        values = ACCURACIES.get((arm["task"], arm["mixer"]), ()) if arm["mixer"] in mixers else ()
        for seed, value in enumerate(values):
            fingerprint = (data or {}).get(arm["task"], arm["task"])
            read = {"data": {"name": "generated", "fingerprint": fingerprint}}
            state = STATES[arm["mixer"]]
            flops = state * (1 + TASKS.index(arm["task"]))
            cost = {"parameters": 120_000, "decoding_state": state, "flops_per_token": flops}
            write_run(runs, name_of(arm), seed, np.ones(len(BYTES)), metrics={"val/accuracy": value}, cost=cost, **read)


@pytest.mark.parametrize("factors", [("task", "mixer"), ("mixer", "task")])
def test_columns_are_the_factor_that_changes_the_data_and_rows_are_ranked_by_their_mean(
    tmp_path: Path, factors: tuple[str, str]
) -> None:
    write_accuracies(tmp_path, factors)
    matrix = accuracy_matrix(load_study(tmp_path, "xl_recurrence"))
    assert matrix is not None and (matrix.rows, matrix.columns, matrix.tasks) == ("mixer", "task", TASKS)
    assert matrix.levels == ("attention", "lstm", "window"), "levels without a mean come last"
    assert {key: cell.mean for key, cell in matrix.cells.items()} == {
        (mixer, task): pytest.approx(np.mean(values)) for (task, mixer), values in ACCURACIES.items()
    }
    assert matrix.cells["attention", "copy"].interval == estimate([0.9, 0.8, 0.7]).interval
    assert matrix.cells["window", "copy"].interval is None, "all seeds are alike"
    means = {mixer: (mean.mean, mean.interval) for mixer, mean in matrix.means.items()}
    assert set(means) == {"attention", "lstm"} and means["attention"][0] == pytest.approx(0.7)
    assert means["attention"][1] == pytest.approx(estimate([0.75, 0.8, 0.55]).interval)


def test_columns_stay_what_they_are_while_one_level_alone_has_finished(tmp_path: Path) -> None:
    write_accuracies(tmp_path, ("mixer", "task"), mixers=("attention",))
    matrix = accuracy_matrix(load_study(tmp_path, "xl_recurrence"))
    assert matrix is not None and matrix.columns == "task" and [*matrix.means] == ["attention"]


def test_there_is_no_mean_over_levels_that_read_the_same_data(tmp_path: Path) -> None:
    write_accuracies(tmp_path, data=dict.fromkeys(TASKS, "same"))
    study = load_study(tmp_path, "xl_recurrence")
    matrix = accuracy_matrix(study)
    assert matrix is not None and (matrix.rows, matrix.levels, matrix.means) == ("task", TASKS, {})
    assert not ranking(find(study)).rows


@pytest.mark.parametrize("left_out", [False, True])
def test_a_report_ranks_what_has_finished_and_draws_every_cell(tmp_path: Path, left_out: bool) -> None:
    write_accuracies(tmp_path, left_out=left_out)
    findings = find(load_study(tmp_path, "xl_recurrence"))
    table = ranking(findings)
    assert table.title == "Mean over 2 levels of task" and table.columns[0].title == "mixer"
    assert [(row[0].value, row[1].value, row[1].missing, row[3].value) for row in table.rows] == [
        ("attention", pytest.approx(0.7), None, 4096),
        ("lstm", pytest.approx(0.6), None, 128),
        ("window", None, "not all have finished", None),
    ]
    assert findings.matrix is not None
    points = state_points(findings.matrix)
    assert [(point.arm, point.cost, point.value) for point in points] == [
        ("attention", 4096, pytest.approx(0.7)),
        ("lstm", 128, pytest.approx(0.6)),
    ]
    means, states = state_against_accuracy(findings, findings.matrix, points).axes
    assert [text.get_text() for text in means.get_yticklabels()] == ["attention", "lstm"], "the best on top"
    assert states.get_xscale() == "log"
    (panel,) = accuracies(findings.matrix).axes
    texts = {text.get_text().split(" ")[0]: text.get_position() for text in panel.texts}
    assert texts["80.0"] == (0, 0) and texts["90.0"] == (1, 1) and texts["100.0"] == (0, 2)
    assert texts["50.0"] == (0, 3.25) and texts["20.0"] == (1, 3.25), "chance"
    assert len(panel.texts) == 5 + 2 + 2, "a text for each cell, each mean and each chance"


def test_of_a_battery_rows_are_drawn_by_their_means_and_learning_curves_task_by_task(tmp_path: Path) -> None:
    write_accuracies(tmp_path)
    findings = find(load_study(tmp_path, "xl_recurrence"))
    assert findings.battery is not None
    (points,) = cost_points(findings).values()
    assert [(point.arm, point.cost, point.value) for point in points] == [
        ("attention", 1.5 * 4096, pytest.approx(0.7)),
        ("lstm", 1.5 * 128, pytest.approx(0.6)),
    ]
    curve = np.array([[0.0, 3.0], [10.0, 1.0]])
    finished = [arm for arm in findings.study.arm_names if findings.study.finished(arm)]
    figure = battery_curves(findings, findings.battery, {"train/loss": {arm: [curve] for arm in finished}})
    panels = {panel.get_title(loc="left"): len(panel.lines) for panel in figure.axes}
    assert panels == {"copy": 3, "recall": 2}, "window has not finished on recall"
    assert [text.get_text() for text in figure.legends[0].texts] == ["attention", "lstm", "window"]


def test_each_arm_is_compared_with_what_can_be_known_of_its_own_data(tmp_path: Path) -> None:
    write_accuracies(tmp_path)
    study = load_study(tmp_path, "xl_recurrence")
    write_results(study, tmp_path / RESULTS)
    tables = {table.name: table for table in all_tables(find(read_results(tmp_path / RESULTS)))}
    assert [[cell.value for cell in row] for row in tables["known"].rows] == [
        ["copy", "chance", 0.5, 0.0],
        ["copy", "every answer", 1.0, 1.0],
        ["recall", "chance", 0.2, 0.0],
        ["recall", "every answer", 1.0, 1.0],
    ]
    shares = {row[0].value: row[2].value for row in tables["results"].rows}
    assert shares["task=copy mixer=lstm"] == pytest.approx((0.3 - 0.5) / 0.5)
    assert shares["task=recall mixer=lstm"] == pytest.approx((0.9 - 0.2) / 0.8)


def test_other_studies_have_no_matrix(tmp_path: Path) -> None:
    write_product(tmp_path, {})
    assert accuracy_matrix(load_study(tmp_path, "xl_recurrence")) is None, "bits are no accuracy"
    names = ("val/accuracy", "val/sequence_accuracy", "val/accuracy@40", "val/bpb", "val/inaccuracy")
    assert [is_accuracy(name) for name in names] == [True, True, True, False, False]
