"""Nothing is learned from symbols that are independent of each other: on fresh rows no loss falls below the level of
chance, for every objective of pretraining and the data that it reads. Where targets can be read, it does."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from contract_cases import Case, mixers

from lit_transformers.batch import IGNORED
from lit_transformers.runs import RunConfig

WORDS, WORDS_OF_LINE, ROWS, UPDATES = 16, 14, 16, 50
NEGLIGIBLE = 0.04
"""Nats by which a mean over the evaluation may be below its expectation."""
CHANCE = math.log(WORDS)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines of uniform words, of which a row holds one or two, in files of several lines."""
    folder, random = tmp_path_factory.mktemp("independent"), Random(0)
    for split, files in (("train", 60), ("validation", 40)):
        (folder / split).mkdir()
        for number in range(files):
            lines = [" ".join(f"w{random.randrange(WORDS)}" for _ in range(WORDS_OF_LINE)) for _ in range(8)]
            (folder / split / f"{number}.txt").write_text("\n".join(lines))
    return folder


ENCODER = {"kind": "encoder", "dim": 16, "heads": 2, "depth": 1, "positions": "learned", "segments": 2}
XLNET = ENCODER | {"query_stream": "learned", "mixer": {"kind": "attention", "encoding": "xl", "memory": 8}}
PAIRS = {"kind": "encoder_decoder", "dim": 16, "heads": 2, "depth": 1, "positions": "sinusoidal"}
HIDDEN = {"kind": "mask_tokens", "rate": 0.25, "unchanged": 0.0, "replaced": 0.0}
ONE = {"kind": "mask_spans", "rate": 0.07, "unchanged": 0.0, "replaced": 0.0}
"""Hides one word of a row, so that the number of hidden words does not reveal its n-gram."""
SHOWN = {"data.noise.unchanged": 1.0}
"""All that is to be predicted stands in the row."""


class Objective(NamedTuple):
    """A network and its task, the least values of its metrics, and the changes by which its targets can be read;
    targets of an encoder-decoder can be read where its inputs are not shifted."""

    model: dict[str, Any]
    task: dict[str, Any]
    data: dict[str, Any]
    least: dict[str, float]
    leak: dict[str, Any]


def of_rows(least: dict[str, float], leak: dict[str, Any] = SHOWN, model: Any = ENCODER, **parts: Any) -> Objective:
    """An objective that reads rows of one line each. task, and fields of the data, by name."""
    data = {"kind": "rows", "length": WORDS_OF_LINE + 2, "packing": "doc_sentences", "noise": HIDDEN, **parts}
    return Objective(model, data.pop("task"), data, least, leak)


def of_pairs(noise: str | dict[str, Any]) -> Objective:
    """An encoder-decoder whose targets are hidden from the encoder; how many of them are words is counted."""
    data = {"kind": "denoising", "length": WORDS_OF_LINE + 1, "packing": "doc_sentences", "noise": noise}
    return Objective(PAIRS, {"kind": "seq2seq", "metrics": ["accuracy"]}, data, {"nats": CHANCE}, {})


def entropy(probability: float) -> float:
    return -sum(p * math.log(p) for p in (probability, 1 - probability) if p)


def replaced_by_any(symbols: int) -> float:
    """The least nats of a symbol of telling whether it was replaced, where some words of a line are hidden and any of
    ``symbols`` symbols is drawn for each: one that is no word is known, and the others are all alike."""
    hidden, others = round(HIDDEN["rate"] * WORDS_OF_LINE), 1 - WORDS / symbols
    total = 0.0
    for known in range(hidden + 1):
        share = math.comb(hidden, known) * others**known * (1 - others) ** (hidden - known)
        left = WORDS_OF_LINE - known
        total += share * left * entropy((hidden - known) / left * (1 - 1 / WORDS))
    return total / (WORDS_OF_LINE + 2)


