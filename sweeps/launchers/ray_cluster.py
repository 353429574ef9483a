"""Does runs on a Ray cluster: a task for each run, with its cores and devices, that claims its run from the ledger.

A task does its run as a command on its node would, so that nodes share the folder of runs, and a ledger on a server
where they are several machines. Ranks of a run may be spread over several nodes, which Ray reserves together. The
command watches the tasks, and they end with it: where it is stopped they write their checkpoints, and where it is
killed Ray kills them. A task that loses a node or a process is submitted again.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import psutil

from lit_transformers.config import ConfigError
from lit_transformers.plain_yaml import read_yaml
from lit_transformers.plugins import VARIABLE, typed
from sweeps.launchers.limits import parse_bytes, parse_count
from sweeps.launchers.local import CHECKPOINT_SECONDS, MAX_STOPS, Options, Summary, handled_signals
from sweeps.launchers.ray_messages import Connect, Connected, Ended, RayTask, Refused
from sweeps.launchers.remote import (
    STORAGE,
    RemoteRun,
    able_to_begin,
    named_values,
    remove_failed_records,
    require_equal_parts,
    update_rows,
)
from sweeps.ledger.ledger import Ledger
from sweeps.ledger.run_records import write_failure
from sweeps.ledger.ticket import State
from sweeps.live import Board, Row
from sweeps.object_store import CREDENTIALS, address_of
from sweeps.process.torchrun import import_path

__all__ = ["RayCluster", "launch_on_ray", "parse_ray_options", "require_answer"]

OPTION = "--ray"
SUITE_ROOT = Path(__file__).resolve().parents[2]
"""Where the suite is installed: Ray puts the folder of the process that is connected first on its workers' path."""
LOOK_SECONDS = 1.0
NO_ANSWER = "no Ray cluster answers; start one with: ray start --head"
CONNECT_SECONDS = 120.0
"""How long a cluster may take to accept the command."""
PASSED_ON = ("LIT_", "HF_", "WANDB_")
"""How the variables begin that tasks have from the command."""


class RayCluster(NamedTuple):
    """A cluster by its address, the resources of a rank of a run, and the ledger's address.

    gpus: devices of a rank; None for one device where runs train on CUDA, or on any device and the cluster has GPUs.
    memory: bytes of a run on each node; nodes: the number of nodes over which the ranks of a run are spread.
    working_dir: a folder that Ray copies to its nodes, None where they see the working folder. runtime_env: further
    settings of Ray's workers.
    """

    address: str = "auto"
    cpus: int = 1
    gpus: float | None = None
    memory: int | None = None
    nodes: int = 1
    working_dir: str | None = None
    runtime_env: Mapping[str, Any] = MappingProxyType({})
    storage: str | None = None


def parse_ray_options(assignments: Iterable[str], storage: str | None = None) -> RayCluster:
    """Parses ``address=auto``, ``cpus=4``, ``gpus=0.5``, ``memory=8GiB``, ``nodes=2``, ``working_dir=.``, and
    ``runtime_env=FILE``.

    Raises ConfigError for any other name, and for a value that cannot be.
    """
    values: dict[str, Any] = {}
    for name, text in named_values(assignments, _PARSERS, "option", OPTION):
        values[name] = _PARSERS[name](text, f"{OPTION} {name}")
    return RayCluster(**values, storage=storage)


def _devices(text: str, place: str) -> float:
    try:
        devices = float(text)
    except ValueError:
        devices = -1.0
    if not (0 <= devices < 1 or (1 <= devices < 1000 and devices.is_integer())):
        raise ConfigError(f"wants a whole number of devices, or a part of one such as 0.5, not {text!r}", place)
    return devices


def _folder(text: str, place: str) -> str:
    if not Path(text).is_dir():
        raise ConfigError(f"there is no folder {text!r}", place)
    return str(Path(text).resolve())


