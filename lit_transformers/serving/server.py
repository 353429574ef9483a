"""Runs the server of a checkpoint until it is stopped."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from lit_transformers.config import ConfigError
from lit_transformers.serving.app import Access, app_of
from lit_transformers.serving.dispatcher import Dispatcher, QueueLimits, StartError
from lit_transformers.serving.messages import ServingOptions
from lit_transformers.serving.metrics import Metrics

__all__ = ["ServerAddress", "serve"]

CONNECTIONS = 4096
"""The most connections at once."""
OTHER_FILES = 64
"""The files that a server opens besides connections."""
REFUSED = 32
"""The most connections beyond the most at once that have the time to read why they are refused."""


class ServerAddress(NamedTuple):
    """host, port: where the server listens; port 0: any that is free. grace: seconds that requests have to end when it
    is stopped."""

    host: str = "127.0.0.1"
    port: int = 8000
    grace: int = 30

    def bound(self) -> socket.socket:
        """Returns a socket that is bound to this address. Raises ConfigError if it cannot be."""
        try:
            family, kind, _, _, place = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
            bound = socket.socket(family, kind)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(place)
        except (OSError, UnicodeError) as error:
            raise self.unusable(error) from None
        return bound

    def unusable(self, error: OSError | UnicodeError) -> ConfigError:
        """Returns the error of an address at which no server can listen."""
        reason = error.strerror if isinstance(error, OSError) else "it is no name of a machine"
        return ConfigError(f"cannot listen at {self.host}, port {self.port}: {reason}; choose another", "--port")


class BoundedProtocol(HttpToolsProtocol):
    """Refuses connections beyond the most at once, and requests whose head is too slow, too long or malformed. uvicorn
    waits for the first bytes without end, and reads heads of any length."""

    seconds, refused_seconds = 10.0, 1.0
    longest_head = 1 << 16
    most = CONNECTIONS
    timer: asyncio.TimerHandle | None = None
    head, in_body, is_refused = 0, False, False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.most:
            self.refuse(503, "the server has too many connections; try again after 1 s", b"retry-after: 1\r\n")
        else:
            self.watch()

    def data_received(self, data: bytes) -> None:
        if self.is_refused or self.transport.is_closing():
            return
        is_of_body = self.in_body
        super().data_received(data)
        if self.is_refused:
            return
        self.watch()
        self.head = 0 if is_of_body or self.in_body or self.timer is None else self.head + len(data)
        if self.head > self.longest_head and not self.transport.is_closing():
            self.refuse(431, f"a head has at most {self.longest_head} bytes")

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        self.in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self.in_body = False
        super().on_message_complete()

    def watch(self) -> None:
        """Starts the time of a request whose head is not complete, and ends the time of any other."""
        is_read = self.cycle is not None and not self.cycle.response_complete
        if is_read and self.timer is not None:
            self.timer.cancel()
            self.timer = None
        elif not is_read and self.timer is None:
            self.timer = self.loop.call_later(self.seconds, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        self.refuse(400, "the request is no HTTP")

    def refuse(self, status: int, detail: str, header: bytes = b"") -> None:
        """Answers without a request, and closes the connection as soon as the client has, or after a second. A client
        that still sends would otherwise get a broken connection in place of the answer."""
        body = json.dumps({"detail": detail}).encode()
        headers = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + header + headers + b"\r\n" + body)
        self.is_refused = True
        if self.timer is not None:
            self.timer.cancel()
        is_computed = self.cycle is not None and not self.cycle.response_complete
        if is_computed or len(self.connections) > self.most + REFUSED:
            self.transport.close()
        else:
            self.transport.write_eof()
            self.timer = self.loop.call_later(self.refused_seconds, self.transport.close)


def serve(options: ServingOptions, address: ServerAddress, limits: QueueLimits, access: Access) -> None:
    """Serves a checkpoint until the process is stopped. Raises ConfigError if it cannot."""
    with address.bound() as bound, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(served(Dispatcher(options, limits, Metrics()), address, access, bound))


async def served(dispatcher: Dispatcher, address: ServerAddress, access: Access, bound: socket.socket) -> None:
    """Serves by a dispatcher, at a bound socket, until the process is stopped."""
    try:
        try:
            await dispatcher.start()
        except StartError as error:
            raise ConfigError(str(error)) from None
        await server_of(dispatcher, address, access).serve([bound])
    except OSError as error:
        raise address.unusable(error) from None
    finally:
        await dispatcher.stop()


def server_of(dispatcher: Dispatcher, address: ServerAddress, access: Access) -> AnnouncedServer:
    """Returns the server of a dispatcher that has started."""
    app = app_of(dispatcher, access, str(dispatcher.options.checkpoint))
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = CONNECTIONS if files == resource.RLIM_INFINITY else max(1, min(CONNECTIONS, files - OTHER_FILES))
    config = uvicorn.Config(
        app,
        http=type("Protocol", (BoundedProtocol,), {"most": most}),
        ws="none",
        log_level="error",  # not a line for each bad request
        access_log=False,
        timeout_graceful_shutdown=address.grace,
    )
    return AnnouncedServer(config, dispatcher)


class AnnouncedServer(uvicorn.Server):
    """Prints where it listens as soon as it does. A signal ends it, and not its process."""

    def __init__(self, config: uvicorn.Config, dispatcher: Dispatcher) -> None:
        super().__init__(config)
        self.dispatcher = dispatcher

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        abilities = self.dispatcher.abilities
        print(f"checked {abilities.checked} texts: served answers equal those of the commands")
        for bound in sockets:
            host, port = bound.getsockname()[:2]
            host = f"[{host}]" if ":" in host else host
            print(f"serves {', '.join(abilities.examples)} at http://{host}:{port} (docs: /docs)", flush=True)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # signals come to the main thread only
            yield
            return
        loop, numbers = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
