"""Networks that are timed next to those that they start from: in turns, on the same texts, and only where asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from compressed_runs import BASE
from golden.runs import RUNS

from lit_transformers.config import ConfigError
from lit_transformers.runs import RunConfig, pass_times
from lit_transformers.runs.keys import training_key, with_content
from lit_transformers.runs.metrics import measure_of_run
from lit_transformers.runs.pass_times import longest_text, ratio_in_turns

START = {"start": {"network": "a.ckpt", "heads": "network"}}


def test_both_networks_take_turns_and_a_slow_round_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, order, slow = SimpleNamespace(now=0.0), list[str](), {0: 50.0, 2: 7.0}

    def call(name: str, seconds: float) -> None:
        clock.now += seconds * slow.get(len(order) // 2, 1.0) ** (name == "own")
        order.append(name)

    monkeypatch.setattr(pass_times.time, "perf_counter", lambda: clock.now)
    ratio = ratio_in_turns(lambda: call("own", 1.0), lambda: call("other", 4.0), 3)
    assert ratio == 0.25
    assert order == ["other", "own", "own", "other", "other", "own", "own", "other"]


def test_the_longest_text_of_a_batch_is_cut_out_of_all_its_parts() -> None:
    data = BASE.build_data()
    task = BASE.build_task(data).eval()
    batch: Any = next(iter(data.val_dataloader()))
    row = int(batch.padding_mask.sum(dim=1).argmax())
    text = longest_text(batch)
    assert len(text.inputs) == 1 < len(batch.inputs) and torch.equal(text.inputs[0], batch.inputs[row])
    assert batch.passages is None or text.passages == batch.passages[row : row + 1]
    with torch.no_grad():
        alone, among = task.evaluation_output(text), task.evaluation_output(batch)
    torch.testing.assert_close(alone[0], among[row])


def test_nothing_is_timed_unless_a_run_asks_for_it() -> None:
    timed = BASE.override({**START, "timed": True})
    assert "timed" not in with_content(BASE) and measure_of_run(timed, "measured/time_ratio") is not None
    with pytest.raises(ConfigError, match="no 'measured/time_ratio' would be in the record"):
        measure_of_run(BASE, "measured/time_ratio")


def test_a_run_that_is_timed_is_trained_like_one_that_is_not() -> None:
    data = BASE.build_data()
    plain = {**BASE.to_dict(), "start": {"network": {"run": BASE.to_dict()}, "heads": "network"}}
    config = RunConfig.from_dict(plain)
    assert training_key(config.override({"timed": True}), data) == training_key(config, data)


@pytest.mark.parametrize(
    ("run", "changes", "reason"),
    [
        ("deformer", {}, "timed compares with the network of start.network; set it, or timed: false"),
        ("deformer", {**START, "training.devices": 2}, "timed is of one process; set training.devices: 1"),
        ("text", START, "timed reads labelled texts or pairs, which files are not; set timed: false"),
    ],
)
def test_what_cannot_be_timed_is_refused_in_a_line(run: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        RunConfig.from_dict(RUNS[run]).override({**changes, "timed": True})
    assert reason in str(refusal.value) and "\n" not in str(refusal.value)
