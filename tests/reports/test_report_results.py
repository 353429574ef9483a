"""``results.jsonl``: all that a report is made from, and the effect of a damaged line on the report."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from study_on_disk import BYTES, key_of, name_of, product_arms, write_plan, write_product, write_run

from lit_transformers.records.files import RESULTS
from reports import ReportError, write_report
from reports.read.results import read_results, write_results
from reports.read.study import Study, load_study
from reports.report import find, markdown, render
from reports.show.sections import all_tables
from reports.show.seeds import SEEDS_CAPTION

ON, _, OFF, _ = map(name_of, product_arms())


def write_study_results(runs: Path) -> Path:
    """Writes a study of twelve runs as ``results.jsonl``, and returns its path."""
    write_product(runs, {"off": 0.1})
    path = runs / RESULTS
    write_results(load_study(runs, "xl_recurrence"), path)
    return path


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def equal_studies(first: Study, second: Study) -> bool:
    """Whether two studies hold the same plan, notes, records, curves and documents."""
    if (first.plan, first.notes, len(first.runs)) != (second.plan, second.notes, len(second.runs)):
        return False
    return all(
        (a.arm, a.seed, a.key, a.record, a.missing) == (b.arm, b.seed, b.key, b.record, b.missing)
        and [a.measurements.curves[n].tolist() for n in a.measurements.curves]
        == [b.measurements.curves[n].tolist() for n in b.measurements.curves]
        and str(a.documents()) == str(b.documents())
        for a, b in zip(first.runs, second.runs, strict=True)
    )


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = write_study_results(tmp_path)
    study = load_study(tmp_path, "xl_recurrence")
    assert equal_studies(read_results(path), study)
    assert study.runs[0].documents() is not None and len(study.runs[0].curves(["train/loss"])["train/loss"]) == 120


@pytest.mark.slow
def test_the_report_from_runs_equals_the_report_from_results_byte_for_byte(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.1})
    (tmp_path / key_of(ON, 1) / "record.json").write_text("{")
    (tmp_path / key_of(OFF, 1) / "documents.csv").write_text("document,name\n0,a\n")
    findings = find(load_study(tmp_path, "xl_recurrence"))
    (tmp_path / key_of(ON, 1) / "record.json.damaged").rename(tmp_path / key_of(ON, 1) / "record.json")
    page = write_report(tmp_path, "xl_recurrence", out=tmp_path / "one")
    figures = {
        "learning_curves": "Learning curves: mean over seeds, of up to 8 arms with a band from the least to the "
        "greatest.",
        "differences": "Paired differences with their 95 % intervals.",
        "seeds": SEEDS_CAPTION,
    }
    assert "was damaged" in page.read_text()
    assert markdown(findings, all_tables(findings), figures) == page.read_text()
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / RESULTS).write_bytes((tmp_path / "one" / RESULTS).read_bytes())
    render(tmp_path / "two")
    first, second = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert first == second


def test_a_study_distilled_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    path = write_study_results(tmp_path)
    write_results(read_results(path), tmp_path / "again.jsonl")
    assert path.read_bytes() == (tmp_path / "again.jsonl").read_bytes()


def test_every_run_has_one_line_and_shared_columns_stand_once(tmp_path: Path) -> None:
    lines = lines_of(write_study_results(tmp_path))
    runs = [line for line in lines if line["kind"] == "run"]
    assert [(run["arm"], run["seed"]) for run in runs] == [(name_of(a), s) for a in product_arms() for s in range(3)]
    columns = [line["values"] for line in lines if line["kind"] == "column"]
    assert BYTES.tolist() in columns and sum("0 module0.py" in column for column in columns) == 1
    documents = runs[0]["documents"]
    assert documents["tokens"] == documents["bytes"] != documents["names"]
    assert len(documents["nats"]) == len(BYTES)


def test_a_run_that_did_not_finish_keeps_its_reason(tmp_path: Path) -> None:
    write_plan(tmp_path, seeds=2)
    write_run(tmp_path, ON, 0, BYTES, outcome="failed", reason="out of memory", metrics={})
    write_results(load_study(tmp_path, "xl_recurrence"), tmp_path / RESULTS)
    assert [run.missing for run in read_results(tmp_path / RESULTS).of(ON)] == ["failed: out of memory", "not run"]


def test_gates_what_was_observed_and_other_sums_of_documents_are_kept(tmp_path: Path) -> None:
    write_plan(tmp_path, seeds=1)
    gate = {"name": "no future", "passed": True, "detail": "largest change 0"}
    write_run(tmp_path, ON, 0, BYTES, gates=[gate], observed={"spans": [1.5, 2.0]}, config={"seed": 0})
    path = tmp_path / key_of(ON, 0) / "documents.csv"
    rows = path.read_text().splitlines()
    path.write_text("\n".join([f"{rows[0]},correct", *(f"{row},{i}" for i, row in enumerate(rows[1:]))]) + "\n")
    write_results(load_study(tmp_path, "xl_recurrence"), tmp_path / RESULTS)
    run = read_results(tmp_path / RESULTS).of(ON)[0]
    assert run.record and run.record.gates[0].name == "no future" and run.record.config == {"seed": 0}
    assert run.record.observed == {"spans": [1.5, 2.0]}
    documents = run.documents()
    assert documents and documents.others["correct"].tolist() == list(range(len(BYTES)))


def test_nothing_tells_of_a_machine_a_person_or_a_time(tmp_path: Path) -> None:
    write_plan(tmp_path, seeds=1, protocol="text of /home/someone/corpora/books.txt")
    config = {"data": {"source": {"kind": "files", "path": "~/corpora/books.txt"}, "url": "https://example.org/a/b"}}
    environment = {"torch": "2.13.0", "hardware": "2 CPU cores", "hostname": "node17", "user": "someone"}
    measured = {"seconds": 5.0, "started": "2026-11-21T10:00:00+00:00"}
    reason = "FileNotFoundError: [Errno 2] No such file: '/scratch/someone/a.bin'"
    changes: dict[str, Any] = {"config": config, "environment": environment, "measured": measured}
    write_run(tmp_path, ON, 0, BYTES, **changes)
    write_run(tmp_path, OFF, 0, BYTES, outcome="failed", reason=reason, **changes)
    write_results(load_study(tmp_path, "xl_recurrence"), tmp_path / RESULTS)
    text = (tmp_path / RESULTS).read_text()
    assert not re.search(r"someone|node17|2026-|/home|/scratch|corpora", text)
    record = read_results(tmp_path / RESULTS).of(ON)[0].record
    assert record and record.config["data"] == {
        "source": {"kind": "files", "path": "books.txt"},
        "url": "https://example.org/a/b",
    }
    assert "No such file: 'a.bin'" in text


def test_commands_can_be_pasted_here_and_tell_of_no_folder_where_they_are_public(tmp_path: Path) -> None:
    command = (
        "python -m ablations run '/home/some one/mine.py' --set 'data.path=/scratch/a b.txt' --runs '/tmp/my runs'"
    )
    write_plan(tmp_path, seeds=1, commands={"run": command})
    study = load_study(tmp_path, "xl_recurrence")
    write_results(study, tmp_path / RESULTS)
    assert read_results(tmp_path / RESULTS).plan.commands == {"run": command}
    write_results(study, tmp_path / RESULTS, public=True)
    public = "python -m ablations run mine.py --set 'data.path=a b.txt'"
    assert read_results(tmp_path / RESULTS).plan.commands == {"run": public}


def test_a_damaged_line_is_named_and_what_it_held_counts_as_missing(tmp_path: Path) -> None:
    path = write_study_results(tmp_path)
    lines = path.read_text().splitlines()
    number = next(i for i, line in enumerate(lines) if json.loads(line)["kind"] == "run")
    lines[number] = lines[number][:200]
    path.write_text("\n".join(lines) + "\n")
    study = read_results(path)
    assert study.runs[0].missing == "its line in results.jsonl is missing"
    assert study.notes[0].startswith(f"results.jsonl, line {number + 1}: damaged")
    assert [run.missing for run in study.runs[1:]] == [None] * 11


def test_a_run_whose_column_is_lost_keeps_its_number(tmp_path: Path) -> None:
    path = write_study_results(tmp_path)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines_of(path) if line["kind"] != "column"))
    study = read_results(path)
    assert [run.missing for run in study.runs] == [None] * 12
    assert study.runs[0].documents() is None and len(study.notes) == 12
    assert "column 0 is missing" in study.notes[0]


def test_a_line_of_a_run_that_is_there_twice_or_unplanned_is_noted(tmp_path: Path) -> None:
    path = write_study_results(tmp_path)
    run = next(line for line in lines_of(path) if line["kind"] == "run")
    with path.open("a") as file:
        file.write(json.dumps(run) + "\n" + json.dumps(run | {"key": "other"}) + "\n" + '{"kind": "page"}\n')
    notes = read_results(path).notes
    assert [re.findall(r"there already|not in the plan|no known kind", note) for note in notes] == [
        ["there already"],
        ["not in the plan"],
        ["no known kind"],
    ]


@pytest.mark.parametrize("first", ["", "[]", '{"kind": "study"', '{"kind": "study", "version": 2}', '{"kind": "run"}'])
def test_a_damaged_first_line_is_one_line_that_names_the_file(tmp_path: Path, first: str) -> None:
    path = tmp_path / RESULTS
    path.write_text(first + "\n")
    with pytest.raises(ReportError, match=r"results\.jsonl, line 1: cannot be read") as error:
        read_results(path)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_files_cut_or_garbled_anywhere_are_read_or_refused_by_one_line(tmp_path: Path) -> None:
    content = write_study_results(tmp_path).read_bytes()
    generator, path = random.Random(0), tmp_path / "cut.jsonl"
    first_line_end = content.index(b"\n")
    for _ in range(150):
        position = generator.randrange(len(content))
        byte = bytes([generator.randrange(256)])
        path.write_bytes(
            generator.choice(
                [
                    content[:position],
                    content[:position] + byte + content[position + 1 :],
                    content[:position] + content[position + 1 :],
                ]
            )
        )
        try:
            study = read_results(path)
        except ReportError as error:
            assert position <= first_line_end + 1 and "\n" not in str(error)
            continue
        assert len(study.runs) == 12
        for run in study.runs:
            assert run.missing or np.isfinite(run.value)
