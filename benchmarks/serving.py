"""Measures the CPU and the time of a request to a server of one classifier, next to other servers, in one run.

    python -m benchmarks.serving [CHECKPOINT --texts FILE] [--requests 400] [--connections 1 --connections 16]
    [--rounds 3] [--overload-seconds 10] [--quick] [--json NAME]

The servers take turns, each with the same texts: this suite's, also in bfloat16, and in int8 where the processor has
its product; ONNX Runtime in float32 and in dynamic int8 behind this suite's queue; transformers' pipeline behind
FastAPI without a queue. Each computes on one thread. Printed are milliseconds of CPU a request, of all processes of a
server; the time by the clock at the median and at the 99th percentile, which depends on other load on the machine; and
how many requests had each status.

Overload: a process that sleeps for 20 ms a text, so that the generator has the cores for itself, gets ten times the
requests that it can bear. Each must be answered with 200 or refused with 429.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, Any, NamedTuple

import psutil
import typer
from rich.console import Console

from benchmarks.hardware import JSON_HELP, describe, save
from benchmarks.reading import shown
from benchmarks.text_networks import Forms, answer_by_onnx, chosen_texts, forms_of, labelled_texts
from lit_transformers.checked_files import Precision
from lit_transformers.config import ConfigError
from lit_transformers.quantisation import has_int8_product
from lit_transformers.serving.messages import Abilities, LineAnswer, LineWork, ServingOptions, received
from lit_transformers.serving.worker import answer_messages

SLOW_SECONDS = 0.02
"""Seconds that the slow process sleeps for a text."""
TIMES_TOO_MANY = 10
SLOW_QUEUE = 64
"""Texts that wait for the slow process, at most."""
KEPT_SECONDS = 3.0
"""Seconds after which an idle connection is not used again. A server closes it after 5."""
Target = Callable[[Connection, ServingOptions], None]


class Load(NamedTuple):
    """The measurements of a generator. seconds: from each request to its answer. statuses: how many had each."""

    seconds: Sequence[float]
    statuses: Counter[int]


def answer_slowly(connection: Connection, options: ServingOptions) -> None:
    """Computes nothing, and sleeps for each text."""
    connection.send(Abilities({"classify": '{"text": "a"}'}, 0))
    for work in received(connection):
        for place in range(len(work.lines) if isinstance(work, LineWork) else 0):
            time.sleep(SLOW_SECONDS)
            connection.send(LineAnswer(place, 200, "{}"))


def serve_queue(
    ready: Connection, target: Target, checkpoint: Path, precision: Precision = "float32", queue: int = 512
) -> None:
    """Runs this suite's server, whose process runs ``target``, and sends its port."""
    import uvloop

    from lit_transformers.serving.app import Access
    from lit_transformers.serving.dispatcher import Dispatcher, QueueLimits
    from lit_transformers.serving.metrics import Metrics
    from lit_transformers.serving.server import ServerAddress, served

    address = ServerAddress(port=0)
    with address.bound() as bound, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        ready.send(bound.getsockname()[1])
        options = ServingOptions(checkpoint, overlong="cut", precision=precision, threads=1)
        dispatcher = Dispatcher(options, QueueLimits(queue=queue), Metrics(), target)
        try:
            runner.run(served(dispatcher, address, Access(), bound))
        except ConfigError as error:
            ready.send(str(error))


def serve_pipeline(ready: Connection, folder: Path) -> None:
    """Runs transformers' pipeline behind FastAPI, and sends the port."""
    import torch
    import uvicorn
    from fastapi import Body, FastAPI
    from transformers import pipeline

    from lit_transformers.serving.server import ServerAddress

    torch.set_num_threads(1)
    classify: Any = pipeline("text-classification", str(folder), device="cpu", top_k=None)
    app = FastAPI()

    @app.post("/classify")
    def answer(text: str = Body(embed=True)) -> Any:
        return classify(text)

    with ServerAddress(port=0).bound() as bound:
        ready.send(bound.getsockname()[1])
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run([bound])


