"""Runs of the stand-in that start from each other."""

from __future__ import annotations

from pathlib import Path

from standin.run import RunConfig, SourceConfig, fit, run_key
from sweeps.ledger.ticket import Ticket

__all__ = ["alone", "chain", "chained", "finishes"]


def chain(*steps: int, fault: str = "none") -> RunConfig:
    """Returns the last run of a chain. steps: of each run, which starts from the one before. fault: of the first."""
    config: RunConfig | None = None
    for number, count in enumerate(steps):
        changes = {"training.steps": count, "training.fault": "none" if number else fault}
        config = RunConfig(source=None if config is None else SourceConfig(run=config)).override(changes)
    assert config is not None
    return config


def chained(*steps: int, fault: str = "none") -> list[Ticket]:
    """Returns the tickets of a chain, the first one first."""
    configs = [chain(*steps[: number + 1], fault=fault) for number in range(len(steps))]
    keys = [run_key(config) for config in configs]
    sources = [(), *((key,) for key in keys)]
    return [
        Ticket(key, "chain", config.seed, config.to_dict(), {}, source)
        for key, config, source in zip(keys, configs, sources, strict=False)
    ]


def alone(*steps: int, runs: Path) -> list[dict[str, float]]:
    """Does a chain undisturbed, in this process, and returns the metrics of its runs."""
    metrics = []
    for ticket in chained(*steps):
        ticket.directory(runs).mkdir(parents=True)
        metrics.append(fit(RunConfig.from_dict(ticket.config), ticket.directory(runs))["metrics"])
    return metrics


def finishes(directory: Path) -> int:
    """Returns how often the run of a folder has finished."""
    path = directory / "finishes.txt"
    return len(path.read_text().splitlines()) if path.exists() else 0
