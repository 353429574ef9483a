"""The command ``serve``: its answers are those of ``predict``, a signal ends it after the requests that it has
accepted, and a reason not to serve is one line."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import tiny_run
from waiting import SECONDS

from lit_transformers.__main__ import main
from lit_transformers.inference.lines import LineOptions
from lit_transformers.inference.predict import predictor_of

STARTS = ("good", "dull", "so so")
TEXTS = [f"{STARTS[number % 3]} film . {'it is long ' * (number % 7)}" for number in range(30)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run("classify", tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def server(checkpoint: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process of the command, and its port."""
    command = [sys.executable, "-m", "lit_transformers", "serve", str(checkpoint), "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        assert lines[0] == "checked 12 texts: served answers equal those of the commands\n", lines
        port = re.fullmatch(r"serves classify, embed at http://127\.0\.0\.1:(\d+) \(docs: /docs\)\n", lines[1])
        assert port is not None, lines
        yield process, int(port[1])
        process.kill()


def ask(port: int, body: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    connection.request("POST", "/classify", json.dumps(body))
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def test_the_server_answers_as_predict_does_and_ends_by_a_signal_after_what_it_has_accepted(
    server: tuple[subprocess.Popen[str], int], checkpoint: Path
) -> None:
    process, port = server
    writer = predictor_of(checkpoint, LineOptions(), "json")
    expected = [json.loads(line) for line in writer.write(json.dumps(text).encode() for text in TEXTS)]
    with ThreadPoolExecutor(8) as pool:
        replies = [*pool.map(lambda text: ask(port, {"text": text}), TEXTS)]
    replies.append(ask(port, [{"text": text} for text in TEXTS]))
    assert {status for status, _ in replies} == {200}
    for answers in ([answer for _, answer in replies[:-1]], replies[-1][1]):
        for answer, own in zip(answers, expected, strict=True):
            assert answer["label"] == own["label"]
            assert answer["probabilities"] == pytest.approx(own["probabilities"], abs=1e-5)
    body = json.dumps([{"text": text} for text in TEXTS]).encode()
    accepted = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
    accepted.sendall(b"POST /classify HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body[:-1]))
    assert ask(port, {"text": "a"})[0] == 200  # the head of the request before has been read
    process.send_signal(signal.SIGTERM)
    with pytest.raises(ConnectionError):  # refused, or reset amid the end
        while True:
            socket.create_connection(("127.0.0.1", port), timeout=SECONDS).close()
    accepted.sendall(body[-1:])
    response = http.client.HTTPResponse(accepted)
    response.begin()
    assert response.status == 200 and len(json.loads(response.read())) == len(TEXTS)
    output, _ = process.communicate(timeout=SECONDS)
    assert (process.returncode, output) == (0, "")


def test_what_keeps_it_from_serving_is_one_line(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["serve", str(checkpoint), "--port", str(port)]) == 2
    address = f"error: --port: cannot listen at 127.0.0.1, port {port}: Address already in use; choose another\n"
    assert capsys.readouterr().err == address
    for key in ("", "two words ", "é"):
        assert main(["serve", str(checkpoint), "--key", key]) == 2
        assert capsys.readouterr().err.startswith("error: --key: ")
    assert main(["serve", str(checkpoint), "--host", "no.such.machine.invalid"]) == 2
    assert capsys.readouterr().err.startswith("error: --port: cannot listen at no.such.machine.invalid, port 8000: ")
    for name in [name for name in sys.modules if name.startswith("lit_transformers.serving")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert main(["serve", str(checkpoint)]) == 2
    missing = "needs fastapi, which is not installed; run: pip install 'lit-transformers[serve]'"
    assert capsys.readouterr().err == f"error: serve: {missing}\n"
