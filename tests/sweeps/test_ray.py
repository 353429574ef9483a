"""Studies on a real Ray cluster of several nodes on this machine, which Ray's own test cluster starts."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from multiprocessing.connection import Client
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from rich.console import Console
from standin.chains import alone, chained
from standin.run import RELEASED
from standin_runs import OPTIONS, finishes, metrics, never_interrupted, states, tickets, workers_of
from waiting import SECONDS, wait_for, when

from lit_transformers.config import ConfigError
from sweeps.launchers import ray_cluster
from sweeps.launchers.local import Summary
from sweeps.launchers.ray_cluster import RayCluster, launch_on_ray, parse_ray_options
from sweeps.launchers.ray_messages import Connect, Connected, Ended, RayTask
from sweeps.launchers.remote import RemoteRun, require_equal_parts
from sweeps.ledger.ledger import Ledger
from sweeps.ledger.ticket import State, Ticket
from sweeps.live import Board
from sweeps.object_store import prepared
from sweeps.process.meeting import meeting_point
from sweeps.survey import survey

PATIENCE = {
    "RAY_agent_register_timeout_ms": "240000",
    "RAY_worker_register_timeout_seconds": "240",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
    "RAY_worker_niceness": "0",
}
"""Ray's own limits: long for steps that a busy machine makes slow, short for the absence of a head."""
LIGHT = {"include_log_monitor": False}


@contextmanager
def only_head() -> Iterator[Any]:
    """A cluster of a head that does no runs."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "no_monitor": True, **LIGHT}
    running = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield running
    finally:
        running.shutdown()


@pytest.fixture(scope="class")
def shared_head() -> Iterator[Any]:
    """A cluster for all tests, each of which has its own nodes."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'lit-transformers[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in PATIENCE.items():
            patch.setenv(name, value)
        with only_head() as running:
            yield running


@contextmanager
def cluster(running: Any, nodes: int, cores: int = 1) -> Iterator[Any]:
    """A cluster with as many nodes of that many cores."""
    try:
        for _ in range(nodes):
            running.add_node(num_cpus=cores, wait=False, **LIGHT)
        running.wait_for_nodes(timeout=240)
        yield running
    finally:
        for node in list(running.worker_nodes):
            running.remove_node(node)


def go(runs: Path, run_tickets: list[Ticket], address: str, **taken: int) -> tuple[Summary, str]:
    """The summary of the runs, which are stopped where they wait for ever, and the output. taken: the resources of the
    cluster that runs take."""
    rows, _ = survey(runs, run_tickets, OPTIONS.metric, retry_failed=False)
    ledger, console = Ledger(runs, heartbeat=1, grace=8), Console(file=StringIO(), width=300)
    try:
        board, options = Board(console, OPTIONS.metric), OPTIONS._replace(study="pauses")
        options = options._replace(memory_limit=None if taken else 4 << 30, deadline=time.monotonic() + SECONDS)
        summary = launch_on_ray(runs, ledger, board, rows, options, RayCluster(address, **taken))  # type: ignore[arg-type]
        return summary, console.file.getvalue()  # type: ignore[attr-defined]
    finally:
        ledger.close()


def have_checkpoints(runs: Path, run_tickets: list[Ticket]) -> Callable[[], bool]:
    return lambda: all((ticket.directory(runs) / "checkpoint.ckpt").exists() for ticket in run_tickets)


def nodes_of(runs: Path, running: Any) -> tuple[Any, set[Any]]:
    """The node of the run's process, and those of its ranks: whose raylet they descend from."""
    nodes = {node.all_processes["raylet"][0].process.pid: node for node in running.list_all_nodes()}

    def running_on(module: str) -> set[Any]:
        where = set()
        for worker in workers_of(runs):
            with suppress(psutil.NoSuchProcess):  # a helper of torch that is gone again
                if module in worker.cmdline():
                    where |= {nodes[parent.pid] for parent in worker.parents() if parent.pid in nodes}
        return where

    (first,) = running_on("sweeps.launchers.ray_start")
    return first, running_on("sweeps.process.rank")


