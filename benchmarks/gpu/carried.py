"""The files that travel to the machine, and their sizes: ``python -m benchmarks.gpu.carried``.

These are the checkout as git lists it, as far as its files are there, and ``.gpu``, which git ignores. Exits with 1
where both together are larger than a loan allows.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.gpu import ROOT

MIB = 2**20
LIMIT = 64
"""MiB that may be carried."""
LEFT_OUT = ("published", "claims")
"""Large folders that the kit does not read."""


def carried(root: Path = ROOT) -> Counter[str]:
    """Returns the bytes of each folder of a checkout, and of ``.gpu``."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
    paths = [root / name for name in listed if name] + [*(root / ".gpu").rglob("*")]
    sizes: Counter[str] = Counter()
    for path in paths:
        if path.is_file():
            sizes[path.relative_to(root).parts[0]] += path.stat().st_size
    return sizes


def main(limit: Annotated[float, typer.Option(help="The most that may be carried, in MiB.")] = LIMIT) -> None:
    """Prints the files and folders that travel, the largest first."""
    sizes = carried()
    for name, size in sizes.most_common(8):
        typer.echo(f"{size / MIB:8.2f} MiB  {name}")
    total = sum(sizes.values()) / MIB
    typer.echo(f"{total:8.2f} MiB  in total, of {limit:g}")
    if total > limit:
        folders = " ".join(f"'!/{name}'" for name in LEFT_OUT)
        typer.echo(
            f"error: omit folders that the kit never reads: git sparse-checkout set --no-cone '/*' {folders}",
            err=True,
        )
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
