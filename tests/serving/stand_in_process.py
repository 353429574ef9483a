"""A process that computes nothing: it answers by the texts that it gets, so that tests can hold it, kill it and read
its requests. Imports no torch."""

from __future__ import annotations

import json
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

from lit_transformers.serving.messages import (
    Abilities,
    Failure,
    LineAnswer,
    LineWork,
    Prompt,
    ServingOptions,
    TextPiece,
    received,
)

ABILITIES = {"classify": '{"text": "a"}', "embed": '{"text": "a"}', "generate": '{"prompt": "a"}'}


def answer_as_told(connection: Connection, options: ServingOptions) -> None:
    """Answers a text by {"ability", "text", "together"}, refuses the text "bad", ends at the text "die", and holds at
    "hold" until the file ``go`` is in the folder that stands for the checkpoint. Writes each text to ``computed``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder = options.checkpoint
    if (folder / "broken").exists():
        note(folder, "broken")
        connection.send(Failure("broken"))
        return
    connection.send(Abilities(ABILITIES, 0))
    for message in received(connection):
        if isinstance(message, LineWork):
            for place, text in [*enumerate(json.loads(line)["text"] for line in message.lines)][::-1]:
                note(folder, text)
                if text == "hold":
                    wait_for_go(folder)
                answer = {"ability": message.ability, "text": text, "together": len(message.lines)}
                body = json.dumps({"detail": "is bad"} if text == "bad" else answer)
                connection.send(LineAnswer(place, 422 if text == "bad" else 200, body))
        else:
            continue_text(connection, folder, message)


def continue_text(connection: Connection, folder: Path, prompt: Prompt) -> None:
    """Sends the numbers from 0 after a prompt, until a message comes."""
    if prompt.text == "bad":
        connection.send(TextPiece("is bad", True, 422))
        return
    connection.send(TextPiece(prompt.text))
    for number in range(prompt.length):
        if prompt.text == "hold":
            while not (folder / "go").exists() and not connection.poll():
                time.sleep(0.001)
        if connection.poll():
            connection.recv()
            note(folder, f"{prompt.text} ended early")
            break
        note(folder, "die" if prompt.text == "die" else f"{prompt.text} {number}")
        connection.send(TextPiece(f" {number}"))
    connection.send(TextPiece("", True))


def note(folder: Path, text: str) -> None:
    with (folder / "computed").open("a") as file:
        file.write(f"{text}\n")
    if text == "die":
        os.kill(os.getpid(), signal.SIGKILL)


def wait_for_go(folder: Path) -> None:
    while not (folder / "go").exists():
        time.sleep(0.001)