@pytest.mark.slow
class TestOnACluster:
    def test_runs_of_a_node_that_dies_go_on_elsewhere_and_a_run_without_memory_fails_alone(
        self, shared_head: Any, tmp_path: Path
    ) -> None:
        """Two wait for the death of a node. Of two others, on the node that is left, one fills its memory, for which it
        gets a limit from the system."""
        runs, waiting, (leak,) = tmp_path / "runs", tickets(2, fault="wait"), tickets(1, fault="leak")

        def limit_memory() -> None:
            (worker,) = workers_of(leak.directory(runs))
            most = worker.memory_info().rss + (1 << 29)
            worker.rlimit(psutil.RLIMIT_DATA, (most, most))

        with cluster(shared_head, 2) as running:

            def kill_node() -> None:
                running.remove_node(running.list_all_nodes()[-1], allow_graceful=False)
                wait_for(lambda: len(workers_of(runs)) == 1, "its run continues without it")
                for ticket in waiting:
                    (ticket.directory(runs) / RELEASED).touch()

            with when(have_checkpoints(runs, waiting), kill_node):
                summary, output = go(runs, waiting, running.address)
            with when((leak.directory(runs) / "checkpoint.ckpt").exists, limit_memory):
                later, _ = go(runs, [leak, *tickets(1)], running.address)
        assert states(summary) == [State.FINISHED] * 2
        assert "died; it restarts" in output
        assert [finishes(runs, ticket) for ticket in waiting] == [1, 1]
        assert metrics(runs, waiting) == never_interrupted(tmp_path / "quiet", waiting)
        assert states(later) == [State.FAILED, State.FINISHED] and later.rows[0].reason == "out of memory"
        assert not workers_of(runs)

    def test_runs_that_start_from_others_are_tasks_when_these_have_finished(
        self, shared_head: Any, tmp_path: Path
    ) -> None:
        runs, run_tickets, broken = tmp_path / "runs", chained(4, 10, 5), chained(4, 3, fault="raise")
        with cluster(shared_head, 1, cores=2) as running:
            summary, output = go(runs, run_tickets, running.address)
            failed, _ = go(tmp_path / "broken", broken, running.address)
        assert states(summary) == [State.FINISHED] * 3, output
        assert [finishes(runs, ticket) for ticket in run_tickets] == [1, 1, 1]
        assert metrics(runs, run_tickets) == alone(4, 10, 5, runs=tmp_path / "quiet")
        assert states(failed) == [State.FAILED] * 2
        assert failed.rows[1].reason == f"its source {broken[0].key} failed: RuntimeError: something broke"

    def test_a_command_that_is_stopped_or_whose_head_dies_says_so_and_goes_on_with_the_next(
        self, shared_head: Any, tmp_path: Path
    ) -> None:
        runs, run_tickets = tmp_path / "runs", [*tickets(1, fault="wait"), *tickets(1)]
        path = run_tickets[0].directory(runs) / "checkpoint.ckpt"
        with only_head() as dying, cluster(dying, 1) as running:
            with when(path.exists, lambda: os.kill(os.getpid(), signal.SIGINT)):
                summary, _ = go(runs, run_tickets, running.address)
            assert summary.stopped_by == signal.SIGINT and states(summary) == [State.STOPPED, State.WAITING]
            assert path.read_text().startswith("[5,"), "it was killed, and the checkpoint is that of every third step"
            assert not workers_of(runs)
            path.unlink()
            with (
                when(path.exists, running.head_node.kill_gcs_server),
                pytest.raises(
                    ConfigError, match=r"the cluster has ended \(its head is gone\); run the same command to resume"
                ),
            ):
                go(runs, run_tickets, running.address)
        wait_for(lambda: not workers_of(runs))
        with cluster(shared_head, 1) as running:
            summary, _ = go(runs, run_tickets, running.address)
        assert states(summary) == [State.FINISHED] * 2
        assert [finishes(runs, ticket) for ticket in run_tickets] == [1, 1]
        assert metrics(runs, run_tickets) == never_interrupted(tmp_path / "quiet", run_tickets)

    def test_ranks_of_a_run_are_on_one_node_or_spread_over_several_and_go_on_in_others_when_one_dies(
        self, shared_head: Any, tmp_path: Path
    ) -> None:
        """When a node dies two are left, all of which the run needs: so it has given back those that it had before."""
        runs, spread_runs, together = tmp_path / "runs", tmp_path / "spread", tickets(1, devices=2)
        spread = tickets(1, fault="wait", devices=2)
        nodes: list[Any] = []
        with cluster(shared_head, 3, cores=2) as running:
            summary, _ = go(runs, together, running.address)

            def are_spread() -> bool:
                nodes[:] = nodes_of(spread_runs, running) if checkpoint.exists() else ()
                return len(nodes) == 2 and len(nodes[1]) == 2

            def kill_another_node() -> None:
                running.remove_node((nodes[1] - {nodes[0]}).pop(), allow_graceful=False)

            checkpoint = spread[0].directory(spread_runs) / "checkpoint.ckpt"
            with when(are_spread, kill_another_node):
                later, output = go(spread_runs, spread, running.address, nodes=2, cpus=2)
        assert states(summary) + states(later) == [State.FINISHED] * 2, output
        assert nodes[0] in nodes[1] and len(nodes[1]) == 2
        assert output.count("died; it restarts") == 1
        assert finishes(runs, together[0]) == finishes(spread_runs, spread[0]) == 1
        assert metrics(runs, together) == never_interrupted(tmp_path / "quiet", together)
        assert metrics(spread_runs, spread) == metrics(runs, together)
        wait_for(lambda: not workers_of(spread_runs))


