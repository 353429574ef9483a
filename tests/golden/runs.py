"""The runs: plain data that configs are read from, and the text, pairs and labels that they learn.

Each takes a few seconds. Paths are below the folder that is recorded into.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["RUNS", "WEIGHTS", "write_corpus"]

LICENSE = Path(__file__).resolve().parents[2] / "LICENSE"
"""Real text that is in every checkout, and is the same in all of them."""
SENTENCES = 5
"""Sentences of a document."""
SPLITS = ("train", "train", "train", "validation", "test")
"""The splits of documents, in turn."""

TRAINING = {"steps": 60, "log_every": 5, "device": "cpu", "optimizer": {"kind": "adamw", "learning_rate": 5e-3}}
TWICE = {"accumulate": 2, "steps": 40}

MIXER = {"kind": "attention", "memory": 32, "encoding": "xl"}
SINUSOIDAL = {"positions": "sinusoidal", "mixer": {"kind": "attention", "memory": 32}}
TEXT_MODEL = {"kind": "language_model", "dim": 16, "heads": 2, "depth": 2, "mixer": MIXER}
FILES = {"kind": "files", "path": "corpus/text", "splits": "folders"}
TEXT = {"kind": "language", "source": FILES, "segment_length": 24, "batch_size": 6, "evaluation": {"documents": 3}}

STRING_MODEL = {"kind": "language_model", "dim": 16, "heads": 2, "depth": 2, "positions": "sinusoidal"}
STRINGS = {
    "kind": "generated",
    "generator": "reverse",
    "max_length": 8,
    "lengths": "uniform",
    "batch_size": 16,
    "evaluation": {"examples": 16, "lengths": [8, 10]},
}

TRANSLATOR = {"kind": "encoder_decoder", "dim": 16, "heads": 2, "depth": 1, "positions": "sinusoidal"}
BEAM = {"kind": "beam", "beams": 2, "ratio": 0.0, "extra": 16}
TRANSLATING = {"kind": "seq2seq", "label_smoothing": 0.1, "metrics": ["bleu", "chrf"], "decoding": BEAM}
PAIRS = {
    "kind": "pairs",
    "source": {"kind": "records", "path": "corpus/pairs", "source": 1, "target": 2, "header": False},
    "tokenizer": {"kind": "bpe", "size": 300},
    "tokens_per_batch": 384,
    "evaluation": {"examples": 8},
}

ENCODER = {"kind": "encoder", "dim": 16, "heads": 2, "depth": 2, "positions": "learned", "segments": 2, "dropout": 0.1}
WORDS = {"kind": "words", "size": 400}
SPANS = {"kind": "mask_spans", "unchanged": 0.0, "replaced": 0.0}
ROWS = {
    "kind": "rows",
    "source": FILES,
    "tokenizer": WORDS,
    "length": 48,
    "batch_size": 8,
    "window": 2,
    "packing": "segment_pair",
    "evaluation": {"examples": 8},
}
NEXT = {"relation": "next_sentence"}
PHRASES = {"listed": {"thing": ["Work", "License", "copyright", "Contribution", "work"], "verb": ["shall", "may"]}}
REPLACED = {"kind": "replace_phrases", "rate": 0.1, "phrases": PHRASES}
GENERATOR = {"overrides": {"dim": 8, "heads": 1}, "tie": "none"}

LABELLED = {
    "kind": "labelled",
    "source": {
        "kind": "labelled_texts",
        "path": "corpus/labels",
        "labels": ["no", "yes"],
        "tokenizer": WORDS,
        "length": 48,
    },
    "batch_size": 8,
    "window": 16,
    "evaluation": {"examples": 12},
}
TAGGED = {"kind": "conll", "path": "corpus/tags", "tokenizer": {"kind": "bpe", "size": 300}, "length": 48}
MIXED = {
    "kind": "mixed",
    "sources": {"short": LABELLED["source"] | {"length": 24}, "long": LABELLED["source"]},
    "sampling": "uniform",
    "batch_size": 8,
    "evaluation": {"examples": 12},
}
SUMS = {"kind": "masked_sum", "length": 16, "ones": 3, "levels": 8, "train": 200, "validation": 32, "test": 8}
FACTS = {"kind": "facts", "train": 60, "validation": 6, "test": 6, "questions": 8}
HALTING = {"kind": "universal", "halting": {"ponder": 0.02}}
COMPRESSIVE = {"kind": "compressive", "encoding": "xl", "memory": 24, "compressed_memory": 16, "rate": 2}
SPAN = {"kind": "adaptive_span", "span": 24, "ramp": 8, "penalty": 1e-3, "memory": 24}
WEIGHTS = "masked-lm"
"""The run whose weights another one starts from, which is recorded before that."""


def run(
    model: Mapping[str, Any], task: Any, data: Mapping[str, Any], training: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    return {"model": model, "task": task, "data": data, "training": TRAINING | dict(training or {})}


def text(
    model: Mapping[str, Any], task: Any = "causal_lm", training: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    return run(TEXT_MODEL | dict(model), task, TEXT, training)


RUNS: Mapping[str, Mapping[str, Any]] = {
    "text": text({}, {"kind": "causal_lm", "evaluation": {"mixer.memory": 48}}, {"validate_every": 20}),
    "text-no-recurrence": text({"mixer": MIXER | {"memory": 0}}),
    "text-shaw": text({"mixer": MIXER | {"encoding": {"kind": "shaw", "distance": 16}}}),
    "text-sinusoidal": text(SINUSOIDAL),
    "text-sinusoidal-no-recurrence": text(SINUSOIDAL | {"mixer": {"kind": "attention"}}),
    "text-half-loss": text({}, {"kind": "causal_lm", "loss": "half"}, {"schedule": {"kind": "linear", "warmup": 10}}),
    "text-accumulate": text(
        {"dropout": 0.1}, training=TWICE | {"validate_every": 5, "stop": {"metric": "val/bpb"}, "keep": "best"}
    ),
    "translation": run(TRANSLATOR, TRANSLATING, PAIRS, {"steps": 200, "average": {"last": 3, "every": 10}}),
    "translation-accumulate": run(TRANSLATOR | {"dropout": 0.1}, TRANSLATING, PAIRS, TWICE),
    "strings": run(STRING_MODEL, "strings", STRINGS, {"steps": 100}),
    "reversible": text({"stack": "reversible", "dropout": 0.1}),
    "classification": run(ENCODER, "classification", LABELLED, TWICE),
    "tagging": run(ENCODER, {"kind": "tagging", "word": "mean"}, LABELLED | {"source": TAGGED}),
    "multi-task": run(ENCODER, {"kind": "multi_task", "weights": {"short": 0.5}}, MIXED, TWICE),
    "regression": run(
        ENCODER | {"segments": 0}, "regression", {"kind": "labelled", "source": SUMS, "batch_size": 8, "window": 16}
    ),
    "deformer": run(
        ENCODER | {"kind": "deformer", "apart": 1, "positions": {"kind": "learned", "restart": "document"}},
        {"kind": "question_answering", "scores": "product", "longest_answer": 1},
        {"kind": "labelled", "source": FACTS, "batch_size": 16, "window": 64},
    ),
    "halting": run(STRING_MODEL | {"stack": HALTING}, "strings", STRINGS, TWICE),
    "compressive": text({"mixer": COMPRESSIVE}),
    "adaptive-span": text({"mixer": SPAN}, training={"clip": 0.1}),
    "masked-lm": run(ENCODER, {"kind": "masked_lm", "span_boundary": {"width": 8}}, ROWS | NEXT | {"noise": SPANS}),
    "masked-lm-phrases": run(ENCODER, {"kind": "masked_lm", "phrase_weight": 0.5}, ROWS | {"noise": REPLACED}, TWICE),
    "replaced-tokens": run(ENCODER, {"kind": "replaced_tokens", "generator": GENERATOR}, ROWS, TWICE),
    "contrastive": run(ENCODER, "contrastive", ROWS | {"noise": SPANS}),
    "permutation-lm": run(ENCODER | {"query_stream": "learned"}, "permutation_lm", ROWS | NEXT),
    "bilm": run(ENCODER | {"causal": True}, "bilm", ROWS),
    "denoising": run(
        TRANSLATOR,
        {"kind": "seq2seq", "metrics": ["accuracy"]},
        {name: ROWS[name] for name in ("source", "tokenizer", "length", "batch_size", "window", "evaluation")}
        | {"kind": "denoising", "noise": "span_corruption"},
    ),
    "character-losses": text(
        {"mixer": "attention", "positions": {"kind": "learned", "per_layer": True}},
        {"kind": "causal_lm", "intermediate": True, "future": [0.5]},
    ),
    "two-ranks": text({"dropout": 0.1}, training=TWICE | {"devices": 2}),
    "classification-from-weights": run(ENCODER, "classification", LABELLED) | {"weights": f"{WEIGHTS}/checkpoint.ckpt"},
}
"""The config of each run, by its name: fields that keep their defaults are omitted."""


def write_corpus(folder: Path) -> None:
    """Writes the sentences of the licence: as documents, as pairs of a sentence and its last word, with a label,
    and with tags of words with a capital letter."""
    paragraphs = re.split(r"\n\s*\n", LICENSE.read_text(encoding="utf-8"))
    joined = " ".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    sentences = [sentence for sentence in re.split(r"(?<=[.;:,]) ", joined) if len(sentence) > 12]
    for split in SPLITS:
        for kind in ("text", "pairs", "labels", "tags"):
            (folder / kind / split).mkdir(parents=True, exist_ok=True)
    documents = [sentences[start : start + SENTENCES] for start in range(0, len(sentences), SENTENCES)]
    for number, document in enumerate(documents):
        split = SPLITS[number % len(SPLITS)]
        (folder / "text" / split / f"{number:02}.txt").write_text("\n".join(document) + "\n", encoding="utf-8")
        with (folder / "pairs" / split / "pairs.tsv").open("a", encoding="utf-8") as file:
            file.writelines(f"{sentence}\tin the License: {sentence.split()[-1]}\n" for sentence in document)
        with (folder / "labels" / split / "labels.jsonl").open("a", encoding="utf-8") as file:
            labelled = (
                {"text": sentence, "label": "yes" if "or" in sentence.split() else "no"} for sentence in document
            )
            file.writelines(json.dumps(row) + "\n" for row in labelled)
        with (folder / "tags" / split / "tags.conll").open("a", encoding="utf-8") as file:
            for sentence in document:
                file.writelines(f"{word}\t{'B-name' if word[0].isupper() else 'O'}\n" for word in sentence.split())
                file.write("\n")
