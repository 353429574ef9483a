"""Reading the files that runs left: damaged ones are named, moved aside and cost one cell, not the report."""

from __future__ import annotations

import csv
import io
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
    write_curve,
    write_json,
    write_plan,
    write_product,
    write_run,
)

from lit_transformers.heads.metric import make_row
from lit_transformers.runs.document_losses import write_documents as write_losses
from lit_transformers.training.callbacks import Curves
from reports.read.measurements import read_curves, read_documents, write_documents
from reports.read.study import ReportError, load_study
from reports.show.tables import Cell, Column, Table, to_csv

ARM = name_of(product_arms()[0])


def test_a_finished_study_is_read_whole(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.1})
    study = load_study(tmp_path, "xl_recurrence")
    assert [run.missing for run in study.runs] == [None] * 12
    assert study.notes == ()


def test_an_unknown_study_is_answered_with_the_nearest_one(tmp_path: Path) -> None:
    write_plan(tmp_path)
    with pytest.raises(ReportError, match="did you mean xl_recurrence"):
        load_study(tmp_path, "xl_recurence")


@pytest.mark.parametrize("text", ["", '{"version": 1, "study"', "[]", '{"version": 7}', '{"version": 1}', "\udcff"])
def test_a_damaged_plan_is_one_line_that_names_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "studies" / "broken" / "plan.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ReportError) as error:
        load_study(tmp_path, "broken")
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_baseline_that_is_no_arm_is_an_error(tmp_path: Path) -> None:
    write_plan(tmp_path, baseline="recurrence=on positions=relativ")
    with pytest.raises(ReportError, match="did you mean"):
        load_study(tmp_path, "xl_recurrence")


def test_a_contrast_of_an_arm_with_itself_is_an_error(tmp_path: Path) -> None:
    write_plan(tmp_path, contrasts=[{"name": "none", "arm": ARM, "against": ARM}])
    with pytest.raises(ReportError, match="against itself"):
        load_study(tmp_path, "xl_recurrence")


@pytest.mark.parametrize("text", ["", '{"version": 1, "key": "x"', "[1, 2]", '{"version": 1, "seed": "one"}'])
def test_a_damaged_record_is_moved_aside_and_its_run_counts_as_missing(tmp_path: Path, text: str) -> None:
    write_product(tmp_path, {})
    path = tmp_path / key_of(ARM, 1) / "record.json"
    path.write_text(text)
    study = load_study(tmp_path, "xl_recurrence")
    assert study.of(ARM)[1].missing == "its record was damaged"
    assert study.notes[0].startswith(f"{key_of(ARM, 1)}/record.json: damaged")
    assert "record.json.damaged" in study.notes[0]
    assert not path.exists() and (path.parent / "record.json.damaged").read_text() == text
    assert load_study(tmp_path, "xl_recurrence").of(ARM)[1].missing == "not run"


def test_a_record_of_another_version_is_left_where_it_is(tmp_path: Path) -> None:
    write_product(tmp_path, {})
    path = tmp_path / key_of(ARM, 0) / "record.json"
    write_json(path, json.loads(path.read_text()) | {"version": 2})
    study = load_study(tmp_path, "xl_recurrence")
    assert study.of(ARM)[0].missing == "made by another version"
    assert path.exists() and "version 2" in study.notes[0]


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"outcome": "failed", "reason": "not-a-number"}, "failed: not-a-number"),
        ({"outcome": "pruned", "reason": None}, "pruned"),
        (
            {"outcome": "invalid", "reason": "gate no_future_leak:\n position 3"},
            "invalid: gate no_future_leak: position 3",
        ),
        ({"metrics": {}}, "no val/bpb in its record"),
        ({"metrics": {"val/bpb": None}}, "no val/bpb in its record"),
        ({"metrics": {"val/bpb": float("nan")}}, "val/bpb is not finite"),
    ],
)
def test_a_run_without_a_number_says_why(tmp_path: Path, changes: dict[str, object], missing: str) -> None:
    write_plan(tmp_path, seeds=1)
    write_run(tmp_path, ARM, 0, BYTES, **changes)
    assert load_study(tmp_path, "xl_recurrence").of(ARM)[0].missing == missing


def test_a_run_that_was_never_started_reads_as_not_run(tmp_path: Path) -> None:
    write_plan(tmp_path, seeds=1)
    assert {run.missing for run in load_study(tmp_path, "xl_recurrence").runs} == {"not run"}


