"""Imported by every Python process of tests, since this folder is first on their path: imports torchmetrics alone.

Lightning imports all of torchmetrics, which imports SciPy's signal processing, matplotlib and transformers for metrics
that nothing here uses: over a third of the seconds for which a process that trains starts. It is as if they were not
installed, until torchmetrics is imported; code that imports them itself gets them.

No process waits until its files are on disk either, some ten milliseconds each: tests kill processes and no machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

UNUSED = ("scipy", "matplotlib", "transformers")


class AloneLoader(SourceFileLoader):
    """Executes torchmetrics while Lightning's checks for installed packages know none of UNUSED."""

    def exec_module(self, module: ModuleType) -> None:
        from lightning_utilities.core import imports

        find_spec, version = imports.find_spec, imports._version

        def find_spec_of_used(name: str) -> ModuleSpec | None:
            return None if name.partition(".")[0] in UNUSED else find_spec(name)

        def version_of_used(name: str) -> str:
            if name in UNUSED:
                raise imports.PackageNotFoundError(name)
            return version(name)

        imports.find_spec, imports._version = find_spec_of_used, version_of_used
        try:
            super().exec_module(module)
        finally:
            imports.find_spec, imports._version = find_spec, version


class TorchmetricsFinder(MetaPathFinder):
    """Finds torchmetrics, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname == "torchmetrics" else None
        if spec is not None and spec.origin is not None:
            spec.loader = AloneLoader(fullname, spec.origin)
        return spec


sys.meta_path.insert(0, TorchmetricsFinder())
os.fsync = lambda fd: None
