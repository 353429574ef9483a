"""The key of a run covers its config, its data, and the code that computes its numbers.

The code is left out that shows a run or judges it, and computes none of its metrics, curves, losses by document,
observations or costs:

- ``runs.fit``, ``runs.environment``, ``records``: parts of a record around the numbers, such as surroundings, times
  and reasons of failures;
- ``runs.keys``, ``code``, ``folder``: which run is in which folder. A change in the computation of a key changes the
  key by itself;
- ``runs.evaluate``, ``generate``, ``translate``: the use of a checkpoint after its run;
- ``gates``, ``miniature``: a gate that fails leaves a run without numbers, and one that passes leaves no trace in them,
  since training is seeded after the gates;
- ``inert_fields``, ``probe``, ``runs.runner``: which runs there are, which is in their configs;
- ``reporting``, ``progress``, ``wandb_logging``, ``reports``: the display of a run;
- tables of kinds in ``__init__`` files: which configs can be written.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from datamodules.text.lanes import LaneShape
from datamodules.text.language import LanguageData
from lit_transformers import mixers
from lit_transformers.batch import LabelledDescription, NumberLabels, RowDescription, Vocabulary
from lit_transformers.cli.progress import PlainLines
from lit_transformers.gates import gates
from lit_transformers.heads.metric import HeadsMetric
from lit_transformers.heads.next_symbol import NextSymbol
from lit_transformers.mixers import LinearConfig
from lit_transformers.mixers.attention import Attention
from lit_transformers.runs import RunConfig, code, fit, run_key
from lit_transformers.runs.code import modules_on_path
from lit_transformers.runs.keys import ROOTS, code_of
from lit_transformers.runs.probe import probe
from lit_transformers.runs.train import train
from lit_transformers.runs.wandb_logging import WandbRun
from lit_transformers.tasks import TASKS
from lit_transformers.tasks.task import Task
from lit_transformers.training.callbacks import Curves
from lit_transformers.training.config import TrainingConfig
from lit_transformers.training.reporting import ProgressReporter
from lit_transformers.training.stopping import Stop
from reports.report import write_report

Edit = Callable[[str, str], None]


@pytest.fixture
def edit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Edit:
    """Returns a function that adds a line to a module, as the hash reads it."""
    original = code.source

    def add(module: str, line: str) -> None:
        path = Path(importlib.import_module(module).__file__ or "")
        changed = tmp_path / path.name
        changed.write_text(f"{path.read_text(encoding='utf-8')}\n{line}\n", encoding="utf-8")
        monkeypatch.setattr(code, "source", lambda name: changed if name == module else original(name))

    return add


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(Attention, id="the mixer"),
        pytest.param(Task, id="the step of training"),
        pytest.param(train, id="the loop of training"),
        pytest.param(TrainingConfig, id="the optimizer"),
        pytest.param(Curves, id="the curves"),
        pytest.param(HeadsMetric, id="the metric"),
        pytest.param(NextSymbol, id="the head"),
        pytest.param(LanguageData, id="the data"),
        pytest.param(LaneShape, id="the order of the data"),
    ],
)
def test_a_change_of_what_computes_the_numbers_changes_the_key(part: Any, edit: Edit) -> None:
    before = code_of(RunConfig())
    edit(part.__module__, "CHANGED = True")
    assert code_of(RunConfig()) != before


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(gates.__name__, id="a gate's message"),
        pytest.param(WandbRun.__module__, id="a tag on Weights & Biases"),
        pytest.param(PlainLines.__module__, id="a line of progress"),
        pytest.param(ProgressReporter.__module__, id="what is reported of a run"),
        pytest.param(fit.__module__, id="a record's surroundings"),
        pytest.param(write_report.__module__, id="a page of a report"),
        pytest.param(probe.__module__, id="a probe"),
        pytest.param(LinearConfig.__module__, id="another mixer"),
        pytest.param(mixers.__name__, id="a new mixer in the table"),
    ],
)
def test_a_change_of_what_computes_none_of_the_numbers_leaves_the_key(module: str, edit: Edit) -> None:
    before = code_of(RunConfig())
    edit(module, "CHANGED = True")
    assert code_of(RunConfig()) == before


@pytest.mark.parametrize("kind", sorted(TASKS))
def test_the_heads_that_a_task_is_made_of_are_on_its_path(kind: str) -> None:
    """They are of the task's kind, and no part of the config names them."""
    fields = {"span_boundary": {}} if kind == "masked_lm" else {"intermediate": True, "future": [1.0]}
    config = TASKS[kind].from_dict({"kind": kind} | (fields if kind in ("masked_lm", "causal_lm") else {}))
    vocabulary = Vocabulary(size=9, boundary=0, unit="piece", byte_lengths=None)
    described = config.probe_data(vocabulary, 8)
    if isinstance(described, RowDescription):
        described = replace(described, phrases=True)
    if kind == "regression":
        described = LabelledDescription(vocabulary=vocabulary, length=8, labels=NumberLabels())
    heads = config.own_heads(described)
    assert {type(head).__module__ for head in heads.values()} <= modules_on_path(config, ()).keys()


