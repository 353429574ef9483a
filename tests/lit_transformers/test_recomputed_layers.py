"""Training that computes layers again in the backward pass: the same numbers to the bit, and less that is held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from forked import Forked
from torch import Tensor

from lit_transformers.config import ConfigError
from lit_transformers.records.files import CHECKPOINT
from lit_transformers.runs import RunConfig, fit, load
from lit_transformers.runs.rehearsal import rehearse

SIZES: dict[str, Any] = {"dim": 16, "heads": 2, "depth": 3, "dropout": 0.2}
ENCODER = {"kind": "encoder", "positions": "learned", **SIZES}
ROWS = {"kind": "labelled", "source": {"kind": "masked_sum", "train": 64, "validation": 8}, "batch_size": 8}
LABELLED = {"model": ENCODER, "task": {"kind": "regression", "dropout": 0.1}, "data": ROWS}
STRINGS = {"kind": "generated", "max_length": 9, "batch_size": 4, "evaluation": {"examples": 8}}
CASES: dict[str, dict[str, Any]] = {
    "rows": LABELLED,
    "a second stream": {
        "model": ENCODER | {"query_stream": "learned", "segments": 2, "mixer": {"kind": "attention", "encoding": "xl"}},
        "task": "permutation_lm",
        "data": {"kind": "rows", "source": {"kind": "topics"}, "tokenizer": "words", "length": 24, "batch_size": 4},
    },
    "pairs": {
        "model": {"kind": "encoder_decoder", "positions": "sinusoidal", **SIZES},
        "task": "seq2seq",
        "data": {"kind": "pairs", "source": {"kind": "strings", "generator": "copy", "max_length": 9}},
    },
    **{
        f"strings, {stack}, {mixer}": {
            "model": {"kind": "language_model", "positions": "sinusoidal", "stack": stack, "mixer": mixer, **SIZES},
            "task": "strings",
            "data": STRINGS,
        }
        for stack, mixer in (("shared", "attention"), ("universal", "attention"), ("sequential", "lsh"))
    },
}


def config_of(name: str, **changes: Any) -> RunConfig:
    training = {"steps": 4, "device": "cpu", "log_every": 1}
    return RunConfig.from_dict(CASES[name] | {"training": training}).override(changes)


def step(config: RunConfig) -> tuple[dict[str, Tensor], int]:
    """The gradients of a training step, and the numbers that its forward pass holds for the backward pass."""
    held = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal held
        held += tensor.numel()
        return tensor

    data = config.data.build()
    torch.manual_seed(0)
    task = config.build_task(data).train()
    batches: Iterator[Any] = iter(data.train_dataloader())
    batch = next(batches)
    torch.manual_seed(1)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = task.training_step(batch, 0)["loss"]
    loss.backward()
    return {name: p.grad for name, p in task.named_parameters() if p.grad is not None} | {"loss": loss.detach()}, held


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_equal_to_the_bit_and_less_is_held(name: str) -> None:
    (expected, whole), (found, part) = (
        step(config_of(name, **{"training.recompute": recompute})) for recompute in (False, True)
    )
    assert expected.keys() == found.keys()
    assert [key for key in expected if not torch.equal(expected[key], found[key])] == []
    assert part < 0.6 * whole


def fit_together(folder: Any) -> None:
    for strategy in ("ddp", "fsdp"):
        changes = {"training.devices": 2, "training.strategy": strategy, "training.recompute": True}
        assert fit(without_dropout(**changes), folder / strategy)["outcome"] == "finished"


def without_dropout(**changes: Any) -> RunConfig:
    """A run without dropout, whose masks each rank would draw by itself."""
    return config_of("rows", **{"model.dropout": 0.0, "task.dropout": 0.0, **changes})


@pytest.mark.slow
def test_two_ranks_train_as_one_process_does(tmp_path: Any) -> None:
    fit(without_dropout(), tmp_path / "alone")
    Forked(tmp_path / "output.txt", fit_together, tmp_path, ranks=2).finish()
    expected = load(tmp_path / "alone" / CHECKPOINT)[0].state_dict()
    for strategy in ("ddp", "fsdp"):
        for name, weight in load(tmp_path / strategy / CHECKPOINT)[0].state_dict().items():
            torch.testing.assert_close(weight, expected[name], rtol=1e-3, atol=1e-5)


def test_what_cannot_be_computed_again_is_refused() -> None:
    config = config_of("strings, shared, attention", **{"training.recompute": True, "model.stack": "reversible"})
    with pytest.raises(
        ConfigError, match=r"training\.recompute: a reversible stack computes its layers again by itself"
    ):
        rehearse(config)
    with pytest.raises(ConfigError, match="recompute and compile do not go together"):
        config_of("rows", **{"training.recompute": True, "training.compile": True})
