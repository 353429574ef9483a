"""The suite on a ghost of a GPU: a CUDA build of torch whose driver does nothing. See ``tests/ghost/README.md``.

    python -m tests.ghost install             the environment, 6.4 GB, where there is none
    python -m tests.ghost check               run all cases; print a diff, with places, where they are not as expected
    python -m tests.ghost check --only lstm   run the cases whose names match
    python -m tests.ghost check --quick       run the few cases that the tests run
    python -m tests.ghost record              record the expected results anew; --only or --quick for some
    python -m tests.ghost contracts           the contract of torch.compile, on the environment's torch and the CPU
    python -m tests.ghost run -- COMMAND      a command that sees the ghost; its python is the environment's

``tests/ghost/expected.txt`` has a line for each case. LIT_GHOST names an environment that exists.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tests.ghost.build import HERE, ROOT, NoGhostError, build, environment, install, variables

EXPECTED = HERE / "expected.txt"


class Result(NamedTuple):
    """places: where the host waited for the device, and how often."""

    name: str
    text: str
    places: Sequence[str]


@contextmanager
def ghost() -> Iterator[dict[str, str]]:
    """Builds the ghost, and removes it after the block. Yields the environment variables of a process that sees it."""
    venv = environment()
    with TemporaryDirectory() as folder:
        build(venv, Path(folder))
        path = os.pathsep.join([str(venv / "bin"), os.environ["PATH"]])
        yield {**variables(Path(folder)), "PATH": path, "VIRTUAL_ENV": str(venv)}


def sweep(*arguments: str, workers: int = 1) -> list[Result]:
    """Runs cases on the ghost, in some processes at a time. Raises CalledProcessError where one fails."""
    venv, results = environment(), []
    with ghost() as env, TemporaryDirectory() as folder:
        quiet = "ignore:This process:DeprecationWarning"  # of forks
        command = [str(venv / "bin" / "python"), "-W", quiet, "-m", "tests.ghost.sweep", *arguments]
        outputs = [Path(folder, str(part)) for part in range(workers)]
        processes = []
        for part, path in enumerate(outputs):
            with path.open("wb") as stream:
                parts = ["--part", str(part), str(workers)]
                processes.append(subprocess.Popen([*command, *parts], cwd=ROOT, env=env, stdout=stream))
        if failed := [process for process in processes if process.wait()]:
            raise subprocess.CalledProcessError(failed[0].returncode, command)
        for path in outputs:
            results += [result_of(*json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return sorted(results)


def result_of(name: str, found: dict[str, Any], places: list[str]) -> Result:
    return Result(name, " ".join(f"{key}={value}" for key, value in found.items()), places)


def expected() -> dict[str, str]:
    """The expected result of each case, by its name."""
    return dict(line.split(": ", 1) for line in EXPECTED.read_text(encoding="utf-8").splitlines())


def differences(results: Sequence[Result], whole: bool) -> list[str]:
    """The lines of a diff between expected and actual results of the cases, with the places where the host
    waited. whole: all cases have run, so that further expected results belong to no case."""
    pinned, lines = expected(), []
    for result in results:
        before = pinned.get(result.name)
        if before != result.text:
            lines += [f"- {result.name}: {before}"] if before else []
            lines += [f"+ {result.name}: {result.text}", *(f"    {place}" for place in result.places)]
    gone = pinned.keys() - {result.name for result in results} if whole else ()
    return lines + [f"- {name}: {pinned[name]}" for name in sorted(gone)]


def record(results: Sequence[Result], whole: bool) -> None:
    """Records the results as the expected ones, and keeps the expected results of cases that have not run."""
    kept = {} if whole or not EXPECTED.exists() else expected()
    kept |= {result.name: result.text for result in results}
    EXPECTED.write_text("".join(f"{name}: {kept[name]}\n" for name in sorted(kept)), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("install", "check", "record", "contracts", "run"))
    parser.add_argument("--only", metavar="PATTERN", help="the cases whose names match")
    parser.add_argument("--quick", action="store_true", help="the few cases that the tests run")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="how many processes run at a time")
    parser.add_argument("program", nargs="*", metavar="COMMAND", help="of run: a command and its arguments")
    options = parser.parse_args()
    try:
        if options.command == "install":
            install()
        elif options.command == "contracts":
            command = [environment() / "bin" / "python", "-m", "pytest", "-q", "tests/contracts/test_compile.py"]
            return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode
        elif options.command == "run":
            with ghost() as env:
                return subprocess.run(options.program, env=env).returncode
        else:
            chosen = [*(["--only", options.only] if options.only else []), *(["--quick"] if options.quick else [])]
            results = sweep(*chosen, workers=options.workers)
            if options.command == "record":
                record(results, whole=not chosen)
            lines = differences(results, whole=not chosen)
            print("\n".join([*lines, f"{len(results)} cases"]))
            return bool(lines)
    except NoGhostError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
