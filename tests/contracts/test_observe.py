"""The behaviour of a trained network, as it is observed."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from contract_cases import DIM, HEADS, KINDS, Case, context, name, noise, promises, variants
from torch import Tensor

from lit_transformers.encodings import ShawConfig, XLConfig
from lit_transformers.gates.miniature import probe_data
from lit_transformers.mixer import Mode
from lit_transformers.mixers import (
    AdaptiveSpanConfig,
    AttentionConfig,
    EntmaxConfig,
    LSTMConfig,
    MixerConfig,
    TopKConfig,
    WindowConfig,
)
from lit_transformers.mixers.qkv import QKVMixer
from lit_transformers.models import LanguageModelConfig
from lit_transformers.models.cost import cost, flops_by_length
from lit_transformers.observable import ModuleCall, recorded_calls
from lit_transformers.runs import RunConfig, fit
from lit_transformers.runs.observe import (
    AttentionSummary,
    attention_summary,
    call_report,
    observe,
    reporting_modules,
)
from lit_transformers.stacks import HaltingConfig, UniversalConfig

LENGTH = 12


def summary_of(config: MixerConfig, mode: Mode = "causal", state: Any = None) -> AttentionSummary:
    mixer = Case(config).build(mode).eval()
    inputs = (noise(2, LENGTH, DIM), context(2, LENGTH, mode == "causal"), state)
    summary = attention_summary(ModuleCall("mixer", mixer, inputs, None))
    assert summary is not None
    return summary


def softmax_weights(mixer: QKVMixer, x: Tensor) -> Tensor:
    """Of causal attention without an encoding, by hand (h, t, t)."""
    q, k = (linear(x[0]).unflatten(-1, (HEADS, -1)).transpose(0, 1) for linear in (mixer.query, mixer.key))
    scores = (q @ k.mT * q.size(-1) ** -0.5).masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), float("-inf"))
    return scores.softmax(dim=-1)


def test_a_map_of_plain_attention_is_its_softmax() -> None:
    mixer, x = Case(AttentionConfig()).build().eval(), noise(1, LENGTH, DIM)
    assert isinstance(mixer, QKVMixer)
    with torch.no_grad():
        summary = attention_summary(ModuleCall("mixer", mixer, (x, context(1, LENGTH), None), None))
        expected = softmax_weights(mixer, x)
    assert summary is not None
    torch.testing.assert_close(summary.map, expected)
    distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    torch.testing.assert_close(summary.back, (expected * distance).sum(-1).mean(-1))
    torch.testing.assert_close(summary.weight, torch.ones(HEADS).double())


@pytest.mark.slow
def test_every_map_holds_weights() -> None:
    for case in variants("with every mixer"):
        for mode in case.modes if isinstance(case.build(), QKVMixer) else ():
            with torch.no_grad():
                summary = summary_of(case.config, mode)
            case_name = f"{name(case.config)}-{mode}"
            assert summary.map.shape == (HEADS, LENGTH, LENGTH), case_name
            assert summary.map.min() > -1e-9 and summary.map.sum(-1).max() < 1 + 1e-9, case_name
            if mode == "causal":
                assert torch.equal(summary.map.triu(1), torch.zeros_like(summary.map)), case_name
                assert summary.back.min() >= -1e-9, case_name


def test_what_an_encoding_adds_to_the_output_is_no_weight() -> None:
    with torch.no_grad():
        summary = summary_of(AttentionConfig(encoding=ShawConfig(distance=3)))
    torch.testing.assert_close(summary.map.sum(-1), torch.ones(HEADS, LENGTH).double())


def test_memory_is_part_of_a_map() -> None:
    config = AttentionConfig(encoding=XLConfig(), memory=LENGTH)
    mixer = Case(config).build().eval()
    with torch.no_grad():
        state = mixer(noise(2, LENGTH, DIM), context(2, LENGTH)).state
        first, second = (summary_of(config, state=s) for s in (None, state))
    # the keys, twice as many now, are cut into as many runs, and the older half is seen by all queries
    assert second.map[:, 0, : LENGTH // 2].sum() > 0.5 > first.map[:, 0, 1 : LENGTH // 2].sum()
    assert (second.back > first.back).all()


def test_a_long_row_is_cut_into_parts_whose_weights_are_summed() -> None:
    mixer = Case(AttentionConfig()).build().eval()
    with torch.no_grad():
        summary = attention_summary(ModuleCall("mixer", mixer, (noise(1, 100, DIM), context(1, 100), None), None))
    assert summary is not None and summary.map.shape == (HEADS, 32, 32)
    torch.testing.assert_close(summary.map.sum(-1), torch.ones(HEADS, 32).double())


def test_padding_is_not_looked_at() -> None:
    padding_mask = torch.tensor([[True] * 5 + [False] * 7, [True] * 9 + [False] * 3])
    mixer, x = Case(AttentionConfig()).build().eval(), noise(2, LENGTH, DIM)
    with torch.no_grad():
        padded = attention_summary(
            ModuleCall("mixer", mixer, (x, context(2, LENGTH, padding_mask=padding_mask), None), None)
        )
        unpadded = attention_summary(ModuleCall("mixer", mixer, (x[1:, :9], context(1, 9), None), None))
    assert padded is not None and unpadded is not None
    torch.testing.assert_close(padded.map, unpadded.map)


def test_a_mixer_that_keeps_less_than_all_of_the_weight_says_how_much() -> None:
    title = "Share of the weight that each head keeps"
    values = {}
    for when in ("before", "after"):
        mixer = Case(TopKConfig(kept=2, when=when)).build().eval()
        with torch.no_grad():
            values[when] = call_report(
                ModuleCall("", mixer, (noise(1, LENGTH, DIM), context(1, LENGTH), None), None), False
            )["values"]
    assert title not in values["before"]
    assert all(0.2 < share < 1 for share in values["after"][title])


def test_a_window_looks_back_no_further_than_it_reaches() -> None:
    with torch.no_grad():
        assert summary_of(WindowConfig(window=2)).back.max() <= 2 < summary_of(AttentionConfig()).back.max()


def test_learned_alphas_and_spans_are_told_in_their_units() -> None:
    entmax, spans = Case(EntmaxConfig()).build(), Case(AdaptiveSpanConfig(span=8, ramp=4)).build()
    x = noise(1, LENGTH, DIM)
    with torch.no_grad():
        entmax.free.copy_(torch.tensor([0.0, 1.0]))  # type: ignore[union-attr, operator]
        spans.spans.fraction.copy_(torch.tensor([0.25, 1.0]))  # type: ignore[union-attr, operator]
        values = call_report(ModuleCall("", entmax, (x, context(1, LENGTH), None), None), False)["values"]
        with recorded_calls(reporting_modules(spans)) as calls:
            spans(x, context(1, LENGTH))
    assert values["Alpha of each head"] == [1.5, 1.731]
    inner = next(call for call in calls if call.name == "spans")
    assert call_report(inner, False)["values"] == {"Mean span of each head, in tokens": [2.0, 8.0]}


def run_config(model: LanguageModelConfig) -> RunConfig:
    """Few and short strings, for the time that a corpus would take."""
    data = {"kind": "generated", "generator": {"kind": "copy", "alphabet": 3}, "max_length": 9, "batch_size": 4}
    training = {"steps": 6, "device": "cpu", "log_every": 2}
    return RunConfig.from_dict({"model": model.to_dict(), "task": "strings", "data": data, "training": training})


def network(**changes: Any) -> LanguageModelConfig:
    return LanguageModelConfig(**({"dim": 16, "heads": 2, "depth": 2} | changes))


@pytest.mark.slow
def test_a_record_tells_what_was_seen_and_the_same_each_time(tmp_path: Path) -> None:
    config = run_config(network(mixer=AttentionConfig()))
    first, second = (fit(config, tmp_path / name)["observed"] for name in ("one", "two"))
    assert first == second
    assert len(json.dumps(first)) < 50_000
    assert [part["part"] for part in first["parts"]] == ["layer 1 mixer", "layer 2 mixer"]
    for part in first["parts"]:
        assert len(part["maps"]) == 2
        for attention_map in part["maps"]:
            assert len(base64.b64decode(attention_map["levels"])) == attention_map["side"] ** 2 > 16


@pytest.mark.slow
def test_a_halting_network_tells_how_many_steps_were_taken_and_what_pondering_cost(tmp_path: Path) -> None:
    stack = UniversalConfig(halting=HaltingConfig())
    record = fit(run_config(network(stack=stack, depth=3)), tmp_path)
    values_by_title = {
        title: values for part in record["observed"]["parts"] for title, values in part.get("values", {}).items()
    }
    shares = values_by_title["Share of tokens that took 1, 2, ... steps"]
    assert 1 <= len(shares) <= 3 and sum(shares) == pytest.approx(1, abs=1e-3)
    parts = [part["part"] for part in record["observed"]["parts"]]
    assert "stack halting" in parts and "stack block mixer, step 3" in parts
    curve = [line for line in (tmp_path / "metrics.csv").read_text().splitlines() if ",train/ponder," in line]
    assert len(curve) == 3 and all(float(line.rpartition(",")[2]) > 0 for line in curve)


@pytest.mark.slow
def test_a_network_without_anything_to_tell_tells_what_it_costs(tmp_path: Path) -> None:
    config = run_config(network(mixer=LSTMConfig()))
    record, length = fit(config, tmp_path), config.data.length
    assert list(record["observed"]) == ["flops_by_length"]
    assert [length for length, _ in record["observed"]["flops_by_length"]] == [
        length,
        2 * length,
        4 * length,
        8 * length,
    ]


@pytest.mark.parametrize("kind", [kind for kind, case in KINDS.items() if promises(case, "causal")])
def test_flops_by_length_begin_with_the_cost_of_the_run(kind: str) -> None:
    model = LanguageModelConfig(dim=DIM, heads=HEADS, depth=2, mixer=KINDS[kind].config)
    length_flops = flops_by_length(model.build(probe_data(17, 30)), 30, continued=True)
    assert [length for length, _ in length_flops] == [30, 60, 120, 240]
    assert length_flops[0][1] == cost(model, probe_data(17, 30), 30).flops_per_token


def test_observing_leaves_the_task_and_the_random_numbers_as_they_were() -> None:
    config = run_config(network(mixer=AttentionConfig(memory=16, dropout=0.5)))
    data = config.data.build()
    task = config.build_task(data).train()
    before, weights = torch.get_rng_state(), {n: p.clone() for n, p in task.state_dict().items()}
    first = observe(task, data.val_dataloader())
    assert torch.equal(torch.get_rng_state(), before) and task.training and task.network.training
    assert all(torch.equal(weights[name], value) for name, value in task.state_dict().items())
    assert observe(task, data.val_dataloader()) == first
    assert observe(task, []) == {}
