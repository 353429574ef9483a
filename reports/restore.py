"""Writes the runs of a published study to the folders where a study looks for them, so that it resumes from there.

A published study has no weights: work that needs them, such as another way of measuring trained networks, is done anew.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

from lit_transformers.records.context_losses import CONTEXT, write_context
from lit_transformers.records.files import CURVES, DOCUMENTS, RECORD
from lit_transformers.records.floors import FLOORS, write_floors
from lit_transformers.records.plan import plan_path, write_plan
from lit_transformers.records.rate_values import RATES, write_rates
from lit_transformers.records.record import write_record
from reports.read.measurements import write_curves, write_documents
from reports.read.study import Run, Study

__all__ = ["restore"]


def restore(study: Study, runs: Path, keys: Set[str]) -> int:
    """Writes the records, curves and documents of the runs with these keys to their folders below ``runs``, and the
    study's plan, floors, context and rates next to those of other studies; returns the number of runs written.

    Files that are there already stay as they are. Curves have the points of the published ones, which are thinned.
    """
    written = [_write_run(runs / key, run) for key, run in study.all_runs().items() if key in keys]
    folder = study.plan.folder
    path = plan_path(runs, folder)
    if not path.exists():
        write_plan(runs, study.plan)
    if study.floors is not None and not path.with_name(FLOORS).exists():
        write_floors(runs, folder, study.floors)
    if study.context is not None and not path.with_name(CONTEXT).exists():
        write_context(runs, folder, study.context)
    if study.rates is not None and not path.with_name(RATES).exists():
        write_rates(runs, folder, study.rates)
    return sum(written)


def _write_run(directory: Path, run: Run) -> bool:
    """Writes a run that has a record to its folder, the record last; returns whether it did."""
    if run.record is None or (directory / RECORD).exists():
        return False
    directory.mkdir(parents=True, exist_ok=True)
    write_curves(directory / CURVES, run.measurements.curves)
    if run.measurements.documents is not None:
        write_documents(directory / DOCUMENTS, run.measurements.documents)
    write_record(directory, run.record)
    return True
