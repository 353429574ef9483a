"""The addresses of a server: their inputs, their answers, and their refusals."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, NamedTuple

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException as RoutingError
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from lit_transformers.config import shortened
from lit_transformers.serving.dispatcher import Dispatcher, QueueFullError, QueueLimits, WorkerLostError
from lit_transformers.serving.messages import FAULT, LOST, Ability, LineAnswer, Prompt, TextPiece

__all__ = ["Access", "app_of"]

DESCRIPTIONS = {
    "answer": "Find the answer to a question.",
    "choose": "Choose the right one of several choices.",
    "classify": "Predict the class or the classes of a text.",
    "embed": "Compute the vector of a text.",
    "fill": "Predict the symbols behind each [MASK] of a text.",
    "generate": "Continue a prompt. The text comes in pieces, as server-sent events.",
    "score": "Predict the number of a text.",
    "search": "Find the passages that are most similar to a question.",
    "summarize": "Summarize a text.",
    "tag": "Predict the tags of the words of a text, and the entities.",
    "translate": "Translate a text.",
}
MANY = " Send a list of such objects for a list of answers."
JSON = "application/json"
REFUSALS = {
    401: "The key is missing or wrong.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    422: "The body cannot be read, or a text is too long.",
    429: "The queue is full. Retry-After has the seconds to wait.",
    503: "The process that computes ended. Try again.",
    504: "There was no answer in time.",
}


class Access(NamedTuple):
    """key: the bearer token that requests need; None: none. largest: bytes of a body, at most. body_seconds: the time
    in which it must arrive. most_lines: texts of a request, at most. most_characters: of a prompt. most_symbols: of a
    generated text."""

    key: str | None = None
    largest: int = 1 << 20
    body_seconds: float = 10.0
    most_lines: int = 64
    most_characters: int = 4096
    most_symbols: int = 1024


class PromptBody(BaseModel):
    """A prompt and how to continue it, as the options of ``generate``."""

    model_config = ConfigDict(extra="forbid")

    prompt: str = Field(description="First words of the text.")
    length: int = Field(64, ge=1, description="Symbols to generate.")
    temperature: float = Field(0.8, ge=0, allow_inf_nan=False, description="0 takes the likeliest symbol.")
    top_k: int = Field(0, ge=0, description="Sample among the K likeliest symbols; 0: all.")
    top_p: float = Field(1.0, gt=0, le=1, description="Sample among the likeliest symbols of this total probability.")
    seed: int = Field(0, ge=0, lt=1 << 63, description="Seed of sampling.")
    stream: bool = Field(True, description='Whether the text comes in pieces; otherwise as {"text": ...}.')


def app_of(dispatcher: Dispatcher, access: Access, title: str) -> FastAPI:
    """Returns the application: an address for each ability of the network, /health, /metrics and /docs."""
    app: FastAPI = FastAPIOffline(title=title, description="Served by lit-transformers.", redirect_slashes=False)
    add_refusals(app, dispatcher)
    add_state(app, dispatcher, access)
    for ability, example in dispatcher.abilities.examples.items():
        add_ability(app, dispatcher, access, ability, json.loads(example))
    return app


def add_refusals(app: FastAPI, dispatcher: Dispatcher) -> None:
    """Adds the refusals of requests that reach no address, and of those that the server fails on."""

    @app.exception_handler(RoutingError)
    async def not_routed(request: Request, fault: Exception) -> Response:
        return misrouted(request, fault, [*dispatcher.abilities.examples])

    @app.exception_handler(Exception)
    async def failed(request: Request, fault: Exception) -> Response:
        return error(FAULT, "the server failed on this request; its log has the cause")


def add_state(app: FastAPI, dispatcher: Dispatcher, access: Access) -> None:
    """Adds the addresses of the state and of the measures of a server."""

    @app.get("/health")
    async def health() -> Response:
        """Answer 200 if texts can be computed, 503 while the process that computes starts again."""
        is_ready, abilities = dispatcher.is_ready, [*dispatcher.abilities.examples]
        body = json.dumps({"ready": is_ready, "queued": dispatcher.queued, "abilities": abilities})
        return Response(body, 200 if is_ready else LOST, media_type=JSON)

    @app.get("/metrics")
    async def measures(request: Request) -> Response:
        """Return the measures of this server for Prometheus."""
        require_key(request, access)
        return Response(generate_latest(dispatcher.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def add_ability(app: FastAPI, dispatcher: Dispatcher, access: Access, ability: Ability, example: Any) -> None:
    """Adds the address of an ability, with an example of its requests."""
    answer = generate_text if ability == "generate" else answer_lines

    async def answered(request: Request) -> Response:
        started = time.monotonic()
        response = await response_of(request, access, answer(request, dispatcher, access, ability), dispatcher.limits)
        dispatcher.metrics.requests.labels(ability, str(response.status_code)).inc()
        dispatcher.metrics.seconds.labels(ability).observe(time.monotonic() - started)
        return response

    schema = PromptBody.model_json_schema()
    if ability != "generate":
        one = {"type": "object", "properties": {name: {} for name in example}}
        schema = {"oneOf": [one, {"type": "array", "items": one}], "description": DESCRIPTIONS[ability] + MANY}
    content = {JSON: {"schema": schema, "example": example}}
    refusals = {JSON: {"schema": {"type": "object", "properties": {"detail": {"type": "string"}}}}}
    app.add_api_route(
        f"/{ability}",
        answered,
        methods=["POST"],
        summary=DESCRIPTIONS[ability],
        operation_id=ability,
        responses={status: {"description": reason, "content": refusals} for status, reason in REFUSALS.items()},
        openapi_extra={"requestBody": {"required": True, "content": content}},
    )


async def response_of(
    request: Request, access: Access, answer: Coroutine[Any, Any, Response], limits: QueueLimits
) -> Response:
    """Returns an answer, or the refusal that it ends in."""
    try:
        require_key(request, access)
        return await answer
    except HTTPException as refusal:
        return error(refusal.status_code, refusal.detail, refusal.headers)
    except QueueFullError as busy:
        return error(429, str(busy), {"Retry-After": str(busy.seconds)})
    except WorkerLostError as lost:
        return error(LOST, str(lost), {"Retry-After": "1"})
    except TimeoutError:
        return error(504, f"no answer within {limits.timeout:g} s; send fewer or shorter texts")
    finally:
        answer.close()


async def answer_lines(request: Request, dispatcher: Dispatcher, access: Access, ability: Ability) -> Response:
    """Returns the answer to a request of one line, or of a list of lines."""
    lines, is_list = lines_of(await body_of(request, access), access)
    answers = await unless_gone(request, dispatcher.submit(ability, lines))
    return joined(answers) if is_list else Response(answers[0].body, answers[0].status, media_type=JSON)


async def generate_text(request: Request, dispatcher: Dispatcher, access: Access, ability: Ability) -> Response:
    """Returns a text as events, or as a whole."""
    prompt, stream = prompt_of(await body_of(request, access), access)
    others = dispatcher.pieces(prompt)
    first: TextPiece = await unless_gone(request, anext(others))  # a refusal comes before any text
    if first.status != 200:
        return refused(first)
    pieces = all_pieces(first, others)
    if stream:
        return EventStream(events(pieces), dispatcher.limits.timeout)
    whole: Response = await unless_gone(request, whole_text(pieces))
    return whole


CLOSE = {"Connection": "close"}
"""The header of a refusal whose request does not come to its end."""


def error(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Returns a refusal, in one line."""
    body = json.dumps({"detail": shortened(detail)}, ensure_ascii=False).encode(errors="replace")
    return Response(body, status, headers, media_type=JSON)


