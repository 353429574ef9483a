"""Fuzz targets of a server: the bodies of its requests, from the bytes to the rows of the network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastapi import HTTPException
from fuzz.garbage import PLAIN, TEXTS, broken, cut_and_patched
from fuzz.target import target
from hypothesis import strategies as st

from datamodules.core.tokenizers import Bytes, Symbols
from lit_transformers.config import ConfigError
from lit_transformers.inference.lines import LineOptions, LineWriter
from lit_transformers.inference.predictor import LineTexts
from lit_transformers.serving.app import Access, lines_of, prompt_of
from lit_transformers.serving.messages import BAD, LineAnswer
from lit_transformers.serving.services import LineService

ACCESS = Access(most_lines=4)
ONE = {"text": "a", "id": [1, {"b": None}]}
PROMPT = {"prompt": "a", "length": 3, "temperature": 0.5, "top_k": 2, "top_p": 0.9, "seed": 1, "stream": False}


class Rows(LineWriter):
    """Reads texts, of JSON or plain, into rows of bytes."""

    def __init__(self, is_json: bool) -> None:
        super().__init__(LineOptions(overlong="refuse"), Bytes(), 64)
        self.is_json = is_json

    def row(self, symbols: Sequence[Symbols]) -> Symbols:
        return symbols[0]

    def texts(self, line: str) -> tuple[str, ...]:
        return LineTexts(("text",), "json").of(line) if self.is_json else (line,)

    def outputs(self, *arguments: Any) -> Sequence[Any]:
        raise NotImplementedError


SERVICES = [LineService(Rows(is_json)) for is_json in (True, False)]
SERVICES[0].is_json = True


def bodies(sound: Any) -> st.SearchStrategy[bytes]:
    """Bodies of requests: sound ones that are cut, patched or changed, and others."""
    content = json.dumps(sound).encode()
    changed = st.one_of(broken(sound), PLAIN, st.lists(st.one_of(broken(ONE), st.just(ONE)), max_size=5))
    texts = st.dictionaries(st.sampled_from([*PROMPT, "text"]), TEXTS, max_size=3)
    encodings = st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"])
    written = st.builds(
        lambda plain, ascii_only, encoding: json.dumps(plain, ensure_ascii=ascii_only).encode(encoding, "replace"),
        st.one_of(changed, texts),
        st.booleans(),
        encodings,
    )
    return st.one_of(st.just(content), cut_and_patched(content), written, st.binary(max_size=40))


def refusals(status: int, reason: str) -> ConfigError:
    """Returns the error of a refusal, which has a status of bad input."""
    assert status == BAD, f"status {status}: {reason}"
    return ConfigError(reason)


@target("a body of texts to serve", {"body": b"[" * 100_000}, {"body": b'{"text": "\\ud800"}'}, body=bodies(ONE))
def body_of_texts(body: bytes) -> None:
    try:
        lines, is_list = lines_of(body, ACCESS)
    except HTTPException as refusal:
        raise refusals(refusal.status_code, refusal.detail) from None
    assert is_list or len(lines) == 1
    for line in lines:
        for service in SERVICES:
            read = service.read(0, line)
            if isinstance(read, LineAnswer):
                raise refusals(read.status, json.loads(read.body)["detail"])
            if read.rows:
                assert bytes(read.rows[0].tolist()).decode().split() == json.loads(line)["text"].split()


@target("a body of a prompt to serve", {"body": b'{"prompt": "", "\\ud800": 1}'}, body=bodies(PROMPT))
def body_of_prompt(body: bytes) -> None:
    try:
        prompt, _ = prompt_of(body, ACCESS)
    except HTTPException as refusal:
        raise refusals(refusal.status_code, refusal.detail) from None
    assert prompt.text == json.loads(body)["prompt"] and 1 <= prompt.length <= ACCESS.most_symbols
