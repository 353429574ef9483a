"""Tables in five formats: terminal, Markdown, CSV, LaTeX and HTML.

Names are escaped for each format, and an empty cell states its reason.
"""

from __future__ import annotations

import csv
import io
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from lit_transformers.printing.amounts import count, scaled
from lit_transformers.printing.arm_names import BreakableName
from lit_transformers.records.cells import cell_of
from reports.show.markup import Html, css_string, element, name_of, paragraphs

_TEXT_WIDTH, _GAP = 24, 3
_NAME_SHARE = 3 / 8
"""The largest share of a terminal's width that names get."""

Kind = Literal["text", "number", "interval", "count", "bytes", "seconds", "percent", "p"]


@dataclass(frozen=True)
class Cell:
    """The content of a cell: a value with its spread (standard deviation), an interval, or why it is ``missing``.

    ``link`` is the address that its text leads to in Markdown and HTML. ``label`` is shown in place of a name that the
    CSV holds.
    """

    value: float | str | None = None
    spread: float | None = None
    low: float | None = None
    high: float | None = None
    missing: str | None = None
    link: str | None = None
    label: str | None = None


@dataclass(frozen=True)
class Column:
    """A column of a table.

    ``unit`` is printed next to the title unless the whole table has it; ``decimals`` applies to numbers and intervals.
    A column with ``detail`` is omitted on a terminal that is too narrow for it.
    """

    title: str
    kind: Kind = "text"
    unit: str = ""
    decimals: int = 3
    detail: bool = False


