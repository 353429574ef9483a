"""The tables of a report, set by LaTeX itself, which ``apt-get install texlive-latex-recommended`` installs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hostile import write_hostile
from study_on_disk import write_product

from reports.read.study import load_study
from reports.report import find
from reports.show.sections import all_tables
from reports.show.tables import Cell, Column, Table, to_latex


def missing_requirement() -> str:
    """Returns the reason why LaTeX cannot set documents here, and the empty string where it can."""
    if shutil.which("pdflatex") is None:
        return "pdflatex is not installed"
    process = subprocess.run(["kpsewhich", "booktabs.sty"], capture_output=True, text=True, check=False)
    return "" if process.stdout.strip() else "the LaTeX package booktabs is not installed"


pytestmark = pytest.mark.skipif(bool(missing_requirement()), reason=missing_requirement() or "none")


def set_by_latex(tables: tuple[Table, ...], folder: Path) -> str:
    """Sets the tables in a bare document, stopping at the first error; returns the output of LaTeX."""
    body = "\n".join(map(to_latex, tables))
    text = f"\\documentclass{{article}}\n\\usepackage{{booktabs}}\n\\begin{{document}}\n{body}\n\\end{{document}}\n"
    (folder / "page.tex").write_text(text, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "page.tex"]
    process = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=120, check=False
    )
    assert process.returncode == 0, process.stdout[-2000:]
    assert (folder / "page.pdf").read_bytes().startswith(b"%PDF")
    return process.stdout


def test_the_tables_of_a_report_are_set(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.1})
    set_by_latex(all_tables(find(load_study(tmp_path, "xl_recurrence"))), tmp_path)


def test_names_that_would_be_commands_or_letters_it_lacks_are_set(tmp_path: Path) -> None:
    write_hostile(tmp_path)
    set_by_latex(all_tables(find(load_study(tmp_path, "xl_recurrence"))), tmp_path)


def test_every_character_is_set(tmp_path: Path) -> None:
    codes = [*range(0x250), *range(0x370, 0x400), 0x5D0, 0x2013, 0x2019, 0x2192, 0x2212, 0x202E, 0x1F9EA, 0xFFFD]
    rows = tuple((Cell(f"a {chr(code)} b {chr(code)}"),) for code in codes)
    set_by_latex((Table("one", "All", (Column("Name"),), rows),), tmp_path)


@pytest.mark.parametrize(
    "name", [r"\input{/etc/passwd}", r"\end{tabular}", "[x]", "& & &", "% no comment", "^^41 ^^5c", "{", "$x$", "a\\"]
)
def test_no_name_is_a_command(tmp_path: Path, name: str) -> None:
    table = Table("one", name, (Column(name), Column(name)), ((Cell(name), Cell(name)),) * 2, (name,))
    assert "passwd" not in set_by_latex((table,), tmp_path)
