"""The report as its reader finds it."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console
from study_on_disk import BYTES, key_of, name_of, product_arms, write_json, write_plan, write_product, write_run

from reports import ReportError, write_report
from reports.read.study import load_study
from reports.report import find, markdown, print_report
from reports.show.figures import drawings
from reports.show.sections import all_tables
from reports.show.tables import to_csv

ON, ON_ABSOLUTE, OFF, OFF_ABSOLUTE = map(name_of, product_arms())
CONTRASTS = [{"name": "recurrence on vs off", "arm": ON, "against": OFF}]
PUBLISHED = {
    "protocol": {"text": "WikiText-103, word level, 128M parameters"},
    "metric": "perplexity",
    "cells": [
        {"arm": {"recurrence": "on", "positions": "relative"}, "value": 26.77, "note": "attention length 500"},
        {"arm": {"positions": "shaw"}, "value": 27.94, "note": "full loss"},
        {"arm": {"recurrence": "on"}, "value": 29.59},
    ],
    "claims": ["Recurrence helps."],
}


def report(runs: Path, width: int = 100, unmatched: bool = False) -> tuple[str, str]:
    """Returns the page and the output on the terminal, without writing figures, which takes most of a report's time."""
    findings = find(load_study(runs, "xl_recurrence"), unmatched)
    tables = all_tables(findings)
    console = Console(file=io.StringIO(), width=width)
    print_report(findings, console, full=True)
    assert isinstance(console.file, io.StringIO)
    return markdown(findings, tables, {drawing.name: drawing.caption for drawing in drawings(findings)}), (
        console.file.getvalue()
    )


