"""One run to be done, as ledger, launcher, worker and live table exchange it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from lit_transformers.config import Plain

__all__ = ["State", "Ticket"]


class Ticket(NamedTuple):
    """A run by its key, the arm and seed it stands for, its resolved config as plain data, and the arm's level of every
    factor.

    sources: the keys of the runs that it starts from, which have to finish before it begins. donor: the key of the run
    that trains the weights which this run only measures in another way; this run begins when the donor has ended.
    """

    key: str
    arm: str
    seed: int
    config: dict[str, Plain]
    levels: Mapping[str, str] = {}
    sources: tuple[str, ...] = ()
    donor: str | None = None

    def directory(self, runs: Path) -> Path:
        """Returns the directory of the run's files."""
        return runs / self.key

    @property
    def ranks(self) -> int:
        """The number of processes, each with its own device, that do the run together."""
        training = self.config.get("training")
        return int(training.get("devices", 1)) if isinstance(training, dict) else 1

    def labels(self) -> dict[str, Any]:
        """Returns the labels that the ledger stores of a run: its key, and arm and seed for people who read it."""
        return {"key": self.key, "arm": self.arm, "seed": self.seed}


class State(StrEnum):
    """The state of a run. The last four are the outcomes of records."""

    WAITING = "waiting"
    STARTING = "starting"
    GATES = "gates"
    FIT = "fit"
    EVALUATE = "evaluate"
    ELSEWHERE = "elsewhere"
    STOPPED = "stopped"
    FINISHED = "finished"
    PRUNED = "pruned"
    FAILED = "failed"
    INVALID = "invalid"

    @property
    def over(self) -> bool:
        """Whether nothing further will happen to the run in this command."""
        return self in (State.FINISHED, State.PRUNED, State.FAILED, State.INVALID, State.STOPPED)

    @property
    def active(self) -> bool:
        """Whether a worker of this command is doing the run."""
        return self in (State.STARTING, State.GATES, State.FIT, State.EVALUATE)
