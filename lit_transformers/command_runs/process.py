"""The process of a command: its start, its output, and its end with all processes that it has started.

The command and the processes that it starts are one group of processes. A guard, a shell that does nothing, leads the
group and holds the end of a pipe whose other end this process has: when this process is gone, however it went, the
guard kills the group. So no command outlives the worker that has started it.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lit_transformers.machine.memory import memory_of_tree

__all__ = ["KILLED", "CommandEnd", "CommandFailedError", "run_command_line", "tail_of"]

GUARD = 'trap "" TERM INT HUP; read -r _; kill -s KILL -- "-$$"'
"""The script of the guard: it waits for the end of its input, and kills its group and thus itself."""
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""The statuses of a command that the system has killed, most likely out of memory, and of a shell whose command was."""
TERMINATED = (-signal.SIGTERM, 128 + signal.SIGTERM)
NOTICE_SECONDS = 1.0
"""How long after such an end this process may learn that it was to stop, too."""
STOP_SECONDS = 30.0
"""How long a command may take to end after SIGTERM, before it is killed."""
LOOK_SECONDS = 0.1
MEMORY_SECONDS = 0.2
LONGEST_LINE = 1 << 20
"""The bytes from which on a line without an end is taken as one."""
TAIL = 20
"""The lines of output that an error shows."""


class CommandFailedError(RuntimeError):
    """A command has not ended as it should; the first line says how, the others are the end of its output."""


class CommandEnd(NamedTuple):
    """How a command ended: its exit status, negative the number of a signal; who requested its stop, "signal",
    "caller", or None; how long it ran, in seconds; and the most memory that it and the processes that it started were
    seen to hold together, in bytes."""

    status: int
    stopped_by: str | None
    seconds: float
    peak_bytes: int


def run_command_line(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    output: Path,
    errors: Path,
    receive: Callable[[str], bool],
    stopping: Callable[[], bool],
) -> CommandEnd:
    """Runs a program to its end. Its standard output and its errors are added to two files.

    receive: gets each line of output as it comes, and returns whether the command shall end. stopping: whether this
    process is to stop. The command then gets SIGTERM, and is killed after STOP_SECONDS. Raises CommandFailedError where
    the program cannot be started.
    """
    started = time.monotonic()
    guard = subprocess.Popen(
        ["/bin/sh", "-c", GUARD], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        process_group=0,
    )  # fmt: skip
    try:
        with errors.open("ab") as error_file, output.open("ab", buffering=0) as output_file:
            try:
                process = subprocess.Popen(
                    words, cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=error_file, process_group=guard.pid,
                )  # fmt: skip
            except OSError as error:
                raise CommandFailedError(f"{words[0]} cannot be started: {error.strerror}") from None
            memory = _Memory(process.pid, guard.pid)
            stopped_by = _attend(process, guard.pid, memory, output_file.write, receive, stopping)
        return CommandEnd(process.returncode, stopped_by, time.monotonic() - started, memory.peak_bytes)
    finally:
        os.killpg(guard.pid, signal.SIGKILL)
        guard.wait()
        assert guard.stdin is not None
        guard.stdin.close()


class _Memory:
    """Looks now and then at how much memory the processes of a command hold together."""

    def __init__(self, pid: int, group: int) -> None:
        self.pid, self.group, self.peak_bytes, self.looked_at = pid, group, 0, -math.inf

    def look(self) -> None:
        """Takes the memory of the processes in bytes, unless that was done a moment ago."""
        now = time.monotonic()
        if now - self.looked_at < MEMORY_SECONDS:
            return
        self.looked_at = now
        self.peak_bytes = max(self.peak_bytes, memory_of_tree(self.pid, self.group))


def _attend(
    process: subprocess.Popen[bytes],
    group: int,
    memory: _Memory,
    write: Callable[[bytes], object],
    receive: Callable[[str], bool],
    stopping: Callable[[], bool],
) -> str | None:
    """Reads the output of a process until it ends. Returns who has asked it to stop, if anybody."""
    assert process.stdout is not None
    stopped_by, deadline, rest = None, 0.0, b""
    with process.stdout as stream, selectors.DefaultSelector() as selector:
        os.set_blocking(stream.fileno(), False)
        selector.register(stream, selectors.EVENT_READ)
        is_open = True
        while True:
            memory.look()
            has_ended = process.poll() is not None
            if is_open and (has_ended or selector.select(LOOK_SECONDS)):
                while block := _read(stream.fileno()):
                    write(block)
                    *lines, rest = (rest + block).replace(b"\r", b"\n").split(b"\n")
                    lines += [rest] if len(rest) > LONGEST_LINE else []
                    rest = b"" if len(rest) > LONGEST_LINE else rest
                    for line in lines:
                        if receive(line.decode("utf-8", "replace")) and stopped_by is None:
                            stopped_by, deadline = _ask_to_stop(group, "caller")
                is_open = block is None
                if not is_open:
                    selector.unregister(stream)
            elif not is_open and not has_ended:
                time.sleep(LOOK_SECONDS)
            if has_ended:
                break
            if stopping() and stopped_by is None:
                stopped_by, deadline = _ask_to_stop(group, "signal")
            if stopped_by is not None and time.monotonic() > deadline:
                process.kill()
    receive(rest.decode("utf-8", "replace"))
    return "signal" if stopped_by is None and process.returncode and _was_to_stop(process, stopping) else stopped_by


def _was_to_stop(process: subprocess.Popen[bytes], stopping: Callable[[], bool]) -> bool:
    """Whether a command that failed was ended with this process, as a batch system does, which signals all at once."""
    deadline = time.monotonic() + (NOTICE_SECONDS if process.returncode in TERMINATED else 0.0)
    while not stopping():
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_SECONDS / 10)
    return True


def _ask_to_stop(group: int, by: str) -> tuple[str, float]:
    os.killpg(group, signal.SIGTERM)
    return by, time.monotonic() + STOP_SECONDS


def _read(descriptor: int) -> bytes | None:
    """Returns the next bytes, none at the end, and None where there are none yet."""
    try:
        return os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return None


def tail_of(path: Path) -> list[str]:
    """Returns the last lines of a file that are not empty, at most TAIL; none where there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - (1 << 14)))
            text = file.read().decode("utf-8", "replace").replace("\r", "\n")
    except FileNotFoundError:
        return []
    return [line for line in text.splitlines() if line.strip()][-TAIL:]