@dataclass(frozen=True)
class Table:
    """A table with as many cells in each row as columns; ``name`` is one word, ``notes`` are sentences printed below.

    ``unit`` is that of most columns: it is printed in the table's title and not again in theirs. Only the first
    ``most`` rows are printed; the CSV holds all of them.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    unit: str = ""
    most: int | None = None

    def shortened(self) -> Table:
        """Returns the table with its first ``most`` rows and a note on those that are omitted."""
        if self.most is None or len(self.rows) <= self.most:
            return self
        note = f"{len(self.rows) - self.most} smaller ones are omitted; the CSV holds all {len(self.rows)}."
        return replace(self, rows=self.rows[: self.most], notes=(*self.notes, note))

    @property
    def heading(self) -> str:
        return f"{self.title}, in {self.unit}" if self.unit else self.title

    def headings(self) -> tuple[str, ...]:
        units = ("" if column.unit == self.unit else column.unit for column in self.columns)
        return tuple(f"{c.title} ({unit})" if unit else c.title for c, unit in zip(self.columns, units, strict=True))


def plain(cell: Cell, column: Column) -> str:
    """Returns a cell as unescaped text."""
    if cell.missing is not None:
        return cell.missing
    if column.kind == "interval":
        return interval_text(cell.low, cell.high, column.decimals)
    if cell.value is None:
        return "-"
    if isinstance(cell.value, str):
        return cell.value if cell.label is None else cell.label
    if not math.isfinite(cell.value):
        return "not a number"
    text = _number(cell.value, column)
    return text if cell.spread is None else _with_spread(text, _number(cell.spread, column))


def _with_spread(value: str, spread: str) -> str:
    """Joins a value and its spread; a unit that both have is written once."""
    number, space, unit = value.partition(" ")
    is_shared = space and " " not in unit and spread.partition(" ")[1:] == (space, unit)
    return f"{number if is_shared else value} ± {spread}"


def _number(value: float, column: Column) -> str:
    return _FORMATS[column.kind](value) if column.kind in _FORMATS else fixed(value, column.decimals)


def interval_text(low: float | None, high: float | None, decimals: int) -> str:
    """Returns an interval as text, or a dash where there is none. One that excludes zero has more decimals, up to six,
    where it would seem to touch it."""
    if low is None or high is None:
        return "-"
    nearest_zero = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    while nearest_zero and decimals < 6 and not round(nearest_zero, decimals):
        decimals += 1
    return f"{fixed(low, decimals)} to {fixed(high, decimals)}"


def fixed(value: float, decimals: int) -> str:
    """Returns a number with this many decimals, commas between thousands, and no negative zero."""
    text = f"{value:,.{decimals}f}"
    return text.removeprefix("-") if not text.strip("-0.,") else text


def fixed_with_sign(value: float, decimals: int) -> str:
    """Returns a number as ``fixed`` does, with a plus where it is above zero as printed."""
    text = fixed(value, decimals)
    return f"+{text}" if value > 0 and text.strip("0.") else text


def _bytes(value: float) -> str:
    text = scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))
    return text if text.endswith("B") else f"{text} B"


def _seconds(value: float) -> str:
    if value < 60:
        return f"{value:.3g} s"
    if round(value) < 3600:
        return f"{round(value) // 60} min {round(value) % 60:02d} s"
    return f"{round(value / 60) // 60} h {round(value / 60) % 60:02d} min"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


_FORMATS: Mapping[str, Callable[[float], str]] = {
    "count": count,
    "bytes": _bytes,
    "seconds": _seconds,
    "percent": lambda value: f"{value:.2%}",
    "p": _p,
}


def to_rich(table: Table, width: int = 100) -> RichTable:
    """Returns a table for a terminal of this width in characters.

    Columns that do not fit are folded or, if they are details, omitted and named in the caption.
    """
    rendered = RichTable(title=Text(table.heading), title_justify="left", caption_justify="left", box=SIMPLE_HEAD)
    name_width = int(_NAME_SHARE * width)
    widths = _widths(table, name_width)
    indices = _fitting_columns(table, widths, width)
    spare = width - 1 - sum(widths[index] for index in indices)
    headings = table.headings()
    omitted = [heading for index, heading in enumerate(headings) if index not in indices]
    rendered.caption = Text(
        "\n".join([*table.notes, *([f"Columns hidden at this width: {', '.join(omitted)}."] if omitted else [])])
    )
    for index in indices:
        column = table.columns[index]
        justify: Literal["left", "right"] = "left" if column.kind == "text" else "right"
        # Headings take the room that is left, and are folded before a number is, which would part from its unit.
        least = widths[index] - _GAP
        extra = max(0, min(spare, len(headings[index]) - least))
        spare -= extra
        heading = "\n".join(BreakableName(headings[index]).lines(least + extra))
        rendered.add_column(Text(heading), justify=justify, overflow="fold", no_wrap=index == 0)
    for row in table.rows:
        # Without this, names would be broken within words on a narrow terminal.
        name = Text("\n".join(BreakableName(plain(row[0], table.columns[0])).lines(name_width)))
        rendered.add_row(name, *(_styled(row[index], table.columns[index]) for index in indices[1:]))
    return rendered


def _widths(table: Table, name_width: int) -> list[int]:
    """Returns the least width of every column in which no number and no word of its heading is folded."""
    return [
        _width(table, index, heading, name_width if index == 0 else _TEXT_WIDTH)
        for index, heading in enumerate(table.headings())
    ]


def _fitting_columns(table: Table, widths: Sequence[int], width: int) -> list[int]:
    """Returns the indices of columns that are no details and, from the left, of the details that fit."""
    room = width - 1 - sum(w for w, column in zip(widths, table.columns, strict=True) if not column.detail)
    indices = []
    for index, column in enumerate(table.columns):
        if column.detail:
            room -= widths[index]
        if not column.detail or room >= 0:
            indices.append(index)
    return indices


def _width(table: Table, index: int, heading: str, most: int) -> int:
    texts = [plain(row[index], table.columns[index]) for row in table.rows]
    if index == 0:
        texts = [line for text in texts for line in BreakableName(text).lines(most)]
    return _GAP + min(most, max([*map(len, heading.split()), *map(len, texts)]))


VERDICT_STYLES = {
    "better": "bold green",
    "worse": "bold red",
    "equal": "bold cyan",
    "identical": "bold cyan",
    "differs": "bold",
    "unresolved": "yellow",
}


def _styled(cell: Cell, column: Column) -> Text:
    text = plain(cell, column)
    return Text(text, style="dim italic" if cell.missing is not None else VERDICT_STYLES.get(text, ""))


def to_markdown(table: Table) -> str:
    """Returns a table as a Markdown pipe table under a second-level heading, with its notes below."""
    lines = [f"## {escape_markdown(table.heading)}", ""]
    lines.append(_pipes(map(escape_markdown, table.headings())))
    lines.append(_pipes("---" if column.kind == "text" else "---:" for column in table.columns))
    for row in table.rows:
        lines.append(_pipes(_markdown_cell(cell, column) for cell, column in zip(row, table.columns, strict=True)))
    for note in table.notes:
        lines += ["", escape_markdown(note)]
    return "\n".join(lines) + "\n"


def _pipes(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _markdown_cell(cell: Cell, column: Column) -> str:
    text = escape_markdown(plain(cell, column))
    text = f"*{text}*" if cell.missing is not None else text
    return text if cell.link is None else f"[{text}]({cell.link})"


def escape_markdown(text: str) -> str:
    """Returns text as one line with all Markdown characters escaped, for use inside and outside tables."""
    return re.sub(r"([\\`*_\[\]<>|~#$&])", r"\\\1", " ".join(text.split()))


def to_csv(tables: Iterable[Table]) -> str:
    """Returns all tables as one tidy CSV: a line per cell, numbers at full precision in the unit of the column. A text
    that a spreadsheet would take for a formula stands behind a quote."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["table", "row", "name", "column", "unit", "value", "spread", "low", "high", "missing"])
    for table in tables:
        for index, row in enumerate(table.rows, start=1):
            name = plain(replace(row[0], label=None), table.columns[0])
            for cell, column in zip(row[1:], table.columns[1:], strict=True):
                numbers = (cell.value, cell.spread, cell.low, cell.high, cell.missing)
                cells = ["" if value is None else str(value) for value in numbers]
                writer.writerow([table.name, index, *map(cell_of, (name, column.title, column.unit, *cells))])
    return file.getvalue()


