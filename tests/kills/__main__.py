"""Kills the processes of studies again and again at random moments, and compares the results with undisturbed studies.

    python -m tests.kills --kills 1000 --folder /tmp/kills
    python -m tests.kills --kills 1000 --folder /tmp/kills-postgres --postgres
    python -m tests.kills --kills 100 --folder /tmp/kills-real --real
    python -m tests.kills --kills 40 --folder /tmp/kills-stages --real --stages

Each round is a study with two workers, of runs by one process and by two ranks, and with --real of runs whose data a
separate process loads; with --stages it is one of runs that start from each other, three in a row, of which two arms
share the first. Its command, workers, ranks, torchrun, the process from which workers are forked, loaders of
data, the process that loaders are forked from, all but the command, or all of them get SIGKILL or SIGTERM: at any
moment, or as a run is claimed, or a checkpoint, a record or the report written. The command is started again when it
has ended. When all runs have finished their records are compared, bit for bit except for measured times and memory,
with the records of the same study without kills. Stop it any time, and start it again to resume: counts are in the
folder.

Exits with status 1 where a record differs, a run was finished twice, or a process is left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

TESTS = Path(__file__).resolve().parents[1]
for folder in (TESTS.parent, TESTS, TESTS / "reliability", TESTS / "sweeps"):
    sys.path.insert(0, str(folder))
os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])

from ordeal import finished_records, living, run_command, what_training_left  # noqa: E402

MARK = "LIT_TESTS_KILLS"
"""The environment variable by which all processes of a command are known, whoever their parents are by then."""
VICTIMS = (
    "run", "run", "rank", "server", "loader", "loader server", "command", "torchrun", "all but the command", "all",
)  # fmt: skip
FILES = {
    "claim": "*/lock",
    "checkpoint": "*/checkpoint.ckpt",
    "record": "*/record.json",
    "report": "studies/*/report*",
}
"""The files whose change shows that a moment has come."""
MOMENTS = ("any", "any", *FILES)
WAIT_SECONDS = 60.0
"""How long a moment is waited for, and how long processes may take to end that lost their command."""
SEEDS = 3
LOADER_SERVER = "lit_transformers.training.loader_server"
STUDY = """
from ablations.ablation import Ablation, Metric
from standin.run import RunConfig

ABLATION = Ablation(
    question="Does recurrence help?",
    baseline=RunConfig().override({"training.steps": 60, "training.pause": 0.03}),
    design="explicit",
    arms={"one process": {}, "no memory": {"model.mixer.memory": 0}, "two ranks": {"training.devices": 2}},
    seeds=SEEDS,
    metric=Metric("val/bpb", goal="minimize"),
    rates=None,
)
"""


STAGES = """
from ablations.ablation import Ablation, Metric
from standin.chains import chain

ABLATION = Ablation(
    question="Does more pretraining help?",
    baseline=chain(60, 50, 40).override(
        {f"{path}training.pause": 0.03 for path in ("", "source.run.", "source.run.source.run.")}
    ),
    design="explicit",
    arms={
        "short": {},
        "long": {"source.run.training.steps": 70},
        "two ranks": {"source.run.source.run.training.devices": 2},
    },
    seeds=SEEDS,
    metric=Metric("val/bpb", goal="minimize"),
    rates=None,
)
"""
REAL_STAGES = """
from ablations.ablation import Ablation, Metric
from standin.frequent_checkpoints import RunConfig

DATA = {
    "kind": "language", "source": {"kind": "files", "path": CORPUS}, "segment_length": 16, "batch_size": 4,
    "evaluation": {"bytes": 2000}, "workers": 1,
}


def run(steps, **start):
    model = {"kind": "language_model", "dim": 16, "heads": 2, "depth": 2, "dropout": 0.1}
    training = {"steps": steps, "log_every": 20, "device": "cpu"}
    return {"model": model, "data": DATA, "training": training, "start": start}


