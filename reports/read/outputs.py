"""The texts that runs have generated, and their scores against the references: BLEU and ROUGE with their tests.

A run of such a task writes ``outputs.jsonl`` next to its ``documents.csv``: for each document a line with its ordinal
there, as ``id``, the ``hypothesis``, and its ``references``. Both scores are functions of sums over documents, so these
sums become columns of the documents, and intervals over seeds and documents follow as for any other metric. In addition
sacreBLEU's paired tests are computed from the same sums.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from lit_transformers.config import ConfigError
from lit_transformers.records.files import OUTPUTS
from lit_transformers.records.record import Record
from lit_transformers.scores import ROUGES, ScoreWords, WordTokenizer, metric_of, rouge_of_each, streams
from reports.read.measurements import Array, DocumentLosses, require_written, rounded, unreadable

__all__ = [
    "BLEU_COLUMNS",
    "OUTPUTS",
    "Output",
    "PairedTests",
    "bleu",
    "paired_tests",
    "read_outputs",
    "tok_of",
    "with_outputs",
    "words_of",
]

ORDERS = 4
BLEU_COLUMNS = (
    *(f"bleu_correct_{order}" for order in range(1, ORDERS + 1)),
    *(f"bleu_total_{order}" for order in range(1, ORDERS + 1)),
    "bleu_length",
    "bleu_reference_length",
)
"""The numbers of correct and of all n-grams for orders 1 to 4, and the lengths in tokens of the hypothesis and of the
nearest reference."""

_REFERENCES = "bleu_references"

SEED, BOOTSTRAP_RESAMPLES, RANDOMIZATION_TRIALS = 12345, 1000, 10000
"""The defaults of sacreBLEU's paired tests. Its variable of the environment for the seed is not read, because a report
is made from the results alone."""


class Output(BaseModel):
    """The text that a run generated for one document, with its references."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    id: int
    hypothesis: str
    references: Annotated[list[str], Field(min_length=1)]


class PairedTests(NamedTuple):
    """BLEU of two systems, and the p-values of sacreBLEU's two paired tests, with its signature."""

    score: float
    against: float
    p_bootstrap: float
    p_randomization: float
    signature: str


def read_outputs(path: Path) -> dict[int, Output]:
    """Reads outputs by the ordinal of their document.

    Raises ValueError, which names the line, for a line that is no output or repeats a document, and OSError.
    """
    outputs: dict[int, Output] = {}
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                output = Output.model_validate(json.loads(line))
            except (ValueError, RecursionError):
                raise ValueError(f"line {number} is no output") from None
            if output.id in outputs:
                raise ValueError(f"line {number}: document {output.id} is there twice")
            outputs[output.id] = output
    return outputs


def tok_of(record: Record, score: str = "bleu") -> str | None:
    """Returns the tokenizer in the signature of a run's score; None where it names none."""
    signature = str((record.protocol.get("scores") or {}).get(score, ""))
    return next((part.removeprefix("tok:") for part in signature.split("|") if part.startswith("tok:")), None)


def words_of(record: Record) -> ScoreWords:
    """Returns the tokenizers by which BLEU and ROUGE of a run know words, which signatures write with versions."""
    bleu, rouge = (
        next((name for name in get_args(WordTokenizer) if (tok_of(record, score) or "").startswith(name)), None)
        for score in ("bleu", "rouge")
    )
    return ScoreWords(bleu or "13a", rouge)


def with_outputs(
    documents: DocumentLosses, path: Path, metrics: Iterable[str], notes: list[str], words: ScoreWords | None = None
) -> DocumentLosses:
    """Adds to the documents the columns that BLEU and ROUGE are computed from, where these are among a run's metrics.

    words: their tokenizers; None for those of texts of which nothing is known. Returns the documents unchanged, with a
    note, where the outputs are damaged, one is missing for a document, or a package is missing that a tokenizer needs.
    """
    words = words or ScoreWords()
    metric_names = {metric.rpartition("/")[2] for metric in metrics}
    if not metric_names & {"bleu", *ROUGES}:
        return documents
    try:
        require_written(path)
        outputs = read_outputs(path)
        ordered = [outputs[int(name.partition(" ")[0])] for name in documents.names]
    except (OSError, ValueError, KeyError) as error:
        detail = error.strerror if isinstance(error, OSError) else error
        reason = f"document {error} is missing" if isinstance(error, KeyError) else f"cannot be read ({detail})"
        notes.append(unreadable(path, reason, "outputs"))
        return documents
    try:
        columns = bleu_columns(ordered, words.bleu) if "bleu" in metric_names else {}
        columns |= rouge_columns(ordered, words.rouge) if metric_names & set(ROUGES) else {}
    except ConfigError as error:
        notes.append(f"{path.parent.name}/{path.name}: {error.reason}; the run's outputs are not used")
        return documents
    return replace(documents, others={**documents.others, **columns})