def to_latex(table: Table) -> str:
    """Returns a table as a LaTeX float; a document that includes it needs the package booktabs."""
    alignment = "".join("l" if column.kind == "text" else "r" for column in table.columns)
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape_latex(table.heading)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        _ampersands(map(escape_latex, table.headings())),
        r"\midrule",
    ]
    for row in table.rows:
        lines.append(_ampersands(_latex_cell(cell, column) for cell, column in zip(row, table.columns, strict=True)))
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\smallskip {{\footnotesize {escape_latex(note)}}}" for note in table.notes]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _ampersands(texts: Iterable[str]) -> str:
    return f"{' & '.join(texts)} \\\\"


def _latex_cell(cell: Cell, column: Column) -> str:
    text = escape_latex(plain(cell, column))
    return rf"\emph{{{text}}}" if cell.missing is not None else text


_GREEK = "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau varphi chi psi omega"
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "²": r"$^2$",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    '"': r"{''}",
    "–": "--",
    "’": "'",
    "→": r"$\to$",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    **{letter: f"$\\{name}$" for letter, name in zip("αβγδεζηθκλμνξπρστφχψω", _GREEK.split(), strict=True)},
}


def _latex_character(character: str) -> str:
    """Returns a character as LaTeX that needs no extra packages, or a question mark where there is none."""
    # Such a document can set the accented letters of Latin-1, but not those without an accent, such as þ.
    accented = "À" <= character <= "ÿ" and unicodedata.decomposition(character)
    is_supported = character in _LATEX or (character.isascii() and character.isprintable()) or accented
    return _LATEX.get(character, character) if is_supported else "?"


def escape_latex(text: str) -> str:
    """Returns text as one line of LaTeX without commands; a hyphen before a digit becomes a minus sign."""
    escaped = "".join(map(_latex_character, " ".join(text.split())))
    # A bracket after a line's \\ would be read as its optional argument.
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", escaped).replace("[", "{[}")


_LONG = 24
"""A cell of more characters than this gets a wider column, so that its text has few lines."""


def to_html(table: Table) -> Html:
    """Returns an HTML table that a script can sort, under a third-level heading, in a box that scrolls if wide."""
    headings = table.headings()
    heads = (
        element("th", element("button", heading, type="button", disabled=True), scope="col", class_=_kind_class(column))
        for heading, column in zip(headings, table.columns, strict=True)
    )
    rows = (
        element(
            "tr",
            *(_html_cell(*cell, first=i == 0) for i, cell in enumerate(zip(row, table.columns, strict=True))),
        )
        for row in table.rows
    )
    head, body = element("thead", element("tr", *heads)), element("tbody", *rows)
    table_element = element("table", head, body, style=_labels(headings))
    box = element("div", table_element, class_="scroll", tabindex="0", role="region", aria_label=table.heading)
    return Html(element("h3", table.heading) + box + paragraphs(table.notes, class_="note"))


def _kind_class(column: Column) -> str | None:
    return None if column.kind == "text" else "number"


def _labels(headings: Sequence[str]) -> str:
    """Returns the headings of the columns behind the first as variables of CSS, which ``label_rules`` uses."""
    return ";".join(
        f"--column-{number}:{css_string(heading)}" for number, heading in enumerate(headings, 1) if number > 1
    )


def label_rules(page: str) -> str:
    """Returns the rules of CSS by which a narrow page shows the heading of its column next to each cell, for as many
    columns as the widest table of the page has."""
    widest = max(map(int, re.findall(r"--column-(\d+):", page)), default=0)
    return "".join(f"td:nth-child({number}){{--label:var(--column-{number})}}" for number in range(2, widest + 1))


def _html_cell(cell: Cell, column: Column, *, first: bool) -> Html:
    text, sort_value = plain(cell, column), _sort_value(cell)
    classes = [
        None if sort_value is not None and not first else _kind_class(column),
        "gap" if cell.missing is not None else text if text in VERDICT_STYLES else None,
        "long" if not first and len(text) > _LONG and " " in text else None,
    ]
    content: str = name_of(text) if column.kind == "text" or cell.missing is not None else text
    if cell.spread is not None and cell.missing is None:
        value, _, spread = text.partition(" ± ")
        content = element("span", value, element("span", f" ± {spread}", class_="spread"))
    if cell.link is not None:
        content = element("a", content, href=cell.link)
    return element(
        "th" if first else "td",
        content,
        scope="row" if first else None,
        class_=" ".join(filter(None, classes)) or None,
        data_value=sort_value,
    )


def _sort_value(cell: Cell) -> str | None:
    """Returns the number that a cell is sorted by, as text: the middle of its interval or its value, or None.

    It has nine digits, for the last ones of a float depend on the processor, and a page is to be the same on all.
    """
    if cell.missing is not None:
        return None
    value = cell.value if cell.low is None or cell.high is None else (cell.low + cell.high) / 2
    return f"{value:.9g}" if isinstance(value, int | float) and math.isfinite(value) else None
