"""A stand-in for ``lit_transformers.gates``: a width of 13 leaks."""

from __future__ import annotations

from typing import NamedTuple

from standin.run import ModelConfig


class Gate(NamedTuple):
    name: str
    passed: bool
    detail: str


def check(config: ModelConfig) -> list[Gate]:
    return [Gate("no future leak", config.width != 13, "token 3 changes with token 5"), Gate("trains", True, "")]
