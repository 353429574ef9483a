"""Where the ranks of a run connect to its process: a socket of this machine, or of the network for several nodes."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["SECRET", "Meeting", "connected", "meeting_point"]

SECRET = "LIT_TRANSFORMERS_RANKS_SECRET"
"""The variable by which ranks on other nodes know the key of their run's socket, which command lines would show."""


@dataclass
class Meeting:
    """A socket that listens. address: a path, or HOST:PORT. secret: what ranks must know, where others can reach it."""

    listener: socket.socket
    address: str
    secret: str = ""

    def accept(self) -> Connection | None:
        """Returns the connection of a rank, or None where who connects does not know the secret."""
        connection = Connection(self.listener.accept()[0].detach())
        if not self.secret:
            return connection
        try:
            deliver_challenge(connection, self.secret.encode())
            answer_challenge(connection, self.secret.encode())
        except (AuthenticationError, EOFError, OSError):
            connection.close()
            return None
        return connection


@contextmanager
def meeting_point(host: str | None = None) -> Iterator[Meeting]:
    """Opens a socket: one that only processes of this user on this machine can reach, or one that those on other nodes
    can, which know this machine by the host."""
    if host is not None:
        with socket.create_server(("", 0)) as listener:
            yield Meeting(listener, f"{host}:{listener.getsockname()[1]}", secrets.token_hex(32))
        return
    with TemporaryDirectory(prefix="ranks-") as folder, socket.socket(socket.AF_UNIX) as listener:
        address = str(Path(folder, "leash"))
        listener.bind(address)
        listener.listen()
        yield Meeting(listener, address)


def connected(address: str) -> Connection:
    """Returns a rank's connection to its run's process. Raises AuthenticationError where it has another secret."""
    secret = os.environ.get(SECRET)
    if not secret:
        return Client(address)
    host, _, port = address.rpartition(":")
    return Client((host, int(port)), authkey=secret.encode())
