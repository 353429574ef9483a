"""The owner of a claimed run: a process on a machine, and the folder of runs that it works in."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import psutil

__all__ = ["Machine", "Owner", "identify", "machine", "name_folder"]


class Machine(NamedTuple):
    """A host and its process id namespace: a container may have a separate namespace under the host's name."""

    host: str
    numbering: str


class Owner(NamedTuple):
    """A process by machine, process id and start time; its folder of runs by name and path; and a unique token."""

    host: str
    numbering: str
    process: int
    born: float
    folder: str
    path: str
    token: str

    def is_of(self, machine: Machine) -> bool:
        """Whether the process is one of a machine, and of its process id namespace."""
        return (self.host, self.numbering) == machine

    def is_dead(self, here: Machine) -> bool:
        """Whether the process is known to have ended. Nothing is known of another machine's processes."""
        if not self.is_of(here):
            return False
        try:
            process = psutil.Process(self.process)
            return bool(process.create_time() != self.born or process.status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True

    def is_halted(self, here: Machine) -> bool:
        """Whether the process is known to be stopped, as by SIGSTOP or Ctrl-Z, so that it sends no sign of life."""
        if not self.is_of(here):
            return False
        try:
            return bool(psutil.Process(self.process).status() == psutil.STATUS_STOPPED)
        except psutil.NoSuchProcess:
            return False


def machine() -> Machine:
    """Returns the machine that this process runs on."""
    try:
        return Machine(socket.gethostname(), str(Path("/proc/self/ns/pid").readlink()))
    except OSError:  # this system has no process id namespaces
        return Machine(socket.gethostname(), "")


def identify(folder: str, runs: Path, token: str) -> Owner:
    """Returns this process as an owner."""
    process = psutil.Process()
    return Owner(*machine(), process.pid, process.create_time(), folder, str(runs.resolve()), token)


def name_folder(runs: Path) -> str:
    """Returns the unique name of a folder of runs, the same wherever it is mounted; it is kept in ``folder.id``."""
    path = runs / "folder.id"
    if not path.exists():
        temporary = runs / f"folder.{os.getpid()}.{uuid4().hex[:8]}.part"
        try:
            temporary.write_text(uuid4().hex, encoding="utf-8")
            with suppress(FileExistsError):  # another command was first
                os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    return path.read_text(encoding="utf-8")
