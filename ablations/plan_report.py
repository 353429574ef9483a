"""Writes the report of a plan for the command line, and prints it; earlier files stay where no run has finished."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from ablations.looks import with_look_taken
from lit_transformers.config import ConfigError
from lit_transformers.records.plan import Plan, plan_path, write_plan

if TYPE_CHECKING:
    from reports.judge.comparisons import Comparison
    from reports.judge.findings import Findings

__all__ = ["WrittenReport", "comparisons_of", "write_report"]


class WrittenReport(NamedTuple):
    """A plan with the looks that were taken, its findings, and the page of its report: None if no run has finished."""

    plan: Plan
    findings: Findings
    page: Path | None

    def print_to(self, console: Console, full: bool = False) -> None:
        """Prints a screen of the report, or all of it, and where the page is."""
        from reports.report import print_report

        print_report(self.findings, console, full)
        text = f"Report: {self.page}" if self.page else f"No report: no run of {self.plan.folder} has finished."
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    def print_look_to(self, console: Console, following: int) -> None:
        """Prints a line on a look that another one of ``following`` seeds follows."""
        from reports.show.answer import look_line

        console.print(look_line(self.findings, following), markup=False, highlight=False, soft_wrap=True)

    def print_before_rates_to(self, console: Console, left: int) -> None:
        """Prints a line on a study that ``left`` runs at other learning rates follow, and where the page is."""
        from reports.show.answer import line_before_rates

        text = f"{line_before_rates(self.findings, left)}; report so far: {self.page}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def write_report(runs: Path, plan: Plan, *, unmatched: bool = False, computed: bool = True) -> WrittenReport:
    """Writes the report of a plan, and its plan with the look that was taken: a look whose runs have all ended counts
    from here on. Where no run has finished, no file is written.

    computed: runs were done for it, so that their outcomes are worth printing in any case.
    Raises ConfigError where no run has finished and none was done.
    """
    import reports
    from reports.read.shared_runs import with_planned

    study = with_planned(reports.load_study(runs, plan.folder, plan), runs)
    if study.missing() < len(study.runs):
        if all(run.record is not None for run in study.runs):
            study = replace(study, plan=with_look_taken(plan))
        write_plan(runs, study.plan)
        directory = plan_path(runs, plan.folder).with_name("report")
        return WrittenReport(study.plan, reports.write_study(study, directory, unmatched), directory / "report.md")
    if not computed:
        reason = f"none of its {len(study.runs)} runs has finished; train them by: {plan.commands['run']}"
        raise ConfigError(reason, plan.folder)
    with TemporaryDirectory() as temporary_directory:
        return WrittenReport(plan, reports.write_study(study, Path(temporary_directory), unmatched), None)


def comparisons_of(runs: Path, plan: Plan, *, unmatched: bool = False) -> tuple[Comparison, ...]:
    """Returns the judged comparisons of a plan."""
    import reports
    from reports.judge.comparisons import compare

    return compare(reports.load_study(runs, plan.folder, plan), [], unmatched)
