"""Which runs of a study also stand in other studies, by their keys: such runs are trained once, and are no second piece
of evidence.

A study on this machine is compared with the other plans of its folder of runs, a publication with those next to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from lit_transformers.records.files import PLAN, RESULTS
from lit_transformers.records.plan import load_plan, parse_plan, plan_path
from lit_transformers.records.schema import first_fault
from reports.read.study import SharedRuns, Study

__all__ = ["with_planned", "with_published"]

READ = 512
"""The most publications whose keys a process keeps."""

Keys = frozenset[str]


def with_published(study: Study, directory: Path) -> Study:
    """Returns a published study, of this folder, with the runs that it shares with the publications next to it."""
    others = (path for path in sorted(directory.parent.glob(f"*/{RESULTS}")) if path.parent.name != directory.name)
    return _with_shared(study, {path.parent.name: path for path in others}, _published_keys)


def with_planned(study: Study, runs: Path) -> Study:
    """Returns a study with the runs that it shares with other studies that are planned in a folder of runs."""
    own = plan_path(runs, study.plan.folder)
    others = (path for path in sorted(own.parent.parent.glob(f"*/{PLAN}")) if path != own)
    return _with_shared(study, {path.parent.name: path for path in others}, lambda path: Keys(load_plan(path).by_key()))


def _with_shared(study: Study, others: Mapping[str, Path], keys_of: Callable[[Path], Keys]) -> Study:
    """Returns a study with the runs that it shares with others, and a note on each of these that cannot be read.

    others: the files of the other studies by their names. keys_of: returns the keys of the runs of one.
    """
    own, shared, names, notes = Keys(study.plan.by_key()), set[str](), list[str](), list[str]()
    for name, path in others.items():
        try:
            common = own & keys_of(path)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            fault = f"{name}/{path.name}: cannot be read ({first_fault(error)})"
            notes.append(f"{fault}; runs that this study shares with it are not counted")
            continue
        if common:
            shared |= common
            names.append(name)
    counted = SharedRuns(len(shared), tuple(names)) if names else None
    return replace(study, shared=counted, notes=(*study.notes, *notes))


def _published_keys(path: Path) -> Keys:
    return _keys_of_publication(path, path.stat().st_mtime_ns)


@lru_cache(READ)
def _keys_of_publication(path: Path, changed_at: int) -> Keys:
    """Returns the keys of the runs of arms of a publication. changed_at: the time of the file's last change."""
    with path.open(encoding="utf-8") as lines:
        return Keys(parse_plan(json.loads(lines.readline())["plan"]).by_key())