@pytest.mark.parametrize("is_there", [True, False])
def test_a_run_is_not_to_blame_for_a_node_that_is_lost_with_the_head(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_there: bool
) -> None:
    ray_driver = pytest.importorskip("sweeps.launchers.ray_driver")
    from ray.exceptions import WorkerCrashedError

    def lose(task: Any) -> None:
        raise WorkerCrashedError

    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1] if is_there else 1}"
        context = SimpleNamespace(gcs_address=address)
        ray = SimpleNamespace(
            init=lambda *_, **__: None, nodes=list, get=lose, shutdown=lambda: None,
            wait=lambda tasks, **_: (tasks, []), get_runtime_context=lambda: context, ObjectRef=list,
        )  # fmt: skip
        monkeypatch.setattr(ray_driver, "ray", ray)
        monkeypatch.setattr(ray_driver, "HEAD_SECONDS", 0.2)
        monkeypatch.setattr(ray_driver, "_submit", lambda task: ("task", ray_driver._Submitted("key", None)))
        ours, theirs = multiprocessing.Pipe()
        thread = threading.Thread(target=ray_driver.drive, args=(os.dup(theirs.fileno()),))
        theirs.close()
        thread.start()
        ours.send(Connect("auto", {}))
        assert ours.recv() == Connected([])
        ours.send(RayTask(RemoteRun(tmp_path, tickets(1)[0], OPTIONS, 10, 60), 1, 0, None, 1, None, (), {}, None))
        if is_there:
            assert ours.recv() == Ended("key", "its process on the node died")
        else:
            with pytest.raises(EOFError):
                ours.recv()
        ours.close()
        thread.join()


