"""Requests to a server: each is answered or refused in one line, for any content, and next to any other requests."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import Reply, Served, reply_from, serving

from lit_transformers.serving import server
from lit_transformers.serving.app import Access, joined
from lit_transformers.serving.dispatcher import QueueLimits
from lit_transformers.serving.messages import LineAnswer

KEY = {"authorization": "Bearer secret"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that refuses nothing for being slow."""
    with serving(tmp_path_factory.mktemp("served")) as started:
        yield started


def request_of(body: bytes, path: str = "/classify", head: str = "Content-Length: {}", **more: Any) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: a\r\n{head.format(len(body))}\r\n\r\n".encode("latin-1") + body


def require_refusal(reply: Reply, status: int) -> str:
    """Returns the reason of a refusal, which is one line of JSON."""
    assert reply.status == status and reply.headers["content-type"] == "application/json", reply
    assert [*reply.body] == ["detail"]
    detail: str = reply.body["detail"]
    assert detail.strip() and "\n" not in detail and len(detail) < 1000
    return detail


BODIES = {
    "nothing": b"",
    "no JSON": b"text",
    "a number": b"1",
    "null": b"null",
    "an empty list": b"[]",
    "a list of texts": b'["a"]',
    "a list in a list": b"[[]]",
    "no UTF-8": b'{"text": "\xff"}',
    "UTF-16": '{"text": "a"}'.encode("utf-16"),
    "a mark of UTF-8": b'\xef\xbb\xbf{"text": "a"}',
    "deep": b'{"text": ' + b"[" * 200_000,
    "deep and whole": b"[" * 100_000 + b"]" * 100_000,
    "many digits": b'{"text": ' + b"9" * 5000 + b"}",
    "too many texts": json.dumps([{"text": "a"}] * 65).encode(),
    "a zero byte": b'{"text": "a"}\0',
}


@pytest.mark.parametrize("path", ["/classify", "/generate"])
def test_bodies_that_cannot_be_read_are_refused_in_a_line_of_json(served: Served, path: str) -> None:
    for name, body in BODIES.items():
        assert require_refusal(served.ask(path, body), 422), name
    assert served.ask("/classify", {"text": "a"}).status == 200


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "prompt: Field required"),
        ({"prompt": 1}, "prompt: Input should be a valid string"),
        ({"prompt": "a", "length": 0}, "length: "),
        ({"prompt": "a", "length": 1025}, "length: at most 1024 symbols are generated"),
        ({"prompt": "a" * 4097}, "prompt: at most 4096 characters are continued"),
        ({"prompt": "a", "temperature": float("nan")}, "temperature: "),
        ({"prompt": "a", "temperature": float("inf")}, "temperature: "),
        ({"prompt": "a", "top_p": 0}, "top_p: "),
        ({"prompt": "a", "seed": 1 << 63}, "seed: "),
        ({"prompt": "a", "le\nngth": 3}, "le ngth: Extra inputs are not permitted"),
        ({"prompt": "a", "\ud800": 3}, "body: "),
        ({"prompt": "bad"}, "is bad"),
        ([{"prompt": "a"}], "give a JSON object"),
    ],
)
def test_prompts_that_cannot_be_continued_are_refused_by_their_field(served: Served, body: Any, reason: str) -> None:
    assert require_refusal(served.ask("/generate", body), 422).startswith(reason)


def test_addresses_and_methods_that_there_are_not_are_refused_with_those_that_there_are(served: Served) -> None:
    known = "/classify, /embed, /generate, /docs, /health, /metrics"
    for path in ("/nothing", "/classify/", "/translate"):
        assert require_refusal(served.ask(path, {}), 404) == f"there is no {path}; the addresses are {known}"
    assert require_refusal(served.ask("/classify", method="GET"), 405) == "/classify takes no GET; send a POST request"
    assert served.ask("/classify", method="HEAD").status == 405
    assert require_refusal(served.ask("/health", {}), 405) == "/health takes no POST; send a GET request"
    assert served.ask("/classify", method="GET").headers["allow"] == "POST"


