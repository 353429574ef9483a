"""Cores and threads, on machines that are folders with the files by which Linux would describe them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from lit_transformers.config import ConfigError
from lit_transformers.machine.cores import cgroup_cores, limit_threads, machine_memory, requested_threads, usable_cores

V2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1 = "32 31 0:29 {top} /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct"


def machine(root: Path, mount: str, membership: str, **files: str) -> Path:
    """A root folder: one mount of cgroups, this process's place in it, and files below /sys/fs/cgroup."""
    proc = "22 1 0:20 / /proc rw - proc proc rw"
    proc_files = {"proc/self/mountinfo": f"{proc}\n{mount}", "proc/self/cgroup": membership}
    files = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for relative_path, text in {**proc_files, **files}.items():
        path = root / relative_path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def test_the_smallest_quota_of_a_cgroup_and_all_above_it_counts(tmp_path: Path) -> None:
    files = {"cpu.max": "max 100000", "batch/cpu.max": "250000 100000", "batch/job/cpu.max": "600000 100000"}
    assert cgroup_cores(machine(tmp_path, V2, "0::/batch/job", **files)) == 2.5


def test_a_quota_of_version_1_is_found_where_a_container_shows_its_own_cgroup_alone(tmp_path: Path) -> None:
    quota = {f"cpu,cpuacct/cpu.cfs_{name}_us": text for name, text in {"quota": "150000", "period": "50000"}.items()}
    membership = "4:cpu,cpuacct:/docker/1f2e\n1:name=systemd:/"
    assert cgroup_cores(machine(tmp_path, V1.format(top="/docker/1f2e"), membership, **quota)) == 3.0
    assert cgroup_cores(machine(tmp_path, V1.format(top="/"), "4:cpu,cpuacct:/../elsewhere", **quota)) == 3.0


def test_memory_is_that_of_the_machine_or_of_its_container(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 2048 kB\nMemFree: 5 kB\nSwapTotal: 1024 kB\n")
    assert machine_memory(tmp_path) == 3 << 20
    for limit, expected in (("max", 3 << 20), (str(1 << 20), 1 << 20), (str(1 << 60), 3 << 20)):
        (tmp_path / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{limit}\n")
        assert machine_memory(tmp_path) == expected


@pytest.mark.parametrize("period", ["-1", "0"])
def test_no_quota_limits_nothing(tmp_path: Path, period: str) -> None:
    files = {"cpu,cpuacct/cpu.cfs_quota_us": period, "cpu,cpuacct/cpu.cfs_period_us": "100000"}
    assert cgroup_cores(machine(tmp_path, V1.format(top="/"), "4:cpu,cpuacct:/", **files)) is None
    assert cgroup_cores(tmp_path / "no such machine") is None


def test_cores_of_a_quota_are_rounded_down_to_one_at_least(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    cores_by_quota = {"350000 100000": 3, "50000 100000": 1, "max 100000": 16, "9900000 100000": 16}
    assert {
        text: usable_cores(machine(tmp_path, V2, "0::/", **{"cpu.max": text})) for text in cores_by_quota
    } == cores_by_quota


def test_threads_that_are_asked_for_are_read_and_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, threads in {"3": 3, " 4,2": 4, "": None}.items():
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert requested_threads() == threads
    for text in ("0", "many", "-2"):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        with pytest.raises(ConfigError, match="OMP_NUM_THREADS: wants a number of threads"):
            requested_threads()


def test_torch_keeps_to_the_cores_unless_threads_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lit_transformers.machine.cores.usable_cores", lambda: 2)
    torch.set_num_threads(3)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    limit_threads()
    assert torch.get_num_threads() == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    limit_threads()
    assert torch.get_num_threads() == 2
