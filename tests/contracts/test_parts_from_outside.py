"""A mixer, an objective and a data set from outside of the library make a run as those within it do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import toy_parts

from datamodules import EXAMPLES
from lit_transformers.config import register
from lit_transformers.gates import gates
from lit_transformers.mixers import MIXERS
from lit_transformers.models import LanguageModelConfig
from lit_transformers.runs import RunConfig, code, fit, run_key
from lit_transformers.runs.keys import ROOTS
from lit_transformers.tasks import TASKS

PARTS = ((MIXERS, toy_parts.DecayConfig), (EXAMPLES, toy_parts.ParityConfig), (TASKS, toy_parts.HingeConfig))


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for table, config in PARTS:
        register(table, config)
    yield
    for table, config in PARTS:
        del table[config.kind]


@pytest.fixture
def outside() -> RunConfig:
    """A run of all three, named as a file names them."""
    model = {"kind": "language_model", "dim": 16, "heads": 2, "depth": 2, "mixer": {"kind": "decay", "horizon": 3}}
    return RunConfig.from_dict(
        {
            "model": model,
            "task": {"kind": "hinge", "pooling": "last"},
            "data": {"kind": "labelled", "source": {"kind": "parity"}, "batch_size": 8},
            "training": {"steps": 4, "device": "cpu"},
        }
    )


def test_they_are_trained_and_measured_together(outside: RunConfig, tmp_path: Path) -> None:
    record = fit(outside, tmp_path)
    assert record["outcome"] == "finished", record["reason"]
    assert 0 <= record["metrics"]["val/accuracy"] <= 1


def test_the_mixer_passes_the_gates_of_its_family_and_a_fault_of_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    config = LanguageModelConfig(dim=16, heads=2, depth=2, mixer=toy_parts.DecayConfig())
    assert [gate.name for gate in gates.check(config) if not gate.passed] == []
    forward = toy_parts.Decay.forward
    monkeypatch.setattr(toy_parts.Decay, "forward", lambda self, x, ctx, state=None: forward(self, x.flip(1), ctx))
    failed = [gate.name for gate in gates.check(config) if not gate.passed]
    assert {"no future (change)", "segments equal one pass"} <= {*failed}


def test_their_code_is_part_of_the_key(outside: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert toy_parts.__name__ in code.modules_on_path(outside, ROOTS)
    key = run_key(outside)
    monkeypatch.setattr(code, "read", edited)
    assert run_key(outside) != key


def edited(
    path: Path, package: str = "", *, read: Callable[..., tuple[str, tuple[str, ...]]] = code.read
) -> tuple[str, tuple[str, ...]]:
    """As ``code.read``, where the file of the toy parts has changed and no other."""
    digest, imported = read(path, package)
    return (f"{digest} changed" if path.stem == toy_parts.__name__ else digest), imported