class StartRefused(RuntimeError):
    """A server did not start; the message is its reason."""


class RunningServer(NamedTuple):
    process: psutil.Process
    port: int

    def cpu_seconds(self) -> float:
        """Returns the seconds of CPU of all processes of the server so far."""
        own = [self.process, *self.process.children(recursive=True)]
        return sum(sum(one.cpu_times()[:2]) for one in own)


@contextmanager
def running(serve: Callable[..., None], *arguments: Any) -> Iterator[RunningServer]:
    """Runs a server in a process as long as the block lasts. Raises StartRefused where it does not start."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, *arguments))
    process.start()
    theirs.close()
    try:
        port = ours.recv()
        while not listens(port):
            if not process.is_alive():
                raise StartRefused(ours.recv() if ours.poll() else f"it exited with {process.exitcode}")
            time.sleep(0.1)
        asyncio.run(loaded(port, ["a"], 1))
        yield RunningServer(psutil.Process(process.pid), port)
    finally:
        process.terminate()
        process.join()


def listens(port: int) -> bool:
    """Whether a server accepts connections."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: str) -> int:
    """Sends a text over an open connection, and returns the status of the answer."""
    body = json.dumps({"text": text}).encode()
    writer.write(b"POST /classify HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n" % len(body))
    writer.write(b"Content-Type: application/json\r\n\r\n" + body)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    await reader.readexactly(length)
    return int(head.split(maxsplit=2)[1])


async def connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Opens a connection, as soon as the server listens."""
    while True:
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.1)


async def loaded(port: int, texts: Sequence[str], connections: int) -> Load:
    """Sends texts over connections, the next text of each when the one before is answered."""
    waiting, seconds, statuses = iter(texts), list[float](), Counter[int]()

    async def send_each() -> None:
        reader, writer = await connected(port)
        for text in waiting:
            begin = time.perf_counter()
            statuses[await request(reader, writer, text)] += 1
            seconds.append(time.perf_counter() - begin)
        writer.close()

    await asyncio.gather(*(send_each() for _ in range(connections)))
    return Load(seconds, statuses)


async def overloaded(port: int, rate: float, length: float) -> Load:
    """Sends ``rate`` texts a second, each over a connection that waits for no answer, for ``length`` seconds."""
    idle = list[tuple[float, tuple[asyncio.StreamReader, asyncio.StreamWriter]]]()
    seconds, statuses = list[float](), Counter[int]()

    async def send_one() -> None:
        begin = time.perf_counter()
        since, streams = idle.pop() if idle else (-KEPT_SECONDS, None)
        if streams is None or begin - since > KEPT_SECONDS:
            streams = await connected(port)
        statuses[await request(*streams, "a")] += 1
        seconds.append(time.perf_counter() - begin)
        idle.append((time.perf_counter(), streams))

    begin, tasks = time.perf_counter(), list[asyncio.Task[None]]()
    while (passed := time.perf_counter() - begin) < length:
        tasks += [asyncio.create_task(send_one()) for _ in range(int(passed * rate) - len(tasks))]
        await asyncio.sleep(0.01)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    statuses[0] = sum(result is not None for result in results)
    return Load(seconds, statuses)


def measured(
    forms: Forms, texts: Sequence[str], connections: Sequence[int], rounds: int
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Returns a row for each server and number of connections, and the reasons of servers that did not start. The
    servers take turns."""
    servers: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {
        "this suite": (serve_queue, (answer_messages, forms.checkpoint)),
        "this suite, bfloat16": (serve_queue, (answer_messages, forms.checkpoint, "bfloat16")),
        "ONNX Runtime": (serve_queue, (answer_by_onnx, forms.onnx)),
        "ONNX Runtime, int8": (serve_queue, (answer_by_onnx, forms.int8)),
        "pipeline, FastAPI": (serve_pipeline, (forms.folder,)),
    }
    if has_int8_product():
        servers["this suite, int8"] = (serve_queue, (answer_messages, forms.checkpoint, "int8"))
    results: dict[tuple[str, int], list[tuple[float, Load]]] = {}
    refused: dict[str, str] = {}
    for name, (serve, arguments) in [*servers.items()] * rounds:
        if name in refused:
            continue
        try:
            with running(serve, *arguments) as server:
                for count in connections:
                    begin = server.cpu_seconds()
                    load = asyncio.run(loaded(server.port, texts, count))
                    spent = (server.cpu_seconds() - begin) / len(texts)
                    results.setdefault((name, count), []).append((spent, load))
        except StartRefused as error:
            refused[name] = str(error)
    return [row_of(name, count, own) for (name, count), own in results.items()], refused


