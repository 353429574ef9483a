"""Which options of ``python -m ablations run`` go with which launcher: one that would have no effect is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lit_transformers.config import ConfigError

__all__ = ["require_fitting"]

ON_SLURM = {"--workers": "array_parallelism=N", "--threads": "cpus_per_task=N", "--memory-per-run": "mem=SIZE"}
"""What shares out this machine, and what says the same to SLURM."""


def require_fitting(launcher: str, slurm: Sequence[str] | None, local: Mapping[str, object]) -> None:
    """Raises ConfigError for options of the other launcher. local: those of ON_SLURM as given, None where not."""
    if launcher != "slurm":
        if slurm:
            raise ConfigError("is for the jobs of a cluster; add --launcher slurm, or leave it out", "--slurm")
        return
    for option, given in local.items():
        if given is not None:
            reason = f"shares out this machine, and not the nodes of a cluster; give --slurm {ON_SLURM[option]} instead"
            raise ConfigError(reason, option)