SYMBOLS = WORDS + 5
"""Besides words <unk>, <eos>, and the boundary, separator and mask of rows."""
ELECTRA = {"kind": "replaced_tokens", "generator": {"overrides": {"dim": 8}, "tie": "none"}}
OBJECTIVES = {
    "masked_lm": of_rows({"nats": CHANCE}, task={"kind": "masked_lm"}),
    "span_boundary": of_rows(
        {"nats": CHANCE, "boundary_nats": CHANCE}, task={"kind": "masked_lm", "span_boundary": {"width": 8}}
    ),
    "relation": of_rows(
        {"nats": CHANCE, "relation_nats": math.log(2)},
        task={"kind": "masked_lm"},
        packing="segment_pair",
        length=2 * WORDS_OF_LINE + 3,
        relation="next_sentence",
    ),
    "replaced_tokens": of_rows(
        {"discriminator_nats": CHANCE, "generator_nats": CHANCE}, task=ELECTRA | {"predicts": "symbols_at_masks"}
    ),
    "uniform_tokens": of_rows(
        {"discriminator_nats": replaced_by_any(SYMBOLS)},
        {},
        task={"kind": "replaced_tokens", "generator": {"draws": "uniform"}},
    ),
    "permutation_lm": of_rows(
        {"nats": CHANCE}, {"model.query_stream": "content"}, XLNET, task={"kind": "permutation_lm"}
    ),
    "permutation_lm_of_segments": of_rows(
        {"nats": CHANCE},
        {"model.query_stream": "content"},
        XLNET,
        task={"kind": "permutation_lm", "order": "all", "segment_length": 5, "directions": "both"},
    ),
    "contrastive": of_rows(
        {"nats": math.log(ROWS - (ROWS - 1) / WORDS), "masked_nats": CHANCE}, task={"kind": "contrastive"}, noise=ONE
    ),
    "lm": of_pairs("lm"),
    "mass": of_pairs("mass"),
    "span_corruption": of_pairs({"kind": "span_corruption", "rate": 0.3}),
}
READABLE = [name for name, objective in OBJECTIVES.items() if objective.leak or objective.model is PAIRS]


def config_of(objective: Objective, corpus: Path) -> RunConfig:
    source = {"kind": "files", "path": str(corpus), "splits": "folders"}
    data = {"source": source, "tokenizer": "words", "batch_size": ROWS, "window": 1, **objective.data}
    data["evaluation"] = {"examples": 10 * ROWS}
    model, task, training = objective.model, objective.task, {"device": "cpu"}
    return RunConfig.from_dict({"model": model, "task": task, "data": data, "training": training})


def measured(config: RunConfig, change: Callable[[Any], Any] = lambda batch: batch) -> dict[str, float]:
    """Trains a little, and returns the metrics of fresh rows, and as "words" the share of targets that are words.
    change: of every batch."""
    torch.manual_seed(0)
    data = config.data.build()
    task, reading = config.build_task(data), data.training()
    optimizer = torch.optim.Adam([p for p in task.parameters() if p.requires_grad], 1e-2)
    for number, batch in zip(range(UPDATES), reading.batches(), strict=False):
        optimizer.zero_grad()
        task.training_step(change(batch), number)["loss"].backward()
        optimizer.step()
    task.eval()
    words = torch.tensor(data.tokenizer.encode(" ".join(f"w{word}" for word in range(WORDS)).encode()))
    targets = []
    with torch.no_grad():
        for batch in data.val_dataloader():
            task.validation_step(change(batch), 0)
            targets.append(batch.targets[batch.targets != IGNORED])
    return task.metric.compute() | {"words": torch.isin(torch.cat(targets), words).double().mean().item()}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_no_loss_falls_below_chance_where_symbols_are_independent(name: str, corpus: Path) -> None:
    objective = OBJECTIVES[name]
    results = measured(config_of(objective, corpus))
    for metric, least in objective.least.items():
        assert least * results["words"] - NEGLIGIBLE < results[metric] < least + 1, metric


@pytest.mark.parametrize("name", READABLE)
def test_a_loss_falls_below_chance_where_targets_can_be_read(name: str, corpus: Path) -> None:
    objective = OBJECTIVES[name]
    config = config_of(objective, corpus).override(objective.leak)
    if objective.model is PAIRS:
        results = measured(config, lambda batch: batch._replace(inputs=batch.targets.clamp(min=0)))
    else:
        results = measured(config)
    assert any(results[name] < least * results["words"] - 3 * NEGLIGIBLE for name, least in objective.least.items())


@mixers("permuted", encodings="none")
def test_no_mixer_shows_a_query_what_it_is_to_predict(case: Case, corpus: Path) -> None:
    """Its loss would fall below chance."""
    objective = OBJECTIVES["permutation_lm"]
    config = config_of(objective, corpus).override({"model.mixer": case.config})
    assert measured(config)["nats"] > CHANCE - NEGLIGIBLE
