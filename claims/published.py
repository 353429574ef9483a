"""Compares published studies with today's code: which of them were measured on code that has changed since."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lit_transformers.config import ConfigError, Plain
from lit_transformers.records.files import PUBLISHED, RESULTS
from lit_transformers.records.reproduction import Reproduction
from lit_transformers.records.schema import parse
from lit_transformers.runs import RunConfig
from lit_transformers.runs.keys import code_of
from reports.judge.fairness import repetitions
from reports.publish import published

__all__ = ["PublishedStanding", "published_standings"]


class PublishedStanding(NamedTuple):
    """A published study, the commits that were run, how many of its arms are older than the code on their path, and the
    outcome of its runs where later code repeated them, a text for each commit."""

    study: str
    commits: tuple[str, ...]
    arms: int
    older: int
    repeated: tuple[str, ...] = ()


def published_standings(folder: Path = PUBLISHED) -> list[PublishedStanding]:
    """Returns the standing of every published study, by name; the first finished run of each arm stands for the arm."""
    return [_standing(directory) for directory in published(folder)]


def _standing(directory: Path) -> PublishedStanding:
    arms: dict[str, dict[str, Plain]] = {}
    for run in _runs(directory / RESULTS):
        if run.get("outcome") == "finished":
            arms.setdefault(run["arm"], run)
    commits = sorted({str(run["environment"].get("commit")) for run in arms.values()})
    older = sum(_is_older(run) for run in arms.values())
    repeated = tuple(repetitions(_reproductions(directory / RESULTS)))
    return PublishedStanding(directory.name, tuple(commits), len(arms), older, repeated)


def _reproductions(path: Path) -> list[Reproduction]:
    """Returns the runs of a results file that later code has repeated, which its first line lists."""
    with path.open(encoding="utf-8") as file:
        return [parse(Reproduction, one) for one in json.loads(file.readline()).get("reproductions", ())]


def _runs(path: Path) -> Iterator[dict[str, Plain]]:
    """Yields the records of runs in a results file."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            if record["kind"] == "run":
                yield record


def _is_older(run: dict[str, Plain]) -> bool:
    """Whether the code on the run's path has changed since; also true where today's code refuses its config."""
    try:
        return run["environment"].get("library") != code_of(RunConfig.from_dict(run["config"]))
    except ConfigError:
        return True
