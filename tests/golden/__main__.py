"""Makes short runs of all that the library trains, and compares their results with those of another commit.

    python -m tests.golden record FOLDER
    python -m tests.golden compare FOLDER
    python -m tests.golden compare FOLDER OTHER

``record`` makes the runs on this code, in an empty folder. ``compare`` makes them in a temporary folder, or reads those
of OTHER, and prints a line for each: equal to the bit to that of FOLDER, or the first value that differs. It compares
records but for times, speeds, keys and machines, documents, curves and outputs. Results that are meant to differ are
listed in tests/golden/changes.py.

Exits with status 1 where another result differs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

TESTS = Path(__file__).resolve().parents[1]
os.environ.setdefault("OMP_NUM_THREADS", "1")
for folder in (TESTS.parent, TESTS):
    sys.path.insert(0, str(folder))
os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])

from tests.golden.changes import CHANGES  # noqa: E402
from tests.golden.compare import compared  # noqa: E402
from tests.golden.record import record  # noqa: E402
from tests.golden.runs import RUNS, WEIGHTS  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="make the runs on this code")
    comparing = commands.add_parser("compare", help="compare runs with those of a folder")
    for command in (recording, comparing):
        command.add_argument("folder", type=Path, help="an empty folder, or one that is recorded")
        command.add_argument("--only", default="", metavar="TEXT", help="make or compare runs whose name has this text")
    comparing.add_argument("other", type=Path, nargs="?", help="a folder to compare with; omitted: make the runs")
    options = parser.parse_args()
    names = chosen(options.only)
    if options.command == "record":
        record(options.folder, names)
        return 0
    if options.other is not None:
        return compare(options.folder, options.other, names)
    with TemporaryDirectory() as made:
        record(Path(made), names)
        return compare(options.folder, Path(made), names)


def chosen(text: str) -> list[str]:
    """Returns the names of runs with this text in them, and of the run whose weights they start from."""
    names = {name for name in RUNS if text in name}
    if any("weights" in RUNS[name] for name in names):
        names.add(WEIGHTS)
    if not names:
        raise SystemExit(f"--only: no run has {text!r} in its name; the runs are {', '.join(RUNS)}")
    return [name for name in RUNS if name in names]


def compare(before: Path, after: Path, names: Sequence[str]) -> int:
    status = 0
    for line, differs in compared(before, after, names, CHANGES):
        print(line)
        status = max(status, int(differs))
    return status


if __name__ == "__main__":
    sys.exit(main())
