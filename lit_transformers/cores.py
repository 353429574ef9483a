"""How many cores this process may use, and how many threads it was told to use; found without importing torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from lit_transformers.config import ConfigError

__all__ = ["cgroup_cores", "limit_threads", "requested_threads", "usable_cores"]

THREADS = "OMP_NUM_THREADS"


def usable_cores(root: Path = Path("/")) -> int:
    """The cores that this process may run on (CPU affinity, cpusets), and no more than its cgroups' quotas pay for.

    A quota is rounded down, and one core is always left. root: the folder that holds /proc and /sys.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota = cgroup_cores(root)
    return cores if quota is None else max(1, min(cores, int(quota)))


def cgroup_cores(root: Path = Path("/")) -> float | None:
    """The smallest CPU quota, in cores, of this process's cgroups and of all above them; None where there is none."""
    return min((quota for folder in _cpu_cgroups(root) if (quota := _quota(folder)) is not None), default=None)


def requested_threads() -> int | None:
    """The threads that OMP_NUM_THREADS asks for; None where it is not set. Of a list, one a level, the first counts.

    Raises ConfigError for what is no number of threads.
    """
    text = os.environ.get(THREADS, "").strip()
    if not text:
        return None
    first = text.partition(",")[0].strip()
    if not (first.isascii() and first.isdigit() and int(first) > 0):
        raise ConfigError(f"wants a number of threads from 1 on, not {text!r}; set it so, or unset it", THREADS)
    return int(first)


def limit_threads() -> None:
    """Keeps torch in this process to the cores that it may use, unless OMP_NUM_THREADS says how many it is to take."""
    import torch

    if requested_threads() is None:
        torch.set_num_threads(min(torch.get_num_threads(), usable_cores()))


def _cpu_cgroups(root: Path) -> Iterator[Path]:
    """The folders of the cgroups that may limit this process's CPU time, of versions 1 and 2: its own and all above."""
    try:
        mounts = (root / "proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
        memberships = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        return
    own: dict[str, PurePosixPath] = {}
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), PurePosixPath(path))  # version 2 names no controllers
    for mount in mounts:
        place, _, system = mount.partition(" - ")
        kind, _, options = system.split(" ", 2)
        controller = {"cgroup": "cpu", "cgroup2": ""}.get(kind)
        if controller in own and (kind == "cgroup2" or "cpu" in options.split(",")):
            top, folder = place.split(" ")[3:5]
            yield from _upwards(own[controller], PurePosixPath(top), root / folder.lstrip("/"))


def _upwards(group: PurePosixPath, top: PurePosixPath, folder: Path) -> Iterator[Path]:
    """The folder of a cgroup and those above it, where ``folder`` shows the cgroup ``top`` and what is below.

    In a container the names may be those of the machine outside: ``folder`` is then all that can be seen.
    """
    below = group.relative_to(top) if group.is_relative_to(top) and ".." not in group.parts else PurePosixPath()
    yield from (folder / part for part in (below, *below.parents))


def _quota(folder: Path) -> float | None:
    """The CPU quota of one cgroup in cores; None where it has none."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        else:
            quota, period = (
                (folder / f"cpu.cfs_{name}_us").read_text(encoding="ascii") for name in ("quota", "period")
            )
        return int(quota) / int(period) if quota != "max" and int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None
