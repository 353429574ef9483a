"""Starts a command of Python on every node of a run on a Ray cluster, as srun does in a SLURM job.

``python -m sweeps.launchers.ray_start ADDRESS python ...``: the run's task listens at the address. The commands end
with this process, and it ends when all of them have, or one has failed. It imports nothing of Ray, which takes seconds.
"""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Client

from sweeps.process.meeting import SECRET

__all__ = ["start"]

PASSED_ON = (SECRET, "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""The variables that the commands have from this process; others are those of their nodes."""


def start(address: str, command: list[str]) -> int:
    """Returns the status of the commands. Dies by SIGKILL where Ray has lost one of them."""
    connection = Client(address)
    connection.send((command, {name: os.environ[name] for name in PASSED_ON if name in os.environ}))
    status: int | None = connection.recv()
    if status is None:
        os.kill(os.getpid(), signal.SIGKILL)
    assert status is not None
    return status


if __name__ == "__main__":
    sys.exit(start(sys.argv[1], sys.argv[2:]))
