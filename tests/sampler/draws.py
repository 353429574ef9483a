"""Small runs drawn at random: a task with its data, a network, and how it is trained, all in combination."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, NamedTuple

from random_configs import random_fields
from sampler.corpora import corpus

from lit_transformers.cli.commands import message_of
from lit_transformers.config import Dropout
from lit_transformers.encodings.positions import POSITIONS
from lit_transformers.mixers import MIXERS
from lit_transformers.models import MODELS
from lit_transformers.runs import RunConfig, describe
from lit_transformers.runs.rehearsal import rehearse
from lit_transformers.stacks import STACKS
from lit_transformers.training.config import OPTIMIZERS, SCHEDULES

ATTEMPTS = 400
TOPICS = {"kind": "topics", "documents": 24, "sentences": 5, "validation": 0.3, "test": 0.2}
ROWS = {"source": TOPICS, "tokenizer": "words", "length": 24, "batch_size": 4, "window": 2}
LAGS = {
    "kind": "lags",
    "lags": (4, 12),
    "shares": (0.4, 0.4),
    "length": 60,
    "documents": 24,
    "validation": 0.3,
    "test": 0.2,
}
SPANS = {"kind": "mask_spans", "unchanged": 0.0, "replaced": 0.0}
STRING_PAIRS = {"kind": "strings", "generator": {"kind": "copy", "alphabet": 4}, "max_length": 6}

Plain = dict[str, Any]
Draw = Callable[[Random], Plain]


class Drawn(NamedTuple):
    """A run that nothing refuses, and the number that it is drawn from."""

    number: int
    config: RunConfig


def texts() -> Plain:
    """Documents in files, whose symbols other files do not share."""
    return {"kind": "files", "path": corpus("usual"), "validation": 0.3, "test": 0.2}


def language(random: Random) -> Plain:
    """Segments of documents in lanes, of words, characters or bytes, or of a source whose truth is known."""
    source = random.choice([texts(), texts(), TOPICS, LAGS])
    return {
        "kind": "language",
        "source": source,
        "tokenizer": "bytes" if source is LAGS else random.choice(["bytes", "characters", "words"]),
        "segment_length": random.choice([8, 16]),
        "batch_size": 4,
        "documents": random.choice(["reset", "stream"]),
        "workers": random.choice([0, 0, 0, 1]),
        "evaluation": {"documents": 3},
    }


def strings(random: Random) -> Plain:
    generator = random.choice([{"kind": "copy", "alphabet": 4}, {"kind": "reverse", "alphabet": 4}])
    lengths = random.choice(["uniform", "uniform", "fixed"])
    evaluation = {"examples": 9, "lengths": random.choice([[], [7], [4, 10]])}
    return {
        "kind": "generated", "generator": generator, "max_length": 7, "lengths": lengths, "batch_size": 4,
        "evaluation": evaluation,
    }  # fmt: skip


def labelled(random: Random) -> Plain:
    source = random.choice(["listops", "needle"])
    sizes: Plain = {"kind": source, "train": 33, "validation": 11}
    sizes |= (
        {"longest": 20, "shortest": 4, "depth": 2, "arguments": 3}
        if source == "listops"
        else {"length": 20, "distance": 6}
    )
    return labelled_data(random, sizes)


def numbers(random: Random) -> Plain:
    return labelled_data(random, {"kind": "masked_sum", "train": 33, "validation": 11, "length": 20})


def labelled_data(random: Random, source: Plain) -> Plain:
    padding = random.choice(["longest", "fixed"])
    return {
        "kind": "labelled", "source": source, "batch_size": 4, "window": random.choice([1, 2]), "padding": padding,
        "evaluation": {"examples": 7},
    }  # fmt: skip


def pairs(random: Random) -> Plain:
    return {"kind": "pairs", "source": STRING_PAIRS, "tokens_per_batch": 48, "window": 8, "evaluation": {"examples": 7}}


def denoising(random: Random) -> Plain:
    noises = ["text_infilling", "token_masking", "token_deletion", "mass", "span_corruption"]
    source = random.choice([texts(), TOPICS])
    return {
        "kind": "denoising",
        "noise": random.choice(noises),
        "evaluation": {"examples": 7},
        **ROWS,
        "source": source,
    }


def rows(random: Random) -> Plain:
    """Rows in which symbols are hidden; every second time with a relation to predict."""
    relation = random.choice(["none", "next_sentence", "sentence_order"])
    packing = "segment_pair" if relation != "none" else random.choice(["full_sentences", "segment_pair"])
    source = random.choice([texts(), TOPICS])
    chosen = {"packing": packing, "relation": relation, "source": source}
    return {"kind": "rows", "evaluation": {"examples": 7}, **ROWS, **chosen}


def spans(random: Random) -> Plain:
    return rows(random) | {"noise": SPANS}


BERT = {
    "kind": "encoder", "dim": 8, "heads": 2, "depth": 2, "norm": "post", "norm_epsilon": 1e-12, "segments": 2,
    "mixer": {"kind": "attention", "bias": True}, "feedforward": {"kind": "dense", "activation": "gelu"},
    "positions": {"kind": "learned"}, "tokens": {"kind": "full", "scaled": False}, "embedding_norm": True,
    "transform": "gelu",
}  # fmt: skip
"""A network that an architecture of transformers has."""


class Frame(NamedTuple):
    """An objective, the families whose networks it may train or one network, and the data that it reads."""

    models: tuple[str, ...] | Plain
    data: Draw
    task: Draw


def kind(name: str, **choices: tuple[Any, ...]) -> Draw:
    """A task of a kind, with one of the values of each field."""
    return lambda random: {"kind": name} | {field: random.choice(values) for field, values in choices.items()}


FRAMES: Mapping[str, Frame] = {
    "causal_lm": Frame(
        ("language_model",),
        language,
        kind("causal_lm", loss=("full", "full", "half"), future=((), (), (0.5,)), intermediate=(False, False, True)),
    ),
    "strings": Frame(("language_model",), strings, kind("strings")),
    "classification": Frame(
        ("encoder", "language_model"),
        labelled,
        kind("classification", pooling=("first", "mean", "last"), dropout=(0.0, 0.3)),
    ),
    "regression": Frame(("encoder",), numbers, kind("regression", pooling=("first", "mean"))),
    "pairs": Frame(("encoder_decoder",), pairs, kind("seq2seq", metrics=(["accuracy"],), label_smoothing=(0.0, 0.1))),
    "denoising": Frame(("encoder_decoder",), denoising, kind("seq2seq", metrics=(["accuracy"],))),
    "masked_lm": Frame(("encoder",), rows, kind("masked_lm")),
    "bert": Frame(BERT, rows, kind("masked_lm")),
    "span_boundary": Frame(("encoder",), spans, kind("masked_lm", span_boundary=({"width": 4},))),
    "replaced_tokens": Frame(
        ("encoder",),
        rows,
        kind("replaced_tokens", generator=({"overrides": {"dim": 4, "heads": 1}, "tie": "none"}, {"draws": "uniform"})),
    ),
    "permutation_lm": Frame(
        ("encoder",), rows, kind("permutation_lm", measured=(None, "none"), segment_length=(None, 12))
    ),
    "bilm": Frame(("language_model",), rows, kind("bilm", directions=("both", "forward"))),
    "contrastive": Frame(("encoder",), spans, kind("contrastive")),
}


def draw_model(random: Random, models: tuple[str, ...] | Plain, task: str) -> Plain:
    """A network of few channels; each of its other fields as often at its default as at random."""
    if isinstance(models, dict):
        return models
    family = random.choice(models)
    model = random_fields(MODELS[family], random) if random.random() < 0.3 else {"kind": family}
    model |= {
        "dim": 8,
        "heads": 2,
        "depth": random.randint(1, 2),
        "mixer": random_fields(random_kind(MIXERS, random), random),
    }
    if random.random() < 0.5:
        model["stack"] = random_fields(random_kind(STACKS, random), random)
    if random.random() < 0.5:
        model["positions"] = random_fields(random_kind(POSITIONS, random), random)
    model["dropout"] = random.choice([0.0, 0.0, 0.2])
    if task in ("masked_lm", "span_boundary", "replaced_tokens", "permutation_lm", "contrastive"):
        model["segments"] = 2
    if task == "permutation_lm":
        model["query_stream"] = random.choice(["learned", "content"])
    return model


def random_kind(table: Mapping[str, Any], random: Random) -> Any:
    return table[random.choice(sorted(table))]


def draw_training(random: Random) -> Plain:
    """A few updates, with everything that training may do in between."""
    steps = random.randint(3, 5)
    training: Plain = {
        "steps": steps,
        "device": "cpu",
        "log_every": 1,
        "accumulate": random.choice([1, 1, 2, 3]),
        "clip": random.choice([None, 1.0, 0.05]),
        "validate_every": random.choice([None, 1, 2, steps]),
        "optimizer": {"kind": random.choice(sorted(OPTIMIZERS)), "learning_rate": 0.01},
        "schedule": {"kind": random.choice(sorted(SCHEDULES)), "warmup": random.choice([0, 2])},
    }
    if training["schedule"]["kind"] == "inverse_square_root":
        training["schedule"]["warmup"] = 2
    if random.random() < 0.3:
        training["average"] = {"last": 2, "every": 1}
    elif training["validate_every"] and random.random() < 0.4:
        training["stop"] = {"metric": "val/nats", "patience": random.choice([1, 2, None])}
        training["keep"] = random.choice(["last", "best"])
    return training


def draw_run(number: int, frame: str | None = None) -> RunConfig:
    """The run of a number. Raises ValueError, with a line for a person, where it is refused."""
    random = Random(number)
    name = frame or random.choice(sorted(FRAMES))
    chosen = FRAMES[name]
    config = RunConfig.from_dict(
        {
            "model": draw_model(random, chosen.models, name),
            "task": chosen.task(random),
            "data": chosen.data(random),
            "training": draw_training(random),
            "seed": random.randint(0, 3),
        }
    )
    data = config.data.build()
    describe(config, data)
    rehearse(config, data)
    return config


def drawn(start: int, frame: str | None = None) -> Drawn:
    """The first run from a number on that is not refused. Every refusal has a reason."""
    for refused in range(ATTEMPTS):
        try:
            return Drawn(start + refused, draw_run(start + refused, frame))
        except ValueError as error:
            if not message_of(error):
                raise
    raise AssertionError(f"{ATTEMPTS} runs from {start} on are refused: the draws have become too narrow")


def without_chance(config: RunConfig) -> RunConfig:
    """The run without dropout and under plain gradient descent, by which rounding stays rounding."""
    dropouts = {f"model.{path}": 0.0 for path, _ in config.model.leaves_with(Dropout)}
    dropouts |= {f"task.{path}": 0.0 for path, _ in config.task.leaves_with(Dropout)}
    return config.override(dropouts | {"training.optimizer": {"kind": "sgd", "learning_rate": 0.05}})
