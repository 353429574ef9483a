"""The launchers of ``python -m ablations run``, and the options of each: those of the other one are refused."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lit_transformers.config import ConfigError

if TYPE_CHECKING:
    from ablations.plan import Request
    from sweeps.launchers.slurm import Cluster

__all__ = ["cluster_for", "require_fitting"]

ON_SLURM = {"--workers": "array_parallelism=N", "--threads": "cpus_per_task=N", "--memory-per-run": "mem=SIZE"}
"""The options that divide this machine among runs, and their equivalents for SLURM."""


def require_fitting(launcher: str, slurm: Sequence[str] | None, local: Mapping[str, object]) -> None:
    """Raises ConfigError for options of the other launcher. local: the values of ON_SLURM's options, or None."""
    if launcher != "slurm":
        if slurm:
            raise ConfigError("is for the jobs of a cluster; add --launcher slurm, or leave it out", "--slurm")
        return
    for option, value in local.items():
        if value is not None:
            reason = f"shares out this machine, and not the nodes of a cluster; give --slurm {ON_SLURM[option]} instead"
            raise ConfigError(reason, option)


def cluster_for(study: str, runs: Path, request: Request, parameters: list[str], storage: str | None) -> Cluster:
    """Returns how to submit the jobs of a study and its report. Raises ConfigError where submitit is not installed."""
    try:
        from sweeps.launchers.slurm import Cluster, parse_parameters
    except ModuleNotFoundError as error:
        raise ConfigError(f"needs {error.name}: pip install 'lit-transformers[cluster]'", "--launcher slurm") from None
    report = (sys.executable, "-m", "ablations", "report", study, *request.arguments(), "--runs", str(runs.resolve()))
    return Cluster(parse_parameters(parameters), storage, report)