def test_a_mixer_that_another_config_names_is_on_its_path(edit: Edit) -> None:
    config = RunConfig().override({"model.mixer": LinearConfig()})
    before = code_of(config)
    edit(LinearConfig.__module__, "CHANGED = True")
    assert code_of(config) != before


@pytest.mark.parametrize("line", ["# a comment", '"""The docstring of a constant."""'])
def test_words_leave_the_key(line: str, edit: Edit) -> None:
    before = code_of(RunConfig())
    edit(train.__module__, line)
    assert code_of(RunConfig()) == before


def test_the_key_covers_the_config_and_the_content_of_the_data(small_run: RunConfig) -> None:
    before = run_key(small_run)
    assert run_key(small_run.override({"seed": 1})) != before
    text = next(Path(small_run.data.get("source.path")).glob("*.txt"))
    content = text.read_text()
    text.write_text(f"{content} omega")
    try:
        assert run_key(small_run) != before
    finally:
        text.write_text(content)


STRINGS = RunConfig.from_dict(
    {
        "model": {"kind": "language_model", "dim": 8, "heads": 2, "depth": 1, "mixer": "lsh", "stack": "reversible"},
        "task": "strings",
        "data": {
            "kind": "generated",
            "generator": {"kind": "copy", "alphabet": 3},
            "max_length": 3,
            "batch_size": 2,
            "evaluation": {"lengths": [2, 3], "examples": 2},
        },
    }
)
PAIRS = RunConfig.from_dict(
    {
        "model": {"kind": "encoder_decoder", "dim": 8, "heads": 2, "depth": 1, "positions": "sinusoidal"},
        "task": {"kind": "seq2seq", "metrics": ["bleu", "rouge"]},
        "data": {
            "kind": "pairs",
            "source": {"kind": "strings", "generator": {"kind": "copy", "alphabet": 4}, "max_length": 5},
            "tokens_per_batch": 64,
            "window": 64,
            "evaluation": {"lengths": [3], "examples": 2},
        },
    }
)
CLASSES = RunConfig.from_dict(
    {
        "model": {"kind": "encoder", "dim": 8, "heads": 2, "depth": 1, "mixer": "big_bird"},
        "task": "classification",
        "data": {"kind": "labelled", "source": {"kind": "listops", "train": 20, "validation": 4}, "batch_size": 2},
    }
)


@pytest.mark.parametrize(
    "kind", ["pairs", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("language", "strings", "classes"))]
)
def test_whatever_runs_in_training_and_measuring_is_on_the_path(
    kind: str, small_run: RunConfig, tmp_path: Path
) -> None:
    config = {"language": small_run, "strings": STRINGS, "pairs": PAIRS, "classes": CLASSES}[kind].override(
        {
            "training.steps": 2,
            "training.device": "cpu",
            "training.average": {"last": 2, "every": 1},
            "training.validate_every": 1,
        }
    )
    executed: set[str] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            executed.add(frame.f_globals.get("__name__", ""))

    sys.setprofile(note)
    try:
        train(config, config.data.build(), tmp_path, tmp_path.name, Stop())
    finally:
        sys.setprofile(None)
    own = {module for module in executed if module.split(".")[0] in code.PACKAGES}
    assert train.__module__ in own
    assert own <= code.modules_on_path(config, ROOTS).keys()
