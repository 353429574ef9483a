"""The live table: one row per run on a terminal, one printed line per change elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lit_transformers.printing.amounts import clock
from lit_transformers.printing.arm_names import BreakableName
from lit_transformers.records.labels import ArmLabels
from sweeps.ledger.ticket import State, Ticket

__all__ = ["Board", "Row", "clock"]

LINE_SECONDS = 15.0
"""How often the progress of a run in progress is printed where there is no terminal."""

_STYLES = {
    State.FINISHED: "green",
    State.PRUNED: "yellow",
    State.FAILED: "bold red",
    State.INVALID: "bold red",
    State.STOPPED: "yellow",
    State.WAITING: "dim",
    State.ELSEWHERE: "cyan",
}


@dataclass
class Row:
    """The state of one run; the launcher changes it, the board shows it."""

    ticket: Ticket
    state: State = State.WAITING
    step: int = 0
    steps: int = 0
    loss: float = math.nan
    seconds_left: float | None = None
    reason: str | None = None
    value: float | None = None
    """The study's metric, once finished."""
    taken: int = 0
    """How often this command claimed the run."""

    @property
    def done(self) -> float:
        """The fraction of the run that is done, 0 to 1."""
        if self.state.over:
            return 1.0
        return min(self.step / self.steps, 1.0) if self.steps else 0.0


class Board:
    """Shows rows as they change. A context manager, because a live table takes over the terminal.

    preliminary: makes the view of the rows to show once, when every arm has a run that ended and others are to come.
    labels: how arms are named, by default by their whole names.
    """

    def __init__(
        self,
        console: Console,
        metric: str = "metric",
        preliminary: Callable[[Sequence[Row]], RenderableType] | None = None,
        labels: ArmLabels | None = None,
    ) -> None:
        self._console, self._metric, self._preliminary = console, metric, preliminary
        self._labels = labels or ArmLabels()
        self._awaits_first_seed = False
        self._rows: Sequence[Row] = ()
        self._start_time = time.monotonic()
        self._done_before = 0.0
        self._last_lines: dict[str, tuple[State, float]] = {}
        self._live = (
            Live(console=console, refresh_per_second=4, get_renderable=self._render) if console.is_terminal else None
        )

    def __enter__(self) -> Self:
        self._start_time = time.monotonic()
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def watch(self, rows: Sequence[Row]) -> None:
        """Sets the rows to show; work that is done already does not count for the estimate of the time left."""
        self._rows = rows
        self._done_before = sum(row.done for row in rows)
        self._last_lines = {row.ticket.key: (row.state, self._start_time) for row in rows}
        self._awaits_first_seed = not every_arm_has_ended_once(rows)

    def refresh(self) -> None:
        """Prints the rows that changed where there is no terminal. The live table refreshes itself."""
        if not self._live:
            self._print_changes()
        if self._preliminary and self._awaits_first_seed and every_arm_has_ended_once(self._rows):
            self._awaits_first_seed = False
            if not all(row.state.over for row in self._rows):
                self._console.print(self._preliminary(self._rows))

    def _print_changes(self) -> None:
        now = time.monotonic()
        for row in self._rows:
            state, last_printed = self._last_lines[row.ticket.key]
            if row.state != state or (row.state.active and now - last_printed > LINE_SECONDS):
                self._last_lines[row.ticket.key] = (row.state, now)
                self._console.print(self._line(row), highlight=False, soft_wrap=True)

    def say(self, message: str) -> None:
        """Prints a message on a line above the table."""
        self._console.print(escape(message), highlight=False, soft_wrap=True)

    def seconds_left(self) -> float | None:
        """Estimates the seconds left for all runs together from the speed so far; None before there is any."""
        done = sum(row.done for row in self._rows) - self._done_before
        remaining = len(self._rows) - self._done_before - done
        elapsed = time.monotonic() - self._start_time
        return elapsed / done * remaining if done > 0.01 else None

    def _line(self, row: Row) -> str:
        ended = sum(other.state.over for other in self._rows)
        name = self._labels.alone(row.ticket.arm)
        parts = [f"[{ended}/{len(self._rows)}]", name, f"seed {row.ticket.seed}", row.state.value]
        if row.state.active and row.steps:
            parts.append(f"step {row.step}/{row.steps} loss {_number(row.loss)} left {clock(row.seconds_left)}")
        if row.value is not None:
            parts.append(f"{self._metric} {_number(row.value)}")
        if row.reason:
            parts.append(f"({row.reason})")
        return escape("  ".join(parts))

    def _render(self) -> Group:
        rows = self._visible_rows()
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in (self._labels.heading("arm"), "seed", "state", "step", "loss", "left", self._metric):
            table.add_column(escape(title), justify="right", no_wrap=True)
        for column in (table.columns[0], table.columns[2]):
            column.justify = "left"
        for row in rows:
            step = f"{row.step}/{row.steps}" if row.steps else ""
            state = Text(
                row.state.value if not row.reason else f"{row.state.value}: {row.reason}",
                style=_STYLES.get(row.state, "bold"),
            )
            state.truncate(48, overflow="ellipsis")
            time_left = clock(row.seconds_left) if row.state.active else ""
            value = "" if row.value is None else _number(row.value)
            name = BreakableName(self._labels.in_column(row.ticket.arm))
            table.add_row(name, str(row.ticket.seed), state, step, _number(row.loss), time_left, value)
        hidden = len(self._rows) - len(rows)
        return Group(table, *([Text(f"and {hidden} more", style="dim")] if hidden else []), self._total_line())

    def _visible_rows(self) -> list[Row]:
        """Returns the rows that fit the terminal, in plan order; active ones have precedence, then ended ones."""
        capacity = max(self._console.size.height - 6, 4)
        urgency = {id(row): (not row.state.active, not row.state.over) for row in self._rows}
        visible = {id(row) for row in sorted(self._rows, key=lambda row: urgency[id(row)])[:capacity]}
        return [row for row in self._rows if id(row) in visible]

    def _total_line(self) -> Table:
        ended = sum(row.state.over for row in self._rows)
        done = sum(row.done for row in self._rows)
        total = Table.grid(padding=(0, 1))
        elapsed = time.monotonic() - self._start_time
        total.add_row(
            ProgressBar(total=max(len(self._rows), 1), completed=done, width=40),
            f"{ended} of {len(self._rows)} runs",
            f"{clock(elapsed)} gone",
            f"{clock(self.seconds_left())} left",
        )
        return total


def every_arm_has_ended_once(rows: Sequence[Row]) -> bool:
    """Whether every arm has at least one run that is over."""
    return {row.ticket.arm for row in rows} == {row.ticket.arm for row in rows if row.state.over}


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else ""
