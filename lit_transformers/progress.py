"""How a run that is watched by a person goes on: a bar on a terminal, and plain lines where output is piped."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from lit_transformers.amounts import clock

if TYPE_CHECKING:
    from lit_transformers.callbacks import Progress, Report

__all__ = ["PlainLines", "shown"]

PARTS = 10
"""How many lines a phase gets, at equal distances."""
LONGEST_SILENCE, SHORTEST_SILENCE = 30.0, 1.0
"""Seconds after which there is a line in any case, and before which there is none but for a new phase."""


@contextmanager
def shown(console: Console) -> Iterator[Report]:
    """A listener for ``fit`` that shows on the console what it hears."""
    if not console.is_terminal:
        yield PlainLines(lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True))
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console) as bar:
        task = bar.add_task("gates", total=None)

        def show(heard: Progress) -> None:
            bar.update(task, description=heard.phase + _loss(heard), completed=heard.step, total=heard.steps)

        yield show


class PlainLines:
    """A listener that writes a line for every phase, for every tenth of it, and whenever it was silent for long."""

    def __init__(self, write: Callable[[str], None], now: Callable[[], float] = time.monotonic) -> None:
        self.write, self.now = write, now
        self.phase, self.part, self.written_at = "", 0, -math.inf

    def __call__(self, heard: Progress) -> None:
        part, silent = PARTS * heard.step // heard.steps, self.now() - self.written_at
        due = silent >= (SHORTEST_SILENCE if part > self.part else LONGEST_SILENCE)
        if heard.phase == self.phase and not due:
            return
        self.phase, self.part, self.written_at = heard.phase, part, self.now()
        self.write(_line(heard))


def _line(heard: Progress) -> str:
    """Where a run stands: step 200/2000 loss 3.2100, 2:05 left."""
    if heard.phase == "evaluate":  # its steps are those of training, all done
        return heard.phase
    name = "step" if heard.phase == "fit" else heard.phase
    left = "" if heard.seconds_left is None else f", {clock(heard.seconds_left)} left"
    return f"{name} {heard.step}/{heard.steps}{_loss(heard)}{left}"


def _loss(heard: Progress) -> str:
    return f" loss {heard.loss:.4f}" if heard.phase == "fit" else ""
