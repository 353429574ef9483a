"""The end of a run on a terminal: one screen, in which every interval is drawn."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from study_on_disk import name_of, product_arms, write_product

from reports.read.results import read_results
from reports.read.study import load_study
from reports.report import RESULTS, find, print_report
from reports.show.screen import LINES, IntervalScale, screen

PUBLISHED = Path(__file__).parents[2] / "published"
STUDIES = sorted(path.parent.name for path in PUBLISHED.glob(f"*/{RESULTS}"))
ON, ON_ABSOLUTE, OFF, OFF_ABSOLUTE = map(name_of, product_arms())


def text_of(runs: Path, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_report(find(load_study(runs, "xl_recurrence")), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("study", STUDIES[::9])
def test_what_is_published_fits_a_screen(study: str, width: int) -> None:
    lines = screen(find(read_results(PUBLISHED / study / RESULTS)), width)
    assert width < 80 or len(lines) <= LINES + 1
    assert max(line.cell_len for line in lines) <= width


def test_the_answer_stands_once_and_each_arm_has_its_mean_interval_verdict_and_cost(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.123}, arms=product_arms()[::2], design="explicit")
    shown = text_of(tmp_path, 120)
    assert shown.count("Worse") == 1 and shown.count("--full") == 0
    (row,) = (line for line in shown.splitlines() if line.startswith(f"{OFF} "))
    _, change, low, high, *bar, verdict, cost = row.removeprefix(OFF).split()
    assert float(change) == pytest.approx(0.123, abs=0.05) and float(low.rstrip(",")) < float(change) < float(high)
    assert "●" in "".join(bar) and (verdict, cost) == ("worse", "1.00x")


def test_a_bar_shows_zero_the_margin_and_the_interval_in_their_order(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.4}, contrasts=None)
    findings = find(load_study(tmp_path, "xl_recurrence"))
    one = next(one for one in findings.comparisons if one.verdict == "worse")
    bar = IntervalScale.of([one])._replace(low=-0.5, high=0.5, margin=0.1).bar(one, 41).plain
    assert bar.index("░") == 16 and bar.index("│") == 20 and bar[36] == "●"
    assert IntervalScale(0.0, 0.0, 0.0).bar(None, 5).plain == " " * 5


def test_what_has_no_verdict_is_named_with_its_reason(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.123}, contrasts=None, seeds=1)
    assert "Not judged: " in text_of(tmp_path)
