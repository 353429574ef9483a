"""Decoders are fine-tuned on prompts and answers: the answers alone are predicted, and written for a prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from datamodules import DataError, PromptData, PromptDataConfig
from datamodules.floors.measure import floors
from datamodules.pairs.prompts import PromptShape
from lit_transformers.batch import IGNORED
from lit_transformers.config import ConfigError
from lit_transformers.decoding.sampling import SamplingConfig
from lit_transformers.inference.write import write
from lit_transformers.runs import RunConfig
from lit_transformers.runs.train import train
from lit_transformers.training.stopping import Stop

COLOURS = {"sky": "blue", "grass": "green", "snow": "white", "coal": "black", "blood": "red", "sun": "yellow"}


def records(folder: Path) -> Path:
    for split in ("train", "validation"):
        rows = [{"prompt": f"colour of {thing}?", "answer": colour} for thing, colour in COLOURS.items()]
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


def plain_data(folder: Path, **changes: Any) -> dict[str, Any]:
    source = {"kind": "records", "path": str(folder), "source": "prompt", "target": "answer"}
    sizes = {"length": 32, "batch_size": 3, "window": 1}
    return {"kind": "prompts", "source": source, "tokenizer": "bytes", **sizes, **changes}


def data_of(folder: Path, **changes: Any) -> PromptData:
    plain = plain_data(records(folder), **changes)
    return PromptDataConfig.from_dict({name: value for name, value in plain.items() if name != "kind"}).build()


def test_answers_and_their_ends_alone_are_targets_behind_prompt_and_separator(tmp_path: Path) -> None:
    data = data_of(tmp_path, separator=" => ")
    boundary, texts = data.description.vocabulary.boundary, {}
    for batch in data.val_dataloader():
        for inputs, targets, mask in zip(batch.inputs, batch.targets, batch.padding_mask, strict=True):
            symbols, scored = inputs[mask].tolist(), targets[mask].tolist()
            assert symbols[0] == boundary == scored[-1]
            assert all(target in (IGNORED, symbol) for target, symbol in zip(scored[:-1], symbols[1:], strict=True))
            answer = bytes(symbol for symbol in scored[:-1] if symbol != IGNORED).decode()
            assert (targets[~mask] == IGNORED).all()
            texts[bytes(symbols[1:]).decode().removesuffix(answer)] = answer
    assert texts == {f"colour of {thing}? => ": colour for thing, colour in COLOURS.items()}


def test_of_a_row_that_is_too_long_the_prompt_loses_its_beginning_and_then_the_answer_its_end() -> None:
    shape = PromptShape(0, np.array([99]), 12)
    row = shape.row(3, np.arange(1, 21), np.arange(31, 36))
    assert row.symbols.tolist() == [0, 16, 17, 18, 19, 20, 99, 31, 32, 33, 34, 35, 0] and row.prompt == 7
    row = shape.row(3, np.arange(1, 21), np.arange(31, 51))
    assert row.symbols.tolist() == [0, 18, 19, 20, 99, *range(31, 39)] and len(row.symbols) == 13
    assert shape.row(3, np.array([1]), np.array([31])).symbols.tolist() == [0, 1, 99, 31, 0]


def test_a_separator_that_leaves_no_room_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^data.separator: 17 symbols leave no room in rows of 32"):
        next(iter(data_of(tmp_path, separator="-" * 17).train_dataloader()))


def test_a_decoder_learns_answers_which_are_written_for_their_prompts(
    tmp_path: Path,
) -> None:
    model = {"kind": "language_model", "dim": 32, "heads": 2, "depth": 1, "positions": "learned"}
    training = {"steps": 120, "device": "cpu", "optimizer": {"kind": "adamw", "learning_rate": 1e-2}}
    data = plain_data(records(tmp_path), batch_size=6)
    config = RunConfig.from_dict({"model": model, "task": "strings", "data": data, "training": training})
    metrics, _, _ = train(config, config.build_data(), tmp_path, tmp_path.name, Stop())
    assert metrics["val/sequence_accuracy"] == 1 and metrics["val/nats"] < 0.1
    assert not [name for name in metrics if "@" in name]
    greedy = SamplingConfig(temperature=0.0, top_k=0, top_p=1.0, seed=0)
    for thing, colour in COLOURS.items():
        assert "".join(write(tmp_path / "checkpoint.ckpt", f"colour of {thing}?", 20, greedy)) == colour
    with pytest.raises(ConfigError, match=r"^beams: answers are sampled"):
        list(write(tmp_path / "checkpoint.ckpt", "colour of sky?", 20, greedy, beams=2))


def test_the_floor_is_the_most_frequent_answer(tmp_path: Path) -> None:
    assert floors(data_of(tmp_path), "sequence_accuracy", 2) == {"most frequent answer": pytest.approx(1 / 6)}
    assert torch.isfinite(torch.tensor(floors(data_of(tmp_path), "nats", 2)["frequencies of symbols"]))
