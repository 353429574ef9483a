"""Sends bad requests to a server over real connections, and checks that it stays as it was.

    python -m benchmarks.bad_requests [CHECKPOINT | --ability NAME] [--requests 100000] [--connections 32] [--seed 0]
                                      [--json NAME]

The requests are sound ones with faults in their body, their head, or the way in which they are sent: cut, patched,
nested, of other encodings, larger than allowed, with wrong lengths and types, with absurd options of a text, in broken
chunks, with many headers, half sent, held open, and left before or within the answer. They follow from the seed. Among
them are sound requests. Without a checkpoint, a small network with random weights is served.

A fault is a status of 5xx, a refusal that is not one line of JSON, a sound request that is not answered, server-sent
events that do not end by one named end or error, and a connection that hangs. Before and after, the server answers the
same texts, which must have the same answers. Memory is measured every tenth of the requests. The command exits with
status 1 where there is a fault, where an answer has changed, or where memory has grown by more than 16 MiB in the
second half of the requests.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import psutil
import typer
from rich.console import Console

from benchmarks.hardware import JSON_HELP, describe, save
from benchmarks.reading import shown
from benchmarks.serving import RunningServer, running, serve_queue
from benchmarks.text_networks import tiny_checkpoint, tiny_language_model, tiny_translator
from lit_transformers.serving.worker import answer_messages

PATIENCE = 40.0
"""Seconds after which a connection hangs. The server gives up a request after 30 s."""
GROWTH = 16.0
"""Mebibytes by which the memory of a server may grow in the second half of the requests. In the first half the process
that computes fills its caches: oneDNN keeps the products that it has compiled for a limited number of shapes, and the
allocator the largest sizes that were needed."""
ALLOWED = frozenset({200, 400, 401, 404, 405, 408, 413, 422, 429, 431})
"""The statuses of answers and of refusals for which the client is the cause."""
HELD = 0.002
"""The share of incomplete requests whose connection stays open until the server ends it."""
Way = Literal["whole", "pieces", "ended", "left", "reset", "held", "stopped"]
"""How a request is sent: at once; in pieces; with the end of sending after it; without reading the answer; by breaking
the connection; to a server that waits for more; or by leaving within the answer."""


class BadRequest(NamedTuple):
    """Bytes for a connection. is_sound: whether they must have an answer with status 200. is_whole: whether they must
    have an answer."""

    content: bytes
    way: Way
    is_sound: bool = False
    is_whole: bool = True


class Reply(NamedTuple):
    """The answer to a request. status 0: the server has closed the connection without one. is_events: whether it comes
    as server-sent events."""

    status: int
    body: bytes
    is_json: bool
    is_events: bool = False


def bad_bodies(example: Any, draw: random.Random) -> bytes:
    """Returns a body with faults, given a sound one."""
    sound = json.dumps(example).encode()
    kind = draw.randrange(12)
    if kind < 3:
        return patched(sound, draw)
    if kind < 6:
        return json.dumps(changed(example, draw)).encode("utf-8", "surrogatepass")
    if kind == 6:
        return json.dumps([changed(example, draw) for _ in range(draw.choice((0, 1, 3, 64, 65, 300)))]).encode()
    if kind == 7:
        depth = draw.choice((10, 500, 20_000, 200_000))
        opened, closed = draw.choice(((b"[", b"]"), (b'{"text":', b"}"), (b'[{"text":', b"}]")))
        return opened * depth + sound + closed * draw.choice((0, depth))
    if kind == 8:
        return (draw.choice((b" ", b"a", b"\xff", b"9", sound)) * draw.choice((1, 5000, 1 << 21)))[: 1 << 21]
    if kind == 9:
        encoding = draw.choice(("utf-8-sig", "utf-16", "utf-32", "latin-1"))
        return json.dumps(changed(example, draw), ensure_ascii=False).encode(encoding, "replace")
    if kind == 10:
        return json.dumps({name: draw.choice(LONG) for name in example}).encode()
    return draw.randbytes(draw.randrange(80))


ODD = (
    None, True, 0, -1, 1.5, 1e308, float("nan"), float("inf"), 10**400, "", " ", "\0", "\ud800", "a\nb", "\u202eé",
    "[MASK]" * 40, [], {}, [[]], ["a"], {"text": "a"}, [None] * 100, "x" * 5000,
)  # fmt: skip
LONG = ("a " * 20_000, "x" * 300_000, "é" * 50_000, "\x00" * 2000, "🙂 " * 3000, "film " * 30)


OPTIONS: Mapping[str, Sequence[Any]] = {
    "length": (1, 2, 1025, 1 << 62, 1e300),
    "temperature": (0, 1e-320, 1e-30, 1e30, 1.7e308, -0.0),
    "top_k": (1, 2, 10**6, 1 << 63, 1 << 64, 10**30),
    "top_p": (5e-324, 1e-30, 0.5, 1.0, 1.0000001),
    "seed": ((1 << 63) - 1, 1 << 63, 1 << 64, 10**40),
    "stream": (True, False, "yes", 2),
}
"""Values of the options of a text, most of them absurd and some of them allowed."""


def with_options(example: Any, draw: random.Random) -> Any:
    """Returns a prompt with other options; data that are no prompt are returned as they are."""
    if not isinstance(example, dict) or "prompt" not in example:
        return example
    chosen = draw.sample([*OPTIONS], draw.randrange(1, 4))
    return example | {"length": 3} | {name: draw.choice(OPTIONS[name]) for name in chosen}


def changed(example: Any, draw: random.Random) -> Any:
    """Returns plain data with other values, or with other names."""
    if not isinstance(example, dict) or draw.random() < 0.1:
        return draw.choice(ODD)
    if draw.random() < 0.4:
        example = with_options(example, draw)
        if draw.random() < 0.7:
            return example
    fields = {name: draw.choice(ODD) if draw.random() < 0.6 else value for name, value in example.items()}
    if draw.random() < 0.2 and fields:
        del fields[draw.choice([*fields])]
    if draw.random() < 0.2:
        fields[draw.choice(("", "id", "text ", "\ud800", "x" * 3000, "le\nngth"))] = draw.choice(ODD)
    return fields


def patched(content: bytes, draw: random.Random) -> bytes:
    """Returns bytes that are cut, or hold others."""
    start, stop = sorted(draw.randrange(len(content) + 1) for _ in range(2))
    noise = draw.randbytes(draw.randrange(1, 5))
    return draw.choice(
        (content[:start], content[start:], content[:start] + noise + content[start:], content[:start] + content[stop:],
         content[:stop] + content[start:], content[:start] + noise + content[stop:])
    )  # fmt: skip


def head_of(path: str, fields: Sequence[tuple[str, str]], method: str = "POST", version: str = "HTTP/1.1") -> bytes:
    lines = [f"{method} {path} {version}", *(f"{name}: {value}" for name, value in fields), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def in_chunks(body: bytes, draw: random.Random) -> bytes:
    """Returns a body in chunks, the most of them sound."""
    parts = [body[place : place + 700] for place in range(0, min(len(body), 7000), 700)]
    whole = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    faults = (b"zz\r\n", b"-1\r\na\r\n", b"f" * 20 + b"\r\n", b"5\r\nabc", b"1;a=" + b"b" * 9000 + b"\r\na\r\n")
    return whole if draw.random() < 0.5 else draw.choice(faults) + whole


TYPES = ("application/json", "text/plain", "multipart/form-data; boundary=a", "application/x-www-form-urlencoded", "")
STARTS = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0" * 100, b"\r\n" * 50,
    b"GET\r\n\r\n", b"POST /classify\r\n\r\n", b"POST /classify HTTP/9.9\r\n\r\n", b"\xff\xfe\r\n\r\n",
    b"GET / HTTP/1.1\n\n",
    b"GET http://[ HTTP/1.1\r\n\r\n", b"POST  /classify  HTTP/1.1\r\n\r\n", b"GET /%00%ff%zz HTTP/1.1\r\n\r\n",
)  # fmt: skip
"""The first bytes of other protocols and of broken clients."""


def bad_request(path: str, example: Any, draw: random.Random) -> BadRequest:
    """Returns a request with faults, or rarely a sound one, to an address with a sound example of its requests."""
    kind = draw.random()
    body = json.dumps(example).encode() if kind < 0.05 else bad_bodies(example, draw)
    fields = [("Host", "a"), ("Content-Type", draw.choice(TYPES))]
    sized = [*fields, ("Content-Length", str(len(body)))]
    way: Way = draw.choice(("whole", "whole", "pieces", "left", "reset", "stopped"))
    if kind < 0.55:
        is_sound = kind < 0.05 and way in ("whole", "pieces")
        return BadRequest(head_of(path, sized) + body, way, is_sound)
    unfinished: Way = "held" if draw.random() < HELD else draw.choice(("ended", "left", "reset"))
    if kind < 0.65:  # half sent
        content = head_of(path, sized) + body
        return BadRequest(content[: draw.randrange(len(content))], unfinished, is_whole=False)
    if kind < 0.75:  # lengths that are wrong
        wrong = draw.choice(
            ("0", "-1", "1e3", "９", "", str(len(body) + 10), str(1 << 70), "5, 6", "+3", " 7", "1 << 20")
        )
        own = [*fields, ("Content-Length", wrong)]
        with suppress(UnicodeEncodeError):
            return BadRequest(head_of(path, own) + body, unfinished, is_whole=False)
        return BadRequest(head_of(path, fields) + body, unfinished, is_whole=False)
    if kind < 0.85:  # chunks
        own = [*fields, ("Transfer-Encoding", draw.choice(("chunked", "Chunked", "gzip, chunked", "identity")))]
        own += [("Content-Length", "5")] if draw.random() < 0.1 else []
        return BadRequest(head_of(path, own) + in_chunks(body, draw), unfinished, is_whole=False)
    if kind < 0.95:  # heads
        more = draw.choice(
            ([(f"x-{number}", "a") for number in range(1500)], [("x", "a" * 70_000)], [("Expect", "100-continue")],
             [("Connection", "Upgrade"), ("Upgrade", "websocket")], [("Content-Encoding", "gzip")], [("a b", "c")],
             [("Authorization", "Bearer \xff")], [("Host", "b"), ("Host", "\x01")], [("Connection", "close")])
        )  # fmt: skip
        method = draw.choice(("POST", "POST", "GET", "PUT", "HEAD", "OPTIONS", "TRACE", "CONNECT", "QQ", "post"))
        place = draw.choice(
            (path, path, "/health", "/metrics", "/docs", f"{path}/", "/%2e%2e/", "*", "/?" + "a=b&" * 3000)
        )
        version = draw.choice(("HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2"))
        return BadRequest(head_of(place, sized + more, method, version) + body, unfinished, is_whole=False)
    content = draw.choice(STARTS) if draw.random() < 0.5 else patched(head_of(path, sized) + body[:2000], draw)
    return BadRequest(content, unfinished, is_whole=False)


def bad_requests(examples: Mapping[str, Any], seed: int) -> Iterator[BadRequest]:
    """Yields requests without end, given an example of the requests of each address."""
    draw, paths = random.Random(seed), sorted(examples)
    while True:
        path = draw.choice(paths)
        yield bad_request(path, examples[path], draw)


async def sent(port: int, request: BadRequest) -> Reply | None:
    """Sends a request over a separate connection. Returns the answer; None if none is read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with suppress(OSError):  # the server may refuse before it has read all
            cut = len(request.content) // 2 if request.way == "pieces" else 0
            for part in (request.content[:cut], request.content[cut:]):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.001 if cut else 0)
            if request.way == "ended":
                writer.write_eof()
        if request.way == "stopped":
            with suppress(OSError):
                await reader.read(200)
        if request.way == "reset" or (request.way == "stopped" and len(request.content) % 2):
            own: socket.socket = writer.get_extra_info("socket")
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        is_head = request.content.startswith(b"HEAD ")
        return None if request.way in ("left", "reset", "stopped") else await reply_from(reader, is_head)
    finally:
        writer.close()


