"""One attempt at a command: its working folder, its placeholders, and the numbers that it leaves."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lit_transformers.command_runs.config import CommandRunConfig
from lit_transformers.command_runs.process import CommandEnd, CommandFailedError, run_command_line, tail_of
from lit_transformers.command_runs.source_folder import copy_source
from lit_transformers.command_runs.values import NumberLine, UnreadableValuesError
from lit_transformers.config import ConfigError
from lit_transformers.records.files import COMMAND_ERRORS, COMMAND_OUTPUT
from lit_transformers.training.stopping import Diverged

__all__ = ["NumberPoint", "Numbers", "attempt", "program_fault", "require_success", "result_of"]

WORKING_FOLDER = "work"
"""The folder within that of a run in which its command works."""
RESUME_FROM = "LIT_RESUME_FROM"
"""The variable with the working folder that an earlier attempt has left; empty at the first one."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
SCRIPTS = (".py", ".sh", ".R", ".jl", ".pl", ".rb", ".js", ".lua", ".awk")
"""The endings by which the first word after a program is recognised as a script."""
SHOWN = 3
"""The most forms of lines that an error shows."""


class NumberPoint(NamedTuple):
    """A number that a command has left. step: as it states it, or how many values of this name there were."""

    step: int
    name: str
    value: float


@dataclass
class Numbers:
    """The numbers that a command has left so far, in their order, and the forms of the lines that held none."""

    config: CommandRunConfig
    points: list[NumberPoint] = field(default_factory=list)
    forms: dict[str, None] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    fault: UnreadableValuesError | None = None

    def receive(self, line: str) -> list[NumberPoint]:
        """Adds the numbers of a line of output, and returns them."""
        try:
            numbers = self.config.values.read_line(line, [*self.config.metrics])
        except UnreadableValuesError as error:
            self.fault = self.fault or error
            return []
        if numbers is None:
            if line.strip() and len(self.forms) < SHOWN:
                self.forms.setdefault(re.sub(r"\d+", "#", line.strip())[:80])
            return []
        return self.add(numbers)

    def add(self, line: NumberLine) -> list[NumberPoint]:
        """Adds the numbers of a line, and returns them as points."""
        added = []
        for name, value in line.numbers.items():
            self.counts[name] = self.counts.get(name, 0) + 1
            added.append(NumberPoint(self.counts[name] if line.step is None else line.step, name, value))
        self.points += added
        return added

    def read_file(self, path: Path) -> None:
        """Adds the numbers of a file that the command has written. Raises CommandFailedError where there is none."""
        if not path.is_file():
            raise CommandFailedError(f"the command has ended and has written no {path.name} (values.file)")
        for line in self.config.values.read_file(path, [*self.config.metrics]):
            self.add(line)

    def of(self, name: str) -> list[NumberPoint]:
        """Returns the points of a number in the order of their steps, of equal ones the latest."""
        by_step = {point.step: point for point in self.points if point.name == name}
        return [by_step[step] for step in sorted(by_step)]

    @property
    def names(self) -> list[str]:
        """The names of all numbers."""
        return [*self.counts]


def attempt(
    config: CommandRunConfig,
    directory: Path,
    stopping: Callable[[], bool],
    receive: Callable[[Sequence[NumberPoint]], bool],
    threads: int | None = None,
) -> tuple[CommandEnd, Numbers]:
    """Runs the command in its working folder below a directory. Returns its end and the numbers that it has left.

    receive: gets new points, and returns whether the command shall end. threads: the number of threads that numeric
    libraries of the command may use; None to leave the environment as it is. Raises CommandFailedError, ConfigError.
    """
    work = directory / WORKING_FOLDER
    resumed = prepare_folder(config, directory)
    places = {
        "folder": str(work.resolve()),
        "source": str(Path(config.folder.path).resolve()) if config.folder else "",
        "resume_from": str(work.resolve()) if resumed else "",
        "python": sys.executable,
    }
    for path, text in config.files.items():
        target = work / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.write_text(config.filled(text, places), encoding="utf-8")
    variables = {"PYTHONUNBUFFERED": "1", RESUME_FROM: places["resume_from"]}
    variables |= dict.fromkeys(THREADS, str(threads)) if threads else {}
    variables |= {name: config.filled(text, places) for name, text in config.environment.items()}
    output, errors = directory / COMMAND_OUTPUT, directory / COMMAND_ERRORS
    numbers = Numbers(config)
    written_file = config.values.written_file
    if resumed:  # the numbers of earlier attempts, from which this one resumes
        _read_lines(output, numbers)
    else:
        output.unlink(missing_ok=True)
        errors.unlink(missing_ok=True)

    def receive_line(line: str) -> bool:
        return written_file is None and bool(points := numbers.receive(line)) and receive(points)

    words = config.filled_command(places)
    environment = {**os.environ, **variables}
    end = run_command_line(words, work, environment, output, errors, receive_line, stopping)
    if end.status == 0 and written_file is not None:
        try:
            numbers.read_file(work / config.filled(written_file, places))
        except UnreadableValuesError as error:
            numbers.fault = error
    return end, numbers


