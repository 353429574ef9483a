"""The processes that load data for a run: how the run notices that one has died, and how they are kept apart from it.

Signals of a terminal, a batch system or ``timeout`` reach a whole process group. The run writes a checkpoint then, for
which it may need a batch more, so its loaders are in a separate group; and they end when the run does.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from lit_transformers.training.stopping import ProcessKilled

__all__ = ["LoaderDied", "loader_death", "name_loader_deaths", "set_loaders_apart"]

SERVER = "lit_transformers.training.loader_server"
"""The module that the server, from which loaders are forked, imports first."""
NOTICES = re.compile(r"DataLoader worker \(pid.* (is killed by signal|exited unexpectedly)|Pin memory thread exited")
"""How torch's errors begin that say it."""
OUT_OF_RESOURCES = (errno.ENOSPC, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EACCES, errno.EPERM)
"""Errors of connections and processes that no other process has caused."""


class LoaderDied(ProcessKilled):
    """A process that loads data has died."""


def loader_death(error: BaseException) -> LoaderDied | None:
    """Returns an error that says how a process that loads data has died, if this caused ``error``, or None.

    torch says it where it looks after its workers. Where it waits for one, or starts one, the connection just ends.
    """
    for link in _links(error):
        is_notice = isinstance(link, RuntimeError) and NOTICES.match(str(link))
        if isinstance(link, LoaderDied):
            return link
        if is_notice and "Bus error" not in str(link):  # of memory that is full it says the same again
            return LoaderDied(f"a process that loads data has died ({str(link).splitlines()[0].rstrip('. ')})")
        if isinstance(link, EOFError | OSError) and _is_of_processes(link):
            return LoaderDied(f"a process that loads data has died ({type(link).__name__}: {link})")
    return None


@contextmanager
def name_loader_deaths() -> Iterator[None]:
    """Raises LoaderDied in place of every error that a dead loader leaves.

    torch raises its notice wherever the main thread is when the signal arrives, also while another error of the same
    death is handled.
    """
    try:
        yield
    except Exception as error:
        if (death := loader_death(error)) is None or death is error:
            raise
        raise death from error


@cache
def set_loaders_apart() -> None:
    """Puts the loaders that this process starts from now on into a separate process group, whether they are forked
    from it or from a server."""
    multiprocessing.get_context("forkserver").set_forkserver_preload([SERVER])
    os.register_at_fork(after_in_child=os.setpgrp)


def _links(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error, and those that it was raised from or amid."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


def _is_of_processes(error: EOFError | OSError) -> bool:
    """Whether an error was raised where processes exchange something or are started, and another one may have caused
    it. Those of a worker are raised again by torch, with a text that says so."""
    frames = traceback.extract_tb(error.__traceback__)
    is_exchange = bool(frames) and "multiprocessing" in Path(frames[-1].filename).parts
    return is_exchange and getattr(error, "errno", None) not in OUT_OF_RESOURCES
