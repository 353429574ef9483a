"""A proxy in front of the ledger's database: hundreds of workers over gRPC, a few connections behind it."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from optuna.exceptions import ExperimentalWarning
from optuna.storages import run_grpc_proxy_server

from lit_transformers.config import ConfigError
from sweeps.storage import LedgerError, Line, find_address, open_storage

__all__ = ["serve"]

START_SECONDS = 60.0
"""How long the database may take to come up."""


class _Stopped(Exception):
    """A signal asked the proxy to end."""


def serve(runs: Path, storage: str | None, host: str, port: int, say: Callable[[str], None]) -> None:
    """Answers until SIGINT or SIGTERM. It has no state of its own: workers wait while it is started again.

    Raises LedgerError where the database cannot be reached; ConfigError where the port is taken.
    """
    address = find_address(storage, runs)
    if address.is_proxy:
        raise LedgerError("--storage: a proxy stands in front of a database, not of another proxy")
    if address.path is not None and address.path.parent.resolve() == runs.resolve():
        runs.mkdir(parents=True, exist_ok=True)
    opened = Line(address, START_SECONDS).ask(lambda: open_storage(address))
    handlers = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    say(f"{address.name} is served; workers take --storage grpc://{host}:{port}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            run_grpc_proxy_server(opened.storage, host=host, port=port)
    except _Stopped:
        say("stopped")
    except RuntimeError:
        raise ConfigError(
            f"{host}:{port} cannot be listened on: it is taken, or no address of this machine", "--port"
        ) from None
    finally:
        opened.close()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Stopped
