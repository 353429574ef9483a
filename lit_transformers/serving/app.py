"""The addresses of a server: what they read, what they answer, and when they refuse."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import StreamingResponse

from lit_transformers.serving.dispatcher import BusyError, Dispatcher, WorkerLostError
from lit_transformers.serving.messages import Ability, Answer, Piece, Prompt

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
FIELDS = {"detail": {"type": "string"}}
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
    in which it must arrive. most_lines: texts of a request, at most. most_symbols: of a generated text."""

    key: str | None = None
    largest: int = 1 << 20
    body_seconds: float = 10.0
    most_lines: int = 64
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
    app: FastAPI = FastAPIOffline(title=title, description="Served by lit-transformers.")
    metrics = dispatcher.metrics

    @app.get("/health")
    async def health() -> Response:
        """Answer 200 if texts can be computed, 503 while the process that computes starts again."""
        body = {
            "ready": dispatcher.is_ready,
            "queued": dispatcher.queued,
            "abilities": [*dispatcher.abilities.examples],
        }
        return Response(json.dumps(body), 200 if dispatcher.is_ready else 503, media_type="application/json")

    @app.get("/metrics")
    async def measures(request: Request) -> Response:
        """Return the measures of this server for Prometheus."""
        require_key(request, access)
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    def add(ability: Ability, answer: Callable[[Request], Awaitable[Response]], schema: dict[str, Any]) -> None:
        async def answered(request: Request) -> Response:
            started = time.monotonic()
            response = await response_of(request, answer)
            metrics.requests.labels(ability, str(response.status_code)).inc()
            metrics.seconds.labels(ability).observe(time.monotonic() - started)
            return response

        app.add_api_route(
            f"/{ability}",
            answered,
            methods=["POST"],
            summary=DESCRIPTIONS[ability],
            operation_id=ability,
            responses={
                status: {"description": reason, "content": {"application/json": {"schema": {"properties": FIELDS}}}}
                for status, reason in REFUSALS.items()
            },
            openapi_extra={"requestBody": {"required": True, "content": {"application/json": schema}}},
        )

    async def response_of(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        try:
            require_key(request, access)
            return await answer(request)
        except HTTPException as refusal:
            return error(refusal.status_code, refusal.detail)
        except BusyError as busy:
            return error(429, str(busy), {"Retry-After": str(busy.seconds)})
        except WorkerLostError as lost:
            return error(503, str(lost), {"Retry-After": "1"})
        except TimeoutError:
            return error(504, f"no answer within {dispatcher.limits.timeout:g} s; send fewer or shorter texts")

    def lines_answered(ability: Ability) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            lines, is_list = lines_of(await body_of(request, access), access)
            answers = await unless_gone(request, dispatcher.submit(ability, lines))
            return joined(answers) if is_list else Response(answers[0].body, answers[0].status, media_type=JSON)

        return answer

    async def text_generated(request: Request) -> Response:
        prompt, stream = prompt_of(await body_of(request, access), access)
        others = dispatcher.pieces(prompt)
        first: Piece = await unless_gone(request, anext(others))  # a refusal comes before any text
        if first.error:
            return error(422, first.error)
        pieces = all_pieces(first, others)
        if stream:
            return StreamingResponse(events(pieces), media_type="text/event-stream")
        whole: Response = await unless_gone(request, whole_text(pieces))
        return whole

    for ability, example in dispatcher.abilities.examples.items():
        plain = json.loads(example)
        if ability == "generate":
            add(ability, text_generated, {"schema": PromptBody.model_json_schema(), "example": plain})
        else:
            one = {"type": "object", "properties": {name: {} for name in plain}}
            schema = {"oneOf": [one, {"type": "array", "items": one}], "description": DESCRIPTIONS[ability] + MANY}
            add(ability, lines_answered(ability), {"schema": schema, "example": plain})
    return app


JSON = "application/json"


def error(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    """Returns a refusal."""
    body = json.dumps({"detail": detail}, ensure_ascii=False).encode(errors="replace")
    return Response(body, status, headers, media_type=JSON)


def require_key(request: Request, access: Access) -> None:
    """Raises HTTPException 401 if the server has a key and the request has another one."""
    if access.key is None:
        return
    given = request.headers.get("authorization", "").encode(errors="replace")
    if not hmac.compare_digest(given, f"Bearer {access.key}".encode()):
        raise HTTPException(401, "the key is missing or wrong; send Authorization: Bearer KEY")


async def body_of(request: Request, access: Access) -> bytes:
    """Returns the body of a request. Raises HTTPException 413 if it is too large, and 408 if it is too slow."""
    length, body = request.headers.get("content-length", "0"), bytearray()
    too_large = HTTPException(413, f"a body has at most {access.largest} bytes")
    if length.isdigit() and int(length) > access.largest:
        raise too_large
    try:
        async with asyncio.timeout(access.body_seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > access.largest:
                    raise too_large
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {access.body_seconds:g} s") from None
    return bytes(body)


def lines_of(body: bytes, access: Access) -> tuple[list[bytes], bool]:
    """Returns the lines of a body, and whether it is a list. Raises HTTPException 422 if it is neither an object nor a
    list of objects, or has too many."""
    plain = plain_of(body)
    if isinstance(plain, dict):
        return [body.strip()], False
    if not isinstance(plain, list) or not plain or not all(isinstance(line, dict) for line in plain):
        raise HTTPException(422, "give a JSON object, or a list of objects")
    if len(plain) > access.most_lines:
        raise HTTPException(422, f"a request has at most {access.most_lines} texts, and this one {len(plain)}")
    return [json.dumps(line).encode() for line in plain], True


def plain_of(body: bytes) -> Any:
    """Returns the content of a body of JSON. Raises HTTPException 422 if it is none."""
    try:
        return json.loads(body)
    except UnicodeDecodeError as fault:
        raise HTTPException(422, f"byte {fault.start + 1} of the body is no UTF-8") from None
    except ValueError as fault:
        raise HTTPException(422, f"the body is no JSON: {fault}") from None
    except RecursionError:
        raise HTTPException(422, "the body is nested too deeply") from None


def prompt_of(body: bytes, access: Access) -> tuple[Prompt, bool]:
    """Returns the prompt of a body, and whether its text comes in pieces. Raises HTTPException 422 if it is bad."""
    try:
        read = PromptBody.model_validate(plain_of(body))
    except ValidationError as fault:
        first = fault.errors()[0]
        place = ".".join(map(str, first["loc"])) or "body"
        raise HTTPException(422, f"{place}: {first['msg']}") from None
    if read.length > access.most_symbols:
        raise HTTPException(422, f"length: at most {access.most_symbols} symbols are generated")
    return Prompt(read.prompt, read.length, read.temperature, read.top_k, read.top_p, read.seed), read.stream


def joined(answers: list[Answer]) -> Response:
    """Returns the answers to a list of lines as a list, or the refusal of the first bad one."""
    for answer in answers:
        if answer.status != 200:
            return error(answer.status, f"text {answer.place + 1}: {json.loads(answer.body)['detail']}")
    return Response(f"[{', '.join(answer.body for answer in answers)}]", media_type=JSON)


async def unless_gone(request: Request, answer: Awaitable[Any]) -> Any:
    """Returns the result of an answer. If the client leaves before, the answer is cancelled."""
    work, gone = asyncio.ensure_future(answer), asyncio.ensure_future(left(request))
    try:
        await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise HTTPException(499, "the client left")
        return work.result()
    finally:
        for task in (work, gone):
            task.cancel()


async def left(request: Request) -> None:
    """Returns when the client of a request has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def all_pieces(first: Piece, others: AsyncIterator[Piece]) -> AsyncIterator[Piece]:
    """Yields all pieces of a text, given the first and the others."""
    yield first
    if not first.end:
        async for piece in others:
            yield piece


async def events(pieces: AsyncIterator[Piece]) -> AsyncIterator[str]:
    """Yields server-sent events: {"text": ...} for each piece, then one named end, or one named error."""
    try:
        async for piece in pieces:
            if piece.error:
                yield event({"detail": piece.error}, "event: error\n")
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


async def whole_text(pieces: AsyncIterator[Piece]) -> Response:
    """Returns a text as a whole."""
    parts = list[str]()
    async for piece in pieces:
        if piece.error:
            return error(500, piece.error)
        parts.append(piece.text)
    return Response(json.dumps({"text": "".join(parts)}, ensure_ascii=False), media_type=JSON)
