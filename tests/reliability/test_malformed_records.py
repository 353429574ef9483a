"""Malformed records and plans, a thousand: each is named and counts as missing, or shows the number it holds."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from garbage import broken, examples, one_line
from hypothesis import example, given
from hypothesis import strategies as st

from reports.read.records import ReportError, load_study
from reports.report import find
from reports.show.sections import all_tables
from reports.show.tables import to_csv, to_latex, to_markdown
from sweeps.ledger.ticket import State, Ticket
from sweeps.survey import survey

pytestmark = pytest.mark.slow

METRIC = "val/bpb"
PLAN: dict[str, Any] = {
    "version": 1,
    "study": "malformed",
    "scale": "demo",
    "question": "Does recurrence help?",
    "source": {"title": "Dai et al. 2019", "arxiv": "1901.02860", "table": "6"},
    "metric": {"name": METRIC, "goal": "minimize", "label": "bits per byte", "compare": "difference"},
    "design": "product",
    "factors": {"recurrence": ["on", "off"]},
    "baseline": "recurrence=on",
    "match": {"on": "tokens", "free": None, "per_arm": {"recurrence=off": {"target": 100.0, "reached": 100.0}}},
    "arms": [
        {"name": f"recurrence={level}", "levels": {"recurrence": level},
         "runs": [{"seed": seed, "key": f"{level}-{seed}"} for seed in (0, 1)]}
        for level in ("on", "off")
    ],
    "contrasts": [{"name": "memory", "arm": "recurrence=off", "against": "recurrence=on"}],
    "published": {"protocol": {"text": "WikiText-103"}, "metric": "perplexity",
                  "cells": [{"arm": "recurrence=on", "value": 26.77, "note": ""}], "claims": ["It helps."]},
    "protocol": "bytes",
    "left_out": [{"arm": "both", "reason": "no time"}],
    "commands": {"run": "python -m ablations run malformed"},
}  # fmt: skip
RECORD: dict[str, Any] = {
    "version": 1,
    "key": "on-0",
    "outcome": "finished",
    "reason": None,
    "seed": 0,
    "config": {"model": {"width": 16}},
    "data": {"name": "stdlib", "fingerprint": "f00d"},
    "metrics": {METRIC: 2.5, "val/nats": 1.7},
    "protocol": {"segment_length": 32, "memory": 32},
    "cost": {"parameters": 1000, "tokens": 100, "train_flops": 6e5},
    "gates": [{"name": "no future leak", "passed": True, "detail": ""}],
    "environment": {"torch": "2.11", "hardware": "CPU"},
    "measured": {"seconds": 3.5, "tokens_per_second": 28.6, "peak_memory_bytes": 10**8},
}
KEYS = [run["key"] for arm in PLAN["arms"] for run in arm["runs"]]
DOCUMENTS = "document,name,nats,tokens,bytes\n0,a,10.5,8,8\n1,b,21.25,16,16\n"


def cut_and_patched(text: str) -> st.SearchStrategy[bytes]:
    """The bytes of a file after a crash, a bad disk or a wrong editor."""
    content = text.encode()
    cuts = st.integers(0, len(content))
    return st.one_of(
        cuts.map(lambda cut: content[:cut]),
        st.builds(lambda cut, noise: content[:cut] + noise + content[cut:], cuts, st.binary(max_size=4)),
        st.builds(lambda start, stop: content[: min(start, stop)] + content[max(start, stop) :], cuts, cuts),
        st.sampled_from([b"", b"\0" * 512, b"[" * 100_000, b'{"a":' * 5000, content.decode().encode("utf-16"),
                         content + content, b"NaN", b"null", b"9" * 5000, content.replace(b"2.5", b"9" * 5000),
                         content.replace(b"2.5", b"NaN"), content.replace(b"2.5", b"1" + b"0" * 400),
                         content.replace(b"2.5", b"true"), content.replace(b"2.5", b'"2.5"')]),
    )  # fmt: skip


def files_of(plain: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """A file of plain data that is malformed in its values, or in its text."""
    return st.one_of(
        broken(plain).map(lambda tree: json.dumps(tree).encode()), cut_and_patched(json.dumps(plain, indent=1))
    )


@pytest.fixture(scope="module")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs folder with a plan and four sound runs."""
    runs = tmp_path_factory.mktemp("runs")
    (runs / "studies" / "malformed").mkdir(parents=True)
    mend(runs)
    return runs


