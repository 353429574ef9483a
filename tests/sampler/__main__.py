"""Draws small runs at random and checks the promises about every run, for any combination of settings.

    python -m tests.sampler --minutes 60 --seed 0
    python -m tests.sampler --number 1234 --promise resumed

Each run is drawn from its number alone. A broken promise is printed with the command that tries it again, and the
command exits with status 1. Faults that are known and open are counted apart.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
for path in (TESTS.parent, TESTS):
    sys.path.insert(0, str(path))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])

import torch  # noqa: E402
from sampler.draws import FRAMES, drawn  # noqa: E402
from sampler.lightning_modules import compare, sampled  # noqa: E402
from sampler.trial import Outcome, shown, try_run  # noqa: E402

RUNS_OF_A_SEED = 1_000_000
MODULES = "lightning_module"
"""The frame of runs of a LightningModule, of which every tenth run is one."""
AS_LIGHTNING = "a LightningModule trains as Lightning trains it, however often it is stopped"


def outcomes(number: int, frame: str | None, promise: str, folder: Path) -> Iterator[tuple[int, Outcome]]:
    """Yields the number of the first run from a number on, and the outcome of each of its promises."""
    if frame == MODULES or (frame is None and number % 10 == 0):
        try:
            compare(sampled(number), folder, number)
            yield number, Outcome(AS_LIGHTNING)
        except Exception as error:
            yield number, Outcome(AS_LIGHTNING, "broken", shown(error))
        return
    run = drawn(number, frame)
    yield from ((run.number, outcome) for outcome in try_run(run.config, folder, run.number, promise))


def main() -> int:
    """Parses the options, draws runs until the time is up, and prints the promises that were held and broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.sampler", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="draw runs for this long")
    parser.add_argument("--seed", type=int, default=0, help="draw other runs than another seed")
    parser.add_argument("--number", type=int, help="try the first run from this number on, and no other")
    parser.add_argument("--frame", choices=[*sorted(FRAMES), MODULES], help="draw runs of this objective alone")
    parser.add_argument("--promise", default="", help="hold the promises alone whose name contains this text")
    options = parser.parse_args()
    torch.set_num_threads(1)
    number = options.seed * RUNS_OF_A_SEED if options.number is None else options.number
    end, runs = time.monotonic() + 60 * options.minutes, 0
    counts: Counter[tuple[str, str]] = Counter()
    while runs == 0 or (options.number is None and time.monotonic() < end):
        runs += 1
        with tempfile.TemporaryDirectory() as folder:
            for drawn_number, outcome in outcomes(number, options.frame, options.promise, Path(folder)):
                number = drawn_number
                counts[outcome.promise, outcome.verdict] += 1
                if outcome.verdict == "broken":
                    frame = ["--frame", options.frame] if options.frame else []
                    words = ["--number", str(number), *frame, "--promise", outcome.promise]
                    print(f"BROKEN: {outcome.promise}\n  {outcome.reason}", flush=True)
                    print(f"  python -m tests.sampler {shlex.join(words)}", flush=True)
        number += 1
    print(f"{runs} runs\n   held broken  known  promise")
    for promise in dict.fromkeys(promise for promise, _ in counts):
        held, broken, known = (counts[promise, verdict] for verdict in ("held", "broken", "open"))
        print(f"{held:7d}{broken:7d}{known:7d}  {promise}")
    return 1 if any(verdict == "broken" for _, verdict in counts) else 0


if __name__ == "__main__":
    sys.exit(main())
