"""Writes the report of a plan for the command line; where no run has finished, earlier files are left as they are."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from lit_transformers.config import ConfigError
from lit_transformers.records.plan import Plan, plan_path, write_plan

__all__ = ["write_report"]


def write_report(runs: Path, plan: Plan, console: Console, *, unmatched: bool = False, computed: bool = True) -> None:
    """Prints the report of a plan and says where its files are. Where no run has finished, nothing is written.

    computed: runs were done for it, so their outcomes are printed in any case.
    Raises ConfigError where no run has finished and none was done.
    """
    import reports

    study = reports.load_study(runs, plan.folder, plan)
    if study.missing() < len(study.runs):
        write_plan(runs, plan)
        directory = plan_path(runs, plan.folder).with_name("report")
        page = reports.write_study(study, directory, console, unmatched)
        console.print(f"report: {page}", markup=False, highlight=False, soft_wrap=True)
        return
    reason = f"none of its {len(study.runs)} runs has finished, so no report is written"
    if not computed:
        raise ConfigError(f"{reason}; train them by: {plan.commands['run']}", plan.folder)
    with TemporaryDirectory() as temporary_directory:
        reports.write_study(study, Path(temporary_directory), console, unmatched)
    console.print(f"{plan.folder}: {reason}", markup=False, highlight=False, soft_wrap=True)
