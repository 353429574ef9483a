"""Takes over the runs of a published study that a plan of today would do again."""

from __future__ import annotations

from pathlib import Path

from ablations.plan import PlannedStudy
from lit_transformers.config import ConfigError
from lit_transformers.records.files import RESULTS
from reports.read.results import read_results
from reports.restore import restore

__all__ = ["restore_published"]


def restore_published(directory: Path, whole: PlannedStudy, runs: Path) -> tuple[int, int]:
    """Writes the runs of a publication that are runs of a plan, by their keys, to their folders; returns how many were
    written, and of how many there is a record. A stage without its weights is of no use to runs that are left, so that
    it is written only where none of them starts from it.

    whole: the study with the seeds of all looks. Raises ConfigError where none of the published runs is of the plan,
    and ReportError where there is no publication.
    """
    study = read_results(directory / RESULTS)
    recorded = {run.key: run.record for run in study.runs if run.record is not None}
    known = recorded.keys() & whole.plan.by_key()
    measured = study.retention.keys() & whole.plan.retention_runs()
    if not known:
        commits = sorted({str(commit) for one in recorded.values() if (commit := one.environment.get("commit"))})
        remedy = f"check out commit {' or '.join(commits)} to use them, or run" if commits else "run"
        raise ConfigError(
            f"none of its {len(recorded)} runs has today's code, config and data; {remedy} the study anew",
            str(directory),
        )
    left = [run for run in whole.plan.by_key().values() if run.key not in known]
    needed = {stage.key for run in left for stage in whole.plan.chain(run.sources)}
    stages = {stage.key for stage in whole.plan.stages if stage.key in study.stages} - needed
    return restore(study, runs, known | measured | stages), len(known)
