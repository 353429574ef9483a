"""Fuzz targets of files that runs and studies leave: records, plans, sums per document, curves, outputs, results."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from functools import cache
from pathlib import Path
from typing import Any

from fuzz.garbage import cut_and_patched, json_files, one_line
from fuzz.target import target
from hypothesis import strategies as st

from lit_transformers.config import ConfigError
from reports.read.results import read_results, write_results
from reports.read.study import load_study
from reports.report import find
from reports.show.sections import all_tables
from reports.show.tables import to_csv, to_latex, to_markdown
from sweeps.ledger.ticket import State, Ticket
from sweeps.survey import survey

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
CURVES = "step,tokens,name,value\n1,32,train/loss,5.5\n2,64,train/loss,5.25\n2,64,val/bpb,2.5\n"
OUTPUTS = "".join(
    json.dumps({"id": number, "hypothesis": "the cat", "references": ["the cat", "a cat"]}) + "\n" for number in (0, 1)
)
FLOORS = {"key": "on-0", "values": [{"name": "chance", "value": 8.0}], "reason": "", "arms": [], "others": []}
RUNS = Path("runs")


def content_of(number: str) -> bytes:
    """The record with another text in place of its metric."""
    return json.dumps(RECORD).replace("2.5", number).encode()


records = st.one_of(
    json_files(RECORD), st.sampled_from(["9" * 5000, "NaN", "1" + "0" * 400, "true", '"2.5"']).map(content_of)
)


def mended() -> None:
    """Restores the files that an input broke: a plan and four sound runs."""
    study = RUNS / "studies" / "malformed"
    shutil.rmtree(RUNS, ignore_errors=True)
    study.mkdir(parents=True)
    (study / "plan.json").write_text(json.dumps(PLAN))
    for number, key in enumerate(KEYS):
        (RUNS / key).mkdir()
        metrics = {METRIC: 2.5 + number / 10, "val/nats": 1.7}
        (RUNS / key / "record.json").write_text(
            json.dumps(RECORD | {"key": key, "seed": number % 2, "metrics": metrics})
        )
        (RUNS / key / "documents.csv").write_text(DOCUMENTS)


@target(
    "record.json in reports",
    {"content": json.dumps(RECORD | {"metrics": {"\n": False}}).encode()},
    content=records,
)
def record_in_reports(content: bytes) -> None:
    mended()
    (RUNS / "on-0" / "record.json").write_bytes(content)
    study = load_study(RUNS, "malformed")
    first, *others = study.runs
    assert [run.value for run in others] == [2.6, 2.7, 2.8]
    if first.missing is None:
        assert [first.value] == [number_in(content)]
        return
    assert one_line(first.missing) and math.isnan(first.value)
    if first.missing == "its record was damaged":
        assert any("on-0" in note and one_line(note) for note in study.notes)
    raise ConfigError(first.missing)


@target("record.json in a survey", content=records)
def record_in_a_survey(content: bytes) -> None:
    mended()
    (RUNS / "on-0" / "record.json").write_bytes(content)
    rows, notes = survey(RUNS, [Ticket(key, "arm", 0, {}) for key in KEYS], METRIC, retry_failed=False)
    assert [row.value for row in rows[1:]] == [2.6, 2.7, 2.8]
    if rows[0].state == State.WAITING:
        assert all("on-0" in note and one_line(note) for note in notes)
        raise ConfigError("it is done again")
    assert rows[0].value is None or [rows[0].value] == [number_in(content)] or math.isnan(rows[0].value)
    assert rows[0].reason is None or isinstance(rows[0].reason, str)


@target(
    "plan.json",
    {"content": json.dumps(PLAN).replace("on-0", "../../on-0").encode()},
    {"content": json.dumps(PLAN).replace("on-0", "/etc").encode()},
    content=json_files(PLAN),
)
def plan(content: bytes) -> None:
    mended()
    (RUNS / "studies" / "malformed" / "plan.json").write_bytes(content)
    study = load_study(RUNS, "malformed")
    plain = json.loads(content)
    assert study.plan.question == plain["question"] and study.plan.metric.name == plain["metric"]["name"]
    assert [arm.name for arm in study.plan.arms] == [arm["name"] for arm in plain["arms"]]
    assert all(Path(run.key).name == run.key for run in study.runs)


@target(
    "documents.csv, metrics.csv, outputs.jsonl, floors.json",
    documents=cut_and_patched(DOCUMENTS.encode()),
    curves=cut_and_patched(CURVES.encode()),
    outputs=cut_and_patched(OUTPUTS.encode()),
    floors=json_files(FLOORS),
)
def measurements(documents: bytes, curves: bytes, outputs: bytes, floors: bytes) -> None:
    mended()
    (RUNS / "on-0" / "record.json").write_text(json.dumps(RECORD | {"metrics": {METRIC: 2.5, "val/bleu": 30.0}}))
    for name, content in (("documents.csv", documents), ("metrics.csv", curves), ("outputs.jsonl", outputs)):
        (RUNS / "on-0" / name).write_bytes(content)
    (RUNS / "studies" / "malformed" / "floors.json").write_bytes(floors)
    study = load_study(RUNS, "malformed")
    assert [run.value for run in study.runs] == [2.5, 2.6, 2.7, 2.8] and all(map(one_line, study.notes))


@target("tables of a report", record=records, documents=cut_and_patched(DOCUMENTS.encode()))
def tables(record: bytes, documents: bytes) -> None:
    mended()
    (RUNS / "on-0" / "record.json").write_bytes(record)
    (RUNS / "on-0" / "documents.csv").write_bytes(documents)
    tables = all_tables(find(load_study(RUNS, "malformed")))
    assert all(map(to_latex, tables)) and all(map(to_markdown, tables))
    means = [row["value"] for row in csv.DictReader(io.StringIO(to_csv(tables))) if row["name"] == "recurrence=off"]
    assert "2.75" in means, "the arm whose runs are sound has lost its number"


@cache
def published() -> bytes:
    """The published results of the sound study."""
    mended()
    path = Path("sound.jsonl")
    write_results(load_study(RUNS, "malformed"), path)
    return path.read_bytes()


@st.composite
def results_files(draw: st.DrawFn) -> bytes:
    whole = published()
    if draw(st.booleans()):
        return draw(cut_and_patched(whole))
    lines = whole.splitlines()
    number = draw(st.integers(0, len(lines) - 1))
    lines[number] = draw(json_files(json.loads(lines[number])))
    return b"\n".join(lines) + b"\n"


@target("results.jsonl", content=results_files())
def results(content: bytes) -> None:
    path = Path("results.jsonl")
    path.write_bytes(content)
    study = read_results(path)
    assert all(map(one_line, study.notes)) and len(study.runs) == sum(len(arm.runs) for arm in study.plan.arms)


def number_in(content: bytes) -> float:
    """The metric of a record. Asserts that it is a number as JSON writes one."""
    value = json.loads(content)["metrics"][METRIC]
    assert isinstance(value, int | float) and not isinstance(value, bool)
    return float(value)