def _settings(text: str, place: str) -> dict[str, Any]:
    try:
        settings = read_yaml(Path(text).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{text}: {error}".splitlines()[0], place) from None
    if not isinstance(settings, dict):
        raise ConfigError(f"{text} holds no mapping; it is Ray's runtime_env as YAML", place)
    return settings


_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "address": lambda text, place: text,
    "cpus": lambda text, place: parse_count(text, "cores", place),
    "gpus": _devices,
    "memory": parse_bytes,
    "nodes": lambda text, place: parse_count(text, "nodes", place),
    "working_dir": _folder,
    "runtime_env": _settings,
}


@dataclass
class _RayWatch:
    """The state of the command. submitted: the keys of the runs that Ray has; ends, reasons: how often it had a run to
    no end, and why at last; unseen: for how many looks nobody has had a run since then."""

    runs: Path
    ledger: Ledger
    board: Board
    options: Options
    cluster: RayCluster
    nodes: list[dict[str, float]] = field(default_factory=list)
    submitted: set[str] = field(default_factory=set)
    ends: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    unseen: Counter[str] = field(default_factory=Counter)
    stopped_by: int | None = None
    kill_now: bool = False


def launch_on_ray(
    runs: Path, ledger: Ledger, board: Board, rows: list[Row], options: Options, cluster: RayCluster,
    begin: Callable[[], None] = lambda: None,
) -> Summary:  # fmt: skip
    """Does every waiting run as a task, and returns when all have ended or a signal arrives.

    begin: called when the cluster has accepted the command. Raises ConfigError where no cluster answers, or it ends,
    and where its nodes cannot share the ranks of a run.
    """
    require_equal_parts(runs, cluster.nodes, rows, options, OPTION)
    watch = _RayWatch(runs.resolve(), ledger, board, options, cluster)
    ledger.attend(board.say, lambda: watch.stopped_by is None)
    require_answer(cluster.address)
    log = watch.runs / "studies" / options.study / "ray.txt"
    with handled_signals(watch), _connection(cluster, log) as driver:
        watch.nodes = driver.connect(
            Connect(cluster.address, _runtime_env(cluster, watch.runs)), partial(_is_stopped, watch)
        )
        with board:
            board.watch(rows)
            if not _is_stopped(watch):
                begin()
                remove_failed_records(watch.runs, rows)
                _warn_of_size(watch, rows)
            while not (all(row.state.over for row in rows) or _is_stopped(watch)):
                _update(watch, driver, rows)
                board.refresh()
                for end in driver.ends():
                    _note_end(watch, end)
            if watch.stopped_by is not None:
                _stop(watch, driver, rows)
            board.refresh()
    return Summary(rows, watch.stopped_by)


class _Driver:
    """This end of the socket to the process that is connected to the cluster."""

    def __init__(self, connection: Connection, process: subprocess.Popen[bytes], address: str, log: Path) -> None:
        self._connection, self._process, self._address, self._log = connection, process, address, log

    def connect(self, request: Connect, is_stopped: Callable[[], bool]) -> list[dict[str, float]]:
        """Connects to the cluster and returns the resources of its nodes, none where the command is stopped meanwhile.

        Raises ConfigError where no cluster answers.
        """
        self._connection.send(request)
        deadline = time.monotonic() + CONNECT_SECONDS
        while not self._connection.poll(LOOK_SECONDS):
            if is_stopped():
                return []
            if time.monotonic() > deadline:
                raise ConfigError(f"no answer within {CONNECT_SECONDS:.0f} s; is the address right?", self._place)
        try:
            answer = self._connection.recv()
        except (EOFError, OSError):
            answer = Refused(None)
        if isinstance(answer, Connected):
            return answer.nodes
        assert isinstance(answer, Refused)
        raise ConfigError(answer.reason or f"{NO_ANSWER} (Ray's words: {self._log})", self._place)

    def send(self, message: RayTask | bool) -> None:
        """Submits a task, or cancels all: True kills them."""
        try:
            self._connection.send(message)
        except OSError:
            self._lost()

    def ends(self, seconds: float = LOOK_SECONDS) -> Iterator[Ended]:
        """Yields the tasks that ended; waits up to ``seconds`` for the first one."""
        try:
            while self._connection.poll(seconds):
                seconds, end = 0, self._connection.recv()
                assert isinstance(end, Ended)
                yield end
        except (EOFError, OSError):
            self._lost()

    def close(self) -> None:
        """Ends the process, and with it all tasks that are left."""
        self._connection.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def _place(self) -> str:
        return f"{OPTION} address={self._address}"

    def _lost(self) -> NoReturn:
        raise ConfigError(
            f"the cluster has ended (its head is gone); run the same command to resume (Ray's words: {self._log})",
            self._place,
        )


