"""The folder for the temporary files of a command's processes: sockets, and the temporary files of libraries.

It is removed when the command ends or, if the command was killed, by the next command of the same user, of any kind.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path

from sweeps.ledger.lock import BusyError, LockError, locked

__all__ = ["temporary_files", "temporary_folder"]

PREFIX = "lit-"
COMPILED = "TORCHINDUCTOR_CACHE_DIR"
LOCK = ".lit-transformers-lock"
"""The file in a command's folder that is locked as long as the command lives; a folder without it is none of ours."""
LOCK_SECONDS = 20.0
"""How long another command may take to see that a folder without a lock is a new one."""
LONGEST = 50
"""Characters of the system's folder with which addresses of sockets below the command's own fit into 104 bytes."""
LAST = -200
"""The priority with which the folder is removed: multiprocessing has then joined processes and removed its own."""

_held = ExitStack()


@contextmanager
def temporary_files() -> Iterator[dict[str, str]]:
    """Makes this process, within the block, put its temporary files into the command's folder. Yields the variables by
    which the processes that it starts do so too, except for the code that torch compiles, which later commands use."""
    previous, folder = tempfile.tempdir, temporary_folder()
    if folder is None:
        yield {}
        return
    tempfile.tempdir = str(folder)
    try:
        compiled = os.environ.get(COMPILED, str(folder.with_name(f"torchinductor_{os.getuid()}")))
        yield {"TMPDIR": str(folder), COMPILED: compiled}
    finally:
        tempfile.tempdir = previous


@cache
def temporary_folder() -> Path | None:
    """Returns the folder of this command, created the first time, when folders of dead commands are removed; None where
    the system's own has so long a name that sockets below it could have none."""
    system = Path(tempfile.gettempdir())
    if len(str(system)) > LONGEST:
        return None
    for left in system.glob(f"{PREFIX}*"):
        _remove_abandoned(left)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        with ExitStack() as stack:
            stack.enter_context(locked(folder / LOCK, LOCK_SECONDS))
            if (folder / LOCK).exists():  # another command may have removed it before it was locked
                _held.enter_context(stack.pop_all())
                Finalize(None, shutil.rmtree, (folder, True), exitpriority=LAST)
                return folder


def _remove_abandoned(folder: Path) -> None:
    """Removes the folder of a command of this user, unless it lives; any other folder stays as it is."""
    with suppress(BusyError, LockError, OSError):
        if (folder / LOCK).is_file() and folder.stat().st_uid == os.getuid():
            with locked(folder / LOCK):
                shutil.rmtree(folder, ignore_errors=True)
