"""Databases that tests start: a PostgreSQL server, and a proxy in front of a database."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest
from ports import free_port

SCRIPT = Path(__file__).parent.parent / "services" / "postgres.sh"


class Server(NamedTuple):
    """A running server, by its folder and the address of its first database."""

    folder: Path
    url: str

    def database(self) -> str:
        """The address of a new, empty database."""
        import psycopg

        name = f"ledger_{uuid4().hex[:12]}"
        with psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"{self.url.rpartition('/')[0]}/{name}"

    def write_only_if(self, allowed: bool) -> None:
        """Lets all sessions write, or none, as on a server that follows another one after a failover."""
        import psycopg

        options = "-c default_transaction_read_only=off"
        with psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True, options=options) as connection:
            connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {'off' if allowed else 'on'}")
            connection.execute("SELECT pg_reload_conf()")

    def restart(self) -> None:
        """Restarts the server as after a crash: connections break, and for a moment nothing answers."""
        subprocess.run([SCRIPT, "restart", self.folder], check=True, timeout=90)


@contextmanager
def proxy(url: str, runs: Path) -> Iterator[str]:
    """Starts a proxy in a separate process, and yields its address."""
    pytest.importorskip("grpc", reason="grpcio is not installed")
    port = free_port()
    words = [sys.executable, "-m", "sweeps", "serve", "--runs", str(runs), "--storage", url, "--port", str(port)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout and "is served" in process.stdout.readline()
    try:
        yield f"grpc://localhost:{port}"
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0