second = run(30, network={"run": run(40)})
ABLATION = Ablation(
    question="Does more pretraining help?",
    baseline=RunConfig.from_dict(run(30, network={"run": second})),
    factors={"pretraining": {"short": {}, "long": {"start.network.run.training.steps": 40}}},
    seeds=SEEDS,
    metric=Metric("val/bpb", goal="minimize"),
    rates=None,
)
"""


class Study:
    """A study file, the folder of its rounds and counts, and the records of the undisturbed study."""

    def __init__(self, folder: Path, *, real: bool, stages: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.path = folder, folder / "recurrence.py"
        if not self.path.exists():
            if stages:
                from standin.recurrence import write_corpus

                write_corpus(folder / "corpus")
                text = (REAL_STAGES if real else STAGES).replace("CORPUS", repr(str(folder / "corpus")))
                self.path.write_text(text.replace("SEEDS", str(SEEDS)))
            elif real:
                from standin.recurrence import write_study

                corpus, module = folder / "corpus", "standin.frequent_checkpoints"
                write_study(self.path, corpus, module=module, steps=40, seeds=SEEDS, workers=1)
            else:
                self.path.write_text(STUDY.replace("SEEDS", str(SEEDS)))
        quiet = folder / "undisturbed"
        with (folder / "undisturbed.txt").open("ab") as log:
            subprocess.run(run_command(self.path, quiet), check=True, stdout=log, stderr=log)
        self.records = what_training_left(quiet)


class Round:
    """One study whose processes are killed until all its runs have finished."""

    def __init__(self, study: Study, runs: Path, storage: str | None, chance: random.Random) -> None:
        self.study, self.runs, self.chance = study, runs, chance
        self.command = run_command(study.path, runs, *(["--storage", storage] if storage else []))
        self.process: subprocess.Popen[bytes] | None = None
        self.finished: dict[str, bytes] = {}

    @property
    def log(self) -> Path:
        """The output of all commands."""
        return self.runs.with_suffix(".txt")

    def start(self) -> subprocess.Popen[bytes]:
        """The running command, started where it has ended."""
        if self.process is None or self.process.poll() is not None:
            with self.log.open("ab") as log:
                environment = {**os.environ, MARK: str(self.runs)}
                self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=environment)
        return self.process

    def members(self) -> dict[str, list[psutil.Process]]:
        """The living processes of all commands of this round, by their kind."""
        groups: dict[str, list[psutil.Process]] = {}
        for process in living(list(psutil.process_iter())):
            with suppress(psutil.Error, OSError):
                if process.pid != os.getpid() and process.environ().get(MARK) == str(self.runs):
                    groups.setdefault(self._kind(process), []).append(process)
        return groups

    def _kind(self, process: psutil.Process) -> str:
        words = process.cmdline()
        if self.process is not None and process.pid == self.process.pid:
            return "command"
        if "torch.distributed.run" in words:
            return "torchrun"
        parent = process.parent()
        above = [] if parent is None else parent.cmdline()
        if "sweeps.process.rank" in words:
            return "loader" if above == words else "rank"
        if any(LOADER_SERVER in word for word in words):
            return "loader" if above == words else "loader server"
        log = Path(f"/proc/{process.pid}/fd/1").readlink()
        if log.name == "log.txt" and log.is_relative_to(self.runs):
            return "run"
        return "server" if any("forkserver" in word for word in words) else "other"

    def strike(self) -> tuple[str, str, str] | None:
        """Waits for a moment and sends a signal; returns moment, victim and signal, or None where nobody was there."""
        process, kind = self.start(), self.chance.choice(VICTIMS)
        moment = self._wait(process, self.chance.choice(MOMENTS))
        number = self.chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
        self.check_records()
        groups = self.members()
        if process.poll() is not None:
            return None
        if kind.startswith("all"):
            spared = {"command"} if kind != "all" else set()
            victims = [victim for name, group in groups.items() if name not in spared for victim in group]
            self.chance.shuffle(victims)
        else:
            victims = [self.chance.choice(groups[kind])] if kind in groups else []
        struck = 0
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.send_signal(number)
                struck += 1
        return (moment, kind, number.name) if struck else None

    def _wait(self, process: subprocess.Popen[bytes], moment: str) -> str:
        """Waits for a moment; returns it, or "any" where it did not come."""
        if moment == "any":
            if self.chance.random() < 0.7:
                self._changed(process, lambda: sorted(self.runs.glob("*/log.txt")), first=True)
            time.sleep(self.chance.uniform(0, 2.0))
            return moment
        pattern = FILES[moment]
        came = self._changed(process, lambda: [(path, _stamp(path)) for path in self.runs.glob(pattern)])
        time.sleep(self.chance.choice((0.0, self.chance.uniform(0, 0.05), self.chance.uniform(0, 0.5))))
        return moment if came else "any"

    def _changed(self, process: subprocess.Popen[bytes], look: Callable[[], Any], *, first: bool = False) -> bool:
        """Waits until the result of ``look`` has changed or, if ``first``, is not empty; returns False where the
        command ended before."""
        before, deadline = look(), time.monotonic() + WAIT_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            now = look()
            if now != before or (first and now):
                return True
            time.sleep(0.002)
        return False

    def check_records(self) -> None:
        """Fails where a finished run was done again: another attempt would have left another record."""
        records = finished_records(self.runs)
        for key, record in self.finished.items():
            require(records.get(key) == record, f"{self.runs}: run {key} was finished, and its record has changed")
        self.finished = records

    @property
    def over(self) -> bool:
        """Whether all runs have finished and no command is at work."""
        self.check_records()
        ended = self.process is not None and self.process.poll() is not None
        return ended and len(self.finished) == len(self.study.records)

    def settle(self) -> None:
        """Lets the study end undisturbed, and compares its records. Fails where anything differs."""
        for _ in range(10):
            if self.start().wait() == 0:
                break
        self.check_records()
        require(
            what_training_left(self.runs) == self.study.records, f"{self.runs}: records differ from the undisturbed"
        )
        for path in self.runs.glob("*/finishes.txt"):
            require(len(path.read_text().splitlines()) == 1, f"{path}: it was finished more than once")
        deadline = time.monotonic() + WAIT_SECONDS
        while self.members() and time.monotonic() < deadline:
            time.sleep(0.2)
        require(not self.members(), f"{self.runs}: processes are left: {self.members()}")
        require("Traceback" not in self.log.read_text(errors="replace"), f"{self.log}: a traceback was printed")

    def close(self) -> None:
        """Leaves no process behind."""
        for group in self.members().values():
            for process in group:
                with suppress(psutil.NoSuchProcess):
                    process.kill()


def _stamp(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


def require(holds: bool, message: str) -> None:
    """Ends the script with status 1 and a message where something does not hold."""
    if not holds:
        print(f"FAULT: {message}", file=sys.stderr)
        raise SystemExit(1)


@contextmanager
def databases(folder: Path, *, postgres: bool) -> Iterator[Callable[[int], str | None]]:
    """Yields a function that returns the address of a round's ledger, None for SQLite in its folder of runs."""
    if not postgres:
        yield lambda number: None
        return
    from databases import SCRIPT, Server
    from ports import free_port

    home = folder / "postgres"
    words = [str(SCRIPT), "start", str(home), str(free_port())]
    url = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    addresses = folder / "addresses.json"

    def address(number: int) -> str:
        known = json.loads(addresses.read_text()) if addresses.exists() else {}
        known.setdefault(str(number), Server(home, url).database())
        addresses.write_text(json.dumps(known))
        return known[str(number)]

    try:
        yield address
    finally:
        subprocess.run([str(SCRIPT), "stop", str(home)], check=True)


