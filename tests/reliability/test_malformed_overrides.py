"""Malformed overrides, nine hundred: an error that names the place, or a config that holds what was given."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from garbage import examples, names, one_line, python_values, yaml_texts
from hypothesis import example, given
from hypothesis import strategies as st

from ablations.__main__ import main
from lit_transformers.config import Config, ConfigError, parse_assignments
from lit_transformers.runs import RunConfig

pytestmark = pytest.mark.slow

CONFIGS = [
    RunConfig(),
    *(RunConfig().override({"model.mixer": kind}) for kind in ("window", "lsh", "linear", "top_k")),
    RunConfig().override({"model.stack": "universal", "training.optimizer": "sgd", "model.positions": "sinusoidal"}),
]
INNER = ["model", "model.mixer", "model.stack", "data", "data.source", "task", "training", "training.optimizer"]
PATHS = [[path for path, _ in config.leaves()] + INNER for config in CONFIGS]
STUDY = """
from ablations.ablation import Ablation, Metric
from standin.run import RunConfig

ABLATION = Ablation(
    question="Does recurrence help?",
    baseline=RunConfig(),
    factors={"recurrence": {"on": {}, "off": {"model.mixer.memory": 0}}},
    metric=Metric("val/bpb"),
)
"""
STANDIN = ["model.width", "model.heads", "model.mixer", "model.mixer.encoding.clamp", "data.segment", "data.path",
           "training.steps", "training.pause", "training.fault", "seed"]  # fmt: skip


@examples(600)
@given(st.data())
def test_an_override_from_python_is_refused_by_name_or_reads_back(data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(CONFIGS) - 1))
    changes = data.draw(st.dictionaries(names(PATHS[number]), python_values, min_size=1, max_size=2))
    refused_or_held(CONFIGS[number], changes)


@examples(300)
@given(st.data())
def test_an_override_as_typed_is_refused_by_name_or_reads_back(data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(CONFIGS) - 1))
    words = data.draw(st.lists(st.builds("{}={}".format, names(PATHS[number]), yaml_texts), min_size=1, max_size=2))
    try:
        changes = parse_assignments(words)
    except ConfigError as error:
        assert one_line(str(error))
        assert any(flat(word.partition("=")[0]) in str(error) for word in words)
        return
    assert set(changes) == {word.partition("=")[0].strip() for word in words}
    refused_or_held(CONFIGS[number], changes)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "memory_helps.py"
    path.write_text(STUDY)
    return path


@examples(40)
@given(word=st.builds("{}={}".format, names(STANDIN), yaml_texts))
@example(word="data.path=\x00")
@example(word='data.path="\\ud800"')
@example(word="training.steps=" + "9" * 5000)
def test_the_command_says_in_a_line_what_is_wrong_with_an_override(study: Path, word: str) -> None:
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        status = main(["plan", str(study), "--runs", str(study.parent / "runs"), "--set", word])
    message = errors.getvalue().rstrip("\n")
    if status == 0:
        assert not message and "runs to do" in output.getvalue()
    else:
        assert status == 2 and message.startswith("error: ") and one_line(message)


def refused_or_held(config: Config, changes: Mapping[str, Any]) -> None:
    """Fails where an override is refused without naming a place, is not held as given, or changes something else."""
    try:
        overridden = config.override(changes)
    except ConfigError as error:
        assert one_line(str(error))
        assert any(flat(path.partition(".")[0]) in str(error) for path in changes)
        return
    for path, value in changes.items():
        if not any(longer.startswith(f"{path}.") for longer in changes):
            assert holds(value_at(overridden, path), value), f"{path}: {value_at(overridden, path)!r} for {value!r}"
    before = {path: value for path, value in config.leaves() if not is_below(path, changes)}
    after = dict(overridden.leaves())
    assert before == {path: after.get(path) for path in before}
    assert type(overridden).from_dict(yaml.load(overridden.to_yaml(), yaml.CSafeLoader)) == overridden


def is_below(path: str, changes: Mapping[str, Any]) -> bool:
    return any(path == changed or path.startswith(f"{changed}.") for changed in changes)


def value_at(config: Config, path: str) -> Any:
    """The value at a path; what lies below a table of overrides is named by the rest of the path."""
    table = "task.evaluation."
    return config.get(table[:-1])[path.removeprefix(table)] if path.startswith(table) else config.get(path)


def holds(held: Any, expected: Any) -> bool:
    """Whether what a config holds is what was given, written out."""
    if isinstance(held, Config):
        if isinstance(expected, str):
            return held.kind == expected
        return all(holds(held.kind if name == "kind" else held.get(name), value) for name, value in expected.items())
    if isinstance(expected, list | tuple):
        return len(held) == len(expected) and all(map(holds, held, expected))
    if isinstance(expected, float) and math.isnan(expected):
        return bool(math.isnan(held))
    return bool(held == expected) and isinstance(held, bool) == isinstance(expected, bool)


def flat(text: str) -> str:
    """The beginning of a text, with white space collapsed, that a one-line error is sure to contain."""
    return " ".join(text.split())[:100]
