"""The process that computes is killed, stuck, or writes output that nobody reads: each request ends, and later ones are
answered."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import Reply, Served, serving

from lit_transformers.serving import dispatcher
from lit_transformers.serving.dispatcher import QueueLimits, StartError


@pytest.fixture(autouse=True)
def quick_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "PAUSES", (0.01, 0.02))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as started:
        yield started


def kill(served: Served) -> None:
    process = served.dispatcher.process
    assert process is not None and process.pid is not None
    os.kill(process.pid, signal.SIGKILL)


def stream_of(served: Served, prompt: dict[str, Any]) -> socket.socket:
    """Opens the stream of a text."""
    body = json.dumps(prompt).encode()
    return served.connect(b"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


def read_until(connection: socket.socket, end: bytes) -> bytes:
    content = b""
    while end not in content:
        received = connection.recv(1 << 16)
        assert received, content
        content += received
    return content


def test_a_killed_process_fails_only_what_it_computed_and_another_one_answers_the_rest(served: Served) -> None:
    held = [served.later("/classify", [{"text": "hold"}, {"text": "beside it"}])]
    served.until(lambda: "hold" in served.computed())
    waiting = [served.later("/embed", {"text": str(number)}) for number in range(20)]
    served.until(lambda: served.dispatcher.queued == 20)
    kill(served)
    for reply in held:
        assert reply.result().status == 503 and reply.result().headers["retry-after"] == "1"
        assert reply.result().body == {"detail": "the process that computes ended; try again"}
    assert [reply.result().body["text"] for reply in waiting] == [str(number) for number in range(20)]
    assert "lit_worker_restarts_total 1.0" in served.ask("/metrics", method="GET").body


def test_every_request_is_answered_or_refused_while_the_process_is_killed_again_and_again(served: Served) -> None:
    enough = threading.Event()

    def ask_on(client: int) -> list[tuple[list[str], Reply]]:
        replies = list[tuple[list[str], Reply]]()
        while not enough.is_set():
            texts = [f"{client} {len(replies)} {place}" * (1 + place) for place in range(1 + len(replies) % 5)]
            replies.append((texts, served.ask("/classify", [{"text": text} for text in texts])))
        return replies

    clients = [served.pool.submit(ask_on, client) for client in range(8)]
    for restarts in range(1, 4):
        begun = len(served.computed())
        served.until(lambda begun=begun: len(served.computed()) > begun + 100)
        kill(served)
        served.until(lambda restarts=restarts: restarts_of(served) == restarts and served.dispatcher.is_ready)
    enough.set()
    every = [reply for client in clients for reply in client.result()]
    for texts, reply in every:
        if reply.status == 200:
            assert [answer["text"] for answer in reply.body] == texts
        else:
            assert reply.status == 503 and reply.headers["retry-after"] == "1"
    assert sum(reply.status == 200 for _, reply in every) > 100
    counted = served.ask("/metrics", method="GET").body
    for status in (200, 503):
        count = sum(reply.status == status for _, reply in every)
        assert f'lit_requests_total{{ability="classify",status="{status}"}} {count:.1f}' in counted or not count
    assert served.dispatcher.queued == 0 and not served.dispatcher.waiting


def restarts_of(served: Served) -> int:
    """The number of times that the process has been started again."""
    counted: float = served.dispatcher.metrics.registry.get_sample_value("lit_worker_restarts_total") or 0
    return int(counted)


def test_a_process_that_cannot_start_again_is_tried_until_it_can(served: Served) -> None:
    (served.folder / "broken").touch()
    kill(served)
    served.until(lambda: served.ask("/health", method="GET").status == 503)
    waiting = served.later("/classify", {"text": "a"})
    served.until(lambda: served.dispatcher.queued == 1 and "broken" in served.computed())
    (served.folder / "broken").unlink()
    assert waiting.result().body["text"] == "a"
    assert served.ask("/health", method="GET").status == 200
    (served.folder / "broken").touch()
    with pytest.raises(StartError, match=r"^broken$"), serving(served.folder):
        pass


def test_a_text_that_ends_the_process_each_time_does_not_end_the_server(served: Served) -> None:
    for _ in range(2):
        assert served.ask("/classify", {"text": "die"}).status == 503
    assert served.ask("/generate", {"prompt": "die", "length": 1, "stream": False}).status == 503
    with stream_of(served, {"prompt": "die", "length": 2}) as connection:
        end = read_until(connection, b"0\r\n\r\n")
    assert b'event: error\ndata: {"detail": "the process that computes ended; try again"}' in end
    assert served.ask("/classify", {"text": "a"}).status == 200


def test_requests_are_given_up_in_time_and_a_stuck_process_is_replaced(tmp_path: Path) -> None:
    with serving(tmp_path, QueueLimits(timeout=0.2)) as served:
        stuck = served.later("/classify", {"text": "hold"})
        served.until(served.computed)
        waiting = served.ask("/classify", {"text": "a"})
        assert {stuck.result().status, waiting.status} == {504}
        assert waiting.body == {"detail": "no answer within 0.2 s; send fewer or shorter texts"}
        served.until(lambda: "lit_worker_restarts_total 1.0" in served.ask("/metrics", method="GET").body)
        served.until(lambda: served.ask("/classify", {"text": "b"}).status == 200)
        assert "a" not in served.computed(), "a text is computed that nobody waits for"


def test_a_text_that_nobody_waits_for_is_not_computed(served: Served) -> None:
    held = served.later("/classify", {"text": "hold"})
    served.until(served.computed)
    body = b'{"text": "left"}'
    gone = served.connect(b"POST /classify HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    served.until(lambda: served.dispatcher.queued == 1)
    gone.close()
    served.until(lambda: 'status="499"} 1.0' in served.ask("/metrics", method="GET").body)
    waiting = served.later("/classify", {"text": "a"})
    served.until(lambda: served.dispatcher.queued == 1)
    served.go()
    assert waiting.result().body["text"] == "a" and held.result().status == 200
    assert served.computed() == ["hold", "a"]


def test_a_text_comes_in_events_or_whole(served: Served) -> None:
    events = ['data: {"text": "a"}', 'data: {"text": " 0"}', 'data: {"text": " 1"}', "event: end\ndata: {}"]
    reply = served.ask("/generate", {"prompt": "a", "length": 2})
    assert reply.body == "".join(f"{event}\n\n" for event in events)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert served.ask("/generate", {"prompt": "a", "length": 2, "stream": False}).body == {"text": "a 0 1"}


def test_a_text_whose_reader_leaves_ends_and_the_next_one_is_whole(served: Served) -> None:
    for reader in ("stream", "whole"):
        before = len(served.computed())
        connection = stream_of(served, {"prompt": "hold", "length": 1000, "stream": reader == "stream"})
        if reader == "stream":
            assert b'{"text": "hold"}' in read_until(connection, b"hold")
        served.until(lambda: served.dispatcher.running.jobs and not served.dispatcher.free.is_set())
        connection.close()
        reply = served.ask("/generate", {"prompt": "next", "length": 2, "stream": False})
        assert reply.body == {"text": "next 0 1"}
        assert served.computed()[before:] == ["hold ended early", "next 0", "next 1"]


def test_a_text_in_the_queue_whose_reader_leaves_is_not_begun(served: Served) -> None:
    held = served.later("/classify", {"text": "hold"})
    served.until(served.computed)
    connection = stream_of(served, {"prompt": "left", "length": 3})
    served.until(lambda: served.dispatcher.queued == 1)
    connection.close()
    served.until(lambda: 'status="499"} 1.0' in served.ask("/metrics", method="GET").body)
    served.go()
    assert held.result().status == 200
    assert served.ask("/generate", {"prompt": "next", "length": 1, "stream": False}).body == {"text": "next 0"}
    assert served.computed() == ["hold", "next 0"]


def test_a_server_that_stops_answers_what_it_has_accepted_and_closes_idle_connections(served: Served) -> None:
    held = [served.later("/classify", {"text": "hold"})]
    served.until(served.computed)
    held += [served.later("/embed", {"text": str(number)}) for number in range(5)]
    served.until(lambda: served.dispatcher.queued == 5)
    assert served.server is not None
    with served.connect() as idle:
        served.until(lambda: served.server is not None and len(served.server.server_state.connections) == 7)
        served.server.should_exit = True
        assert idle.recv(1) == b""
    served.go()
    assert [reply.result().status for reply in held] == [200] * 6


def test_a_process_is_ended_with_its_server(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        process = served.dispatcher.process
    assert process is not None and process.exitcode == -signal.SIGKILL
