"""The process that computes: holds the network, passes its gate, and answers messages."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from lit_transformers.serving.messages import (
    BAD,
    FAULT,
    Abilities,
    Failure,
    LineAnswer,
    LineWork,
    Prompt,
    ServingOptions,
    TextPiece,
    received,
)

__all__ = ["answer_messages"]

CLOSE = 1e-5
"""The most by which two numbers of equal answers differ, as a share of the larger or of 1. Rounding depends on the
batch."""
PROMPT = {"prompt": "The ", "length": 64, "temperature": 0.8}
"""The example of a request for a text."""


def answer_messages(connection: Connection, options: ServingOptions) -> None:
    """Runs the process: sends its abilities or a failure, then answers messages until the connection closes."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they stop the server, which ends this process when it is ready
        signal.signal(number, signal.SIG_IGN)
    from lit_transformers.startup.quick_imports import quick_imports

    with quick_imports():
        from datamodules import DataError
        from lit_transformers.config import ConfigError
        from lit_transformers.machine.cores import limit_threads
        from lit_transformers.serving.services import services_of

    limit_threads(options.threads)
    try:
        services = services_of(options)
        examples = {name: service.example(1) for name, service in services.lines.items()}
        if services.writer is not None:
            examples["generate"] = json.dumps(PROMPT)
        checked = sum(check(service, options.precision) for service in services.lines.values())
    except (ConfigError, DataError, OSError) as error:
        connection.send(Failure(" ".join(str(error).split())))
        return
    with suppress(EOFError, OSError):  # the server has ended
        connection.send(Abilities(examples, checked))
        for message in received(connection):
            if isinstance(message, LineWork):
                for answer in services.lines[message.ability].answers(message.lines):
                    connection.send(answer)
            elif services.writer is not None:
                for piece in pieces(services.writer, message):
                    if connection.poll():  # nobody reads this text any more
                        connection.recv()
                        connection.send(TextPiece("", True))
                        break
                    connection.send(piece)


def pieces(writer: Any, prompt: Prompt) -> Iterator[TextPiece]:
    """Yields a text in pieces, the last of which says whether the text is whole."""
    from lit_transformers.config import ConfigError, shortened
    from lit_transformers.decoding.sampling import SamplingConfig

    try:
        fields = {name: getattr(prompt, name) for name in ("temperature", "top_k", "top_p", "seed")}
        for text in writer.write(prompt.text, prompt.length, SamplingConfig(**fields)):
            if text:
                yield TextPiece(text)
    except ConfigError as error:
        yield TextPiece(shortened(str(error)), True, BAD)
    except Exception as error:
        yield TextPiece(shortened(f"the network failed on this prompt: {error}"), True, FAULT)
    else:
        yield TextPiece("", True)


def check(service: Any, precision: str = "float32") -> int:
    """Compares the answers to texts alone, together and in another order with those of the command, which reads them
    offline. Returns the number of texts. Raises ConfigError if an answer differs, as those in bfloat16 do on some
    processors, whose kernels round differently for other sizes of a batch."""
    from lit_transformers.config import ConfigError

    alone = {line: answer.body for line in service.examples() for answer in answered(service, [line])}
    lines = [*alone]  # without those that are too long
    if len(lines) < 2:
        reason = "it answers fewer than two of the texts that are compared, since its longest text of training is short"
        raise ConfigError(f"{reason}; serve a network of longer texts, or with --overlong cut", "gate")
    together = [answer.body for answer in reversed([*answered(service, [*reversed(lines)])])]
    for line, expected, *served in zip(lines, service.offline(lines), alone.values(), together, strict=True):
        for answer in served:
            if not equal(json.loads(answer), json.loads(expected)):
                reason = f"served is {answer[:80]}, and offline {expected[:80]}, for {line[:60]}"
                remedy = "serve a network whose outputs do not depend on other texts"
                if precision != "float32":
                    remedy = f"this processor rounds {precision} differently in other batches; serve in float32"
                raise ConfigError(f"{reason}; {remedy}", "gate")
    return len(lines)


def answered(service: Any, lines: Sequence[str]) -> Iterator[LineAnswer]:
    """Yields the answers to lines in their order, without refusals. Raises ConfigError if the network fails."""
    from lit_transformers.config import ConfigError

    answers = service.answers([line.encode() for line in lines])
    for answer in sorted(answers, key=lambda answer: answer.place):
        if answer.status == FAULT:
            raise ConfigError(json.loads(answer.body)["detail"], "gate")
        if answer.status == 200:
            yield answer


def equal(first: Any, second: Any) -> bool:
    """Whether two answers are equal but for rounding."""
    if isinstance(first, float) and isinstance(second, int | float):
        return abs(first - second) <= CLOSE * max(1.0, abs(first))
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(equal(first[name], second[name]) for name in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(equal, first, second))
    return bool(first == second)
