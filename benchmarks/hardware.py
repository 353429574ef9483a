"""Describes the machine of a timing, and writes timings to files."""

from __future__ import annotations

import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch

from lit_transformers.machine.processor import processor_model
from lit_transformers.records.files import write_json
from lit_transformers.runs.environment import commit

RESULTS = Path(__file__).with_name("results")
EVERYWHERE = ("torch", "triton")
"""Packages whose versions are recorded with every timing, where they are installed."""
JSON_HELP = "Also write the numbers to benchmarks/results/NAME.json, or to a path that ends with .json."


def describe(packages: tuple[str, ...] = ()) -> dict[str, Any]:
    """The date, commit, hardware, load, and the versions of the packages."""
    cuda = torch.cuda.is_available()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "processor": processor_model()[0] or platform.machine(),
        "cores": psutil.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(psutil.getloadavg()[0], 2),
        "gpu": torch.cuda.get_device_name() if cuda else None,
        "gpu_memory_gib": round(torch.cuda.get_device_properties().total_memory / 2**30, 1) if cuda else None,
        "driver": driver() if cuda else None,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "versions": {package: installed(package) for package in dict.fromkeys((*EVERYWHERE, *packages))},
    }


def driver() -> str | None:
    """The version of NVIDIA's driver as nvidia-smi reports it, or None."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None
    return lines[0] if lines else None


def installed(package: str) -> str | None:
    """The version of a package, or None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def save(name: str, results: dict[str, Any]) -> Path:
    """Writes results to benchmarks/results/<name>.json, or to ``name`` where it ends with .json; returns the path."""
    path = Path(name) if name.endswith(".json") else RESULTS / f"{name}.json"
    write_json(path, results)
    return path