@contextmanager
def _connection(cluster: RayCluster, log: Path) -> Iterator[_Driver]:
    """Starts the process that is connected to the cluster, out of reach of the signals of a terminal."""
    log.parent.mkdir(parents=True, exist_ok=True)
    ours, theirs = socket.socketpair()
    code = f"from sweeps.launchers.ray_driver import drive; drive({theirs.fileno()})"
    with log.open("wb") as output, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            cwd=SUITE_ROOT,
            env={**os.environ, "PYTHONPATH": import_path(), "PYTHONSAFEPATH": "1"},
        )
    driver = _Driver(Connection(ours.detach()), process, cluster.address, log)
    try:
        yield driver
    finally:
        driver.close()


def require_answer(address: str) -> None:
    """Raises ConfigError where nobody listens at the address of a head, for which Ray itself would wait a minute."""
    if address == "auto" and not _is_started():
        raise ConfigError(NO_ANSWER, f"{OPTION} address=auto")
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdigit()) or "://" in address:
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError):
        raise ConfigError(NO_ANSWER, f"{OPTION} address={address}") from None


def _is_started() -> bool:
    """Whether a cluster is to be found without an address: in the environment, by Ray's file, or by its processes."""
    folder = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    if os.environ.get("RAY_ADDRESS") or folder.exists():
        return True
    names = (process.info["name"] or "" for process in psutil.process_iter(["name"]))
    return any(name.startswith(("gcs_server", "raylet")) for name in names)


def _runtime_env(cluster: RayCluster, runs: Path) -> dict[str, Any]:
    """Returns the settings of Ray's workers: the folder to copy, without runs, else this command's PYTHONPATH."""
    settings = dict(cluster.runtime_env)
    if (folder := cluster.working_dir) is not None:
        runs_inside = [f"/{runs.relative_to(folder)}/"] if runs.is_relative_to(folder) else []
        return settings | {"working_dir": folder, "excludes": [*settings.get("excludes", []), *runs_inside]}
    if path := os.environ.get("PYTHONPATH"):
        entries = os.pathsep.join(str(Path(entry).resolve()) for entry in path.split(os.pathsep) if entry)
        settings["env_vars"] = {"PYTHONPATH": entries, **settings.get("env_vars", {})}
    return settings


def _task(watch: _RayWatch, row: Row) -> RayTask:
    """Returns the task of a run."""
    cluster, training = watch.cluster, row.ticket.config.get("training") or {}
    assert isinstance(training, dict)
    devices = {"cuda", "auto"} if any(node.get("GPU") for node in watch.nodes) else {"cuda"}
    gpus = float(training.get("device") in devices) if cluster.gpus is None else cluster.gpus
    source = cluster.working_dir
    address = address_of(watch.runs)
    passed_on = PASSED_ON if address is None else (*PASSED_ON, *CREDENTIALS)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(passed_on) and name not in (STORAGE, VARIABLE)
    }
    run = RemoteRun(watch.runs, row.ticket, watch.options, watch.ledger.heartbeat, watch.ledger.grace, address)
    plugins = tuple(
        str(Path(name).relative_to(source)) if source and Path(name).is_relative_to(source) else name
        for name in typed()
    )
    folder = None if source else str(Path.cwd())
    return RayTask(
        run, cluster.cpus, gpus, cluster.memory, cluster.nodes, folder, plugins, environment, cluster.storage
    )


