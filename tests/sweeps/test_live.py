"""The live table that a person sees while runs are in progress."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from ablations.show import preliminary_view
from lit_transformers.records.plan import Metric, Plan, PlannedArm
from sweeps.ledger.ticket import State, Ticket
from sweeps.live import Board, Row, clock


def rows(count: int) -> list[Row]:
    return [Row(Ticket(f"k{number}", f"arm[{number}]", number, {})) for number in range(count)]


def screen(board: Board, console: Console) -> str:
    with console.capture() as captured:
        console.print(board._render())
    return captured.get()


def terminal(height: int = 20) -> Console:
    return Console(file=StringIO(), force_terminal=True, width=120, height=height, color_system=None)


def test_a_row_shows_arm_seed_state_step_loss_and_time_left() -> None:
    console, board_rows = terminal(), rows(2)
    board = Board(console, "val/bpb")
    board.watch(board_rows)
    board_rows[0].state, board_rows[0].step, board_rows[0].steps, board_rows[0].loss, board_rows[0].seconds_left = (
        State.FIT,
        5,
        20,
        1.2345,
        65.0,
    )
    board_rows[1].state, board_rows[1].reason = State.FAILED, "not-a-number"
    text = screen(board, console)
    for word in ("arm[0]", "fit", "5/20", "1.234", "1:05", "failed: not-a-number", "1 of 2 runs"):
        assert word in text


def test_a_small_terminal_shows_the_runs_at_work() -> None:
    console, board_rows = terminal(height=10), rows(40)
    board = Board(console)
    board.watch(board_rows)
    board_rows[30].state = State.FIT
    text = screen(board, console)
    assert "arm[30]" in text and "and 36 more" in text


def test_without_a_terminal_each_change_is_a_line() -> None:
    console, board_rows = Console(file=StringIO(), width=40), rows(1)
    with Board(console) as board:
        board.watch(board_rows)
        board.refresh()
        board_rows[0].state = State.FIT
        board.refresh()
        board.refresh()
        board_rows[0].state, board_rows[0].value = State.FINISHED, 2.5
        board.refresh()
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines == ["[0/1]  arm[0]  seed 0  fit", "[1/1]  arm[0]  seed 0  finished  metric 2.5"]


@pytest.mark.parametrize(("seconds", "text"), [(None, "-"), (float("inf"), "-"), (5.0, "0:05"), (3725, "1:02:05")])
def test_times_read_as_a_clock(seconds: float | None, text: str) -> None:
    assert clock(seconds) == text


def test_a_first_comparison_is_shown_once_when_every_arm_has_a_run_that_ended() -> None:
    arms = [Row(Ticket(f"{arm}{seed}", arm, seed, {})) for seed in range(2) for arm in ("on", "off")]
    console = Console(file=StringIO(), width=80)
    board = Board(console, "val/bpb", lambda rows: f"comparison of {sum(row.state.over for row in rows)}")
    board.watch(arms)
    shown = []
    for row in arms:
        row.state = State.FINISHED
        with console.capture() as captured:
            board.refresh()
        shown += [line for line in captured.get().splitlines() if line.startswith("comparison")]
    assert shown == ["comparison of 2"]
    console.print()
    with console.capture() as captured:
        board.watch(arms[:3])
        board.refresh()
    assert "comparison" not in captured.get(), "of runs that had ended before, it was shown then"


def test_a_first_comparison_is_of_the_seed_that_most_arms_have() -> None:
    states = {("on", 0): 2.0, ("on", 1): 1.5, ("off", 1): 1.25}
    arms = [
        Row(Ticket(f"{arm}{seed}", arm, seed, {}), State.FINISHED, value=value) for (arm, seed), value in states.items()
    ]
    metric = Metric("val/bpb", goal="minimize", label="bpb")
    plan = Plan(study="s", question="?", metric=metric, baseline="on", arms=(PlannedArm("on"), PlannedArm("off")))
    console = Console(file=StringIO(), width=80)
    with console.capture() as captured:
        console.print(preliminary_view(plan, arms))
    assert "from seed 1 only" in captured.get() and "-0.25" in captured.get()
