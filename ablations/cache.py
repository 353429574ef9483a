"""The cache of plans, so that a finished study is shown without importing torch or reading its corpus.

A cached plan is valid as long as its inputs are unchanged: the study and all that planning it read from outside of
the suite (``ablations.inputs``), the suite's own code, and the corpus by names, sizes and times. A cached plan that
cannot be read is made again, and so is one that names a class which no study of the user has named: whoever could write
the file may have put it there.
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

from ablations.ablation import MEASURED
from ablations.inputs import StudyInputs, names_in
from ablations.plan import PlannedStudy, Request
from ablations.probing import measured_on
from lit_transformers.config import Plain, canonical_hash
from lit_transformers.plugins import plugins, source_files
from lit_transformers.records.files import write_json
from lit_transformers.trust import are_remembered

__all__ = ["cached_plan"]

PACKAGES = ("lit_transformers", "datamodules", "ablations", "sweeps")
FOLDERS = ("LIT_DATA", "LIT_WEIGHTS")
"""Environment variables of the folders that relative paths of configs start from."""


def cached_plan(
    runs: Path, study: Path, typed: str, request: Request, make: Callable[[], PlannedStudy]
) -> PlannedStudy:
    """Returns the cached plan where it is still valid, else the one that ``make`` returns, which is then cached.

    typed: the study as the command line names it, which is part of the plan's commands, as the folder of runs is.
    """
    addresses = [plugin.address for plugin in plugins()]
    variables = map(os.environ.get, (*FOLDERS, "PYTHONPATH"))
    locations = [str(study.resolve()), typed, str(runs), str(Path.cwd()), *variables, *addresses]
    name = canonical_hash([locations, request.arguments(), sys.version])
    cache_path = runs / "studies" / study.stem / "plans" / f"{name}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        contents = json.loads(cache_path.read_text(encoding="utf-8"))
        plan = PlannedStudy.from_dict(contents["plan"])
        is_unchanged = StudyInputs.unchanged(plan.inputs) and contents["stamp"] == _stamp(plan)
        if are_remembered(plan.classes) and is_unchanged:
            return plan
    plan = make()
    if plan.inputs:
        with suppress(OSError):  # a plan that cannot be cached is made again next time
            write_json(cache_path, {"stamp": _stamp(plan), "plan": plan.to_dict()})
    return plan


def _stamp(plan: PlannedStudy) -> str:
    """Returns a hash of everything that a plan depends on: code by its content, data by names, sizes and times of
    files, and the hardware where budgets are measured on it."""
    digest = hashlib.sha256()
    for path in (*_source_files(plan.runner), *source_files(), *map(Path, plan.sources)):
        digest.update(f"{path.resolve()}\0".encode() + _content(path) + b"\0")
    if plan.plan.match and plan.plan.match.on in MEASURED:
        digest.update(canonical_hash(measured_on()).encode())
    for folder in _data_paths(plan.configs.values()):
        for line in _file_stamps(folder):
            digest.update(line.encode())
    return digest.hexdigest()


def _content(path: Path) -> bytes:
    """Returns the content of a file, or the names in a folder: a file that is added to it may belong to the code."""
    return "\0".join(names_in(path)).encode() if path.is_dir() else path.read_bytes()


def _source_files(runner: str) -> Iterator[Path]:
    """Yields every source file of the suite and of the runner's package."""
    for package in sorted({*PACKAGES, runner.partition(":")[0].split(".")[0]}):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations if spec else None) or ():
            yield from sorted(Path(folder).rglob("*.py"))


def _data_paths(configs: Iterable[dict[str, Plain]]) -> list[Path]:
    """Returns the files and folders that configs name as data or weights, under LIT_DATA and LIT_WEIGHTS too, and the
    standard library if one reads it."""
    named = {id(part): part for config in configs for part in map(config.get, ("data", "model", "start"))}  # once each
    strings = {string for part in named.values() for string in _strings_in(part)}
    bases = ["", *(os.environ.get(folder, "") for folder in FOLDERS)]
    candidates = {Path(base, string) for string in strings for base in bases}
    existing = {path for path in candidates if path.exists()}
    if "stdlib" in strings:
        existing.add(Path(sysconfig.get_paths()["stdlib"]))
    return sorted(existing)


def _strings_in(value: Plain) -> Iterator[str]:
    """Yields every non-empty string in plain data: each could be a path."""
    if isinstance(value, dict):
        for item in value.values():
            yield from _strings_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings_in(item)
    elif isinstance(value, str) and value:
        yield value


def _file_stamps(path: Path) -> Iterator[str]:
    """Yields name, size in bytes and time of a file, or of every file below a folder except caches and packages."""
    if path.is_file():
        status = path.stat()
        yield f"{path} {status.st_size} {status.st_mtime_ns}\n"
        return
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if name not in ("__pycache__", "site-packages", ".git"))
        for name in sorted(files):
            yield from _file_stamps(Path(folder, name))
