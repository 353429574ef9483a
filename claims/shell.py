"""The commands of claims, as their users would type them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from claims.claim import ROOT, ClaimError

__all__ = ["metrics_in", "run_line"]


def run_line(line: str, folder: Path) -> str:
    """What a command prints to standard output; its progress goes to the terminal. ``python`` is this interpreter.

    Raises ClaimError with the last line of its output where it fails.
    """
    words = [part.format(folder=folder) for part in shlex.split(line)]
    words = [sys.executable if word == "python" else word for word in words]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "100"})
    if done.returncode != 0:
        last = (done.stdout.strip().splitlines() or ["nothing on standard output"])[-1]
        raise ClaimError(f"{line} ended with status {done.returncode}: {last}")
    return done.stdout


def metrics_in(output: str) -> dict[str, float]:
    """The metrics that ``fit`` and ``evaluate`` print, a name and a number a line."""
    pairs = (line.split() for line in output.splitlines())
    return {pair[0]: float(pair[1]) for pair in pairs if len(pair) == 2 and pair[0].startswith("val/")}
