"""Tasks in separate processes, for work that one core would do for minutes."""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Generic, NamedTuple, TypeVar

from datamodules.core.errors import DataError
from lit_transformers.machine.cores import usable_cores

__all__ = ["TaskKilled", "in_processes", "is_orphan"]

Result = TypeVar("Result")


class TaskKilled(DataError):
    """A process that did a task was ended from outside, so the files that it read are not at fault."""


def _can_fork() -> bool:
    """Whether this process may do tasks in others: a worker of a loader may not, and only on Linux a copy of a process
    with threads is safe."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def in_processes(tasks: Iterable[Callable[[], Result]], processes: int | None = None) -> Iterator[Result]:
    """Yields the results of tasks in their order. Each task is done in a separate process, as many at once as there are
    cores. With one core, or where no process can be started, they are done here.

    processes: another number of them at once. A result must be small, and can be pickled. Raises DataError as the first
    task in order that does, and where a process was killed.
    """
    processes = usable_cores() if processes is None else processes
    if processes < 2 or not _can_fork():
        yield from (task() for task in tasks)
        return
    waiting, running = iter(tasks), deque[_Running[Result]]()
    try:
        while True:
            while len(running) < processes and (task := next(waiting, None)) is not None:
                running.append(_started(task))
            if not running:
                return
            result = running[0].result()
            running.popleft()
            if (task := next(waiting, None)) is not None:
                running.append(_started(task))
            yield result
    finally:
        for one in running:
            one.process.kill()
            one.process.join()


def is_orphan() -> bool:
    """Whether the process that started this one, a task, has ended, so that nobody needs the result."""
    parent = multiprocessing.parent_process()
    return parent is not None and os.getppid() != parent.pid


class _Running(NamedTuple, Generic[Result]):
    """A process and the end of a pipe at which its result arrives."""

    process: BaseProcess
    results: Connection

    def result(self) -> Result:
        try:
            outcome = self.results.recv()
        except EOFError:
            self.process.join()
            raise TaskKilled(
                f"a process that prepared data was ended from outside (exit code {self.process.exitcode}), as where "
                "memory is short; start again: the prepared parts are kept"
            ) from None
        self.process.join()
        if isinstance(outcome, BaseException):
            raise outcome
        result: Result = outcome
        return result


def _started(task: Callable[[], Result]) -> _Running[Result]:
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_do, args=(task, sending))
    with warnings.catch_warnings():
        # Python warns where another thread runs, as that which prints the progress. A task uses no thread of before.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    sending.close()
    return _Running(process, receiving)


def _do(task: Callable[[], object], results: Connection) -> None:
    try:
        results.send(task())
    except DataError as error:
        results.send(error)
