"""Messages between the process that speaks HTTP and the process that computes. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, NamedTuple

__all__ = [
    "BAD",
    "FAULT",
    "LOST",
    "Abilities",
    "Ability",
    "Failure",
    "LineAnswer",
    "LineWork",
    "Prompt",
    "ServingOptions",
    "TextPiece",
    "received",
]

Ability = str
"""A thing that a server does with texts, as a verb, which is the name of its address."""


@dataclass(frozen=True)
class ServingOptions:
    """The options of a server: the checkpoint that it serves, and the way in which its process computes.

    checkpoint: a file, as ``predict`` takes it. head: the source whose head predicts, for a run of several tasks.
    passages: for retrieval, a file with one passage in each line; for ``answer``, a folder of ``encode``. retriever:
    a checkpoint that finds the passages that ``answer`` reads. top: passages found for each question. overlong:
    whether texts longer than in training are cut or refused. batch_tokens: symbols of a batch; None for those that are
    read fastest. precision: of the network's passes. threads: of the process; None for those of the machine.
    """

    checkpoint: Path
    head: str | None = None
    passages: Path | None = None
    retriever: Path | None = None
    top: int = 5
    overlong: Literal["cut", "refuse"] = "refuse"
    batch_tokens: int | None = None
    precision: Literal["float32", "bfloat16", "int8"] = "float32"
    threads: int | None = None


class Abilities(NamedTuple):
    """The abilities of a process. Sent once, when its gate has passed.

    examples: for each ability, a request that it answers, as JSON. checked: the texts that the gate compared.
    """

    examples: dict[Ability, str]
    checked: int


class Failure(NamedTuple):
    """The process cannot serve. Sent in place of ``Abilities``."""

    reason: str


class LineWork(NamedTuple):
    """Texts for one ability, each a line of JSON as ``predict --lines json`` reads it."""

    ability: Ability
    lines: list[bytes]


class Prompt(NamedTuple):
    """A text to continue."""

    text: str
    length: int
    temperature: float
    top_k: int
    top_p: float
    seed: int


BAD, FAULT, LOST = 422, 500, 503
"""The statuses of a text that cannot be read, of one that the network failed on, and of one whose process has ended."""


class LineAnswer(NamedTuple):
    """The output for the line at ``place`` of the work: JSON, or the reason why there is none. status: of HTTP."""

    place: int
    status: int
    body: str


class TextPiece(NamedTuple):
    """A piece of a generated text. end: whether it is the last. status: of HTTP; with another one than 200, the last
    piece is the reason why the text ends early."""

    text: str
    end: bool = False
    status: int = 200


def received(connection: Connection) -> Iterator[LineWork | Prompt]:
    """Yields the requests for the process that computes, until its server ends."""
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            return
        yield message