def go(study: Study, kills: int, address: Callable[[int], str | None], chance: random.Random) -> dict[str, int]:
    """Does rounds until there were ``kills`` kills; returns the counts, which are stored after every kill."""
    path = study.folder / "counts.json"
    counts = Counter(json.loads(path.read_text())) if path.exists() else Counter()
    while counts["kills"] < kills:
        number = counts["rounds"]
        current = Round(study, study.folder / f"round{number}", address(number), chance)
        try:
            while not current.over and counts["kills"] < kills:
                if blow := current.strike():
                    counts.update(["kills", *(f"{what}: {name}" for what, name in zip(KINDS, blow, strict=True))])
                    path.write_text(json.dumps(counts))
            current.settle()
        finally:
            current.close()
        counts.update({"rounds": 1, "runs": len(study.records)})
        path.write_text(json.dumps(counts))
        shutil.rmtree(current.runs)
        print(f"{counts['kills']} kills, {counts['rounds']} rounds, {counts['runs']} runs as undisturbed", flush=True)
    return dict(counts)


KINDS = ("moment", "victim", "signal")


def main() -> None:
    """Parses the options, does the rounds, and prints the number of kills by moment, victim and signal."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=1000, help="how many, those of earlier calls counted in")
    parser.add_argument("--folder", type=Path, required=True, help="where studies and counts are kept")
    parser.add_argument("--postgres", action="store_true", help="with a ledger in PostgreSQL, which it starts")
    parser.add_argument("--real", action="store_true", help="runs of the library, which train, and not the stand-in's")
    parser.add_argument("--stages", action="store_true", help="runs that start from each other, three in a row")
    parser.add_argument("--seed", type=int, default=None, help="of the random moments")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # to stop started processes
    folder = options.folder.resolve()
    study = Study(folder, real=options.real, stages=options.stages)
    if options.postgres:
        folder.chmod(0o755)  # started by root, the server runs as another user
    with databases(folder, postgres=options.postgres) as address:
        counts = go(study, options.kills, address, random.Random(options.seed))
    for name, count in sorted(counts.items()):
        print(f"{name:36} {count}")


if __name__ == "__main__":
    main()