def test_what_is_no_http_is_refused_and_its_connection_closed(served: Served) -> None:
    for content in (b"text\r\n\r\n", b"\xff\xfe\r\n\r\n", request_of(b"", "/\xff"), request_of(b"", head="A b: c")):
        reply = served.raw(content)
        assert require_refusal(reply, 400) and reply.headers["connection"] == "close"
    assert require_refusal(served.raw(b"GET /" + b"a" * (1 << 17)), 431) == "a head has at most 65536 bytes"


def test_bodies_beyond_the_largest_are_refused_with_and_without_their_length(served: Served) -> None:
    largest = served.access.largest
    text = b'{"text": "' + b"a" * largest + b'"}'
    chunked = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (text[:1000], text[1000:])) + b"0\r\n\r\n"
    for content in (
        request_of(text),
        request_of(b"", head=f"Content-Length: {largest + 1}"),
        request_of(b"", head="Transfer-Encoding: chunked") + chunked,
    ):
        reply = served.raw(content)
        assert require_refusal(reply, 413) == f"a body has at most {largest} bytes"
    sent_whole = served.ask(
        "/classify", b" " * 8 * largest
    )  # it is read to its end, so that the client gets the answer
    assert require_refusal(sent_whole, 413)
    small = b'7\r\n{"text"\r\n6\r\n: "a"}\r\n0\r\n\r\n'
    assert served.raw(request_of(b"", head="Transfer-Encoding: chunked") + small).body["text"] == "a"


def test_lists_are_answered_in_order_and_refused_as_a_whole_by_the_place_of_a_bad_text(served: Served) -> None:
    replies = served.ask("/embed", [{"text": text} for text in "abc"]).body
    assert [(reply["text"], reply["together"]) for reply in replies] == [("a", 3), ("b", 3), ("c", 3)]
    refused = served.ask("/embed", [{"text": "a"}, {"text": "bad"}, {"text": "c"}])
    assert require_refusal(refused, 422) == "text 2: is bad"


def test_every_request_gets_its_own_answer_and_a_bad_one_spoils_no_other(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        held = served.later("/classify", {"text": "hold"})
        served.until(served.computed)
        texts = [[f"{number} {place}" for place in range(1 + number % 3)] for number in range(30)]
        lists = [[{"text": text} for text in own] for own in texts]
        waiting = [served.later(("/classify", "/embed")[number % 2], own) for number, own in enumerate(lists)]
        bad = served.later("/classify", [{"text": "good"}, {"text": "bad"}])
        served.until(lambda: served.dispatcher.queued == sum(map(len, texts)) + 2)
        served.go()
        for number, (own, reply) in enumerate(zip(texts, waiting, strict=True)):
            answers = reply.result().body
            assert [answer["text"] for answer in answers] == own
            assert {answer["ability"] for answer in answers} == {("classify", "embed")[number % 2]}
            assert min(answer["together"] for answer in answers) > 20, "requests that wait are not read together"
        assert require_refusal(bad.result(), 422) == "text 2: is bad" and held.result().status == 200


def test_a_key_is_compared_whole_and_asked_for_wherever_something_is_computed_or_measured(tmp_path: Path) -> None:
    with serving(tmp_path, access=Access(key="secret")) as served:
        for headers in ({}, *({"authorization": f"Bearer {key}"} for key in ("", "s", "secre", "secret2", "Secret"))):
            assert require_refusal(served.ask("/classify", {"text": "a"}, **headers), 401)
            assert require_refusal(served.ask("/generate", {"prompt": "a"}, **headers), 401)
            assert require_refusal(served.ask("/metrics", method="GET", **headers), 401)
        assert require_refusal(served.ask("/classify", {"text": "a"}, authorization="Basic secret"), 401)
        assert served.ask("/classify", {"text": "a"}, **KEY).status == 200
        assert served.ask("/classify", {"text": "a"}, authorization="bearer secret").status == 200
        metrics = served.ask("/metrics", method="GET", **KEY).body
        assert 'lit_requests_total{ability="classify",status="401"} 7.0' in metrics
        assert 'lit_requests_total{ability="classify",status="200"} 2.0' in metrics
        assert served.ask("/health", method="GET").body["ready"] is True


def test_slow_and_half_sent_requests_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.BoundedProtocol, "seconds", 0.2)
    with serving(tmp_path, access=Access(body_seconds=0.2)) as served:
        for content in (b"", b"POST /classify HTT", b"POST /classify HTTP/1.1\r\nHost: a\r\n"):
            with served.connect(content) as connection:
                assert connection.recv(1) == b"", "a connection without a request stays open"
        reply = served.raw(request_of(b'{"text"', head="Content-Length: 100"))
        assert require_refusal(reply, 408) == "the body did not arrive within 0.2 s"
        assert reply.headers["connection"] == "close"