def test_a_process_that_asks_for_ranks_after_some_were_lost_is_stopped_and_gets_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With an answer its run would fail, where the command is slower to stop it."""
    ray_tasks = pytest.importorskip("sweeps.launchers.ray_tasks")
    signals: list[int] = []
    monkeypatch.setattr(os, "kill", lambda process, number: signals.append(number))
    with meeting_point() as meeting:
        ranks = ray_tasks._Torchruns(None, None, meeting, "its node died")
        thread = threading.Thread(target=ranks.serve, daemon=True)
        thread.start()
        with Client(meeting.address) as asking:
            asking.send(([], {}))
            wait_for(lambda: signals)
            assert not asking.poll(0.5)
        meeting.listener.shutdown(socket.SHUT_RDWR)
        thread.join(SECONDS)
    assert signals == [signal.SIGTERM] and not thread.is_alive()


def test_an_address_where_nobody_answers_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--ray address=127.0.0.1:1: no Ray cluster answers; start one with"):
        go(tmp_path, tickets(1), "127.0.0.1:1")


def test_a_run_takes_the_cores_and_devices_of_its_ranks_on_each_node(tmp_path: Path) -> None:
    (ticket,) = tickets(1, devices=4)
    run = RemoteRun(tmp_path, ticket, OPTIONS, 10, 60)
    task = RayTask(run, 2, 1.0, 8 << 30, 1, None, (), {}, None)
    assert task.resources == {"num_cpus": 8, "num_gpus": 4.0, "memory": 8 << 30}
    assert task._replace(nodes=2).bundle == {"CPU": 4, "GPU": 2.0, "memory": 8 << 30}


def test_runs_that_nodes_cannot_share_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,), _ = survey(tmp_path, tickets(1, devices=4), OPTIONS.metric, retry_failed=False)
    message = "--ray nodes: 3 nodes cannot share 4 ranks of a run equally; give --devices 3, or a multiple"
    with pytest.raises(ConfigError, match=message):
        require_equal_parts(tmp_path, 3, [row], OPTIONS, "--ray")
    with pytest.raises(ConfigError, match="--memory-limit: is watched on one node alone"):
        require_equal_parts(tmp_path, 2, [row], OPTIONS._replace(memory_limit=1 << 30), "--ray")
    require_equal_parts(tmp_path, 2, [row], OPTIONS, "--ray")
    monkeypatch.setenv("LIT_TRANSFORMERS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(
        ConfigError, match="--runs: ranks on several nodes read the checkpoint of their run in one folder"
    ):
        require_equal_parts(prepared(f"file://{tmp_path}/bucket").folder, 2, [row], OPTIONS, "--ray")


def test_a_group_that_is_larger_than_the_cluster_is_one_line(tmp_path: Path) -> None:
    rows, _ = survey(tmp_path, tickets(1, devices=4), OPTIONS.metric, retry_failed=False)
    console, ledger = Console(file=StringIO(), width=300), Ledger(tmp_path)
    watch = ray_cluster._RayWatch(tmp_path, ledger, Board(console, OPTIONS.metric), OPTIONS, RayCluster(nodes=2))
    watch.nodes = [{"CPU": 2.0}, {"CPU": 1.0}]
    ray_cluster._warn_of_size(watch, rows)
    ledger.close()
    assert console.file.getvalue() == "a run needs 2 nodes, not 1 (CPU 2 each); runs wait for nodes that join\n"  # type: ignore[attr-defined]


def test_options_are_parsed(tmp_path: Path) -> None:
    settings = tmp_path / "env.yaml"
    settings.write_text("pip: [polars]\n")
    words = ["address=ray.cluster:6379", "cpus=2", "gpus=0.5", "memory=8GiB", "nodes=4", f"runtime_env={settings}"]
    assert parse_ray_options([*words, f"working_dir={tmp_path}"], "sqlite:///x") == RayCluster(
        "ray.cluster:6379", 2, 0.5, 8 << 30, 4, str(tmp_path), {"pip": ["polars"]}, "sqlite:///x"
    )


def test_a_folder_is_copied_without_its_runs(tmp_path: Path) -> None:
    cluster = RayCluster(working_dir=str(tmp_path), runtime_env={"excludes": ["/data/"]})
    assert ray_cluster._runtime_env(cluster, tmp_path / "all" / "runs")["excludes"] == ["/data/", "/all/runs/"]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("adress=auto", "--ray: no option 'adress'; did you mean address"),
        ("cpus", "--ray: write name=value, not 'cpus'"),
        ("nodes=0", "--ray nodes: wants a number of nodes from 1 on, not '0'"),
        ("gpus=1.5", "--ray gpus: wants a whole number of devices, or a part of one such as 0.5, not '1.5'"),
        ("working_dir=/nowhere", "--ray working_dir: there is no folder '/nowhere'"),
    ],
)
def test_an_option_that_cannot_be_is_refused_in_one_line(typed: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_ray_options([typed])
    assert str(error.value).startswith(message)
