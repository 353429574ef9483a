"""The description of a machine's processor in records. Imports nothing heavy: plans compare it without torch."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from pathlib import Path

__all__ = ["processor", "processor_model", "vendor"]

DISTINGUISHING = ("model name", "cpu family", "model", "CPU implementer", "CPU part", "cpu", "machine")
"""The entries of /proc/cpuinfo that tell models of processors apart, on one architecture or another. The first may be
as plain as "Intel(R) Xeon(R) Processor" on a virtual machine, and the others are numbers."""


def processor() -> str:
    """Returns the model of the CPU, as far as the system names it, its architecture and the number of its cores."""
    names = [processor_model()[0], f"{platform.machine()} CPU", f"{os.cpu_count()} cores"]
    return ", ".join(name for name in names if name)


def processor_model() -> tuple[str, ...]:
    """Returns the name of the CPU's model, which may be empty, and the other entries that tell it from other models."""
    entries = _entries()
    if not entries:
        return (_name_by_system(),)
    return (entries.get("model name", ""), *(entries.get(name, "") for name in DISTINGUISHING[1:]))


def vendor() -> str:
    """Returns the vendor of the CPU as it names itself, such as AuthenticAMD; empty where the system does not say."""
    return _entries().get("vendor_id", "")


@cache
def _entries() -> dict[str, str]:
    """Returns the entries of /proc/cpuinfo for the first core; none where there is no such file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


@cache
def _name_by_system() -> str:
    """Returns the name of the CPU's model where there is no /proc: by sysctl on macOS, else by Python."""
    try:
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return platform.processor()