@pytest.mark.parametrize(
    "text",
    [
        "document,name\n0,a\n",
        "document,name,nats,tokens,bytes\n0,a,nan,1,1\n",
        "document,name,nats,tokens,bytes\n0,a,1",
        "",
        "\0" * 100,
        "document,name,nats,tokens,bytes\n0,a,1,1,1\n" + "\0" * 100,
    ],
)
def test_damaged_documents_are_noted_and_not_used(tmp_path: Path, text: str) -> None:
    path = tmp_path / "documents.csv"
    path.write_text(text)
    notes: list[str] = []
    assert read_documents(path, notes) is None
    assert notes[0].startswith(f"{tmp_path.name}/documents.csv: cannot be read")


@pytest.mark.parametrize("name", ["record.json", "metrics.csv", "documents.csv", "outputs.jsonl"])
@pytest.mark.parametrize("content", [b"", b"\0" * 100], ids=["empty", "zeroed"])
def test_a_file_that_lost_its_content_is_named_with_its_run_and_the_way_to_repair_it(
    tmp_path: Path, name: str, content: bytes
) -> None:
    write_plan(tmp_path, seeds=1)
    key = key_of(ARM, 0)
    write_run(tmp_path, ARM, 0, np.ones(10), metrics={"val/bpb": 1.0, "val/bleu": 30.0})
    write_curve(tmp_path, ARM, 0, 2.0)
    (tmp_path / key / "outputs.jsonl").write_text(
        "".join(json.dumps({"id": i, "hypothesis": "a b", "references": ["a b"]}) + "\n" for i in range(10))
    )
    assert not load_study(tmp_path, "xl_recurrence").notes
    (tmp_path / key / name).write_bytes(content)
    (note,) = load_study(tmp_path, "xl_recurrence").notes
    assert note.startswith(f"{key}/{name}: ") and "run the study again" in note


def test_a_curve_is_sorted_and_a_repeated_or_cut_line_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(
        "step,tokens,name,value\n2,200,train/loss,3.0\n1,100,train/loss,4.0\n2,200,train/loss,2.5\n3,300,tra"
    )
    assert np.array_equal(read_curves(path, [])["train/loss"], [[100.0, 4.0], [200.0, 2.5]])


TEXTS = ["=1+1", "+cmd|x", "-2+3", "@SUM(A1)", "\tx", "\rx", "'=1", "''-x", "'quoted'", "-1.5", "a=b", ""]


@pytest.mark.parametrize("name", [pytest.param(name, id=repr(name)) for name in TEXTS])
def test_a_name_in_a_table_is_no_formula_and_is_read_as_it_was(tmp_path: Path, name: str) -> None:
    losses = [make_row(("nats", "tokens", "bytes"), (0, 1.5, 3, 3))]
    write_losses(tmp_path / "documents.csv", losses, lambda ordinal: name)
    curves = Curves(1, 0)
    curves.points = [(1, 10, name, -2.5)]
    curves.write(tmp_path / "metrics.csv")
    table = Table("x", "X", (Column("arm"), Column("y", kind="number")), ((Cell(name), Cell(-3.5)),))
    cells = [cell for path in ("documents.csv", "metrics.csv") for row in rows_of(tmp_path / path) for cell in row]
    cells += [cell for row in csv.reader(io.StringIO(to_csv([table]), newline="")) for cell in row]
    assert not [cell for cell in cells if cell[:1] in "=+-@\t\r" and cell and not is_number(cell)]
    assert {"-2.5", "-3.5"} <= {*cells}, "numbers stay numbers"
    notes: list[str] = []
    documents = read_documents(tmp_path / "documents.csv", notes)
    assert documents is not None and documents.names == (f"0 {name}",) and not notes
    assert not name or [*read_curves(tmp_path / "metrics.csv", notes)] == [name]
    write_documents(tmp_path / "again.csv", documents)
    assert rows_of(tmp_path / "again.csv")[1][:2] == rows_of(tmp_path / "documents.csv")[1][:2]


def rows_of(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return [*csv.reader(file)]


def is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def test_values_of_a_curve_that_are_not_numbers_are_left_out(tmp_path: Path) -> None:
    write_curve(tmp_path, ARM, 0, 2.0)
    path = tmp_path / key_of(ARM, 0) / "metrics.csv"
    with path.open("a") as file:
        file.write("501,600000,val/bpb,nan\n502,600001,val/bpb,none\n")
    assert read_curves(path, [])["val/bpb"][-1, 0] == 512_000
