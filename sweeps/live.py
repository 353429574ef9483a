"""The live table: one row a run on a terminal, one line a change elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lit_transformers.amounts import clock
from sweeps.ticket import State, Ticket

__all__ = ["Board", "Row", "clock"]

LINE_SECONDS = 15.0
"""How often a running run speaks where there is no terminal."""

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
    """What is known of one run; the launcher changes it, the board shows it."""

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
    """How often this command took the run."""

    @property
    def done(self) -> float:
        """The part of the run that is done, 0 to 1."""
        if self.state.over:
            return 1.0
        return min(self.step / self.steps, 1.0) if self.steps else 0.0


class Board:
    """Shows rows as they change. A context manager, because a live table takes over the terminal."""

    def __init__(self, console: Console, metric: str = "metric") -> None:
        self._console, self._metric = console, metric
        self._rows: Sequence[Row] = ()
        self._begun = time.monotonic()
        self._done_before = 0.0
        self._said: dict[str, tuple[State, float]] = {}
        self._live = (
            Live(console=console, refresh_per_second=4, get_renderable=self._render) if console.is_terminal else None
        )

    def __enter__(self) -> Self:
        self._begun = time.monotonic()
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def watch(self, rows: Sequence[Row]) -> None:
        """Names the rows to show; what is done by then does not count for the time left."""
        self._rows = rows
        self._done_before = sum(row.done for row in rows)
        self._said = {row.ticket.key: (row.state, self._begun) for row in rows}

    def refresh(self) -> None:
        """Looks at the rows again. The live table does so by itself; without a terminal this prints what changed."""
        if self._live:
            return
        now = time.monotonic()
        for row in self._rows:
            state, when = self._said[row.ticket.key]
            if row.state != state or (row.state.active and now - when > LINE_SECONDS):
                self._said[row.ticket.key] = (row.state, now)
                self._console.print(self._line(row), highlight=False, soft_wrap=True)

    def say(self, message: str) -> None:
        """A line of its own, above the table."""
        self._console.print(escape(message), highlight=False, soft_wrap=True)

    def seconds_left(self) -> float | None:
        """An estimate for all runs together from the speed so far; None before there is any."""
        done = sum(row.done for row in self._rows) - self._done_before
        left = len(self._rows) - self._done_before - done
        elapsed = time.monotonic() - self._begun
        return elapsed / done * left if done > 0.01 else None

    def _line(self, row: Row) -> str:
        over = sum(other.state.over for other in self._rows)
        parts = [f"[{over}/{len(self._rows)}]", row.ticket.arm, f"seed {row.ticket.seed}", row.state.value]
        if row.state.active and row.steps:
            parts.append(f"step {row.step}/{row.steps} loss {_number(row.loss)} left {clock(row.seconds_left)}")
        if row.value is not None:
            parts.append(f"{self._metric} {_number(row.value)}")
        if row.reason:
            parts.append(f"({row.reason})")
        return escape("  ".join(parts))

    def _render(self) -> Group:
        rows = self._shown()
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("arm", "seed", "state", "step", "loss", "left", self._metric):
            table.add_column(escape(title), justify="left" if title in ("arm", "state") else "right", no_wrap=True)
        for row in rows:
            step = f"{row.step}/{row.steps}" if row.steps else ""
            state = Text(
                row.state.value if not row.reason else f"{row.state.value}: {row.reason}",
                style=_STYLES.get(row.state, "bold"),
            )
            state.truncate(48, overflow="ellipsis")
            left = clock(row.seconds_left) if row.state.active else ""
            value = "" if row.value is None else _number(row.value)
            table.add_row(Text(row.ticket.arm), str(row.ticket.seed), state, step, _number(row.loss), left, value)
        hidden = len(self._rows) - len(rows)
        return Group(table, *([Text(f"and {hidden} more", style="dim")] if hidden else []), self._total())

    def _shown(self) -> list[Row]:
        """As many rows as the terminal holds: those at work first, then the ended, then the waiting; in plan order."""
        room = max(self._console.size.height - 6, 4)
        urgency = {id(row): (not row.state.active, not row.state.over) for row in self._rows}
        kept = {id(row) for row in sorted(self._rows, key=lambda row: urgency[id(row)])[:room]}
        return [row for row in self._rows if id(row) in kept]

    def _total(self) -> Table:
        over = sum(row.state.over for row in self._rows)
        done = sum(row.done for row in self._rows)
        total = Table.grid(padding=(0, 1))
        elapsed = time.monotonic() - self._begun
        total.add_row(
            ProgressBar(total=max(len(self._rows), 1), completed=done, width=40),
            f"{over} of {len(self._rows)} runs",
            f"{clock(elapsed)} gone",
            f"{clock(self.seconds_left())} left",
        )
        return total


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else ""
