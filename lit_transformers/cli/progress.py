"""Shows the progress of a run: a bar on a terminal, and plain lines where output is piped."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from lit_transformers.printing.amounts import clock

if TYPE_CHECKING:
    from lit_transformers.training.reporting import Progress, Report

__all__ = ["PlainLines", "shown"]

PARTS = 10
"""The number of lines for each phase, at equal distances."""
LONGEST_SILENCE, SHORTEST_SILENCE = 30.0, 1.0
"""Seconds after which a line is written in any case, and before which none is written except for a new phase."""


@contextmanager
def shown(console: Console) -> Iterator[Report]:
    """Yields a listener for ``fit`` that shows the reported progress on the console."""
    if not console.is_terminal:
        yield PlainLines(lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True))
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console) as bar:
        task = bar.add_task("gates", total=None)

        def show(progress: Progress) -> None:
            description = progress.phase + _loss(progress) + _speed(progress)
            bar.update(task, description=description, completed=progress.step, total=progress.steps)

        yield show


class PlainLines:
    """A listener that writes a line for every phase, for every tenth of it, and after every long silence."""

    def __init__(self, write: Callable[[str], None], now: Callable[[], float] = time.monotonic) -> None:
        self.write, self.now = write, now
        self.phase, self.part, self.written_at = "", 0, -math.inf

    def __call__(self, progress: Progress) -> None:
        part, silence = PARTS * progress.step // max(1, progress.steps), self.now() - self.written_at
        is_due = silence >= (SHORTEST_SILENCE if part > self.part else LONGEST_SILENCE)
        if progress.phase == self.phase and not is_due:
            return
        self.phase, self.part, self.written_at = progress.phase, part, self.now()
        self.write(_line(progress))


def _line(progress: Progress) -> str:
    """Formats the progress of a run: step 200/2000 loss 3.2100, 112 examples a second, 2:05 left."""
    if progress.phase == "evaluate":  # its steps are those of training, all done
        return progress.phase
    name = "step" if progress.phase == "fit" else progress.phase
    time_left = "" if progress.seconds_left is None else f", {clock(progress.seconds_left)} left"
    return f"{name} {progress.step}/{progress.steps}{_loss(progress)}{_speed(progress)}{time_left}"


def _loss(progress: Progress) -> str:
    return f" loss {progress.loss:.4f}" if progress.phase == "fit" else ""


def _speed(progress: Progress) -> str:
    return "" if progress.examples_per_second is None else f", {progress.examples_per_second:.0f} examples a second"
