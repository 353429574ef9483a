"""Where runs are sent at W&B, and that a host which does not take them is noticed before anything is trained."""

from __future__ import annotations

import json
import socket
import threading
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from standin import run as standin
from wandb_logins import logged_out

from ablations import __main__ as command
from ablations import catalog, run_study
from ablations.options import request_of
from ablations.plan import make_plan
from ablations.training import LaunchSettings
from lit_transformers.config import ConfigError
from lit_transformers.runs.wandb_logging import WandbConfig
from lit_transformers.wandb_target import NO_TARGET, PROJECT, WandbTarget, wandb_target
from sweeps.process import order as run_orders
from sweeps.process.order import RunOrder
from sweeps.wandb.connection import require_connection

KEY = "0123456789" * 4
ONLINE = WandbTarget("online")
STUDY = """
from ablations.ablation import Ablation, Metric
from standin.run import RunConfig

ABLATION = Ablation(
    question="Does memory help?",
    baseline=RunConfig(),
    factors={"memory": {"on": {}, "off": {"model.mixer.memory": 0}}},
    seeds=1,
    metric=Metric("val/bpb", goal="minimize"),
)
"""


@pytest.fixture(autouse=True)
def nobody_is_logged_in(tmp_path: Path) -> Iterator[None]:
    with logged_out(tmp_path) as patch:
        patch.setenv("NETRC", str(tmp_path / "netrc"))
        yield


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A host that knows one key, answers others as W&B does, and is named by the variable. Yields the queries that it
    receives."""
    queries: list[str] = []

    class Host(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            queries.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["query"])
            name, _, key = b64decode(self.headers["Authorization"].split()[1]).decode().partition(":")
            is_known = (self.path, name, key) == ("/graphql", "api", KEY)
            self.send_response(503 if key == "busy" * 10 else 200)
            self.end_headers()
            self.wfile.write(json.dumps({"data": {"viewer": {"id": "me"} if is_known else None}}).encode())

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    server = HTTPServer(("127.0.0.1", 0), Host)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    yield queries
    server.shutdown()
    server.server_close()


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "memory.py"
    path.write_text(STUDY)
    return path


def test_a_key_that_the_host_accepts_is_asked_for_once(host: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    require_connection(WandbTarget("offline"))
    assert not host
    require_connection(ONLINE)
    require_connection(ONLINE)
    assert len(host) == 1 and "viewer" in host[0]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", r"there is no key for http://\S+; log in: wandb login, or take --wandb offline, and .* wandb sync"),
        ("9876543210" * 4, "does not accept the key; log in again: wandb login --relogin, or take --wandb offline"),
        ("busy" * 10, "answers with status 503; try again, or take --wandb offline"),
    ],
)
def test_a_host_that_takes_no_runs_is_named_with_the_way_out(
    host: list[str], key: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
    with pytest.raises(ConfigError, match=f"--wandb online: .*{reason}"):
        require_connection(ONLINE)


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key, and a host at which nothing listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
    monkeypatch.setenv("WANDB_API_KEY", KEY)


@pytest.mark.parametrize("words", [["run"], ["worker"], ["agent", "--arm=memory=on"]], ids=lambda words: words[0])
def test_without_a_network_nothing_is_trained(
    words: list[str], study: Path, nowhere: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *rest = words
    assert command.main([name, str(study), "--runs", str(tmp_path / "runs"), "--wandb", "online", *rest]) == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if "--wandb online" in line]
    assert "cannot be reached: connection refused; connect, or take --wandb offline" in line
    assert not [*tmp_path.glob("runs/*/run.yaml")]


def test_without_a_network_a_call_from_python_trains_nothing(study: Path, nowhere: None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be reached: connection refused"):
        run_study(study, runs=tmp_path / "runs", wandb="online", progress=False)


def test_options_win_over_variables_and_these_over_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wandb_target("offline") == WandbTarget("offline", PROJECT)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.setenv("WANDB_ENTITY", "team")
    monkeypatch.setenv("WANDB_TAGS", "a, b,,a")
    assert wandb_target("offline")[:4] == ("offline", "mine", "team", ("a", "b"))
    assert wandb_target("online", "other", "they", "c")[:4] == ("online", "other", "they", ("c",))
    assert wandb_target("disabled") == NO_TARGET
    with pytest.raises(ConfigError, match="--tags: is for runs that are sent; add --wandb offline"):
        wandb_target("disabled", tags="c")
    monkeypatch.setenv("WANDB_PROJECT", "a/b")
    with pytest.raises(ConfigError, match="WANDB_PROJECT: a project has at most"):
        wandb_target("offline")
    with pytest.raises(ConfigError, match="--tags: a tag has at most 64 letters"):
        wandb_target("offline", "mine", tags="x" * 65)


def test_a_runs_process_receives_the_target(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a cluster, where the same options are submitted."""
    target = WandbTarget("offline", "mine", "team", ("a",))
    planned = make_plan("memory", catalog.load(study), request_of("demo", None, 1, None))
    options, [ticket, _] = LaunchSettings(workers=1, wandb=target).options(planned, 1), planned.tickets()
    received: list[WandbConfig] = []

    def fit(*_: Any, wandb_config: WandbConfig, **__: Any) -> None:
        received.append(wandb_config)
        raise standin.Interrupted

    monkeypatch.setattr(run_orders, "load_runner", lambda _: replace(standin.RUNNER, fit=fit))
    run_orders.perform(RunOrder(ticket, tmp_path, "", 1, None, False, options.group, options.wandb), None)
    [config] = received
    judged = target._replace(metric=planned.metric, goal=planned.plan.goal)
    assert config == WandbConfig(judged, "memory", ticket.arm, ticket.levels)


def test_sweeps_and_their_agents_go_to_the_target(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["wandb", str(study), "--runs", str(tmp_path / "runs"), "--project", "my runs", "--entity", "team"]
    assert command.main([*words, "--tags", "a,b"]) == 0
    [path] = tmp_path.glob("runs/studies/*/wandb/grid.yaml")
    assert f"wandb sweep --project 'my runs' --entity team {path}" in capsys.readouterr().out.splitlines()
    agent_words = yaml.safe_load(path.read_text())["command"]
    assert agent_words[-3:] == ["--tags", "a,b", "${args}"]


def test_a_dashboard_goes_to_the_target_and_says_how_to_send_it_again(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[Any] = []
    monkeypatch.setattr("ablations.dashboard.build_dashboard", lambda *words: received.extend(words) or True)
    words = ["dashboard", str(study), "--runs", str(tmp_path / "runs"), "--project", "mine", "--tags", "a,b"]
    assert command.main(words) == 0
    *_, target, again = received
    assert (target.project, target.tags) == ("mine", ("a", "b")) and "--project mine --tags a,b" in again


def test_an_agent_sends_its_run_to_the_sweeps_project(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W&B's agent states it in variables."""
    monkeypatch.setenv("WANDB_PROJECT", "of the sweep")
    received: list[WandbConfig] = []
    monkeypatch.setattr("sweeps.wandb.agent.carry_out", lambda *words: received.append(words[-1]) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        words = ["agent", str(study), "--runs", str(tmp_path / "runs"), "--wandb", "offline", "--arm=memory=on"]
        command.main(words)
    assert received[0].target.project == "of the sweep"
