"""One table in four languages: the same cells, the names escaped, the gaps explained."""

from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console

from reports.show.tables import (
    Cell,
    Column,
    Table,
    escape_latex,
    escape_markdown,
    plain,
    to_csv,
    to_latex,
    to_markdown,
    to_rich,
)

HOSTILE = "a|b_c*d`e<f>&g%h$i#j{k}l~m^n\\o[p]"

TABLE = Table(
    "results",
    "Results",
    (
        Column("Arm"),
        Column("Mean", "number", "bits per byte", 2),
        Column("95 % interval", "interval", "bits per byte", 2),
        Column("Memory", "bytes", detail=True),
    ),
    (
        (Cell("one"), Cell(1.234, spread=0.056), Cell(low=-0.5, high=0.25), Cell(2048.0)),
        (Cell(HOSTILE), Cell(missing="failed: not-a-number"), Cell(), Cell()),
    ),
    ("Lower is better.",),
    "bits per byte",
)


def printed(table: Table, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(to_rich(table, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_markdown_holds_every_cell_and_as_many_pipes_in_every_row() -> None:
    text = to_markdown(TABLE)
    assert "## Results, in bits per byte" in text
    assert "| one | 1.23 ± 0.06 | -0.50 to 0.25 | 2.00 KiB |" in text
    assert "*failed: not-a-number*" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(row.replace("\\\\", "").replace("\\|", "").split("|")) for row in rows} == {6}


def test_markdown_escapes_whatever_would_mark_up() -> None:
    assert escape_markdown("a|b *c* `d` <e> x_y\nz") == r"a\|b \*c\* \`d\` \<e\> x\_y z"


def test_an_interval_that_excludes_zero_is_not_printed_as_touching_it() -> None:
    column = Column("95 % interval", "interval", decimals=1)
    assert plain(Cell(low=-2.98, high=-0.04), column) == "-2.98 to -0.04"
    assert plain(Cell(low=-2.98, high=0.04), column) == "-3.0 to 0.0"


def test_latex_escapes_every_special_character() -> None:
    assert escape_latex("50 % of a_b & c#d $e {f}") == r"50 \% of a\_b \& c\#d \$e \{f\}"
    assert escape_latex("~^\\") == r"\textasciitilde{}\textasciicircum{}\textbackslash{}"
    assert escape_latex("-0.5 to 3") == "$-$0.5 to 3"
    assert escape_latex("half-loss") == "half-loss"


def test_latex_is_a_booktabs_table_with_as_many_columns_in_every_row() -> None:
    text = to_latex(TABLE)
    assert text.index(r"\toprule") < text.index(r"\midrule") < text.index(r"\bottomrule")
    assert r"1.23 $\pm$ 0.06" in text and r"\emph{failed: not-a-number}" in text
    rows = [line for line in text.splitlines() if line.endswith(r" \\")]
    assert {row.replace(r"\&", "").count("&") for row in rows} == {3}


def test_csv_keeps_full_precision_and_reads_back() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv([TABLE]))))
    assert rows[0] == {
        "table": "results",
        "row": "1",
        "name": "one",
        "column": "Mean",
        "unit": "bits per byte",
        "value": "1.234",
        "spread": "0.056",
        "low": "",
        "high": "",
        "missing": "",
    }
    assert (rows[1]["low"], rows[1]["high"]) == ("-0.5", "0.25")
    assert (rows[3]["name"], rows[3]["missing"]) == (HOSTILE, "failed: not-a-number")


def test_the_terminal_shows_names_as_they_are() -> None:
    table = Table("t", "[red]title", (Column("Arm"), Column("Note")), ((Cell("a[bold]b"), Cell("[/x]")),))
    text = printed(table, 100)
    assert "[red]title" in text and "a[bold]b" in text and "[/x]" in text


def test_a_narrow_terminal_leaves_details_away_and_says_so() -> None:
    assert "2.00 KiB" in printed(TABLE, 100)
    narrow = printed(TABLE, 76)
    assert "2.00 KiB" not in narrow and "-0.50 to 0.25" in narrow
    assert "Columns hidden at this width: Memory." in narrow


def test_a_heading_is_folded_before_a_number_parts_from_its_unit() -> None:
    columns = (
        Column("Arm"),
        Column("FLOPs per token of a layer", "count"),
        Column("Time of a whole run of it", "seconds"),
    )
    table = Table("costs", "Cost", columns, ((Cell("recurrence=on"), Cell(355_000), Cell(15.1, spread=0.765)),))
    (row,) = (line for line in printed(table, 44).splitlines() if "recurrence" in line)
    assert "355 k" in row and "15.1 ± 0.765 s" in row
    assert "Time of a whole run of it" in printed(table, 100) and "Time of a whole run of it" not in printed(table, 44)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, printed(TABLE, width).splitlines())) <= width


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("count", 999.0, "999"),
        ("count", 999_999.0, "1.00 M"),
        ("count", 1_234_567.0, "1.23 M"),
        ("bytes", 1023.0, "1,023 B"),
        ("bytes", 5_368_709_120.0, "5.00 GiB"),
        ("seconds", 59.4, "59.4 s"),
        ("seconds", 3599.7, "1 h 00 min"),
        ("seconds", 125.0, "2 min 05 s"),
        ("percent", -0.0123, "-1.23%"),
        ("p", 0.00004, "< 0.001"),
        ("number", -0.0001, "0.000"),
        ("number", float("nan"), "not a number"),
        ("number", 12345.6789, "12,345.679"),
    ],
)
def test_numbers_read_in_their_units(kind: str, value: float, text: str) -> None:
    assert plain(Cell(value), Column("x", kind)) == text  # type: ignore[arg-type]


def test_a_path_in_a_heading_is_broken_after_a_dot() -> None:
    columns = (Column("Arm"), *(Column(f"training.optimizer.{name}_of_steps") for name in ("warmup", "decay")))
    text = printed(Table("tuning", "Tuned", columns, ((Cell("a"), Cell("1"), Cell("2")),)), 50)
    assert "training.optimizer." in text and "warmup_of_steps" in text and "optimize\n" not in text
