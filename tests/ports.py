"""Ports for servers of tests."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """One that nobody listens at, below those that a system gives to whoever connects, so that it stays free."""
    draw = random.SystemRandom()
    while True:
        with contextlib.suppress(OSError), socket.socket() as place:
            place.bind(("127.0.0.1", draw.randrange(15_000, 30_000)))
            return int(place.getsockname()[1])


if __name__ == "__main__":
    print(free_port())
