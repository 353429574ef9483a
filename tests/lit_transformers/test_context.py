"""A language model is measured again with its context cut, each position by the symbols that are left alone."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from lit_transformers.config import ConfigError
from lit_transformers.runs import RunConfig
from lit_transformers.runs import cut_context as module
from lit_transformers.runs.cut_context import context_losses
from lit_transformers.tasks.causal_lm import CausalLM


@pytest.fixture
def untrained(small_run: RunConfig, monkeypatch: pytest.MonkeyPatch) -> CausalLM:
    """A network with large weights, in place of the network of a checkpoint."""
    torch.manual_seed(0)
    config = small_run.override({"model.initial_std": 0.5})
    data = config.data.build()
    task = config.build_task(data).eval()
    assert isinstance(task, CausalLM)
    monkeypatch.setattr(module, "load", lambda checkpoint, is_own: (task, config, data.checkpoint_metadata()))
    return task


def test_a_cut_context_is_all_that_a_network_reads(untrained: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 256, (6, 33), generator=generator)
    monkeypatch.setattr(module, "sampled_rows", lambda data, longest, count: rows)
    losses = context_losses(Path("checkpoint"))
    assert [loss.length for loss in losses] == [1, 2, 4, 8, 16, 32]  # four segments of 8
    bits = {}
    for loss in losses:
        inputs, state = rows[:, -loss.length - 1 : -1], None
        with torch.no_grad():
            for segment in inputs.split(8, dim=1):
                output = untrained(segment, state)
                state = output.state
            nats = untrained.network.tokens.nll(output.hidden[:, -1], rows[:, -1])
        bits[loss.length] = nats.double().numpy() / math.log(2)
        assert loss.bits == pytest.approx(bits[loss.length].mean(), rel=1e-5)
    beyond = bits[4] - bits[32]
    assert losses[2].beyond == pytest.approx(beyond.mean(), rel=1e-4) and abs(beyond.mean()) > 1e-3
    assert losses[2].error == pytest.approx(beyond.std(ddof=1) / math.sqrt(6), rel=1e-4)
    assert losses[-1].beyond == losses[-1].error == 0.0


def test_positions_are_drawn_from_the_documents_that_validation_reads(
    untrained: CausalLM, small_run: RunConfig
) -> None:
    data = small_run.data.build()
    texts = [document.text for document in data.documents("validation")][:3]  # type: ignore[attr-defined]
    windows = {text[start : start + 33] for text in texts for start in range(len(text) - 32)}
    rows = {bytes(row.tolist()) for row in module.sampled_rows(data, 32, 50)}  # type: ignore[arg-type]
    assert rows <= windows and len(rows) > 25
    everything = module.sampled_rows(data, 32, 100_000)  # type: ignore[arg-type]
    assert {bytes(row.tolist()) for row in everything} == windows
    assert len(everything) == sum(len(text) - 32 for text in texts)
    with pytest.raises(ConfigError, match="no document of the evaluation is long enough for 65536 symbols of context"):
        module.sampled_rows(data, 65_536, 5)  # type: ignore[arg-type]


def test_a_network_without_state_is_measured_within_a_segment(
    small_run: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_run.override({"model.mixer.memory": 0})
    data = config.data.build()
    monkeypatch.setattr(
        module, "load", lambda checkpoint, is_own: (config.build_task(data).eval(), config, data.checkpoint_metadata())
    )
    losses = context_losses(Path("checkpoint"), symbols=64)
    assert [loss.length for loss in losses] == [1, 2, 4, 8] and np.isfinite([loss.bits for loss in losses]).all()
