"""The memory of a process and of all that it has started. Imports nothing heavy."""

from __future__ import annotations

import os
from contextlib import suppress

import psutil

__all__ = ["memory_of_tree"]


def memory_of_tree(pid: int, group: int | None = None) -> int:
    """Returns the bytes of resident memory of a process and of all that it has started, 0 where it is gone.

    A process whose parent has ended is no descendant any more, but it stays in its process group. So the groups that a
    descendant leads count as a whole, and the one that is named.
    """
    with suppress(psutil.Error):
        first = psutil.Process(pid)
        processes = {process.pid: process for process in (first, *first.children(recursive=True))}
        groups = {*processes, group}
        for other in psutil.pids():
            with suppress(OSError, psutil.Error):
                if other not in processes and os.getpgid(other) in groups:
                    processes[other] = psutil.Process(other)
        return sum(map(_resident_bytes, processes.values()))
    return 0


def _resident_bytes(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0
