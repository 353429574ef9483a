"""The messages between a command and its process that is connected to Ray; the module imports nothing of Ray."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sweeps.launchers.remote import RemoteRun

__all__ = ["Connect", "Connected", "Ended", "RayTask", "Refused"]


class Connect(NamedTuple):
    """The cluster's address, and the settings that Ray gives to every worker (its ``runtime_env``)."""

    address: str
    runtime_env: dict[str, Any]


class RayTask(NamedTuple):
    """One run as a task: the resources that it takes of a node, and the folder and environment in which it is done
    there.

    cpus: cores of a rank; gpus: devices of a rank; memory: bytes of the run on a node, or None. nodes: the number of
    nodes over which its ranks are spread. folder: the working folder, or None for the one that Ray unpacks, which then
    holds ``plugins``. environment: variables of the command, which Ray does not show to others, unlike those in a
    ``runtime_env``. storage: the ledger's address.
    """

    run: RemoteRun
    cpus: int
    gpus: float
    memory: int | None
    nodes: int
    folder: str | None
    plugins: tuple[str, ...]
    environment: Mapping[str, str]
    storage: str | None

    @property
    def bundle(self) -> dict[str, float]:
        """The amounts that Ray reserves on each node, by the names of resources."""
        ranks = self.run.ticket.ranks // self.nodes
        amounts = {"CPU": self.cpus * ranks, "GPU": self.gpus * ranks, "memory": self.memory}
        return {name: amount for name, amount in amounts.items() if amount}

    @property
    def resources(self) -> dict[str, float]:
        """The amounts of ``bundle``, by the names of a task's options."""
        names = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
        return {"num_gpus": 0, **{names[name]: amount for name, amount in self.bundle.items()}}


class Connected(NamedTuple):
    """The cluster answered; the resources of each of its nodes."""

    nodes: list[dict[str, float]]


class Refused(NamedTuple):
    """The cluster did not accept the command, for a reason of one line, or None where none answered."""

    reason: str | None


class Ended(NamedTuple):
    """A task ended: its run's key, and why it did not end by itself, or None. lost: whether it was cut off from
    outside, so that another attempt may succeed."""

    key: str
    reason: str | None = None
    lost: bool = True
