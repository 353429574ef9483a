"""Which records of a study were brought in from elsewhere, and the note that says so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from lit_transformers.records.record import Record

__all__ = ["BROUGHT_IN", "RunOrigin", "brought_in_notes", "origin_of"]

BROUGHT_IN = "brought_in"
"""The entry of a record's environment that holds the source of a run which was done elsewhere, and its name there."""


class RunOrigin(NamedTuple):
    """Where a run was done that was brought in, and its name there."""

    source: str
    run: str


def origin_of(record: Record | None) -> RunOrigin | None:
    """Returns the origin of a run that was brought in; None for a run that was done here, or whose origin is not
    known."""
    origin = record.environment.get(BROUGHT_IN) if record is not None else None
    return RunOrigin(str(origin.get("source")), str(origin.get("run"))) if isinstance(origin, dict) else None


def brought_in_notes(runs: Iterable[tuple[str, int, Record | None]]) -> list[str]:
    """Returns a note for each source of runs that were brought in, with their arms and seeds."""
    seeds: dict[str, dict[str, list[int]]] = {}
    for arm, seed, record in runs:
        if (origin := origin_of(record)) is not None:
            seeds.setdefault(origin.source, {}).setdefault(arm, []).append(seed)
    return [
        f"brought in from {source}: {'; '.join(f'{arm}, seeds {_listed(of_arm)}' for arm, of_arm in arms.items())}. "
        "They were done elsewhere, with a config and data that are not checked against this study's. Their times are "
        "compared with each other alone."
        for source, arms in seeds.items()
    ]


def _listed(seeds: list[int]) -> str:
    return ", ".join(map(str, sorted(seeds)))
