"""``python -m benchmarks.gpu``: everything worth measuring on a borrowed GPU, in calls of some minutes.

Every call resumes where the last one ended. ``docs/gpu.md`` says how to prepare and which files to carry.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from benchmarks.gpu import ROOT


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, read by the standard library alone: wheels may have to be installed before all else."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=8.5, help="how long this call may take (default: 8.5)")
    parser.add_argument("--part", action="append", metavar="N", help="only this part, a to n; repeatable")
    parser.add_argument("--job", action="append", metavar="NAME", help="only this job; repeatable")
    parser.add_argument(
        "--out", type=Path, default=Path(".gpu/out"), help="where results go, and are read from (default: .gpu/out)"
    )
    parser.add_argument(
        "--work", type=Path, help="where runs, checkpoints and logs stay between calls (default: a temporary folder)"
    )
    parser.add_argument("--wheels", type=Path, help="a wheelhouse to install from, by python -m benchmarks.gpu.wheels")
    parser.add_argument("--rehearse", action="store_true", help="all of it on a CPU at toy size")
    parser.add_argument("--again", action="store_true", help="repeat finished jobs too")
    parser.add_argument("--list", action="store_true", help="the jobs and how they stand; runs nothing")
    return parser.parse_args(arguments)


def set_import_path(wheels: Path | None, work: Path) -> None:
    """Has this process and every job import this checkout first, then the packages installed from the wheelhouse.

    Exits with status 2 where the wheelhouse cannot be installed.
    """
    paths = [str(ROOT)]
    if wheels:
        site = work / "site"
        files = sorted(map(str, wheels.glob("*.whl")))
        if not files:
            fail(f"{wheels} holds no wheels; python -m benchmarks.gpu.wheels --to {wheels} makes them")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--upgrade"]
        completed = subprocess.run([*command, "--target", str(site), *files], capture_output=True, text=True)
        if completed.returncode != 0:
            fail(f"the wheels of {wheels} cannot be installed: {completed.stderr.strip().splitlines()[-1]}")
        paths.append(str(site))
        sys.path.insert(0, str(site))
    earlier = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *([earlier] if earlier else [])])


def fail(why: str) -> NoReturn:
    """Ends the command for bad input, with the reason on standard error."""
    print(f"error: {why}", file=sys.stderr)
    raise SystemExit(2)


def main() -> int:
    """Runs the kit and returns its exit status: 0 where nothing failed, 1 where a job did, 2 for bad input."""
    options = parse_options()
    work = options.work or Path(tempfile.gettempdir()) / "lit-transformers-gpu"
    work.mkdir(parents=True, exist_ok=True)
    set_import_path(options.wheels, work)
    try:
        from benchmarks.gpu.session import Session, SessionError  # needs packages of the wheelhouse
    except ImportError as error:
        fail(f"{error}; carry the missing packages as wheels: python -m benchmarks.gpu.wheels --help")
    try:
        return Session(options, work.resolve()).run()
    except SessionError as error:
        fail(str(error))


if __name__ == "__main__":
    sys.exit(main())
