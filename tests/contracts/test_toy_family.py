"""A family from outside of the library is trained, measured and checked as those within it are."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import toy_family
from contract_cases import POSITION_CASES, STACK_CASES, name
from toy_family import DraftedConfig

from lit_transformers.batch import LanguageDescription
from lit_transformers.config import ConfigError, register
from lit_transformers.encodings.positions import PositionsConfig
from lit_transformers.gates import gates
from lit_transformers.gates.inert_fields import changes_nothing
from lit_transformers.gates.miniature import miniature, probe_data
from lit_transformers.mixer import Context
from lit_transformers.mixers import AttentionConfig
from lit_transformers.models import MODELS, LanguageModelConfig
from lit_transformers.records.files import CHECKPOINT
from lit_transformers.runs import RunConfig, describe, evaluate, fit
from lit_transformers.stacks import StackConfig, UniversalConfig

SIZES: dict[str, Any] = {"dim": 16, "heads": 2, "depth": 3, "mixer": AttentionConfig(memory=8)}


@pytest.fixture
def registered() -> Iterator[None]:
    register(MODELS, DraftedConfig)
    yield
    del MODELS["drafted"]


@pytest.fixture
def drafted_run(registered: None, tmp_path: Path) -> RunConfig:
    """Three steps of the ordinary task on the ordinary data, with the family named as a file names it."""
    (tmp_path / "corpus").mkdir()
    for index in range(8):
        (tmp_path / "corpus" / f"{index}.txt").write_text("alpha beta gamma delta " * (index + 4))
    mixer = {"kind": "attention", "memory": 8}
    source = {"kind": "files", "path": str(tmp_path / "corpus"), "validation": 0.25}
    return RunConfig.from_dict(
        {
            "model": {"kind": "drafted", "dim": 16, "heads": 2, "depth": 3, "cut": 2, "mixer": mixer},
            "data": {"source": source, "segment_length": 8, "batch_size": 2, "evaluation": {"documents": 1}},
            "training": {"steps": 3, "log_every": 1, "device": "cpu"},
        }
    )


def test_it_is_trained_and_measured_by_a_task_that_does_not_know_it(drafted_run: RunConfig, tmp_path: Path) -> None:
    record = fit(drafted_run, tmp_path / "run")
    assert record["outcome"] == "finished", record["reason"]
    assert [gate["name"] for gate in record["gates"]] == [*gates.CAUSAL, "the draft teaches nothing"]
    assert all(flops > 0 for _, flops in record["observed"]["flops_by_length"])
    curves = list(csv.DictReader((tmp_path / "run" / "metrics.csv").open()))
    assert len([row for row in curves if row["name"] == "train/draft" and float(row["value"]) > 0]) == 3
    assert evaluate(tmp_path / "run" / CHECKPOINT) == pytest.approx(record["metrics"])


@pytest.mark.slow
def test_its_cost_is_that_of_a_language_model_and_of_its_draft(drafted_run: RunConfig) -> None:
    plain = {name: value for name, value in drafted_run.model.to_dict().items() if name not in ("cut", "draft_depth")}
    tutor, four_layers = (
        describe(drafted_run.override({"model": plain | {"kind": "language_model", "depth": depth}}))
        for depth in (3, 4)
    )
    cost = describe(drafted_run)
    final_norm = 2 * drafted_run.model.dim
    assert cost.parameters == four_layers.parameters + final_norm
    assert cost.embedding_parameters == tutor.embedding_parameters
    assert (cost.flops_per_token, cost.state_bytes) == (four_layers.flops_per_token, four_layers.state_bytes)
    assert cost.state_bytes > tutor.state_bytes > 0


def test_its_tutor_is_a_language_model_whose_stack_is_run_in_two_halves() -> None:
    torch.manual_seed(0)
    drafted = DraftedConfig(**SIZES, cut=2).build(probe_data(11, 6)).eval()
    whole = LanguageModelConfig(**SIZES).build(probe_data(11, 6)).eval()
    weights = {key.replace("lower.", "stack."): value for key, value in drafted.state_dict().items()}
    weights |= {key.replace("upper.blocks.0", "stack.blocks.2"): value for key, value in weights.items()}
    whole.load_state_dict({key: weights[key] for key in whole.state_dict()})
    symbols = torch.randint(0, 11, (2, 12))
    state, other_state = None, None
    for segment in symbols.split(6, dim=1):
        output, expected = drafted(segment, state, keep_layers=True), whole(segment, other_state, keep_layers=True)
        assert torch.equal(output.hidden, expected.hidden)
        assert all(torch.equal(*layers) for layers in zip(output.layers, expected.layers, strict=True))
        state, other_state = output.state, expected.state


def test_a_probe_of_it_is_narrow_and_shallow_in_all_its_parts() -> None:
    small = miniature(DraftedConfig(dim=512, depth=12, draft_depth=6), 24)
    assert (small.dim, small.depths()) == (64, {"depth": 2, "draft_depth": 2})
    needs_layers = miniature(DraftedConfig(dim=512, depth=4, draft_depth=3, cut=3), 24)
    assert (needs_layers.dim, needs_layers.depths()) == (64, {"depth": 4, "draft_depth": 3}), "cut as it was"


def failed(config: DraftedConfig) -> list[str]:
    return [gate.name for gate in gates.check(config) if not gate.passed]


def test_its_gates_pass_and_find_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failed(DraftedConfig(**SIZES)) == []
    monkeypatch.setattr(toy_family, "cut_off", lambda x: x)
    assert failed(DraftedConfig(**SIZES)) == ["the draft teaches nothing"]


@pytest.mark.slow
def test_a_field_of_its_own_is_compared(drafted_run: RunConfig) -> None:
    assert changes_nothing(drafted_run.override({"training.log_every": 2}), drafted_run)
    assert not changes_nothing(drafted_run.override({"model.cut": 1}), drafted_run)
    assert not changes_nothing(drafted_run.override({"model.draft_depth": 2}), drafted_run)


def test_a_task_that_needs_what_it_cannot_do_refuses_it_and_names_who_can(drafted_run: RunConfig) -> None:
    data = probe_data(11, 6)
    refused = drafted_run.override({"task": {"kind": "seq2seq"}, "data": {"kind": "pairs"}})
    with pytest.raises(ConfigError, match="model: seq2seq trains an encoder_decoder, not a drafted"):
        refused.task.cost(refused.model, data)
    documents = LanguageDescription.for_probe(data.vocabulary, data.length)
    with pytest.raises(ConfigError, match="model: causal_lm trains a drafted or a language_model, not a encoder"):
        drafted_run.task.build(MODELS["encoder"](), documents, drafted_run.training)


def test_a_family_without_gates_cannot_be_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DraftedConfig, "gates", "")
    with pytest.raises(ConfigError, match="no gates are known of a model of kind drafted"):
        gates.check(DraftedConfig(**SIZES))
    monkeypatch.setattr(DraftedConfig, "gates", "lit_transformers.gates.causal:CAUSAL")
    way_out = "name a table of gates in gates of DraftedConfig, such as lit_transformers.gates.gates:CAUSAL"
    with pytest.raises(ConfigError, match=f"gates.causal:CAUSAL cannot be imported: No module.*; {way_out}"):
        gates.check(DraftedConfig(**SIZES))


def test_a_kind_is_registered_once(registered: None) -> None:
    with pytest.raises(TypeError, match="DraftedConfig needs a separate name"):
        register(MODELS, DraftedConfig)


HALVED = [
    stack
    for stack in STACK_CASES
    if stack.kind in ("sequential", "shared") or (isinstance(stack, UniversalConfig) and stack.halting is None)
]


@pytest.mark.parametrize("stack", HALVED, ids=name)
@pytest.mark.parametrize("positions", POSITION_CASES, ids=name)
def test_two_halves_of_a_stack_are_the_stack(stack: StackConfig, positions: PositionsConfig) -> None:
    torch.manual_seed(0)
    config = LanguageModelConfig(**SIZES | {"depth": 4}, stack=stack, positions=positions)
    whole = config.build_stack("causal", 6)
    lower, upper = whole.split(1)
    x, ctx = torch.randn(2, 6, 16), Context(torch.arange(6).expand(2, -1), causal=True)
    expected, halfway = whole(x, ctx), lower(x, ctx)
    result = upper(halfway.y, ctx)
    torch.testing.assert_close(result.y, expected.y, rtol=0, atol=0)
    assert lower.flops(6, 3) + upper.flops(6, 3) == whole.flops(6, 3)


def test_a_stack_that_is_one_piece_is_not_divided_and_none_is_divided_beyond_its_layers() -> None:
    for stack in (stack for stack in STACK_CASES if stack not in HALVED):
        with pytest.raises(ConfigError, match=r"^stack.*: .*; set (stack: sequential|halting: null)"):
            LanguageModelConfig(**SIZES, stack=stack).build_stack("causal", 6).split(1)
    for step in (0, 3):
        with pytest.raises(ConfigError, match="depth: a stack of 3 layers cannot be divided after"):
            LanguageModelConfig(**SIZES).build_stack("causal", 6).split(step)