def mend(runs: Path) -> None:
    """Puts back what an example broke."""
    (runs / "studies" / "malformed" / "plan.json").write_text(json.dumps(PLAN))
    for number, key in enumerate(KEYS):
        metrics = {METRIC: 2.5 + number / 10, "val/nats": 1.7}
        shutil.rmtree(runs / key, ignore_errors=True)
        (runs / key).mkdir()
        (runs / key / "record.json").write_text(
            json.dumps(RECORD | {"key": key, "seed": number % 2, "metrics": metrics})
        )
        (runs / key / "documents.csv").write_text(DOCUMENTS)


@examples(450)
@given(damaged=files_of(RECORD))
@example(damaged=json.dumps(RECORD | {"metrics": {"\n": False}}).encode())
def test_reports_name_a_malformed_record_or_show_its_number(runs_folder: Path, damaged: bytes) -> None:
    mend(runs_folder)
    (runs_folder / "on-0" / "record.json").write_bytes(damaged)
    study = load_study(runs_folder, "malformed")
    first, *others = study.runs
    assert [run.value for run in others] == [2.6, 2.7, 2.8]
    if first.missing is None:
        assert [first.value] == [number_in(damaged)]
    else:
        assert one_line(first.missing) and math.isnan(first.value)
        if first.missing == "its record was damaged":
            assert any("on-0" in note and one_line(note) for note in study.notes)


@examples(300)
@given(damaged=files_of(RECORD))
def test_a_survey_repeats_a_malformed_record_or_shows_its_number(runs_folder: Path, damaged: bytes) -> None:
    mend(runs_folder)
    (runs_folder / "on-0" / "record.json").write_bytes(damaged)
    tickets = [Ticket(key, "arm", 0, {}) for key in KEYS]
    rows, notes = survey(runs_folder, tickets, METRIC, retry_failed=False)
    assert [row.value for row in rows[1:]] == [2.6, 2.7, 2.8]
    if rows[0].state == State.WAITING:
        assert all("on-0" in note and one_line(note) for note in notes)
    else:
        assert rows[0].value is None or [rows[0].value] == [number_in(damaged)] or math.isnan(rows[0].value)
        assert rows[0].reason is None or isinstance(rows[0].reason, str)


@examples(250)
@given(damaged=files_of(PLAN))
@example(damaged=json.dumps(PLAN).replace("on-0", "../../on-0").encode())
@example(damaged=json.dumps(PLAN).replace("on-0", "/etc").encode())
def test_a_malformed_plan_is_named_or_read_as_it_stands(runs_folder: Path, damaged: bytes) -> None:
    mend(runs_folder)
    path = runs_folder / "studies" / "malformed" / "plan.json"
    path.write_bytes(damaged)
    try:
        study = load_study(runs_folder, "malformed")
    except ReportError as error:
        assert one_line(str(error)) and str(path) in str(error)
        return
    plain = json.loads(damaged)
    assert study.plan.question == plain["question"] and study.plan.metric.name == plain["metric"]["name"]
    assert [arm.name for arm in study.plan.arms] == [arm["name"] for arm in plain["arms"]]
    assert all(Path(run.key).name == run.key for run in study.runs)


@examples(30)
@given(record=files_of(RECORD), documents=cut_and_patched(DOCUMENTS))
def test_tables_are_written_whatever_a_run_left(runs_folder: Path, record: bytes, documents: bytes) -> None:
    mend(runs_folder)
    (runs_folder / "on-0" / "record.json").write_bytes(record)
    (runs_folder / "on-0" / "documents.csv").write_bytes(documents)
    tables = all_tables(find(load_study(runs_folder, "malformed")))
    assert all(map(to_latex, tables)) and all(map(to_markdown, tables))
    means = [row["value"] for row in csv.DictReader(io.StringIO(to_csv(tables))) if row["name"] == "recurrence=off"]
    assert "2.75" in means, "the arm whose runs are sound has lost its number"


def number_in(damaged: bytes) -> float:
    """What stands in a record where its metric belongs, if that is a number as JSON writes one."""
    value = json.loads(damaged)["metrics"][METRIC]
    assert isinstance(value, int | float) and not isinstance(value, bool)
    return float(value)