def test_the_rest_of_a_body_whose_request_is_refused_is_no_head(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.BoundedProtocol, "longest_head", 1000)
    body = b" " * 5000
    with served.connect(request_of(b"", "/nothing", f"Content-Length: {len(body)}")) as connection:
        assert reply_from(connection).status == 404
        connection.sendall(body)
        time.sleep(0.02)
        connection.sendall(request_of(b'{"text": "a"}'))
        assert reply_from(connection).status == 200


def test_connections_beyond_the_most_are_refused_and_those_that_end_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS", 3)
    with serving(tmp_path) as served:
        idle = [served.connect() for _ in range(3)]
        served.until(lambda: served.server is not None and len(served.server.server_state.connections) == 3)
        with served.connect() as refused:
            refused.recv(1, socket.MSG_PEEK)
            for part in (request_of(b"", head="A: b"), b" " * 1000):  # it sends before it reads
                refused.sendall(part)
                time.sleep(0.02)
            reply = reply_from(refused)
        assert require_refusal(reply, 503) and reply.headers["retry-after"] == "1"
        for connection in idle:
            connection.close()
        served.until(lambda: served.server is not None and not served.server.server_state.connections)
        assert served.ask("/classify", {"text": "a"}).status == 200


def test_the_page_of_all_addresses_needs_no_network_and_describes_each(served: Served) -> None:
    page = served.ask("/docs", method="GET").body
    assert "http://" not in page.replace(f"http://127.0.0.1:{served.port}", "") and "https://" not in page
    paths = served.ask("/openapi.json", method="GET").body["paths"]
    assert {*paths} == {"/classify", "/embed", "/generate", "/health", "/metrics"}
    assert {*paths["/classify"]["post"]["responses"]} >= {"200", "401", "408", "413", "422", "429", "503", "504"}


def test_a_full_queue_refuses_at_once_and_loses_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, QueueLimits(queue=8, timeout=60.0)) as served:
        held = served.later("/classify", {"text": "hold"})
        served.until(served.computed)
        asked = [served.later("/classify", {"text": str(number)}) for number in range(50)]
        served.until(lambda: sum(reply.done() for reply in asked) == 42)
        assert not held.done()
        served.go()
        replies = [reply.result() for reply in asked]
        refused = [reply for reply in replies if reply.status != 200]
        assert len(refused) == 42 and all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
        assert all(require_refusal(reply, 429) for reply in refused)
        answered = {reply.body["text"] for reply in replies if reply.status == 200}
        assert len(answered) == 8 and {*served.computed()} == {"hold", *answered} and held.result().status == 200


def test_a_bad_text_is_named_by_its_place_in_its_own_request() -> None:
    answers = [LineAnswer(7, 200, "{}"), LineAnswer(8, 422, '{"detail": "is bad"}')]  # after seven of other requests
    assert json.loads(joined(answers).body)["detail"] == "text 2: is bad"
