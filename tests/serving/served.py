"""A server in a thread of the test's process, and plain requests to it."""

from __future__ import annotations

import asyncio
import http.client
import json
import multiprocessing
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvloop
from stand_in_process import answer_as_told
from waiting import SECONDS, wait_for

from lit_transformers.serving.app import Access
from lit_transformers.serving.dispatcher import Dispatcher, QueueLimits
from lit_transformers.serving.messages import ServingOptions
from lit_transformers.serving.metrics import Metrics
from lit_transformers.serving.server import AnnouncedServer, ServerAddress, server_of
from lit_transformers.serving.worker import answer_messages

__all__ = ["Reply", "Served", "reply_from", "serving", "serving_network"]


class Reply(NamedTuple):
    """The answer to a request. body: from JSON, or the text if it is none."""

    status: int
    body: Any
    headers: dict[str, str]


class Served:
    """A server that runs. folder: where its process of the stand-in looks for files."""

    def __init__(self, folder: Path, dispatcher: Dispatcher, address: ServerAddress, access: Access) -> None:
        self.folder, self.dispatcher, self.address, self.access = folder, dispatcher, address, access
        self.pool = ThreadPoolExecutor(64)
        self.server: AnnouncedServer | None = None
        self.port = 0
        self.fault: BaseException | None = None

    def run(self) -> None:
        """Runs the server in this thread until ``server.should_exit``."""
        try:
            with self.address.bound() as bound, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self.serve(bound))
        except BaseException as fault:
            self.fault = fault

    async def serve(self, bound: socket.socket) -> None:
        try:
            await self.dispatcher.start()
            self.server = server_of(self.dispatcher, self.address, self.access)
            self.port = bound.getsockname()[1]
            await self.server.serve([bound])
        finally:
            await self.dispatcher.stop()

    def ask(self, path: str, body: Any = None, method: str = "POST", **headers: str) -> Reply:
        """Sends a request and waits for the answer. body: as it is if it is bytes, otherwise as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, content, headers)
            return reply_of(connection.getresponse())
        finally:
            connection.close()

    def bytes_of(self, path: str, body: bytes) -> bytes:
        """Sends a request, and returns the body of the answer as it came."""
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        with self.connect(head.encode() + body) as connection:
            response = http.client.HTTPResponse(connection)
            response.begin()
            return response.read()

    def later(self, path: str, body: Any) -> Future[Reply]:
        """Sends a request in another thread."""
        return self.pool.submit(self.ask, path, body)

    def connect(self, content: bytes = b"") -> socket.socket:
        """Opens a connection and sends some bytes."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)
        connection.sendall(content)
        return connection

    def raw(self, content: bytes) -> Reply:
        """Sends bytes, and returns the answer to them."""
        with self.connect(content) as connection:
            return reply_from(connection)

    def computed(self) -> list[str]:
        """The texts that the process of the stand-in has begun."""
        file = self.folder / "computed"
        return file.read_text().splitlines() if file.exists() else []

    def until(self, condition: Callable[[], object]) -> None:
        wait_for(condition, every=0.002)

    def go(self) -> None:
        """Lets the process of the stand-in continue."""
        (self.folder / "go").touch()


def reply_from(connection: socket.socket) -> Reply:
    """Reads an answer from a connection."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    return reply_of(response)


def reply_of(response: http.client.HTTPResponse) -> Reply:
    content = response.read()
    is_json = response.headers.get_content_type() == "application/json"
    body = json.loads(content) if is_json and content else content.decode()
    return Reply(response.status, body, {name.lower(): value for name, value in response.getheaders()})


@contextmanager
def serving(
    folder: Path,
    limits: QueueLimits | None = None,
    access: Access | None = None,
    options: ServingOptions | None = None,
    target: Callable[[Connection, ServingOptions], None] = answer_as_told,
) -> Iterator[Served]:
    """Runs a server as long as the block lasts, by default one of the stand-in."""
    limits = limits or QueueLimits(timeout=60.0)
    dispatcher = Dispatcher(options or ServingOptions(folder), limits, Metrics(), target)
    served = Served(folder, dispatcher, ServerAddress(port=0), access or Access())
    thread = threading.Thread(target=served.run)
    thread.start()
    try:
        wait_for(lambda: served.fault or (served.server is not None and served.server.started), every=0.002)
        if served.fault:
            raise served.fault
        yield served
    finally:
        served.go()
        if served.server is not None:
            served.server.should_exit = True
        thread.join()
        served.pool.shutdown()


@contextmanager
def serving_network(checkpoint: Path, **options: Any) -> Iterator[Served]:
    """Runs a server of a checkpoint as long as the block lasts. The process that computes is forked from the one of the
    tests, which has imported torch."""
    context = multiprocessing.get_context("fork")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing, "get_context", lambda method: context)
        own = ServingOptions(checkpoint, **options)
        with serving(checkpoint.parent, options=own, target=answer_messages) as served:
            yield served


def rounded(value: Any) -> Any:
    """Returns an object that equals a value except for rounding."""
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return pytest.approx(value, abs=1e-5) if isinstance(value, float) else value
