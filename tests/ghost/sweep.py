"""Runs cases on the ghost, each in a process that is forked after the imports, and prints a line of JSON for each.

    python -m tests.ghost run -- python -m tests.ghost.sweep --only PATTERN

``python -m tests.ghost check`` starts it, and compares the lines with the expected ones.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import traceback
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tests.ghost.build import ROOT
from tests.ghost.cases import GhostCase, all_cases
from tests.ghost.faults import fault_cases
from tests.ghost.watch import watching

SECONDS = 600
"""How long a case may take before it counts as one that hangs."""


class Outcome(NamedTuple):
    """found: the results of a case; places: where the host waited for the device, and how often."""

    name: str
    found: Mapping[str, str]
    places: list[str]


def outcome_of(case: GhostCase) -> Outcome:
    """Runs a case in this process. An error is an outcome too."""
    torch.manual_seed(0)
    with watching() as watch:
        try:
            found = case.run(watch)
        except Exception as error:
            found = {"error": described(error)}
    return Outcome(case.name, found, [f"{count} x {' '.join(place)}" for place, count in watch.waits.most_common()])


def described(error: Exception) -> str:
    """An error in one line, with the line of the suite that it comes from."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/lit_transformers/" in frame.filename]
    place = f"{frames[-1].filename.removeprefix(f'{ROOT}/')} {frames[-1].name} " if frames else ""
    return f"{place}{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"


def forked(case: GhostCase, work: Callable[[GhostCase], Outcome] = outcome_of) -> Outcome:
    """Runs a case in a forked process, in which nothing has been compiled or cached yet."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        os.close(reading)
        os.dup2(2, 1)  # the lines of JSON remain alone
        signal.alarm(SECONDS)
        with os.fdopen(writing, "w") as stream:
            json.dump(work(case), stream)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        content = stream.read()
    _, status = os.waitpid(process, 0)
    return Outcome(*json.loads(content)) if content else Outcome(case.name, {"error": f"status {status}"}, [])


def prepare() -> None:
    """Sets the properties that the ghost lacks, and has Dynamo import its modules, once for all cases. The ghost has no
    cuDNN, and its driver has no state that a fork would break. Memory is not cached, so it is zero when allocated, also
    where torch allocates and reads it within an operation."""
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    torch.set_num_threads(1)
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.cuda._is_in_bad_fork = lambda: False
    queries = torch.zeros(1, 1, 8, 16)
    with torch.no_grad():
        build, attend = (torch.compile(part, backend="aot_eager") for part in (create_block_mask, flex_attention))
        mask = build(lambda b, h, i, j: i >= j, 1, 1, 8, 8, device="cpu")
        attend(queries, queries, queries, block_mask=mask)
    torch.compiler.reset()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="PATTERN", help="the cases whose names match")
    parser.add_argument("--quick", action="store_true", help="the few cases that the tests run")
    parser.add_argument("--faults", action="store_true", help="the planted faults in place of the cases")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), metavar=("I", "N"), help="every Nth case, from I")
    options = parser.parse_args()
    cases = fault_cases() if options.faults else all_cases()
    chosen = [case for case in cases if re.search(options.only, case.name) and (case.quick or not options.quick)]
    first, step = options.part
    prepare()
    for case in chosen[first::step]:
        print(json.dumps(forked(case)), flush=True)


if __name__ == "__main__":
    main()