async def reply_from(reader: asyncio.StreamReader, is_head: bool) -> Reply:
    """Reads an answer to its end. is_head: whether it has no body, since that of a HEAD request has none."""
    try:
        head = b"http/1.1 100"
        while head.startswith(b"http/1.1 100"):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if is_head:
            body = b""
        elif b"transfer-encoding: chunked" in head:
            body = await reader.readuntil(b"0\r\n\r\n")
        else:
            body = await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0))
    except (asyncio.IncompleteReadError, ConnectionError):
        return Reply(0, b"", False)
    is_json, is_events = (b"content-type: " + form in head for form in (b"application/json", b"text/event-stream"))
    return Reply(int(head.split(maxsplit=2)[1]), body, is_json, is_events)


def fault_of(request: BadRequest, reply: Reply | None) -> str:
    """Returns the fault of an answer; empty for none."""
    if reply is None or (reply.status == 0 and not request.is_whole):
        return ""
    if request.is_sound and reply.status != 200:
        return f"a sound request has status {reply.status}"
    if reply.status not in ALLOWED:
        return f"status {reply.status}: {reply.body[:200]!r}" if reply.status else "no answer"
    if reply.is_events and not ended(reply.body):
        return f"events without an end: {reply.body[-200:]!r}"
    if reply.status == 200 or not reply.body:
        return ""
    detail = None
    with suppress(ValueError, AttributeError):
        detail = json.loads(reply.body).get("detail") if reply.is_json else None
    is_line = isinstance(detail, str) and detail.strip() and "\n" not in detail and len(detail) < 1000
    return "" if is_line else f"status {reply.status} without a line of JSON: {reply.body[:200]!r}"


