"""Puts random and broken input in wherever bytes of a user come in: each is taken, or refused in one line.

    python -m tests.fuzz --inputs 100000 --seed 0
    python -m tests.fuzz --inputs 5000 --target "--set PATH=VALUE"
    python -m tests.fuzz --seed 0 --target plan.json --chunk 17

An input that is taken is held unchanged: a config is read from its own YAML as an equal config. An error is one of this
project's, in one line; no input takes longer than half a minute, and a refused input leaves no half-written file. The
seed, a target and the number of a chunk determine the inputs, for any number of jobs. A fault is printed with the
smallest input that shows it and the command that repeats it, and the command exits with status 1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
for path in (TESTS.parent, TESTS):
    sys.path.insert(0, str(path))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from fuzz.chunk import INPUTS, Chunk, Outcome, try_chunk  # noqa: E402
from fuzz.target import TARGETS  # noqa: E402


def settle(folder: str) -> None:
    """Gives a process a separate folder to work in."""
    os.chdir(tempfile.mkdtemp(dir=folder))


def chunks(targets: list[str], inputs: int, seed: int) -> Iterator[Chunk]:
    """The chunks of ``inputs`` inputs, in turn over the targets."""
    for place in range(-(-inputs // INPUTS)):
        number, turn = divmod(place, len(targets))
        yield Chunk(targets[turn], number, seed)


def tried(work: Iterable[Chunk], jobs: int, folder: str) -> Iterator[Outcome]:
    """The outcomes of chunks, in any order."""
    context = multiprocessing.get_context("fork")
    with context.Pool(jobs, settle, (folder,), maxtasksperchild=20) as pool:
        yield from pool.imap_unordered(try_chunk, work)


def main() -> int:
    """Parses the options, tries the chunks, and prints how many inputs each target took and refused."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--inputs", type=int, default=10_000, help="how many, over all targets")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), metavar="NAME", help="one; repeatable")
    parser.add_argument("--chunk", type=int, help="the chunk of this number alone, of one target")
    options = parser.parse_args()
    targets = options.target or sorted(TARGETS)
    one = [Chunk(name, options.chunk, options.seed) for name in targets]
    work = list(chunks(targets, options.inputs, options.seed)) if options.chunk is None else one
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    faults, folder = 0, tempfile.mkdtemp(prefix="fuzz-")
    try:
        for done, outcome in enumerate(tried(work, options.jobs, folder), 1):
            name, number, seed, _ = outcome.chunk
            counts[name] += outcome.counts
            if outcome.fault:
                faults += 1
                print(f'FAULT in {name}\n{outcome.fault}repeat: --seed {seed} --target "{name}" --chunk {number}\n')
            if done % 20 == 0 or done == len(work):
                total = sum(count.total() for count in counts.values())
                print(f"{done} of {len(work)} chunks, {total:,} inputs, {faults} with a fault", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, count in sorted(counts.items()):
        print(f"{name:56} {count['taken']:7,} taken {count['refused']:7,} refused")
    print(f"{sum(count.total() for count in counts.values()):,} inputs, {faults} chunks with a fault")
    return int(faults > 0)


if __name__ == "__main__":
    raise SystemExit(main())