def _warn_of_size(watch: _RayWatch, rows: list[Row]) -> None:
    """Says where too few nodes are large enough for a run; a cluster that grows may get them."""
    for row in (row for row in rows if not row.state.over):
        task = _task(watch, row)
        count = sum(all(node.get(name, 0) >= amount for name, amount in task.bundle.items()) for node in watch.nodes)
        if count < task.nodes:
            text = ", ".join(f"{name} {amount:g}" for name, amount in task.bundle.items())
            lack = (
                "no node has the resources that a run needs"
                if task.nodes == 1
                else f"a run needs {task.nodes} nodes, not {count}"
            )
            watch.board.say(f"{lack} ({text}{' each' * (task.nodes > 1)}); runs wait for nodes that join")
            return


def _note_end(watch: _RayWatch, end: Ended) -> None:
    """Notes that Ray has a task no more. Raises ConfigError where its node could not do it."""
    if not end.lost:
        raise ConfigError(f"a node cannot do its run: {end.reason}", "--launcher ray")
    watch.submitted.discard(end.key)
    watch.unseen[end.key] = 0
    watch.ends[end.key] += 1
    watch.reasons[end.key] = end.reason or "its task ended without it"


def _update(watch: _RayWatch, driver: _Driver, rows: list[Row]) -> None:
    """Updates the rows, and submits the runs that neither a worker nor Ray has: again from the second look on, since
    the record of one may appear a moment later."""
    unfinished, gone = [row for row in rows if not row.state.over], watch.ends.keys() - watch.submitted
    held = update_rows(watch.runs, watch.ledger, watch.board, unfinished, watch.options.metric, gone)
    for row in able_to_begin(watch.runs, unfinished, rows):
        key = row.ticket.key
        if key in watch.submitted or key in held or watch.stopped_by is not None:
            continue
        watch.unseen[key] += 1
        if watch.ends[key] > MAX_STOPS:
            row.state, row.reason = State.FAILED, f"{watch.reasons[key]}, and {MAX_STOPS} times before"
            write_failure(watch.runs, row.ticket, row.reason, resumable=True)
        elif not watch.ends[key] or watch.unseen[key] > 1:
            if watch.ends[key]:
                watch.board.say(f"{row.ticket.arm}, seed {row.ticket.seed}: {watch.reasons[key]}; it restarts")
            driver.send(_task(watch, row))
            watch.submitted.add(key)
            row.taken += 1


def _is_stopped(watch: _RayWatch) -> bool:
    """Whether a signal or the deadline ends the command."""
    if watch.stopped_by is None and watch.options.deadline is not None and time.monotonic() > watch.options.deadline:
        watch.stopped_by = signal.SIGALRM
    return watch.stopped_by is not None


def _stop(watch: _RayWatch, driver: _Driver, rows: list[Row]) -> None:
    """Cancels the tasks and waits for their checkpoints; a second signal, or a timeout, kills them."""
    update_rows(watch.runs, watch.ledger, watch.board, rows, watch.options.metric)
    begun = {row.ticket.key for row in rows if row.state.active}
    driver.send(False)
    deadline = time.monotonic() + CHECKPOINT_SECONDS
    while watch.submitted and not watch.kill_now and time.monotonic() < deadline:
        for end in driver.ends():
            watch.submitted.discard(end.key)
    if watch.submitted:
        driver.send(True)
    update_rows(watch.runs, watch.ledger, watch.board, rows, watch.options.metric, begun)
    for row in rows:
        if row.ticket.key in begun and not row.state.over:
            row.state = State.STOPPED
