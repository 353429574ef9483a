"""One run to be done: what ledger, launcher, worker and live table hand each other."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from lit_transformers.config import Plain

__all__ = ["State", "Ticket"]


class Ticket(NamedTuple):
    """A run by its key, the arm and seed it stands for, and its resolved config as plain data."""

    key: str
    arm: str
    seed: int
    config: dict[str, Plain]

    def directory(self, runs: Path) -> Path:
        """Where everything about the run is kept."""
        return runs / self.key

    @property
    def ranks(self) -> int:
        """How many processes, each with a device of its own, do the run together."""
        training = self.config.get("training")
        return int(training.get("devices", 1)) if isinstance(training, dict) else 1

    def labels(self) -> dict[str, Any]:
        """What the ledger notes beside the key, for people who open it."""
        return {"key": self.key, "arm": self.arm, "seed": self.seed}


class State(StrEnum):
    """Where a run stands. The last four are how a record says it ended."""

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
        """Whether a worker of this command is at it."""
        return self in (State.STARTING, State.GATES, State.FIT, State.EVALUATE)
