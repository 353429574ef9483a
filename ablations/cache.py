"""Plans that are kept: a finished study is shown without importing torch or reading its corpus.

A kept plan holds as long as the files it came from: the study, the suite's own code, and the corpus by names, sizes and
times. Anything unexpected in a kept plan only means that it is made again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from ablations.plan import Plan, Request
from lit_transformers.config import Plain, canonical_hash
from lit_transformers.files import write_json

__all__ = ["cached_plan"]

PACKAGES = ("lit_transformers", "datamodules", "ablations", "sweeps")


def cached_plan(runs: Path, study: Path, typed: str, request: Request, make: Callable[[], Plan]) -> Plan:
    """The kept plan where it still holds, else the one that ``make`` makes, which is then kept.

    typed: the study as the command line names it, which stands in the plan's commands, as the folder of runs does.
    """
    places = [str(study.resolve()), typed, str(runs), os.environ.get("LIT_DATA", "")]
    name = canonical_hash([places, request.arguments(), sys.version])
    kept = runs / "studies" / study.stem / "plans" / f"{name}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        plain = json.loads(kept.read_text(encoding="utf-8"))
        plan = Plan.from_dict(plain["plan"])
        if plain["stamp"] == _stamp(study, plan):
            return plan
    plan = make()
    with suppress(OSError):  # a plan that cannot be kept is made again next time
        write_json(kept, {"stamp": _stamp(study, plan), "plan": plan.to_dict()})
    return plan


def _stamp(study: Path, plan: Plan) -> str:
    """A hash of everything a plan comes from: code by content, data by what the file system says."""
    found = hashlib.sha256()
    for path in (study, *_code(plan.runner)):
        found.update(f"{path.resolve()}\0".encode() + path.read_bytes() + b"\0")
    for folder in _data(plan.configs.values()):
        for line in _listing(folder):
            found.update(line.encode())
    return found.hexdigest()


def _code(runner: str) -> Iterator[Path]:
    """Every source file of the suite and of the runner's package."""
    for package in sorted({*PACKAGES, runner.split(".")[0]}):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations if spec else None) or ():
            yield from sorted(Path(folder).rglob("*.py"))


def _data(configs: Iterable[dict[str, Plain]]) -> list[Path]:
    """Files and folders that configs speak of, under LIT_DATA too; the standard library where one reads it."""
    words = {word for config in configs for word in _words(config.get("data"))}
    places = {Path(base, word) for word in words for base in ("", os.environ.get("LIT_DATA", ""))}
    found = {place for place in places if place.exists()}
    if "stdlib" in words:
        found.add(Path(sysconfig.get_paths()["stdlib"]))
    return sorted(found)


def _words(plain: Plain) -> Iterator[str]:
    """Every string in plain data that could be a path."""
    if isinstance(plain, dict):
        for value in plain.values():
            yield from _words(value)
    elif isinstance(plain, list):
        for value in plain:
            yield from _words(value)
    elif isinstance(plain, str) and plain:
        yield plain


def _listing(place: Path) -> Iterator[str]:
    """Name, size and time of a file, or of every file below a folder that is not code's own by-product."""
    if place.is_file():
        status = place.stat()
        yield f"{place} {status.st_size} {status.st_mtime_ns}\n"
        return
    for folder, folders, files in os.walk(place):
        folders[:] = sorted(name for name in folders if name not in ("__pycache__", "site-packages", ".git"))
        for name in sorted(files):
            yield from _listing(Path(folder, name))