def contents(directory: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def row(page: str, start: str) -> list[str]:
    line = next(line for line in page.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_the_page_opens_with_the_question_and_its_answer(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.123}, contrasts=CONTRASTS)
    page, shown = report(tmp_path)
    lines = page.splitlines()
    assert lines[0] == "# Does segment recurrence help, and does it need relative positions?"
    assert lines[2].startswith("**Better: recurrence on vs off: -0.1")
    assert "bits per byte (95 % interval -0.1" in lines[2] and lines[2].endswith("3 seeds).**")
    assert lines[4].startswith("Means in bits per byte: recurrence=on positions=relative (baseline) ")
    assert lines[6].endswith(" All 12 runs have a value. Hardware: 2 CPU cores.")
    assert lines[8].startswith("Recurrence on vs off") and "at equal FLOPs per token and equal time." in lines[8]
    assert "Better: recurrence on vs off: -0.1" in shown


def test_a_report_is_its_files_the_same_for_the_same_records_and_printed_to_a_console_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_product(tmp_path, {"off": 0.1})
    page, shown = report(tmp_path)
    console = Console(file=io.StringIO(), width=100)
    path = write_report(tmp_path, "xl_recurrence", console=console, full=True)
    assert isinstance(console.file, io.StringIO)
    assert (path.read_text(encoding="utf-8"), console.file.getvalue()) == (page, shown)
    assert "(learning_curves.png)" in page and "(differences.svg)" in page
    directory = tmp_path / "studies" / "xl_recurrence" / "report"
    names = {"results.jsonl", "report.md", "report.csv", "report.tex", "page.html"} | {
        f"{figure}.{ending}" for figure in ("learning_curves", "differences", "seeds") for ending in ("png", "svg")
    }
    assert set(contents(directory)) == names
    write_report(tmp_path, "xl_recurrence", out=tmp_path / "again")
    assert contents(tmp_path / "again") == contents(directory)
    assert capsys.readouterr() == ("", "")


def test_a_table_gives_mean_and_spread_by_hand(tmp_path: Path) -> None:
    write_plan(tmp_path, product_arms()[::2], design="explicit")
    for arm, levels in ((ON, (2.0, 2.2, 2.1)), (OFF, (2.1, 2.4, 2.4))):
        for seed, level in enumerate(levels):
            write_run(tmp_path, arm, seed, level * BYTES * math.log(2))
    page, _ = report(tmp_path)
    assert row(page, f"{ON} (baseline)") == [f"{ON} (baseline)", "2.10 ± 0.10", "3"]
    assert "51 ± 1 s" in row(page.partition("## Cost")[2], ON)
    cells = row(page, "recurrence=off against the baseline")
    # half-width 0.2484 times 2.5; Student's t of 0.2 / (2.5 * 0.1 / sqrt(3)) with 2 degrees of freedom
    assert cells[1:5] == ["0.20", "-0.42 to 0.82", "unresolved", "0.300"]


def test_what_all_arms_share_stands_above_their_column_and_whole_names_in_the_csv(tmp_path: Path) -> None:
    arms = [{"mixer": mixer, "data": "books"} for mixer in ("attention", "window", "lsh")]
    write_plan(tmp_path, arms, factors={"mixer": ["attention", "window", "lsh"], "data": ["books", "news"]})
    for arm in arms:
        for seed, level in enumerate((2.0, 2.2, 2.1)):
            write_run(tmp_path, name_of(arm), seed, level * BYTES * math.log(2))
    page, _ = report(tmp_path)
    for table in ("## Results", "## Cost"):
        assert row(page.partition(table)[2], "mixer |")[0] == "mixer"
        assert row(page.partition(table)[2], "window")[0] == "window"
    assert row(page, "attention (baseline)")[-1] == "3"
    assert row(page, "mixer against the baseline")[0] == "mixer against the baseline"
    assert "mixer=" not in page
    names = [
        line.split(",")[2] for line in to_csv(all_tables(find(load_study(tmp_path, "xl_recurrence")))).splitlines()
    ]
    assert {"mixer=window data=books", "window against the baseline"} <= set(names)


def test_beside_a_source_that_has_more_levels_arms_have_their_whole_names(tmp_path: Path) -> None:
    arms = [{"mixer": mixer, "data": "books"} for mixer in ("attention", "window")]
    cells = [
        {"arm": {"mixer": "window", "data": data}, "value": value} for data, value in (("books", 1.0), ("news", 2.0))
    ]
    write_plan(tmp_path, arms, published=PUBLISHED | {"cells": cells})
    for arm in arms:
        write_run(tmp_path, name_of(arm), 0, 2.0 * BYTES * math.log(2))
    page = report(tmp_path)[0].partition("## Published")[2]
    assert [row(page, f"mixer=window data={data}")[1] for data in ("books", "news")] == ["1", "2"]


def test_one_seed_has_no_interval_and_says_so(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.1}, seeds=1, contrasts=CONTRASTS)
    page, _ = report(tmp_path)
    assert "(1 seed): no verdict (one seed cannot be judged; add seeds)" in page
    assert row(page, "recurrence on vs off")[2:4] == ["-", "*none: one seed cannot be judged; add seeds*"]
    assert "differences.png" not in page


def test_a_study_whose_arms_all_failed_reports_why(tmp_path: Path) -> None:
    write_plan(tmp_path, seeds=2)
    for arm in (ON, ON_ABSOLUTE, OFF, OFF_ABSOLUTE):
        for seed in range(2):
            write_run(tmp_path, arm, seed, BYTES, outcome="failed", reason="not-a-number")
    page, shown = report(tmp_path)
    assert "**No arm finished, so there is no answer yet: failed: not-a-number.**" in page
    assert row(page, f"{OFF} |")[1:] == ["*failed: not-a-number*", "0 of 2"]
    assert "failed: not-a-number" in shown


def test_a_failed_seed_is_counted_and_named(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.1})
    path = tmp_path / key_of(OFF, 1) / "record.json"
    write_json(path, json.loads(path.read_text()) | {"outcome": "failed", "reason": "out of memory"})
    page, _ = report(tmp_path)
    assert row(page, f"{OFF} |")[2] == "2 of 3 (seed 1 failed: out of memory)"