def bleu_columns(outputs: Sequence[Output], tokenizer: WordTokenizer = "13a") -> dict[str, Array]:
    """Returns the counts that BLEU is computed from, each [documents], by sacreBLEU with this tokenizer."""
    metric = metric_of("bleu", tokenizer)
    scores = [metric.corpus_score([output.hypothesis], streams([output.references])) for output in outputs]
    counts = np.array(
        [[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores], dtype=np.float64
    )
    columns = dict(zip(BLEU_COLUMNS, counts.T, strict=True))
    return columns | {_REFERENCES: np.array([len(output.references) for output in outputs], dtype=np.float64)}


def rouge_columns(outputs: Sequence[Output], tokenizer: WordTokenizer | None = None) -> dict[str, Array]:
    """Returns the ROUGE F-measures of every output by name, each [documents]."""
    hypotheses, references = [output.hypothesis for output in outputs], [output.references for output in outputs]
    scores = rouge_of_each(hypotheses, references, tokenizer)
    return {name: rounded(np.array([score[name] for score in scores], dtype=np.float64)) for name in ROUGES}


def bleu(totals: Array) -> Array:
    """Returns BLEU [...] of totals [..., 10] ordered as BLEU_COLUMNS, with sacreBLEU's default smoothing (``exp``)."""
    correct, total = totals[..., :ORDERS], totals[..., ORDERS : 2 * ORDERS]
    length, reference = totals[..., -2], totals[..., -1]
    missed = (correct == 0) & (total > 0)
    smoothed = np.where(missed, 0.5 ** np.cumsum(missed, axis=-1), correct)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.log(smoothed / total).mean(axis=-1)
        penalty = np.where(length < reference, 1 - reference / length, 0.0)
    usable = (total > 0).all(axis=-1) & (correct > 0).any(axis=-1)
    scores: Array = np.where(usable, 100.0 * np.exp(np.where(usable, precision + penalty, 0.0)), 0.0)
    return scores


def paired_tests(arm: DocumentLosses, against: DocumentLosses, tok: str = "13a") -> PairedTests:
    """Runs sacreBLEU's paired bootstrap and approximate randomization tests of two runs' outputs.

    They draw the same samples as sacreBLEU by default, and score all trials at once. tok: the tokenizer that their
    documents were counted by, for the signature.
    """
    counts, against_counts = _counts(arm), _counts(against)
    totals, against_totals = counts.sum(axis=0), against_counts.sum(axis=0)
    difference = float(abs(bleu(totals) - bleu(against_totals)))

    resamples = _resamples(len(counts))
    resampled = np.abs(bleu(resamples @ counts) - bleu(resamples @ against_counts))
    p_bootstrap = _p_value(resampled - resampled.mean(), difference)

    swapped = _swaps(len(counts)) @ (against_counts - counts)
    p_randomization = _p_value(np.abs(bleu(totals + swapped) - bleu(against_totals - swapped)), difference)
    return PairedTests(_score(totals), _score(against_totals), p_bootstrap, p_randomization, _signature(against, tok))


@lru_cache(maxsize=1)
def _resamples(documents: int) -> Array:
    """Returns how often each resample of the paired bootstrap test draws each document [resamples, documents]."""
    drawn = np.random.default_rng(SEED).choice(documents, size=(BOOTSTRAP_RESAMPLES, documents), replace=True)
    return np.stack([np.bincount(row, minlength=documents) for row in drawn]).astype(np.float64)


@lru_cache(maxsize=1)
def _swaps(documents: int) -> Array:
    """Returns 1 where a trial of approximate randomization swaps the outputs of a document [trials, documents]."""
    swaps = np.random.default_rng(SEED).integers(2, size=(RANDOMIZATION_TRIALS, documents), dtype=bool)
    return swaps.astype(np.float64)


def _p_value(statistics: Array, difference: float) -> float:
    """Returns the share of statistics [trials] beyond the difference, where that itself counts as a trial beyond it.

    A trial of the same totals has the same score to the last bit, so that ties are no matter of rounding.
    """
    return (int((statistics > difference).sum()) + 1) / (len(statistics) + 1)


def _score(totals: Array) -> float:
    """Returns BLEU of totals [10] by sacreBLEU itself, to its last digit."""
    correct, total, (length, reference) = np.split(totals.astype(int), [ORDERS, 2 * ORDERS])
    score = metric_of("bleu").compute_bleu(correct.tolist(), total.tolist(), int(length), int(reference))
    return float(score.score)


def _signature(documents: DocumentLosses, tok: str) -> str:
    """Returns sacreBLEU's signature of both tests."""
    reference_counts = set(documents.others[_REFERENCES].astype(int).tolist())
    metric: Any = metric_of("bleu")
    metric.num_refs = reference_counts.pop() if len(reference_counts) == 1 else -1
    signature = metric.get_signature()
    signature.update("tok", tok)
    signature.update("seed", str(SEED))
    signature.update("bs", BOOTSTRAP_RESAMPLES)
    return f"{signature}, and ar:{RANDOMIZATION_TRIALS}"


def _counts(documents: DocumentLosses) -> Array:
    """Returns the counts of each document [documents, 10], ordered as BLEU_COLUMNS."""
    return np.column_stack([documents.others[name] for name in BLEU_COLUMNS])
