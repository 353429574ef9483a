"""The process of a command that is connected to a Ray cluster: it submits runs as tasks, says how each ended, cancels.

It is a process of its own since Ray ends the one that is connected when the head of the cluster is gone. The command
starts it with one end of a socket, and it ends when the other end is closed; Ray then kills the tasks that are left.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    OutOfMemoryError,
    RayTaskError,
    TaskCancelledError,
    WorkerCrashedError,
)

from lit_transformers.cli.search_path import put_working_folder_last
from lit_transformers.plugins import VARIABLE
from sweeps.launchers.ray_messages import Connect, Connected, Ended, RayTask, Refused
from sweeps.launchers.remote import node_share
from sweeps.process.order import first_line

__all__ = ["drive"]

WAIT_SECONDS = 0.3
"""How long it waits for tasks to end before it looks for messages, and the reverse."""


def drive(descriptor: int) -> None:
    """Connects to the cluster and does what the messages of the socket say, until it is closed."""
    connection = Connection(descriptor)
    connect: Connect = connection.recv()
    try:
        ray.init(connect.address, runtime_env=connect.runtime_env, log_to_driver=False, logging_level=logging.CRITICAL)
        connection.send(Connected([node["Resources"] for node in ray.nodes() if node["Alive"]]))
    except Exception as error:
        connection.send(Refused(None if isinstance(error, ConnectionError) else first_line(error)))
        return
    perform = ray.remote(max_retries=0)(_perform)
    tasks: dict[ray.ObjectRef[Any], str] = {}
    try:
        while True:
            while connection.poll(0 if tasks else WAIT_SECONDS):
                message = connection.recv()
                if isinstance(message, RayTask):
                    key, arm = message.run.ticket.key, f"{message.run.ticket.arm} seed {message.run.ticket.seed}"
                    tasks[perform.options(name=arm, **message.resources).remote(message)] = key
                else:
                    _cancel(tasks, force=message)
            for task in ray.wait([*tasks], num_returns=len(tasks), timeout=WAIT_SECONDS)[0] if tasks else ():
                connection.send(_ending(task, tasks.pop(task)))
    except (EOFError, OSError):
        ray.shutdown()


def _cancel(tasks: Mapping[Any, str], *, force: bool) -> None:
    """Cancels all tasks: those that run write a checkpoint, or are killed where that is forced."""
    for task in tasks:
        ray.cancel(task, force=force)


def _ending(task: Any, key: str) -> Ended:
    """Returns how a task ended."""
    try:
        ray.get(task)
    except OutOfMemoryError:
        return Ended(key, "out of memory: the memory of its node was full, and Ray ended it")
    except (NodeDiedError, LocalRayletDiedError):
        return Ended(key, "its node died")
    except WorkerCrashedError:
        return Ended(key, "its process on the node died")
    except TaskCancelledError:
        return Ended(key)
    except RayTaskError as error:
        return Ended(key, first_line(error.cause or error), lost=False)
    except Exception as error:
        return Ended(key, first_line(error), lost=False)
    return Ended(key)


def _perform(task: RayTask) -> None:
    """Does the run in a worker of Ray, which serves one command alone, and may do other runs before and after."""
    folder = Path(task.folder or Path.cwd())
    os.chdir(folder)
    os.environ.update(task.environment)
    if task.plugins:
        os.environ[VARIABLE] = os.pathsep.join(str(folder / name) for name in task.plugins)
    put_working_folder_last(Path(__file__).resolve().parents[2], folder.resolve())
    ticket = task.run.ticket
    task.run.perform(node_share(ticket, task.cpus, ticket.ranks), task.storage)
