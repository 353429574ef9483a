"""Imported first by the server from which the loaders of a run are forked: its own process group, and its end.

A loader watches the process that it was forked from, which is the server, and the server waits for its last loader. So
without a watch over the run itself, both would outlive a run that is killed.
"""

from __future__ import annotations

import os
import signal
import threading
import time

LOOK_SECONDS = 0.5


def _end_with(run: int) -> None:
    """Kills the group of this process, the server and its loaders, when the run is gone."""
    while os.getppid() == run:
        time.sleep(LOOK_SECONDS)
    os.killpg(0, signal.SIGKILL)


os.setpgrp()
threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
