"""Runs the server of a checkpoint until it is stopped."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lit_transformers.config import ConfigError
from lit_transformers.serving.app import Access, app_of
from lit_transformers.serving.dispatcher import Dispatcher, Limits, StartError
from lit_transformers.serving.messages import ServingOptions
from lit_transformers.serving.metrics import Metrics

__all__ = ["Address", "serve"]


class Address(NamedTuple):
    """host, port: where the server listens; port 0: any that is free. grace: seconds that requests have to end when it
    is stopped."""

    host: str = "127.0.0.1"
    port: int = 8000
    grace: int = 30


class TimedProtocol(HttpToolsProtocol):
    """Closes a connection whose request does not begin in time: uvicorn waits for its first bytes without end."""

    seconds = 10.0
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        super().connection_lost(exc)

    def watch(self) -> None:
        """Starts the time of a request whose head is not complete, and ends the time of any other."""
        is_read = self.cycle is not None and not self.cycle.response_complete
        if is_read and self.timer is not None:
            self.timer.cancel()
            self.timer = None
        elif not is_read and self.timer is None:
            self.timer = self.loop.call_later(self.seconds, self.transport.close)


def serve(options: ServingOptions, address: Address, limits: Limits, access: Access) -> None:
    """Serves a checkpoint until the process is stopped. Raises ConfigError if it cannot."""
    asyncio.run(served(options, address, limits, access))


async def served(options: ServingOptions, address: Address, limits: Limits, access: Access) -> None:
    dispatcher = Dispatcher(options, limits, Metrics())
    try:
        try:
            await dispatcher.start()
        except StartError as error:
            raise ConfigError(str(error)) from None
        app = app_of(dispatcher, access, str(options.checkpoint))
        config = uvicorn.Config(
            app,
            host=address.host,
            port=address.port,
            http=TimedProtocol,
            ws="none",
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=address.grace,
        )
        await AnnouncedServer(config, dispatcher).serve()
    finally:
        await dispatcher.stop()


class AnnouncedServer(uvicorn.Server):
    """Prints where it listens as soon as it does."""

    def __init__(self, config: uvicorn.Config, dispatcher: Dispatcher) -> None:
        super().__init__(config)
        self.dispatcher = dispatcher

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for socket in server.sockets:
                host, port = socket.getsockname()[:2]
                abilities = self.dispatcher.abilities
                print(f"checked {abilities.checked} texts: served answers equal those of the commands")
                print(f"serves {', '.join(abilities.examples)} at http://{host}:{port} (docs: /docs)", flush=True)
