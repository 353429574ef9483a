"""Makes the runs by the real runner, each in separate processes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from forked import Forked

from lit_transformers.runs import RunConfig, fit
from tests.golden.runs import RUNS, write_corpus

__all__ = ["record"]

CORPUS, LOG = "corpus", "log.txt"
SURROUNDINGS = ("LIT_DATA", "LIT_WEIGHTS")
"""Variables by which a run would find other files than those of the folder."""


def record(folder: Path, names: Sequence[str]) -> None:
    """Makes runs in an empty folder, each in a folder of its name. Exits with a line where one does not finish."""
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder} is not empty; name another folder")
    folder = folder.absolute()
    write_corpus(folder / CORPUS)
    for name in names:
        started = time.monotonic()
        place = folder / name
        place.mkdir()
        ranks = RUNS[name]["training"].get("devices", 0)
        if any(Forked(place / LOG, make, name, folder, ranks=ranks).wait()):
            raise SystemExit(f"{name}: not recorded:\n{(place / LOG).read_text()}")
        print(f"{name}: recorded in {time.monotonic() - started:.0f} s", flush=True)


def make(name: str, folder: Path) -> None:
    """Makes one run, whose paths are below the folder; for ``Forked``."""
    os.chdir(folder)
    os.environ["LIT_CACHE"] = str(folder / "cache")
    for variable in SURROUNDINGS:
        os.environ.pop(variable, None)
    done = fit(RunConfig.from_dict(RUNS[name]), folder / name)
    if done["outcome"] != "finished":
        sys.exit(f"{done['outcome']}: {done['reason']}")
