"""Where the ranks of a run connect to its process: a socket of this machine, or of the network for several nodes."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge, wait
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import BoundedSemaphore, Thread, Timer

__all__ = ["SECRET", "Meeting", "connected", "meeting_point"]

SECRET = "LIT_TRANSFORMERS_RANKS_SECRET"
"""The variable by which ranks on other nodes know the key of their run's socket, which command lines would show."""
SECRET_SECONDS = 20.0
"""How long a client may take to show the secret."""
LOOK_SECONDS = 0.1
GUESTS = 256
"""How many clients may show the secret at a time; others are sent away."""


@dataclass
class Meeting:
    """A socket that listens. address: a path, or HOST:PORT. secret: the text that ranks must know, where others can
    reach the socket."""

    listener: socket.socket
    address: str
    secret: str = ""
    _answers: SimpleQueue[Connection | None] = field(default_factory=SimpleQueue)
    _places: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(GUESTS))

    def accept(self) -> Connection | None:
        """Waits for a rank and returns its connection, or None where who connects does not know the secret. Others are
        let in meanwhile."""
        while self._answers.empty():
            if wait([self.listener], timeout=LOOK_SECONDS):
                self.let_in()
        return self._answers.get()

    def let_in(self) -> None:
        """Lets in who is at the door. Where ranks must know a secret they show it to a thread, so that nobody waits for
        a client that says nothing."""
        client = self.listener.accept()[0]
        if not self.secret:
            self._answers.put(Connection(client.detach()))
        elif self._places.acquire(blocking=False):
            Thread(target=self._examine, args=(client,), daemon=True).start()
        else:
            client.close()

    def admitted(self) -> Iterator[Connection]:
        """Yields the connections of ranks that were let in, and know the secret, since the last call."""
        while not self._answers.empty():
            if (connection := self._answers.get()) is not None:
                yield connection

    def _examine(self, client: socket.socket) -> None:
        """Answers with the connection of a client that shows the secret in time, or with None."""
        deadline = Timer(SECRET_SECONDS, client.shutdown, (socket.SHUT_RDWR,))
        deadline.daemon = True
        connection = Connection(os.dup(client.fileno()))
        deadline.start()
        try:
            deliver_challenge(connection, self.secret.encode())
            answer_challenge(connection, self.secret.encode())
            self._answers.put(connection)
        except Exception:  # a client that is not a rank may send anything
            connection.close()
            self._answers.put(None)
        finally:
            deadline.cancel()
            deadline.join()
            client.close()
            self._places.release()


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
