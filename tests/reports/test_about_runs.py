"""The facts of the runs on the first screen of a report: split, missing values, plans before, shared runs, hardware."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from study_on_disk import BYTES, key_of, name_of, product_arms, write_json, write_product, write_run

from lit_transformers.records.files import RESULTS
from lit_transformers.records.measurement import Measurement
from lit_transformers.records.rate_values import RateValues
from reports.gallery import read_entry
from reports.judge.findings import Findings
from reports.read.answers import STATED_LATER
from reports.read.shared_runs import with_planned
from reports.read.study import Run, SharedRuns, Study, load_study
from reports.report import as_published, find, markdown, write_study
from reports.show.about_runs import about_runs, absolute_values
from reports.show.curves import curve_title, load_curves
from reports.show.html import to_html
from reports.show.method import method
from reports.show.overview import summary
from reports.show.screen import screen

ON, _, OFF, _ = map(name_of, product_arms())
EXPLICIT = {"arms": product_arms()[::2], "design": "explicit"}


def about(study: Study) -> str:
    return " ".join(about_runs(find(study)))


def texts(findings: Findings) -> list[str]:
    """Returns the report as every format has it."""
    return [
        " ".join(line.plain for line in screen(findings, 80)),
        markdown(findings, (), {}).partition("\n## ")[0],
        to_html(findings, ()).partition("<nav")[0],
    ]


def measured_on(run: Run, split: str) -> Run:
    assert run.record is not None
    return replace(run, record=replace(run.record, measurement=Measurement(split)))


def test_the_first_screen_says_which_split_was_measured_and_on_what_hardware(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.1})
    study = load_study(tmp_path, "xl_recurrence")
    of_old_record = next(iter(about_runs(find(study))))
    assert (
        of_old_record
        == "Measured on the validation split, where recipes and numbers of updates may have been chosen too."
    )
    tested = replace(study, runs=tuple(measured_on(run, "test") for run in study.runs))
    assert all("Measured on the test split. All 12 runs have a value." in text for text in texts(find(tested)))
    trained = {"environment": {"hardware": "A CPU, 2 cores", "threads": 1}, "config": {"training": {"device": "cpu"}}}
    write_run(tmp_path, ON, 0, BYTES, **trained)
    hardware = "Hardware: 2 CPU cores; A CPU, 2 cores, device cpu, 1 thread a run."
    assert about(load_study(tmp_path, "xl_recurrence")).endswith(hardware)


def test_the_first_screen_says_that_other_rates_are_not_measured_yet_of_runs_that_have_one(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.1})
    study, pending = load_study(tmp_path, "xl_recurrence"), "Not measured yet: whether verdicts stand at half and twice"
    assert pending not in about(study), "these runs state no learning rate"

    def trained(run: Run, steps: int) -> Run:
        assert run.record is not None
        training = {"steps": steps, "optimizer": {"learning_rate": 0.002}}
        return replace(run, record=replace(run.record, config={**run.record.config, "training": training}))

    def with_steps(steps: int) -> Study:
        return replace(study, runs=tuple(trained(run, steps) for run in study.runs))

    assert pending in about(with_steps(9)) and pending not in about(with_steps(0))
    assert pending not in about(replace(with_steps(9), rates=RateValues("val/bpb", ())))


def test_curves_of_a_study_that_measures_test_are_those_of_its_validations(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.1}, **EXPLICIT)
    study = load_study(tmp_path, "xl_recurrence")
    tested = replace(study, plan=replace(study.plan, metric=replace(study.plan.metric, name="test/bpb")))
    assert [*load_curves(tested)] == [*load_curves(study)] == ["train/loss", "val/bpb"]
    assert curve_title(find(tested), "val/bpb") == "bits per byte (val)"


def test_the_first_screen_gives_absolute_values_and_counts_runs_without_one(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.1}, seeds=4, **EXPLICIT)
    (tmp_path / key_of(OFF, 3) / "record.json").unlink()
    diverged = {"outcome": "failed", "reason": "not-a-number: the loss is nan at step 3", "metrics": {}}
    write_run(tmp_path, OFF, 2, BYTES, **diverged)
    findings = find(load_study(tmp_path, "xl_recurrence"))
    counted = "2 of 8 runs have no value: 1 diverged, 1 not run."
    assert all(counted in " ".join(text.split()) for text in texts(findings))
    means = [findings.study.mean_of(arm) for arm in (ON, OFF)]
    values = absolute_values(findings)
    assert values.startswith(f"Means in bits per byte: {ON} (baseline) {means[0]:.4f} ± 0.0")
    assert f"(4 seeds); {OFF} {means[1]:.4f} ± " in values and values.endswith("(2 seeds).")
    assert all(values in text for text in texts(findings)[1:])


def test_the_first_screen_says_what_was_planned_before_and_what_was_stated_after_the_results(tmp_path: Path) -> None:
    looks = {"planned": [2, 3], "taken": [2, 3], "pilot": "seeds 0 to 3 were a pilot"}
    runs = [{"seed": seed, "key": f"{seed}"} for seed in (4, 5, 6)]
    arms = [{"name": name, "levels": {}, "runs": runs} for name in ("one", "two")]
    omitted = [{"arm": "three", "reason": "takes an hour"}]
    write_json(tmp_path / "studies" / "xl_recurrence" / "plan.json", {
        "version": 1, "study": "xl_recurrence", "question": "?", "metric": {"name": "val/bpb", "goal": "minimize"},
        "design": "explicit", "factors": {}, "baseline": "one", "arms": arms, "looks": looks, "left_out": omitted,
    })  # fmt: skip
    study = load_study(tmp_path, "xl_recurrence")
    before = "Looks were planned at 2 and 3 seeds and taken at 2 and 3. Before these seeds: seeds 0 to 3 were a pilot."
    assert about(study).endswith(f"{before} 1 arm is omitted at this scale.")
    assert STATED_LATER in about(replace(study, notes=(STATED_LATER,))) and STATED_LATER not in about(study)


def test_a_report_names_the_studies_that_have_some_of_its_runs_too(tmp_path: Path) -> None:
    plan = write_product(tmp_path / "runs", {"off": 0.1})
    for name, arms in (("second", plan["arms"][:1]), ("third", plan["arms"][:2]), ("fourth", plan["arms"][3:])):
        others = [arm | {"runs": [{"seed": 0, "key": f"{name}"}]} for arm in arms] if name == "fourth" else arms
        write_json(tmp_path / "runs" / "studies" / name / "plan.json", plan | {"study": name, "arms": others})
    (tmp_path / "runs" / "studies" / "fifth").mkdir()
    (tmp_path / "runs" / "studies" / "fifth" / "plan.json").write_text("{", encoding="utf-8")
    study = with_planned(load_study(tmp_path / "runs", "xl_recurrence"), tmp_path / "runs")
    assert study.shared == SharedRuns(6, ("second", "third"))
    assert [note for note in study.notes if note.startswith("fifth/plan.json: cannot be read")]
    findings = write_study(study, tmp_path / "report")
    assert "6 of its 12 runs also stand in second and third. Hardware:" in about(findings.study)

    published = tmp_path / "published" / "xl_recurrence"
    assert write_study(study, published, publication=published).study.shared is None
    results = (published / RESULTS).read_text(encoding="utf-8")
    first, *others = results.splitlines(keepends=True)
    other = json.loads(first)
    other["plan"] |= {"arms": other["plan"]["arms"][:1], "factors": {}, "design": "explicit"}
    (published.parent / "relative").mkdir()
    (published.parent / "relative" / RESULTS).write_text(json.dumps(other) + "\n", encoding="utf-8")
    assert "shared" not in json.loads(first) and others
    assert as_published(study, published).shared == SharedRuns(3, ("relative",))
    entry = read_entry(published)
    assert "12 of the 12 runs stand in more than one study." in summary([entry, entry])
    assert "more than one study" not in summary([entry])


@pytest.mark.parametrize("documents", [True, False])
def test_the_method_says_what_intervals_cover_and_that_they_hold_for_near_normal_seeds(
    tmp_path: Path, documents: bool
) -> None:
    write_product(tmp_path, {"off": 0.1}, **EXPLICIT)
    for path in tmp_path.glob("*/documents.csv") if not documents else ():
        path.unlink()
    findings = find(load_study(tmp_path, "xl_recurrence"))
    text = method(findings)[0]
    assert ("The 95 % interval covers seeds only: it is of the variance between seeds" in text) == (not documents)
    assert ("that between documents (" in text) == documents
    assert "The seeds of the study do not show that they are near normal" in text and "hold if" not in text
    normal = tuple(replace(one, widening=1.0) for one in findings.comparisons)
    assert "Intervals and verdicts hold if seeds are near normal." in method(replace(findings, comparisons=normal))[0]
