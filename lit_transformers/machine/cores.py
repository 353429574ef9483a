"""Determines how many cores and how much memory this process may use and how many threads were requested, without
importing torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from lit_transformers.config import ConfigError

__all__ = ["cgroup_cores", "limit_threads", "machine_memory", "one_thread", "requested_threads", "usable_cores"]

THREADS = "OMP_NUM_THREADS"
LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
"""The files that hold the memory of a container, of cgroups of version 2 and 1."""


def usable_cores(root: Path = Path("/")) -> int:
    """Returns the number of cores that this process may run on (CPU affinity, cpusets), limited by its cgroups' quotas.

    A quota is rounded down, and one core is always left. root: the folder that holds /proc and /sys.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota = cgroup_cores(root)
    return cores if quota is None else max(1, min(cores, int(quota)))


def cgroup_cores(root: Path = Path("/")) -> float | None:
    """Returns the smallest CPU quota, in cores, of this process's cgroups and their ancestors; None without one."""
    return min((quota for folder in _cpu_cgroups(root) if (quota := _quota(folder)) is not None), default=None)


def machine_memory(root: Path = Path("/")) -> float:
    """Returns the bytes that this process may use: memory and swap, or those of its container; infinity where they are
    not known. root: the folder that holds /proc and /sys."""
    total = float("inf")
    with suppress(ValueError, OSError, AttributeError):
        total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if sys.platform != "linux":
        return total
    with suppress(OSError, ValueError, StopIteration):
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
        sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
        total = float(sizes["MemTotal"] + sizes.get("SwapTotal", 0))
    for name in LIMITS:
        with suppress(OSError, ValueError):  # "max" is no number
            total = min(total, float(int((root / name).read_text(encoding="ascii"))))
    return total


def requested_threads() -> int | None:
    """Returns the number of threads in OMP_NUM_THREADS, or None where it is not set.

    In a list, with one number for each level of nesting, the first counts. Raises ConfigError for any other value.
    """
    text = os.environ.get(THREADS, "").strip()
    if not text:
        return None
    first = text.partition(",")[0].strip()
    if not (first.isascii() and first.isdigit() and int(first) > 0):
        raise ConfigError(f"wants a number of threads from 1 on, not {text!r}; set it so, or unset it", THREADS)
    return int(first)


def limit_threads(threads: int | None = None) -> None:
    """Limits torch in this process to a number of threads; None: to the cores that it may use, unless OMP_NUM_THREADS
    sets the number."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    elif requested_threads() is None:
        torch.set_num_threads(min(torch.get_num_threads(), usable_cores()))


@contextmanager
def one_thread() -> Iterator[None]:
    """Computes on one thread within the block. Several threads of a small network wait for each other most of the time,
    the more so if other processes take the other cores."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _cpu_cgroups(root: Path) -> Iterator[Path]:
    """Yields folders of cgroups (versions 1 and 2) that may limit this process's CPU time, and their ancestors."""
    try:
        mounts = (root / "proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
        memberships = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        return
    own_groups: dict[str, PurePosixPath] = {}
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        own_groups |= dict.fromkeys(controllers.split(","), PurePosixPath(path))  # version 2 names no controllers
    for mount in mounts:
        location, _, filesystem = mount.partition(" - ")
        kind, _, options = filesystem.split(" ", 2)
        controller = {"cgroup": "cpu", "cgroup2": ""}.get(kind)
        if controller in own_groups and (kind == "cgroup2" or "cpu" in options.split(",")):
            top, folder = location.split(" ")[3:5]
            yield from _upwards(own_groups[controller], PurePosixPath(top), root / folder.lstrip("/"))


def _upwards(group: PurePosixPath, top: PurePosixPath, folder: Path) -> Iterator[Path]:
    """Yields the folder of a cgroup and of its ancestors, where ``folder`` is the mount of the cgroup ``top``.

    In a container the names may be those of the host: then only ``folder`` itself is visible.
    """
    relative = group.relative_to(top) if group.is_relative_to(top) and ".." not in group.parts else PurePosixPath()
    yield from (folder / ancestor for ancestor in (relative, *relative.parents))


def _quota(folder: Path) -> float | None:
    """Returns the CPU quota of one cgroup in cores, or None where it has none."""
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
