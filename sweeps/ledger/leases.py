"""Which machine does which run of an object store: leases, by which machines that share no ledger take turns.

Whenever a machine takes a run, it creates a new numbered object, and a store creates an object only if its name is
free. So if two machines see a free run, one of them gets it, and a machine that sees a higher number than its own has
lost the run. The machine that holds a run rewrites its object with every heartbeat. Another machine takes the run over
if it sees the object unchanged for longer than the grace, by its own clock, or knows that the holder's process is gone.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from lit_transformers.config import ConfigError
from sweeps.ledger.owner import Owner, machine
from sweeps.object_store import LEASES, PATIENCE, Store

__all__ = ["Leases"]

LOOK_SECONDS = 5.0
"""The shortest time between two looks at a run that another machine holds."""


class _Look(NamedTuple):
    """The last reading of a run's lease: its content, since when that is unchanged, and when it was read."""

    content: bytes | None
    since: float
    at: float


class Leases:
    """The leases of one process, which are renewed by a thread while it holds any."""

    def __init__(self, store: Store, owner: Owner, heartbeat: float, grace: float) -> None:
        """heartbeat and grace: in seconds, those of the ledger."""
        self.store, self.owner = replace(store, patience=0.0), owner
        self.heartbeat, self.grace = heartbeat, grace
        self.lost: set[str] = set()
        """The keys of runs that another machine has taken over."""
        self._held: dict[str, int] = {}
        self._looks: dict[str, _Look] = {}
        self._away_since: float | None = None
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, key: str, say: Callable[[str], None]) -> bool:
        """Takes a run; returns False where another machine has it, or the store is away, which is reported once. Raises
        ConfigError where it is away for longer than the patience of stores."""
        try:
            is_taken = self._take(key)
        except ConfigError as error:
            if self._away_since is None:
                self._away_since = time.monotonic()
                say(f"{error}; waiting for it")
            if time.monotonic() - self._away_since > PATIENCE:
                raise
            return False
        self._away_since = None
        return is_taken

    def _take(self, key: str) -> bool:
        look, now = self._looks.get(key), time.monotonic()
        if look is not None and now - look.at < min(LOOK_SECONDS, self.heartbeat):
            return False
        number = self._highest(key)
        if number and not self._is_free(key, number):
            return False
        if not self.store.create(_name(key, number + 1), self._content(0)) or self._highest(key) != number + 1:
            return False
        with self._lock:
            self._held[key] = number + 1
            self.lost.discard(key)
        if self._thread is None:
            self._thread = threading.Thread(target=self._renew, daemon=True)
            self._thread.start()
        return True

    def release(self, key: str) -> None:
        """Leaves a run to whoever wants it. Where the store is away its lease ends by itself."""
        with self._lock:
            number = self._held.pop(key, None)
        if number is not None:
            try:
                self.store.write(_name(key, number), self._content(0, released=True), patience=0.0)
            except ConfigError:
                return

    def is_overtaken(self, key: str) -> bool:
        """Whether another machine has taken over a run that this one held."""
        return self._highest(key) > self._held.get(key, 0)

    def close(self) -> None:
        """Ends the thread."""
        self._over.set()

    def _is_free(self, key: str, number: int) -> bool:
        """Whether the last hold of a run was given back, or its machine has died."""
        content, now = self.store.read(_name(key, number)), time.monotonic()
        look = self._looks.get(key)
        since = look.since if look is not None and look.content == content else now
        self._looks[key] = _Look(content, since, now)
        try:
            lease = json.loads(content or b"")
            owner = Owner(**lease["owner"])
            is_own = owner.token == self.owner.token  # the answer to its creation was lost
            is_free = bool(lease["released"]) or is_own or owner.is_dead(machine())
        except (ValueError, KeyError, TypeError):  # written by another version; it ends as others do
            is_free = False
        return is_free or now - since > self.grace

    def _highest(self, key: str) -> int:
        """Returns the number of the last hold of a run, 0 where there is none."""
        numbers = [path.rpartition("/")[2] for path in self.store.listing(f"{LEASES}/{key}")]
        return max((int(number) for number in numbers if re.fullmatch("[0-9]{1,18}", number)), default=0)

    def _content(self, pulse: int, *, released: bool = False) -> bytes:
        return json.dumps({"owner": self.owner._asdict(), "pulse": pulse, "released": released}).encode()

    def _renew(self) -> None:
        """Writes every lease anew with each heartbeat. While the store is away nobody else can take one either."""
        pulse = 0
        while not self._over.wait(self.heartbeat):
            pulse += 1
            with self._lock:
                held = dict(self._held)
            for key, number in held.items():
                try:
                    is_lost = self.is_overtaken(key)
                    with self._lock:
                        if is_lost and self._held.get(key) == number:
                            self.lost.add(key)
                        elif self._held.get(key) == number:
                            self.store.write(_name(key, number), self._content(pulse), patience=0.0)
                except ConfigError:
                    continue


def _name(key: str, number: int) -> str:
    return f"{LEASES}/{key}/{number:06d}"
