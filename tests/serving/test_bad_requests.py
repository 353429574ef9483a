"""Bad requests over real connections: a server stays as it was, and the benchmark that says so would notice."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest
from served import serving_network
from tiny_runs import Kind, tiny_run

from benchmarks import bad_requests
from benchmarks.bad_requests import BadRequest, Reply, RequestCounts, abused, attempted, fault_of
from benchmarks.serving import RunningServer


@pytest.mark.parametrize(
    ("kind", "requests"),
    [
        ("classify", 1500),
        pytest.param("generate", 1000, marks=pytest.mark.slow),
        pytest.param("translate", 1000, marks=pytest.mark.slow),
        pytest.param("summarize", 1000, marks=pytest.mark.slow),
    ],
)
def test_a_server_stays_as_it_was_under_bad_requests(
    kind: Kind, requests: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bad_requests, "HELD", 0.0)
    with serving_network(tiny_run(kind, tmp_path)) as served:
        result = asyncio.run(abused(RunningServer(psutil.Process(), served.port), requests, 8, seed=1))
    assert result["faults"] == [] and result["equal_answers"] is True
    assert {"200", "400", "404", "405", "413", "422"} <= result["statuses"].keys() <= {
        "200", "400", "404", "405", "408", "413", "422", "429", "431", "closed", "not read"
    }  # fmt: skip
    assert sum(result["statuses"].values()) == result["requests"] == requests


@pytest.mark.parametrize(
    ("request_sent", "reply", "fault"),
    [
        (BadRequest(b"", "whole"), Reply(500, b'{"detail": "a"}', True), "status 500"),
        (BadRequest(b"", "whole"), Reply(0, b"", False), "no answer"),
        (BadRequest(b"", "whole", is_sound=True), Reply(422, b'{"detail": "a"}', True), "a sound request has status"),
        (BadRequest(b"", "whole"), Reply(422, b'{"detail": "a\\nb"}', True), "status 422 without a line"),
        (BadRequest(b"", "whole"), Reply(413, b"a", False), "status 413 without a line"),
        (BadRequest(b"", "ended", is_whole=False), Reply(0, b"", False), ""),
        (BadRequest(b"", "left"), None, ""),
        (BadRequest(b"", "whole"), Reply(200, b'data: {"text": "a"}\n\n', False, True), "events without an end"),
        (BadRequest(b"", "whole"), Reply(200, b"event: end\ndata: {}\n\n", False, True), ""),
        (BadRequest(b"", "whole"), Reply(200, b'event: error\ndata: {"detail": "a"}\n\n', False, True), ""),
    ],
)
def test_what_breaks_a_promise_is_a_fault(request_sent: BadRequest, reply: Reply | None, fault: str) -> None:
    found = fault_of(request_sent, reply)
    assert found.startswith(fault) and bool(found) == bool(fault)


def test_a_connection_that_hangs_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bad_requests, "PATIENCE", 0.05)

    async def hanging() -> RequestCounts:
        async def hold(*streams: Any) -> None:
            await asyncio.sleep(60)

        outcome = RequestCounts(Counter(), [])
        async with await asyncio.start_server(hold, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await attempted(port, islice([BadRequest(b"GET /", "whole")], 1), 1, outcome, set())
        return outcome

    outcome = asyncio.run(hanging())
    assert len(outcome.faults) == 1 and outcome.faults[0].startswith("hangs for 0.05 s")
