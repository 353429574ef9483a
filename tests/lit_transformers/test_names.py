"""No name of an arm is broken within a word where a terminal has 80 columns."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from ablations import catalog
from lit_transformers.printing.arm_names import BreakableName
from sweeps.ledger.ledger import ActiveRun, Pulse
from sweeps.status import plain_table, work_table

ROOM = 18
"""The characters that the other columns of a plan leave, of the 80 of a line, for the names of arms."""


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


@pytest.mark.parametrize("ahead", [4000.0, -4000.0])
def test_times_of_a_machine_whose_clock_goes_otherwise_are_not_negative(ahead: float) -> None:
    console, now = Console(file=io.StringIO(), width=160), time.time() + ahead
    run = ActiveRun("0" * 16, "arm", 0, "study", "node-17", 31_415, now - 60, now, Pulse("fit", 1, 2), 1)
    console.print(work_table([run]))
    assert isinstance(console.file, io.StringIO)
    row = console.file.getvalue().splitlines()[1]
    assert row.rstrip().endswith(" 1:00")
    assert ("silent for 1:06:40, if its clock is right" in row) == (ahead < 0)


def test_a_table_of_work_breaks_no_word_at_80_columns() -> None:
    console = Console(file=io.StringIO(), width=80)
    pulse = Pulse("evaluate", 1_000, 1_200, 3700.0)
    now = time.time()
    arm = "embeddings=narrow shared=feedforward"
    run = ActiveRun("0" * 16, arm, 11, "albert_sharing", "node-17", 31_415, now - 9e3, now, pulse, 2)
    console.print(work_table([run]))
    assert isinstance(console.file, io.StringIO)
    words = console.file.getvalue().split()
    expected = ["albert_", "sharing", "shared=", "feedforward", "evaluate,", "1000/1200", "node-17:31415"]
    assert [word for word in expected if not any(word in shown for shown in words)] == []
