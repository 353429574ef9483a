"""Ends a forked process when the command that it works for is gone."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing import parent_process
from multiprocessing.connection import wait

__all__ = ["die_with_parent"]


def die_with_parent() -> None:
    """Kills this process the moment its parent ends, so that a new command can do the same."""
    threading.Thread(target=_wait_and_die, daemon=True).start()


def _wait_and_die() -> None:
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