def ended(body: bytes) -> bool:
    """Whether server-sent events, in chunks, end by one named end, or by one named error with a line."""
    last = body.rsplit(b"event: ", 1)[-1]
    return last.startswith((b"end\ndata: {}", b'error\ndata: {"detail": "'))


class RequestCounts(NamedTuple):
    """The outcomes of requests. statuses: how many had each status; "closed": the connection ended without an answer;
    "not read": the client left. faults: the requests that break a promise, with the reason."""

    statuses: Counter[str]
    faults: list[str]


async def attempted(
    port: int, requests: Iterator[BadRequest], connections: int, outcome: RequestCounts, held: set[asyncio.Task[None]]
) -> None:
    """Sends requests over several connections at once. A request that is held has another connection, and is added to
    the set, for it lasts."""

    async def attempt(request: BadRequest) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                reply = await sent(port, request)
            fault = fault_of(request, reply)
        except TimeoutError:
            reply, fault = None, f"hangs for {PATIENCE:g} s"
        status = "not read" if reply is None else str(reply.status) if reply.status else "closed"
        outcome.statuses[status] += 1
        if fault:
            outcome.faults.append(f"{fault}, {request.way}: {request.content[:300]!r}")

    async def attempt_each() -> None:
        for request in requests:
            if request.way == "held":
                held.add(asyncio.create_task(attempt(request)))
            else:
                await attempt(request)

    await asyncio.gather(*(attempt_each() for _ in range(connections)))


