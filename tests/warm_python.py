"""A ``python`` for tests of commands, whose processes are forked from one that has imported torch and Lightning.

A program runs in it as in a separate process, except for the imports. Tests of a start need the real one.
"""

from __future__ import annotations

import atexit
import fcntl
import importlib
import json
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import NoReturn

IMPORTED = ("lit_transformers.runs.runner", "lit_transformers.gates", "pandas", "scipy.stats")
"""The modules that take long to import, and nothing that reads its environment while it is imported."""
CLIENT = """#!{python} -IS
import json, os, socket, sys
from itertools import takewhile

files = [file for file in range(64) if os.path.exists(f"/dev/fd/{{file}}")]
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    flags = [*takewhile(lambda word: word[0] == "-" and word not in ("-m", "-c"), sys.argv[1:])]
    words = sys.argv[1 + len(flags) :]
    request = json.dumps([sys.argv[0], words, os.getcwd(), dict(os.environ), files]).encode()
    socket.send_fds(server, [len(request).to_bytes(4, "big")], files)
    server.sendall(request)
    for file in files[3:]:
        os.close(file)
    sys.exit(int(server.recv(8) or 1))
"""


@contextmanager
def warm_python(*further: str) -> Iterator[Path]:
    """Yields the folder of a program ``python``, which is there until the end of the block. further: modules that it
    has imported too."""
    with TemporaryDirectory() as name:
        folder, address = Path(name), str(Path(name) / "server")
        ready, writer = os.pipe()
        server = subprocess.Popen(
            [sys.executable, "-Wignore", __file__, address, str(writer), *further], pass_fds=[writer]
        )
        os.close(writer)
        with os.fdopen(ready) as stream:
            assert stream.read() == "ready", "the server of processes has not started"
        client = folder / "python"
        client.write_text(CLIENT.format(python=sys.executable, address=address), encoding="utf-8")
        client.chmod(0o755)
        try:
            yield folder
        finally:
            server.kill()
            server.wait()


def serve(address: str, ready: int, further: Sequence[str]) -> None:
    """Forks a process for every request that comes to an address, until it is killed."""
    base = [entry for entry in sys.path if Path(entry).is_relative_to(sys.base_prefix) or entry.startswith(sys.prefix)]
    for name in (*IMPORTED, *further):
        importlib.import_module(name)
    sys.modules["lit_transformers.runs.runner"].RUNNER.preload()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    with os.fdopen(ready, "w") as stream:
        stream.write("ready")
    while True:
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            answer(client, base)
        client.close()
        with suppress(ChildProcessError):  # there is none left
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass


def answer(client: socket.socket, base: list[str]) -> NoReturn:
    """Reads a request, runs its program in a fork, and sends the program's exit status."""
    size, files, _, _ = socket.recv_fds(client, 4, 64)
    with client.makefile("rb") as stream:
        program, words, folder, environment, numbers = json.loads(stream.read(int.from_bytes(size, "big")))
    process = os.fork()
    if process:
        for file in files:
            os.close(file)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        client.sendall(str(status if status >= 0 else 128 - status).encode())
        os._exit(0)
    client.close()
    apart = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 256) for file in files]
    for file in files:
        os.close(file)
    for number, file in zip(numbers, apart, strict=True):
        os.dup2(file, number)
        os.close(file)
    sys.executable = program  # processes that it starts are forked too
    multiprocessing.set_executable(program)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    paths = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [*([] if environment.get("PYTHONSAFEPATH") else [folder]), *paths, *base]
    sys.modules.pop("lit_transformers.startup.search_path", None)  # it puts the working folder last when imported
    status = 1
    try:
        run(words)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else end.code is not None
        if status is True:
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:
            stream.flush()
    os._exit(status)


def run(words: list[str]) -> None:
    """Runs these words as Python does: ``-m MODULE``, ``-c CODE`` or a script, and its arguments."""
    kind = words.pop(0) if words[0] in ("-m", "-c") else "script"
    sys.argv[:] = words
    if kind == "-m":
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    elif kind == "script":
        runpy.run_path(words[0], run_name="__main__")
    else:
        main = sys.modules["__main__"] = ModuleType("__main__")
        sys.argv[0] = "-c"
        exec(compile(words[0], "<string>", "exec"), vars(main))


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
