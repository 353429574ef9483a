"""Runs of the stand-in that start from each other."""

from __future__ import annotations

from pathlib import Path

from standin.run import RunConfig, SourceConfig

__all__ = ["chain", "finishes"]


def chain(*steps: int, fault: str = "none") -> RunConfig:
    """Returns the last of runs of so many steps, each of which starts from the one before. fault: of the first."""
    config: RunConfig | None = None
    for number, count in enumerate(steps):
        changes = {"training.steps": count, "training.fault": "none" if number else fault}
        config = RunConfig(source=None if config is None else SourceConfig(run=config)).override(changes)
    assert config is not None
    return config


def finishes(directory: Path) -> int:
    """Returns how often the run of a folder has finished."""
    path = directory / "finishes.txt"
    return len(path.read_text().splitlines()) if path.exists() else 0
