"""The process of a command that is connected to a Ray cluster: it submits runs as tasks, says how each ended, cancels.

It is a separate process because Ray ends the connected process when the head of the cluster is gone. The command starts
it with one end of a socket, and it ends when the other end is closed; Ray then kills the tasks that are left.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayTaskError, TaskCancelledError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from sweeps.launchers.ray_messages import Connect, Connected, Ended, RayTask, Refused
from sweeps.launchers.ray_tasks import RanksLost, in_bundle, perform, why_lost
from sweeps.process.order import first_line

__all__ = ["drive"]

HEAD_SECONDS = 2.0
"""How long a head takes to go after its nodes, where all are stopped, and how long it may take to answer."""
WAIT_SECONDS = 0.3
"""How long it waits for tasks to end before it looks for messages, and the reverse."""


def drive(descriptor: int) -> None:
    """Connects to the cluster and obeys the messages of the socket until it is closed, or the head is gone."""
    connection = Connection(descriptor)
    connect: Connect = connection.recv()
    try:
        ray.init(connect.address, runtime_env=connect.runtime_env, log_to_driver=False, logging_level=logging.CRITICAL)
        head = ray.get_runtime_context().gcs_address
        connection.send(Connected([node["Resources"] for node in ray.nodes() if node["Alive"]]))
    except Exception as error:
        connection.send(Refused(None if isinstance(error, ConnectionError) else first_line(error)))
        return
    tasks: dict[ray.ObjectRef[Any], _Submitted] = {}
    try:
        while True:
            while connection.poll(0 if tasks else WAIT_SECONDS):
                message = connection.recv()
                if isinstance(message, RayTask):
                    task, submitted = _submit(message)
                    tasks[task] = submitted
                else:
                    _cancel(tasks, force=message)
            ended = ray.wait([*tasks], num_returns=len(tasks), timeout=WAIT_SECONDS)[0] if tasks else ()
            endings = [_ending(task, tasks.pop(task)) for task in ended]
            if any(ending.lost and ending.reason for ending in endings) and not _head_answers(head):
                connection.close()  # the command takes that for the end of the cluster
                return
            for ending in endings:
                connection.send(ending)
    except (EOFError, OSError):
        ray.shutdown()


class _Submitted(NamedTuple):
    """The key of the run of a task, and the nodes that are reserved for it, where they are several."""

    key: str
    group: PlacementGroup | None


def _submit(task: RayTask) -> tuple[ray.ObjectRef[Any], _Submitted]:
    """Submits the task of a run, which begins when Ray has reserved all that it needs at once.

    For several nodes it reserves one bundle on each, and no two bundles on the same node. The ranks of the run take the
    resources of the bundles; the run's own process needs next to nothing, and is on the node of the first bundle.
    """
    key, name = task.run.ticket.key, f"{task.run.ticket.arm} seed {task.run.ticket.seed}"
    if task.nodes == 1:
        return perform.options(name=name, **task.resources).remote(task, None), _Submitted(key, None)
    group = placement_group([task.bundle] * task.nodes, strategy="STRICT_SPREAD")
    options = {"num_cpus": 0, "scheduling_strategy": in_bundle(group, 0)}
    return perform.options(name=name, **options).remote(task, group), _Submitted(key, group)


def _cancel(tasks: Iterable[Any], *, force: bool) -> None:
    """Cancels all tasks: running ones write a checkpoint or, with ``force``, are killed. Their ranks on other nodes
    receive the request for a checkpoint over their connections, and are killed with the tasks."""
    for task in tasks:
        ray.cancel(task, force=force, recursive=force)


def _head_answers(address: str) -> bool:
    """Whether the head of the cluster is there, a moment after a node was lost. With it all nodes are lost, one after
    the other, and no run is to blame for that."""
    time.sleep(HEAD_SECONDS)
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=HEAD_SECONDS).close()
    except OSError:
        return False
    return True


def _ending(task: Any, submitted: _Submitted) -> Ended:
    """Returns how a task ended, and gives its nodes back."""
    key, group = submitted
    try:
        ray.get(task)
    except TaskCancelledError:
        return Ended(key)
    except RayTaskError as error:
        if isinstance(error.cause, RanksLost):
            return Ended(key, str(error.cause))
        return Ended(key, first_line(error.cause or error), lost=False)
    except Exception as error:
        reason = why_lost(error)
        return Ended(key, reason or first_line(error), lost=reason is not None)
    finally:
        if group is not None:
            remove_placement_group(group)
    return Ended(key)