def prepare_folder(config: CommandRunConfig, directory: Path) -> bool:
    """Makes the working folder, and returns whether it is one that an earlier attempt has left. That one is removed
    where a run begins anew."""
    work = directory / WORKING_FOLDER
    if work.exists() and config.resume == "folder":
        return True
    unfinished = directory / f"{WORKING_FOLDER}.part"
    for left in (work, unfinished):
        if left.exists():
            shutil.rmtree(left)
    unfinished.mkdir(parents=True)
    copy_source(config, unfinished)
    unfinished.rename(work)
    return False


def require_success(end: CommandEnd, numbers: Numbers, directory: Path) -> None:
    """Raises CommandFailedError where a command has not ended with status 0, or has left no numbers that can be read.
    The first line of its message is the reason, with the last line of the command's errors."""
    errors = tail_of(directory / COMMAND_ERRORS)
    tail = [*errors, *([] if errors else tail_of(directory / COMMAND_OUTPUT))]
    if end.status != 0:
        how = f"exit status {end.status}" if end.status > 0 else f"killed by signal {-end.status}"
        last = f": {tail[-1].strip()}" if tail else ", and it printed nothing"
        raise CommandFailedError("\n".join([f"{how}{last}", *tail]))
    if numbers.fault is not None:
        raise CommandFailedError("\n".join([str(numbers.fault), *tail]))


def result_of(config: CommandRunConfig, numbers: Numbers) -> dict[str, float]:
    """Returns the result of a run by metric: of the study's metrics as ``choose`` has it, of other numbers the last.

    Raises CommandFailedError for a metric that never appeared, and Diverged for one that is no finite number.
    """
    results = {name: numbers.of(name)[-1].value for name in numbers.names if name not in config.metrics}
    results = {name: value for name, value in results.items() if math.isfinite(value)}
    for name in config.metrics:
        points = numbers.of(name)
        if not points:
            raise CommandFailedError(_missing(name, numbers))
        chosen = _chosen(points, config.choose.get(name, "last"))
        if not math.isfinite(chosen.value):
            raise Diverged(f"{name} is {chosen.value} at step {chosen.step}")
        results[name] = chosen.value
    return results


def _chosen(points: Sequence[NumberPoint], choice: str | int) -> NumberPoint:
    """Returns the point that is the result. Raises CommandFailedError where there is none at the step."""
    if isinstance(choice, int):
        for point in points:
            if point.step == choice:
                return point
        steps = ", ".join(str(point.step) for point in points[-SHOWN:])
        raise CommandFailedError(f"{points[0].name} has no value at step {choice}; its last steps are {steps}")
    finite = [point for point in points if math.isfinite(point.value)] or points
    by_choice: Mapping[str, Callable[[], NumberPoint]] = {
        "last": lambda: points[-1],
        "first": lambda: points[0],
        "lowest": lambda: min(finite, key=lambda point: point.value),
        "highest": lambda: max(finite, key=lambda point: point.value),
    }
    return by_choice[choice]()


def _missing(name: str, numbers: Numbers) -> str:
    """Returns the reason why a number has no value, with the names of the numbers that were read, or, if none was, the
    forms of the lines."""
    if numbers.names:
        return f"{name} never appeared; the numbers that did are {', '.join(sorted(numbers.names)[:12])}"
    forms = " | ".join(numbers.forms) or "none"
    where = numbers.config.values.written_file or "its output"
    return f"{name} never appeared in {where}, and no other number; the lines there have the forms: {forms}"


def _read_lines(path: Path, numbers: Numbers) -> None:
    """Adds the numbers that earlier attempts have printed."""
    if path.exists() and numbers.config.values.written_file is None:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                numbers.receive(line)


def program_fault(config: CommandRunConfig) -> ConfigError | None:
    """Returns the error of a program, or of a script that is its first word after an interpreter, which is not there;
    None where it is, or where only a shell knows."""
    if config.shell:
        return None
    places = {
        "folder": ".",
        "source": config.folder.path if config.folder else ".",
        "resume_from": "",
        "python": sys.executable,
    }
    words = config.filled_command(places)
    root = Path(config.folder.path) if config.folder else Path()
    program = words[0]
    there = (root / program).is_file() if "/" in program and not Path(program).is_absolute() else shutil.which(program)
    if not there:
        where = f"in {root}" if "/" in program else "on the PATH"
        return ConfigError(
            f"there is no program {program!r} {where}; {{python}} is the Python that runs this", "command"
        )
    script = words[1] if len(words) > 1 else ""
    is_inside = Path(script).suffix in SCRIPTS and not Path(script).is_absolute() and script not in config.files
    if is_inside and not (root / script).is_file():
        return ConfigError(f"there is no file {script} in {root}, the source folder", "command")
    return None