def row_of(name: str, connections: int, own: Sequence[tuple[float, Load]]) -> dict[str, Any]:
    """Returns the median over rounds of CPU, and the times of all requests."""
    seconds = [each for _, load in own for each in load.seconds]
    statuses = sum((load.statuses for _, load in own), Counter[int]())
    row = {"server": name, "connections": connections, "cpu_ms": 1000 * median(spent for spent, _ in own)}
    times = {"p50_ms": 1000 * median(seconds), "p99_ms": 1000 * quantiles(seconds, n=100)[98]}
    return row | times | {"statuses": {str(status): count for status, count in sorted(statuses.items())}}


def overload(length: float) -> dict[str, Any]:
    """Returns how many requests had each status, and how many no answer, at ten times the load that a server bears."""
    with running(serve_queue, answer_slowly, Path("none"), "float32", SLOW_QUEUE) as server:
        load = asyncio.run(overloaded(server.port, TIMES_TOO_MANY / SLOW_SECONDS, length))
    statuses = {str(status): count for status, count in sorted(load.statuses.items()) if status}
    return {"seconds": length, "sent": load.statuses.total(), "statuses": statuses, "lost": load.statuses[0]}


def main(
    checkpoint: Annotated[Path | None, typer.Argument(help="The checkpoint.ckpt of a classifier of texts.")] = None,
    texts: Annotated[Path | None, typer.Option(help="Read texts and labels with tabs between them.")] = None,
    requests: Annotated[int, typer.Option(min=2, help="Send this many requests in each measurement.")] = 400,
    connections: Annotated[list[int] | None, typer.Option(min=1, help="Send over this many connections.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Measure each server this many times.")] = 3,
    overload_seconds: Annotated[float, typer.Option(min=0.1, help="Overload a server for this time.")] = 10.0,
    quick: Annotated[bool, typer.Option("--quick", help="Take a small network, to check this script.")] = False,
    json_name: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """Measure the cost of a request, and the behaviour of a server under too many."""
    console = Console()
    with tempfile.TemporaryDirectory() as temporary:
        checkpoint, texts = chosen_texts(checkpoint, texts, quick, Path(temporary))
        lines, _ = labelled_texts(texts, requests)
        lines = [lines[number % len(lines)] for number in range(requests)]
        forms = forms_of(checkpoint, Path(temporary))
        rows, refused = measured(forms, lines, connections or [1, 16, 256], rounds)
    too_many = overload(overload_seconds)
    results = {"machine": describe(("fastapi", "uvicorn", "transformers", "onnxruntime")), "quick": quick}
    results |= {"rows": rows, "refused": refused, "overload": too_many}
    console.print(shown("Requests", rows))
    for name, reason in refused.items():
        console.print(f"{name} did not start: {reason}", markup=False, highlight=False)
    console.print(shown("Ten times the requests that a server bears", [too_many]))
    if json_name is not None:
        console.print(f"wrote {save(json_name, results)}")


if __name__ == "__main__":
    typer.run(main)
