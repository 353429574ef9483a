"""Writes the report of a plan for the command line; where no run has finished, earlier files are left as they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rich.console import Console

from ablations.looks import with_look_taken
from lit_transformers.config import ConfigError
from lit_transformers.records.plan import Plan, plan_path, write_plan

if TYPE_CHECKING:
    from reports.judge.comparisons import Comparison

__all__ = ["comparisons_of", "write_report"]


def write_report(runs: Path, plan: Plan, console: Console, *, unmatched: bool = False, computed: bool = True) -> Plan:
    """Prints the report of a plan, says where its files are, and returns the plan: a look whose runs have all ended
    counts as taken from here on. Where no run has finished, nothing is written.

    computed: runs were done for it, so their outcomes are printed in any case.
    Raises ConfigError where no run has finished and none was done.
    """
    import reports

    study = reports.load_study(runs, plan.folder, plan)
    if study.missing() < len(study.runs):
        if all(run.record is not None for run in study.runs):
            study = replace(study, plan=with_look_taken(plan))
        write_plan(runs, study.plan)
        directory = plan_path(runs, plan.folder).with_name("report")
        page = reports.write_study(study, directory, console, unmatched)
        console.print(f"report: {page}", markup=False, highlight=False, soft_wrap=True)
        return study.plan
    reason = f"none of its {len(study.runs)} runs has finished, so no report is written"
    if not computed:
        raise ConfigError(f"{reason}; train them by: {plan.commands['run']}", plan.folder)
    with TemporaryDirectory() as temporary_directory:
        reports.write_study(study, Path(temporary_directory), console, unmatched)
    console.print(f"{plan.folder}: {reason}", markup=False, highlight=False, soft_wrap=True)
    return plan


def comparisons_of(runs: Path, plan: Plan, *, unmatched: bool = False) -> tuple[Comparison, ...]:
    """Returns the judged comparisons of a plan."""
    import reports
    from reports.judge.comparisons import compare

    return compare(reports.load_study(runs, plan.folder, plan), [], unmatched)
