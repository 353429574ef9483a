"""The work of tasks in the workers of a Ray cluster: a run, and the ranks of a run that is spread over several nodes.

The run's process starts the ranks by a command, ``ray_start``, which requests them from the run's task. The run's task
starts a task in each bundle of the run's group, whose worker becomes the torchrun of its node. If Ray loses one of
these tasks, the run's process ends as if a rank had been killed. When that process is to be started again, the run's
task ends instead: the group has lost a node, and the command submits the run again with a new group.
"""

from __future__ import annotations

import os
import runpy
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import ray
from ray.exceptions import LocalRayletDiedError, NodeDiedError, OutOfMemoryError, WorkerCrashedError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from lit_transformers.plugins import VARIABLE
from lit_transformers.startup.search_path import put_working_folder_last
from sweeps.launchers.ray_messages import RayTask
from sweeps.launchers.remote import node_share
from sweeps.launchers.share import Share
from sweeps.process.meeting import Meeting, meeting_point
from sweeps.process.order import Spread, first_line
from sweeps.process.torchrun import import_path
from sweeps.process.worker import redirect_output

__all__ = ["RanksLost", "in_bundle", "perform", "why_lost"]

WAIT_SECONDS = 0.3
"""How long it waits for ranks to end before it looks whether the run's process has."""


class RanksLost(Exception):
    """Ray has lost ranks of a run, for the reason of the message, and with them a part of the run's group of nodes."""


def why_lost(error: Exception) -> str | None:
    """Returns why Ray has lost a task, or None where it has not, and the error is the task's own."""
    match error:
        case OutOfMemoryError():
            return "out of memory: the memory of its node was full, and Ray ended it"
        case NodeDiedError() | LocalRayletDiedError():
            return "its node died"
        case WorkerCrashedError():
            return "its process on the node died"
    return None


def in_bundle(group: PlacementGroup, index: int) -> PlacementGroupSchedulingStrategy:
    """Returns how a task is placed on the node of a bundle."""
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)


@ray.remote(max_retries=0)
def perform(task: RayTask, group: PlacementGroup | None) -> None:
    """Does the run in a worker of Ray, which serves one command alone, and may do other runs before and after.

    group: the nodes of its ranks, of which this is the first, or None for this one. Raises RanksLost.
    """
    _prepare(task)
    ticket = task.run.ticket
    if group is None:
        task.run.perform(node_share(ticket, task.cpus, ticket.ranks), task.storage, Spread())
        return
    with _started_ranks(task, group) as ranks:
        address = [sys.executable, "-m", "sweeps.launchers.ray_start", ranks.meeting.address]
        spread = Spread(task.nodes, tuple(address), ray.util.get_node_ip_address())
        task.run.perform(Share(1, task.cpus), task.storage, spread)  # Ray tells the tasks of ranks their devices
    if ranks.reason_lost is not None:
        raise RanksLost(ranks.reason_lost)


@ray.remote(max_retries=0, max_calls=1)
def _run_torchrun(task: RayTask, index: int, command: list[str], environment: Mapping[str, str]) -> int:
    """Runs the command of torchrun in this process, which ends with the task, and returns its status.

    The node with the index 0, which is that of the run's process, is the one at which all others meet. Torchrun would
    know it by its name, which other pods of Kubernetes do not. The output is in the run's log.
    """
    _prepare(task)
    redirect_output(task.run.ticket.directory(task.run.runs) / "log.txt")
    options = {"PET_LOCAL_ADDR": ray.util.get_node_ip_address(), "PET_RDZV_CONF": f"is_host={index == 0}"}
    os.environ.update(environment, PYTHONPATH=import_path(), **options)
    _, _, module, *arguments = command
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


@dataclass
class _Torchruns:
    """The ranks of a run over the nodes of a group, which its process asks for. reason_lost: why Ray has lost some."""

    task: RayTask
    group: PlacementGroup
    meeting: Meeting
    reason_lost: str | None = None

    def serve(self) -> None:
        """Answers one process after the other until the socket is closed. When one comes after ranks were lost, the
        launcher of this task is stopped."""
        with suppress(OSError):
            while (connection := self.meeting.accept()) is not None:
                with connection, suppress(EOFError, ConnectionError):
                    command, environment = connection.recv()
                    if self.reason_lost is None:
                        connection.send(self._status(connection, command, environment))
                    else:
                        os.kill(os.getpid(), signal.SIGTERM)
                        connection.poll(None)  # until it has been stopped: any answer would fail its run

    def _status(self, connection: Connection, command: list[str], environment: Mapping[str, str]) -> int | None:
        """Runs torchrun on each node and returns its status, or None where Ray has lost it; ends it everywhere when
        it has failed on one, or the process is gone that asked for it."""
        waiting, status = [], 0
        for index in range(self.task.nodes):
            place = {"scheduling_strategy": in_bundle(self.group, index), **self.task.resources}
            name = f"{self.task.run.ticket.arm} seed {self.task.run.ticket.seed} node {index}"
            waiting.append(_run_torchrun.options(name=name, **place).remote(self.task, index, command, environment))
        try:
            while waiting and not status and not connection.poll():
                ended, waiting = ray.wait(waiting, timeout=WAIT_SECONDS)
                for node in ended:
                    status = status or ray.get(node)
        except Exception as error:
            self.reason_lost = why_lost(error) or first_line(error)
            return None
        finally:
            for node in waiting:
                ray.cancel(node, force=True)
        return status


@contextmanager
def _started_ranks(task: RayTask, group: PlacementGroup) -> Iterator[_Torchruns]:
    """Listens for the run's process, in a thread."""
    with meeting_point() as meeting:
        ranks = _Torchruns(task, group, meeting)
        threading.Thread(target=ranks.serve, daemon=True).start()
        try:
            yield ranks
        finally:
            meeting.listener.shutdown(socket.SHUT_RDWR)


def _prepare(task: RayTask) -> None:
    """Gives this worker the working folder, the variables and the plug-ins of the command."""
    folder = Path(task.folder or Path.cwd())
    os.chdir(folder)
    os.environ.update(task.environment)
    if task.plugins:
        os.environ[VARIABLE] = os.pathsep.join(str(folder / name) for name in task.plugins)
    put_working_folder_last(Path(__file__).resolve().parents[2], folder.resolve())
