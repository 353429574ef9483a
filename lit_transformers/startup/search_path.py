"""Imported first by every command and by the processes that it starts, so that the packages of this suite are imported
from where they are installed, regardless of the files in the working folder.

``python -m`` puts the working folder first on the search path, where a folder ``reports`` of the user would stand for
ours. Here it is put last. Where ``python -m ablations`` itself runs a local file, nothing of ours runs; the installed
command ``lit-ablations`` does not have the working folder on its path.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path

__all__ = ["SUITE", "put_working_folder_last"]

SUITE = ("lit_transformers", "datamodules", "ablations", "sweeps", "reports")
"""The packages that are installed together."""


def put_working_folder_last(root: Path, folder: Path) -> None:
    """Puts a folder last on the search path, after ``root``, which holds the suite; does nothing where it is that.

    Python processes that are started later do not put their own working folder first. Exits with one line where a
    package of the suite is still shadowed, by a folder of PYTHONPATH.
    """
    if root == folder:
        return
    os.environ["PYTHONSAFEPATH"] = "1"
    others = [entry for entry in sys.path if entry and Path(entry).resolve() != folder]
    sys.path[:] = [*others, *([] if str(root) in others else [str(root)]), str(folder)]
    for name in SUITE:
        if name in sys.modules and getattr(sys.modules[name], "__file__", None) is None:
            _import_package(name)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None and not Path(spec.origin).resolve().is_relative_to(root):
            print(
                f"error: {spec.origin} stands before the package {name} of {root} on the search path; "
                "rename it, or take its folder off PYTHONPATH",
                file=sys.stderr,
            )
            raise SystemExit(2)


def _import_package(name: str) -> None:
    """Imports a package in place of the namespace package that a folder of its name without __init__.py is."""
    del sys.modules[name]
    package = importlib.import_module(name)
    for inner in [module for module in sys.modules if module.rpartition(".")[0] == name]:
        setattr(package, inner.rpartition(".")[2], sys.modules[inner])


put_working_folder_last(Path(__file__).resolve().parents[2], Path.cwd().resolve())
importlib.import_module("lit_transformers.startup.interruption")  # now that it is ours
