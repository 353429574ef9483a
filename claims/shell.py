"""Runs the commands of claims as users would type them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from claims.claim import ROOT, ClaimError

__all__ = ["metrics_in", "run_line"]


def run_line(line: str, folder: Path) -> str:
    """Runs a command and returns its standard output; its progress goes to the terminal.

    ``python`` stands for this interpreter. Raises ClaimError with the last line of output where the command fails.
    """
    arguments = [part.format(folder=folder) for part in shlex.split(line)]
    arguments = [sys.executable if argument == "python" else argument for argument in arguments]
    completed = subprocess.run(
        arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "100"}
    )
    if completed.returncode != 0:
        last_line = (completed.stdout.strip().splitlines() or ["nothing on standard output"])[-1]
        raise ClaimError(f"{line} ended with status {completed.returncode}: {last_line}")
    return completed.stdout


def metrics_in(output: str) -> dict[str, float]:
    """Returns the metrics in the output of ``fit`` and ``evaluate``, which print one name and number per line."""
    words_by_line = (line.split() for line in output.splitlines())
    return {words[0]: float(words[1]) for words in words_by_line if len(words) == 2 and words[0].startswith("val/")}
