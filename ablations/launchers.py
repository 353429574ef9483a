"""The launchers of ``python -m ablations run``, and the options of each: those of the other one are refused."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from lit_transformers.config import ConfigError
from sweeps.object_store import shown_address

if TYPE_CHECKING:
    from ablations.plan import Request
    from sweeps.launchers.local import Options, Summary
    from sweeps.ledger.ledger import Ledger
    from sweeps.live import Board, Row

__all__ = ["LauncherName", "RemoteLauncher", "remote_launcher", "require_fitting"]

LauncherName = Literal["local", "slurm", "ray"]
"""Where runs are done: on this machine, or on a cluster."""
EQUIVALENTS = {
    "slurm": {
        "--workers": "give --slurm array_parallelism=N instead",
        "--threads": "give --slurm cpus_per_task=N instead",
        "--memory-per-run": "give --slurm mem=SIZE instead",
    },
    "ray": {
        "--workers": "Ray does as many runs as fit its nodes; give --ray cpus=N to have fewer",
        "--threads": "give --ray cpus=N instead",
        "--memory-per-run": "give --ray memory=SIZE instead",
    },
}
"""The options that divide this machine among runs, and the alternative to each on each kind of cluster."""


class Launch(Protocol):
    """Does runs on other machines. begin: called when they have accepted the runs."""

    def __call__(
        self, runs: Path, ledger: Ledger, board: Board, rows: list[Row], options: Options, *, begin: Callable[[], None]
    ) -> Summary:
        """Returns when all runs have ended, or the command is stopped."""
        ...


class RemoteLauncher(NamedTuple):
    """The function that does runs on a cluster, and one that raises ConfigError where the cluster cannot be reached."""

    launch: Launch
    require_available: Callable[[], None]


def require_fitting(launcher: str, given: Mapping[str, Sequence[str] | None], local: Mapping[str, object]) -> None:
    """Raises ConfigError for options of another launcher.

    given: the options of each kind of cluster. local: the values of the options that divide this machine, or None.
    """
    for cluster, options in given.items():
        if options and cluster != launcher:
            raise ConfigError(f"is for runs on a cluster; add --launcher {cluster}, or leave it out", f"--{cluster}")
    for option, value in local.items():
        if value is not None and launcher != "local":
            reason = f"shares out this machine, and not the nodes of a cluster; {EQUIVALENTS[launcher][option]}"
            raise ConfigError(reason, option)


def remote_launcher(
    launcher: str, options: Sequence[str], storage: str | None, study: tuple[str, Path, Request]
) -> RemoteLauncher | None:
    """Returns the launcher of a cluster; None for this machine.

    options: those of its kind of cluster, as NAME=VALUE. study: as a command names it, its runs and its request, by
    which a job of SLURM reports. Raises ConfigError for options that are none, or a package that is not installed.
    """
    if launcher == "slurm":
        return _slurm_launcher(*study, options, storage)
    return _ray_launcher(options, storage) if launcher == "ray" else None


def _ray_launcher(options: Sequence[str], storage: str | None) -> RemoteLauncher:
    """Returns the launcher of a Ray cluster. Raises ConfigError where Ray is not installed."""
    if find_spec("ray") is None:
        raise ConfigError("needs ray: pip install 'lit-transformers[ray]'", "--launcher ray")
    from sweeps.launchers.ray_cluster import launch_on_ray, parse_ray_options, require_answer

    cluster = parse_ray_options(options, storage)
    return RemoteLauncher(partial(launch_on_ray, cluster=cluster), partial(require_answer, cluster.address))


def _slurm_launcher(
    study: str, runs: Path, request: Request, parameters: Sequence[str], storage: str | None
) -> RemoteLauncher:
    """Returns the launcher that submits the jobs of a study and its report to SLURM. Raises ConfigError where submitit
    is not installed."""
    try:
        from sweeps.launchers.slurm import Cluster, launch_on_slurm, parse_parameters, require_slurm
    except ModuleNotFoundError as error:
        raise ConfigError(f"needs {error.name}: pip install 'lit-transformers[cluster]'", "--launcher slurm") from None
    words = ["report", study, *request.arguments(), "--runs", shown_address(runs.resolve())]
    report = (sys.executable, "-m", "ablations", *words)
    cluster = Cluster(parse_parameters(parameters), storage, report)
    return RemoteLauncher(partial(launch_on_slurm, cluster=cluster), require_slurm)