async def examples_of(port: int) -> dict[str, Any]:
    """Returns an example of the requests of each address of a server, as its page describes them."""
    reply = await sent(port, BadRequest(head_of("/openapi.json", [("Host", "a")], "GET"), "whole"))
    assert reply is not None
    paths = json.loads(reply.body)["paths"]
    return {
        path: own["post"]["requestBody"]["content"]["application/json"]["example"]
        for path, own in paths.items()
        if "post" in own
    }


async def probed(port: int, examples: Mapping[str, Any]) -> list[Reply | None]:
    """Returns the answers to sound requests, one after another: each is read alone."""
    bodies = [(path, json.dumps(example).encode()) for path, example in examples.items()]
    bodies += [(path, json.dumps([example] * 3).encode()) for path, example in examples.items()]
    return [
        await sent(port, BadRequest(head_of(path, [("Host", "a"), ("Content-Length", str(len(body)))]) + body, "whole"))
        for path, body in bodies
    ]


def mebibytes(process: psutil.Process) -> list[float]:
    """Returns the memory of a process, and of each that it has started."""
    own = [process, *process.children(recursive=True)]
    return [one.memory_info().rss / (1 << 20) for one in own]


async def abused(
    server: RunningServer, requests: int, connections: int, seed: int, report: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Sends bad requests to a server. Returns how many had each status, the faults, the mebibytes of memory after each
    tenth, and whether its answers are still those from before."""
    examples, outcome = await examples_of(server.port), RequestCounts(Counter(), [])
    memory, held = list[list[float]](), set[asyncio.Task[None]]()
    before, every = await probed(server.port, examples), bad_requests(examples, seed)
    assert any(reply is not None and reply.status == 200 for reply in before)
    begin = server.cpu_seconds()
    for part in range(10):
        own = islice(every, requests // 10)
        await attempted(server.port, own, connections, outcome, held)
        if part == 9:
            await asyncio.gather(*held)
        memory.append(mebibytes(server.process))
        each = " + ".join(f"{own:.1f}" for own in memory[-1])
        report(f"{outcome.statuses.total():,} requests, {each} MiB, {len(outcome.faults)} faults")
    is_equal = await probed(server.port, examples) == before
    return {
        "requests": outcome.statuses.total(),
        "statuses": dict(sorted(outcome.statuses.items())),
        "cpu_seconds": server.cpu_seconds() - begin,
        "memory_mib": memory,
        "early_growth_mib": sum(memory[4]) - sum(memory[0]),
        "late_growth_mib": sum(memory[-1]) - sum(memory[4]),
        "equal_answers": is_equal,
        "faults": outcome.faults,
    }


Ability = Literal["classify", "generate", "translate"]
MAKERS: Mapping[Ability, Callable[[Path], Path]] = {
    "classify": lambda folder: tiny_checkpoint(folder)[0],
    "generate": tiny_language_model,
    "translate": tiny_translator,
}
"""The functions that write the checkpoint of a small network into a folder."""


def main(
    checkpoint: Annotated[Path | None, typer.Argument(help="Serve this checkpoint.ckpt.")] = None,
    ability: Annotated[Ability, typer.Option(help="Without a checkpoint: the network's ability.")] = "classify",
    requests: Annotated[int, typer.Option(min=10, help="Send this many requests.")] = 100_000,
    connections: Annotated[int, typer.Option(min=1, help="Send over this many connections at once.")] = 32,
    seed: Annotated[int, typer.Option(help="Draw the requests from this seed.")] = 0,
    json_name: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """Send bad requests to a server, and check that it stays as it was."""
    console = Console()
    with tempfile.TemporaryDirectory() as temporary:
        served = checkpoint or MAKERS[ability](Path(temporary))
        with running(serve_queue, answer_messages, served) as server:
            result = asyncio.run(abused(server, requests, connections, seed, console.print))
    for fault in result["faults"][:20]:
        console.print(f"FAULT: {fault}", markup=False)
    console.print(
        shown("Bad requests", [{name: value for name, value in result.items() if name not in ("faults", "memory_mib")}])
    )
    if json_name is not None:
        console.print(f"wrote {save(json_name, {'machine': describe(('fastapi', 'uvicorn'))} | result)}")
    if result["faults"] or not result["equal_answers"] or result["late_growth_mib"] > GROWTH:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
