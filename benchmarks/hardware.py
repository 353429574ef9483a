"""What a timing was taken on, and where it is kept."""

from __future__ import annotations

import json
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import torch

RESULTS = Path(__file__).with_name("results")


def describe(packages: tuple[str, ...]) -> dict[str, Any]:
    """Hardware, load and versions."""
    cuda = torch.cuda.is_available()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": processor(),
        "cores": psutil.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(psutil.getloadavg()[0], 2),
        "gpu": torch.cuda.get_device_name() if cuda else None,
        "python": platform.python_version(),
        "versions": {package: version(package) for package in packages},
    }


def processor() -> str:
    """The processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def save(name: str, found: dict[str, Any]) -> Path:
    """Writes benchmarks/results/<name>.json."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return path
