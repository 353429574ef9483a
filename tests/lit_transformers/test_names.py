"""No name of an arm is broken within a word where a terminal has 80 columns."""

from __future__ import annotations

import io
import re

from rich.console import Console

from ablations import catalog
from lit_transformers.cli.names import BreakableName
from sweeps.status import plain_table

ROOM = 18
"""What the other columns of a plan leave of 80 columns for the names of arms."""


def test_no_arm_of_any_study_is_broken_within_a_word() -> None:
    names = {arm.name for study in catalog.names() for arm in catalog.load(catalog.find(study)).all_arms()}
    assert any(len(name) > ROOM for name in names)
    for name in names:
        lines = BreakableName(name).lines(ROOM)
        assert re.sub(r"\s", "", "".join(lines)) == re.sub(r"\s", "", name)
        assert all(len(line) <= ROOM for line in lines), lines


def test_a_table_breaks_a_name_between_its_words() -> None:
    console = Console(file=io.StringIO(), width=30)
    table = plain_table("arm", "seed")
    table.columns[1].no_wrap = True
    table.add_row(BreakableName("noise=infilling_and_permutation"), "0")
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    lines = [line.split()[0] for line in console.file.getvalue().splitlines()[1:]]
    assert lines == ["noise=infilling_and_", "permutation"]