def test_a_damaged_record_is_a_note_on_the_page(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.1})
    (tmp_path / key_of(ON, 2) / "record.json").write_text("{")
    page, shown = report(tmp_path)
    assert "moved aside to record.json.damaged" in page
    assert "note:" in shown


def test_published_cells_stand_beside_ours_with_both_protocols(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.1}, published=PUBLISHED)
    page, _ = report(tmp_path)
    section = page[page.index("## Published in Dai et al. 2019") :]
    assert "| Arm | Published (perplexity) | Note | Ours (bits per byte) |" in section
    assert row(section, ON)[1:3] == ["26.77", "attention length 500"]
    assert row(section, "positions=shaw")[3] == "*not run here*"
    assert row(section, "recurrence=on |")[3] == "*several arms*"
    assert "Published: WikiText-103, word level, 128M parameters" in section
    assert "Ours: standard library, bytes, segment 32, memory 32" in section
    assert "The source claims: Recurrence helps." in section


def test_what_does_not_match_is_printed_and_not_judged(tmp_path: Path) -> None:
    per_arm = {ON: {"target": 1e6, "reached": 1e6}, OFF: {"target": 1e6, "reached": 1.05e6}}
    write_product(
        tmp_path, {"off": 0.3}, contrasts=CONTRASTS, match={"on": "parameters", "free": "model.dim", "per_arm": per_arm}
    )
    page, _ = report(tmp_path)
    assert row(page[page.index("## Matched on parameters") :], OFF)[3] == "5.00%"
    assert row(page, "recurrence on vs off")[3] == "*none: not matched: parameters differ by 5.0%*"
    assert row(report(tmp_path, unmatched=True)[0], "recurrence on vs off")[3] == "better"


def test_a_level_that_is_left_out_is_named_once_for_all_of_its_arms(tmp_path: Path) -> None:
    arms = ["recurrence=on positions=shaw", "recurrence=off positions=shaw", "recurrence=half positions=relative"]
    write_product(tmp_path, {}, left_out=[{"arm": arm, "reason": "too long"} for arm in arms])
    table = report(tmp_path)[0].partition("## Omitted at this scale")[2].partition("##")[0]
    assert [line.split("|")[1].strip() for line in table.splitlines() if "too long" in line] == [
        "positions=shaw",
        "recurrence=half",
    ]


def test_arms_left_out_are_named(tmp_path: Path) -> None:
    write_product(tmp_path, {}, left_out=[{"arm": "positions=shaw", "reason": "runs at scale gpu"}])
    assert row(report(tmp_path)[0], "positions=shaw") == ["positions=shaw", "runs at scale gpu"]


def test_runs_of_different_libraries_or_machines_are_pointed_out(tmp_path: Path) -> None:
    write_product(tmp_path, {})
    path = tmp_path / key_of(ON, 2) / "record.json"
    record = json.loads(path.read_text())
    write_json(path, record | {"environment": record["environment"] | {"torch": "2.11.0"}})
    assert "The runs come from 2 versions of torch: 2.11.0, 2.13.0." in report(tmp_path)[0]


def test_an_unresolved_difference_says_what_it_would_take(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.02}, noise=0.05, contrasts=CONTRASTS)
    page, _ = report(tmp_path)
    assert "unresolved; 3 seeds can detect a difference of 0." in page
    assert "this one would need " in page


def test_an_unknown_study_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"plan\.json: no plan of a study 'xl_recurrence'"):
        report(tmp_path)


@pytest.mark.slow
def test_the_terminal_is_never_too_narrow(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.1}, published=PUBLISHED)
    for width in (60, 80, 120):
        _, shown = report(tmp_path, width)
        assert max(map(len, shown.splitlines())) <= width


@pytest.mark.slow
def test_reports_import_neither_models_nor_figures_before_they_are_drawn() -> None:
    code = "import reports, sys; print(sorted({'torch', 'lightning', 'matplotlib', 'datamodules'} & set(sys.modules)))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"
