"""Makes the environment of the ghost and its libraries. Imports nothing outside of the standard library.

``runtime.c``, ``driver.c`` and ``nvrtc.c`` have the functions that must answer something. For all others that torch's
libraries need, the names are read from these libraries and a function that does nothing is generated.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCES = HERE / "driver"
FOLDER = ROOT / ".ghost"
"""Holds the environment, unless LIT_GHOST names another."""
PYTHON = "python3.12"
REQUIREMENTS = (f"{ROOT}[dev]", "torch==2.11.*")


class NoGhostError(RuntimeError):
    """There is no environment, or no compiler."""


def environment() -> Path:
    """The environment with a CUDA build of torch. Raises NoGhostError where there is none."""
    venv = Path(os.environ.get("LIT_GHOST") or FOLDER / "venv").absolute()
    if not (venv / "bin" / "python").exists():
        raise NoGhostError(f"no environment of the ghost in {venv}: `make ghost` makes it (6.4 GB)")
    return venv


def install() -> None:
    """Makes the environment in ``FOLDER`` where LIT_GHOST names none: 6.4 GB, some minutes. The suite itself is not
    installed there; the checkout is on PYTHONPATH. Raises NoGhostError without the Python of the expected results."""
    if "LIT_GHOST" in os.environ or (FOLDER / "installed").exists():
        return
    if shutil.which(PYTHON) is None or subprocess.run([PYTHON, "--version"], capture_output=True).returncode:
        raise NoGhostError(
            f"{PYTHON} does not run here: install it, or name an environment with torch 2.11 by LIT_GHOST"
        )
    subprocess.run([PYTHON, "-m", "venv", FOLDER / "venv"], check=True)
    pip = [FOLDER / "venv" / "bin" / "python", "-m", "pip"]
    subprocess.run([*pip, "install", "--quiet", *REQUIREMENTS], check=True)
    subprocess.run([*pip, "uninstall", "--quiet", "--yes", "lit-transformers"], check=True)
    (FOLDER / "installed").touch()


def build(venv: Path, folder: Path) -> None:
    """Compiles the libraries into a folder, from the headers of an environment. Raises NoGhostError without a compiler,
    or where the environment's torch is built for CPUs."""
    packages = next(venv.glob("lib/python3*/site-packages"))
    header = next(packages.glob("nvidia/cu*/include/cuda_runtime_api.h"), None)
    if header is None:
        raise NoGhostError(f"no CUDA build of torch in {venv}")
    folder.mkdir(parents=True, exist_ok=True)
    nothing = folder / "nothing.c"
    nothing.write_text("".join(f"int {name}() {{ return 0; }}\n" for name in silent(packages / "torch" / "lib")))
    shared = ["gcc", "-O1", "-shared", "-fPIC"]
    runtime = ["-I", SOURCES, "-I", header.parent, SOURCES / "runtime.c", nothing, "-o", folder / "runtime.so"]
    try:
        subprocess.run([*shared, *runtime], check=True)
        for source, name in (("driver.c", "libcuda.so.1"), ("nvrtc.c", "libnvrtc.so.13")):
            subprocess.run([*shared, f"-Wl,-soname,{name}", SOURCES / source, "-o", folder / name], check=True)
    except FileNotFoundError as error:
        raise NoGhostError("no gcc") from error


REAL = {"cudaGetErrorName", "cudaGetErrorString", "cudaGetDriverEntryPointByVersion"}
"""Functions of the CUDA runtime that need no device and remain as they are."""


def silent(libraries: Path) -> list[str]:
    """The functions of the CUDA runtime and of cuBLAS that torch's libraries need and ``runtime.c`` does not define."""
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", *sorted(libraries.glob("*.so"))], check=True, capture_output=True, text=True
    ).stdout
    needed = {*re.findall(r"\b(?:cuda|cublas(?:Lt)?)[A-Z]\w*", symbols)}
    answered = {*re.findall(r"\b(?:cuda|cublas(?:Lt)?)[A-Z]\w*(?=[(,)])", (SOURCES / "runtime.c").read_text())}
    return sorted(needed - answered - REAL)


def variables(folder: Path) -> dict[str, str]:
    """The environment variables under which a process sees the ghost."""
    paths = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "contracts"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "LD_PRELOAD": f"{folder / 'runtime.so'} {folder / 'libnvrtc.so.13'}",
        "LD_LIBRARY_PATH": str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
        "USE_PYTORCH_KERNEL_CACHE": "0",  # no empty kernel is left for a GPU
    }