def refused(piece: TextPiece) -> Response:
    """Returns the refusal of a text that ended early."""
    return error(piece.status, piece.text, {"Retry-After": "1"} if piece.status == LOST else None)


def misrouted(request: Request, fault: Any, abilities: Sequence[str]) -> Response:
    """Returns the refusal of an address that the server does not have, or of a method that it does not take."""
    known = ", ".join(f"/{name}" for name in [*abilities, "docs", "health", "metrics"])
    reasons = {
        404: f"there is no {request.url.path}; the addresses are {known}",
        405: f"{request.url.path} takes no {request.method}; send a {fault.headers['Allow']} request"
        if fault.headers
        else "",
    }
    return error(fault.status_code, reasons.get(fault.status_code) or str(fault.detail), fault.headers)


def require_key(request: Request, access: Access) -> None:
    """Raises HTTPException 401 if the server has a key and the request has another one."""
    if access.key is None:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.encode(), access.key.encode()):
        raise HTTPException(401, "the key is missing or wrong; send Authorization: Bearer KEY")


async def body_of(request: Request, access: Access) -> bytes:
    """Returns the body of a request. Raises HTTPException 413 if it is too large, and 408 if it is too slow."""
    length, body = request.headers.get("content-length", "0"), bytearray()
    too_large = HTTPException(413, f"a body has at most {access.largest} bytes")
    if length.isdecimal() and int(length) > access.largest:
        raise too_large
    try:
        async with asyncio.timeout(access.body_seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > access.largest:
                    raise too_large
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {access.body_seconds:g} s", CLOSE) from None
    except ClientDisconnect:
        raise gone() from None
    return bytes(body)


def lines_of(body: bytes, access: Access) -> tuple[list[bytes], bool]:
    """Returns the lines of a body, and whether it is a list. Raises HTTPException 422 if it is neither an object nor a
    list of objects, or has too many."""
    plain = plain_of(body)
    if isinstance(plain, dict):
        return [body], False
    if not isinstance(plain, list) or not plain or not all(isinstance(line, dict) for line in plain):
        raise HTTPException(422, "give a JSON object, or a list of objects")
    if len(plain) > access.most_lines:
        raise HTTPException(422, f"a request has at most {access.most_lines} texts, and this one {len(plain)}")
    try:
        return [json.dumps(line).encode() for line in plain], True
    except RecursionError:
        raise HTTPException(422, "the body is nested too deeply") from None


def plain_of(body: bytes) -> Any:
    """Returns the content of a body of JSON in UTF-8. Raises HTTPException 422 if it is none."""
    try:
        return json.loads(body.decode())
    except UnicodeDecodeError as fault:
        raise HTTPException(422, f"byte {fault.start + 1} of the body is no UTF-8") from None
    except ValueError as fault:
        raise HTTPException(422, f"the body is no JSON: {fault}") from None
    except RecursionError:
        raise HTTPException(422, "the body is nested too deeply") from None


def prompt_of(body: bytes, access: Access) -> tuple[Prompt, bool]:
    """Returns the prompt of a body, and whether its text comes in pieces. Raises HTTPException 422 if it is bad."""
    plain = plain_of(body)
    if not isinstance(plain, dict):
        raise HTTPException(422, 'give a JSON object, such as {"prompt": "...", "length": 64}')
    try:
        read = PromptBody.model_validate(plain)
    except ValidationError as fault:
        first = fault.errors()[0]
        place = ".".join(map(str, first["loc"])) or "body"
        raise HTTPException(422, f"{place}: {first['msg']}") from None
    if len(read.prompt) > access.most_characters:
        raise HTTPException(422, f"prompt: at most {access.most_characters} characters are continued")
    if read.length > access.most_symbols:
        raise HTTPException(422, f"length: at most {access.most_symbols} symbols are generated")
    return Prompt(read.prompt, read.length, read.temperature, read.top_k, read.top_p, read.seed), read.stream


def joined(answers: list[LineAnswer]) -> Response:
    """Returns the answers to a list of lines as a list, or the refusal of the first bad one."""
    for number, answer in enumerate(answers, start=1):
        if answer.status != 200:
            return error(answer.status, f"text {number}: {json.loads(answer.body)['detail']}")
    return Response(f"[{', '.join(answer.body for answer in answers)}]", media_type=JSON)


def gone() -> HTTPException:
    """Returns the end of a request to which nobody listens any more. The measures count it by this status."""
    return HTTPException(499, "the client left")


async def unless_gone(request: Request, answer: Awaitable[Any]) -> Any:
    """Returns the result of an answer. If the client leaves before, the answer is cancelled."""
    work, leaving = asyncio.ensure_future(answer), asyncio.ensure_future(left(request))
    try:
        await asyncio.wait([work, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise gone()
        return work.result()
    finally:
        for task in (work, leaving):
            task.cancel()


async def left(request: Request) -> None:
    """Returns when the client of a request has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def all_pieces(first: TextPiece, others: AsyncGenerator[TextPiece, None]) -> AsyncGenerator[TextPiece, None]:
    """Yields all pieces of a text, given the first and the others."""
    async with aclosing(others):
        yield first
        if not first.end:
            async for piece in others:
                yield piece


async def events(pieces: AsyncGenerator[TextPiece, None]) -> AsyncGenerator[str, None]:
    """Yields server-sent events: {"text": ...} for each piece, then one named end, or one named error."""
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                if piece.status != 200:
                    yield event({"detail": piece.text}, "event: error\n")
                    return
                if piece.text:
                    yield event({"text": piece.text})
    except TimeoutError:
        yield event({"detail": "the next piece took too long"}, "event: error\n")
        return
    yield event({}, "event: end\n")


def event(content: dict[str, str], name: str = "") -> str:
    """Returns one server-sent event. name: the line of its name; without one it is a message."""
    return f"{name}data: {json.dumps(content)}\n\n"


class EventStream(StreamingResponse):
    """Sends events. If the client leaves, or reads nothing for ``seconds``, the text ends at once."""

    def __init__(self, events: AsyncGenerator[str, None], seconds: float) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self.events, self.seconds = events, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Any) -> None:
            try:
                async with asyncio.timeout(self.seconds):
                    await send(message)
            except TimeoutError:
                raise ClientDisconnect from None

        with suppress(ClientDisconnect):
            async with aclosing(self.events):
                await super().__call__(scope, receive, send_in_time)


async def whole_text(pieces: AsyncGenerator[TextPiece, None]) -> Response:
    """Returns a text as a whole."""
    parts = list[str]()
    async for piece in pieces:
        if piece.status != 200:
            return refused(piece)
        parts.append(piece.text)
    return Response(json.dumps({"text": "".join(parts)}, ensure_ascii=False), media_type=JSON)
