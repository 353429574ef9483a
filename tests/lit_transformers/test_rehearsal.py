"""The needs of a run at its end are checked before it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lit_transformers.config import ConfigError
from lit_transformers.mixers import MIXERS
from lit_transformers.runs import RunConfig, fit
from lit_transformers.runs.rehearsal import rehearse

SMALL = {"dim": 8, "heads": 2, "depth": 1}
PAIRS = {"kind": "pairs", "source": {"kind": "strings", "generator": "copy", "max_length": 6}, "tokens_per_batch": 64}
ROWS = {
    "kind": "rows", "source": {"kind": "topics", "documents": 21}, "tokenizer": "words", "length": 24, "batch_size": 4,
}  # fmt: skip
STOPPING = {"steps": 6, "device": "cpu", "validate_every": 3, "stop": {}}
LANGUAGE_MODEL = {"kind": "language_model", **SMALL}


def translator(decoder: str, **task: Any) -> RunConfig:
    model = {"kind": "encoder_decoder", "decoder_mixer": decoder, **SMALL}
    metrics = {"kind": "seq2seq", "metrics": ["bleu"], **task}
    return RunConfig.from_dict({"model": model, "task": metrics, "data": PAIRS, "training": {"device": "cpu"}})


@pytest.mark.parametrize("decoder", ["local", "sparse", "lsh", "synthesizer"])
def test_a_decoder_that_cannot_be_read_by_symbols_is_refused_before_anything_is_trained(
    decoder: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"task\.decoding\.cache.*set task\.decoding\.cache=false"):
        fit(translator(decoder), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    rehearse(translator(decoder, decoding={"kind": "greedy", "cache": False, "extra": 1}))
    rehearse(translator(decoder, metrics=["accuracy"]))  # nothing is decoded


@pytest.mark.parametrize("task", ["bilm", "replaced_tokens"])
def test_training_that_would_stop_by_a_metric_that_is_not_measured_is_refused(task: str) -> None:
    model = LANGUAGE_MODEL if task == "bilm" else {"kind": "encoder", **SMALL}
    plain = {"model": model, "task": task, "data": ROWS, "training": STOPPING}
    config = RunConfig.from_dict(plain)
    with pytest.raises(ConfigError, match=r"training\.stop\.metric: val/nats is not measured; .*val/\w+_nats"):
        rehearse(config)
    name = "val/forward_nats" if task == "bilm" else "val/generator_nats"
    rehearse(config.override({"training.stop.metric": name}))


def test_a_task_that_reads_a_layer_is_rehearsed_on_as_many_layers() -> None:
    data = {"kind": "labelled", "source": {"kind": "listops"}, "batch_size": 8}
    plain = {"model": {"kind": "encoder", **SMALL, "depth": 4}, "task": "classification", "data": data}
    config = RunConfig.from_dict(plain)
    rehearse(config.override({"task.layers": 3}))
    with pytest.raises(ConfigError, match="a stack of 4 layers cannot be divided after 5"):
        rehearse(config.override({"task.layers": 5}))


def test_rows_that_are_measured_are_no_longer_than_the_positions_that_were_learned() -> None:
    positions = {"kind": "learned", "restart": "document", "max_length": 20}
    data = {"kind": "generated", "generator": "copy", "max_length": 6, "evaluation": {"lengths": [6, 40]}}
    plain = {"model": LANGUAGE_MODEL | {"positions": positions}, "task": "strings", "data": data}
    with pytest.raises(ConfigError, match=r"lies beyond the 20 learned positions"):
        rehearse(RunConfig.from_dict(plain))
    rehearse(RunConfig.from_dict(plain).override({"data.evaluation.lengths": [6]}))


def test_a_rehearsal_moves_no_random_numbers() -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    rehearse(translator("attention"))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slow
@pytest.mark.parametrize("mixer", MIXERS)
def test_every_mixer_is_rehearsed_or_refused_for_what_it_is(mixer: str) -> None:
    plain = {"model": LANGUAGE_MODEL | {"mixer": mixer}, "data": {"source": "lags"}, "training": {"device": "cpu"}}
    try:
        rehearse(RunConfig.from_dict(plain))
    except ConfigError as error:
        assert "causal" in str(error), "no other reason"
