"""A gRPC proxy in front of the ledger's database, so that hundreds of workers share a few connections to it."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from optuna.exceptions import ExperimentalWarning
from optuna.storages import run_grpc_proxy_server

from lit_transformers.config import ConfigError
from sweeps.ledger.storage import LedgerError, StorageConnection, find_address, open_storage

__all__ = ["serve"]

START_SECONDS = 60.0
"""How long the database may take to become available."""


class _Stopped(Exception):
    """A signal asked the proxy to end."""


def serve(runs: Path, storage: str | None, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serves until SIGINT or SIGTERM. The proxy holds no state: workers wait while it is restarted.

    Raises LedgerError where the database cannot be reached; ConfigError where the port is in use.
    """
    address = find_address(storage, runs)
    if address.is_proxy:
        raise LedgerError("--storage: a proxy stands in front of a database, not of another proxy")
    if address.path is not None and address.path.parent.resolve() == runs.resolve():
        runs.mkdir(parents=True, exist_ok=True)
    opened_storage = StorageConnection(address, START_SECONDS).ask(lambda: open_storage(address))
    handlers = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    say(f"{address.name} is served; workers take --storage grpc://{host}:{port}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            run_grpc_proxy_server(opened_storage.storage, host=host, port=port)
    except _Stopped:
        say("stopped")
    except RuntimeError:
        raise ConfigError(
            f"{host}:{port} cannot be listened on: it is taken, or no address of this machine", "--port"
        ) from None
    finally:
        opened_storage.close()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Stopped
