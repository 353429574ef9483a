"""Which records of a study were brought in from elsewhere, and the note that says so."""

from __future__ import annotations

from collections.abc import Iterable

from lit_transformers.records.record import Record

__all__ = ["BROUGHT_IN", "brought_in_notes"]

BROUGHT_IN = "brought_in"
"""The entry of a record's environment that holds the source of a run which was done elsewhere, and its name there."""


def brought_in_notes(runs: Iterable[tuple[str, int, Record | None]]) -> list[str]:
    """Returns a note for each source of runs that were brought in, with their arms and seeds."""
    seeds: dict[str, dict[str, list[int]]] = {}
    for arm, seed, record in runs:
        origin = record.environment.get(BROUGHT_IN) if record is not None else None
        if isinstance(origin, dict):
            seeds.setdefault(str(origin.get("source")), {}).setdefault(arm, []).append(seed)
    return [
        f"brought in from {source}: {'; '.join(f'{arm}, seeds {_listed(of_arm)}' for arm, of_arm in arms.items())}. "
        "They were done elsewhere, with a config that is not checked against this study's."
        for source, arms in seeds.items()
    ]


def _listed(seeds: list[int]) -> str:
    return ", ".join(map(str, sorted(seeds)))
