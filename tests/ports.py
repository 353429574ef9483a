"""Ports for servers of tests."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """A port that nobody listens on, below the ephemeral ports of outgoing connections, so that it stays free."""
    generator = random.SystemRandom()
    while True:
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", generator.randrange(15_000, 30_000)))
            return int(listener.getsockname()[1])


if __name__ == "__main__":
    print(free_port())
