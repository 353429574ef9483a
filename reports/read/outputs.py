"""The texts that runs have generated, and their scores against the references: BLEU and ROUGE with their tests.

A run of such a task writes ``outputs.jsonl`` beside its ``documents.csv``: for each document a line with its ordinal
there, as ``id``, the ``hypothesis``, and its ``references``. Both scores are functions of sums over documents, so these
sums become columns of the documents, and intervals over seeds and documents follow as for any other metric. In
addition sacreBLEU's own paired tests are computed by its own code from the same sums.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from lit_transformers.records.files import OUTPUTS
from lit_transformers.scores import ROUGES, metric_of, rouge_of_each, streams
from reports.read.measurements import Array, DocumentLosses, rounded

__all__ = [
    "BLEU_COLUMNS",
    "OUTPUTS",
    "Output",
    "PairedTests",
    "bleu",
    "paired_tests",
    "read_outputs",
    "with_outputs",
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


def with_outputs(documents: DocumentLosses, path: Path, metrics: Iterable[str], notes: list[str]) -> DocumentLosses:
    """Adds to the documents the columns that BLEU and ROUGE are computed from, where these are among a run's metrics.

    Returns the documents unchanged, with a note, where the outputs are damaged or one is missing for a document.
    """
    metric_names = {metric.rpartition("/")[2] for metric in metrics}
    if not metric_names & {"bleu", *ROUGES}:
        return documents
    try:
        outputs = read_outputs(path)
        ordered = [outputs[int(name.partition(" ")[0])] for name in documents.names]
    except (OSError, ValueError, KeyError) as error:
        detail = error.strerror if isinstance(error, OSError) else error
        reason = f"document {error} is missing" if isinstance(error, KeyError) else f"cannot be read ({detail})"
        notes.append(f"{path.parent.name}/{path.name}: {reason}; the run's outputs are not used")
        return documents
    columns = bleu_columns(ordered) if "bleu" in metric_names else {}
    columns |= rouge_columns(ordered) if metric_names & set(ROUGES) else {}
    return replace(documents, others={**documents.others, **columns})


def bleu_columns(outputs: Sequence[Output]) -> dict[str, Array]:
    """Returns the counts that BLEU is computed from, each [documents], by sacreBLEU with its defaults."""
    metric = metric_of("bleu")
    scores = [metric.corpus_score([output.hypothesis], streams([output.references])) for output in outputs]
    counts = np.array(
        [[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores], dtype=np.float64
    )
    columns = dict(zip(BLEU_COLUMNS, counts.T, strict=True))
    return columns | {_REFERENCES: np.array([len(output.references) for output in outputs], dtype=np.float64)}


def rouge_columns(outputs: Sequence[Output]) -> dict[str, Array]:
    """Returns the ROUGE F-measures of every output by name, each [documents]."""
    scores = rouge_of_each([output.hypothesis for output in outputs], [output.references for output in outputs])
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


class CountsMetric:
    """The interface that PairedTest needs of a metric, for systems given as counts instead of sentences. sacreBLEU has
    no public one, so its methods have the names that PairedTest calls."""

    def __init__(self, references: int) -> None:
        self.metric: Any = metric_of("bleu")
        self.metric.num_refs = references

    def _extract_corpus_statistics(self, counts: Any, references: None) -> Any:
        return counts

    def _aggregate_and_compute(self, counts: Any) -> Any:
        return self._compute_score_from_stats(np.sum(counts, axis=0))

    def _compute_score_from_stats(self, counts: Any) -> Any:
        return self.metric.compute_bleu(
            correct=counts[2 : 2 + ORDERS],
            total=counts[2 + ORDERS :],
            sys_len=int(counts[0]),
            ref_len=int(counts[1]),
            smooth_method=self.metric.smooth_method,
            smooth_value=self.metric.smooth_value,
            effective_order=self.metric.effective_order,
            max_ngram_order=ORDERS,
        )

    def get_signature(self) -> Any:
        return self.metric.get_signature()


def paired_tests(arm: DocumentLosses, against: DocumentLosses) -> PairedTests:
    """Runs sacreBLEU's paired bootstrap and approximate randomization tests of two runs' outputs."""
    from sacrebleu.significance import PairedTest

    reference_counts = set(against.others[_REFERENCES].astype(int).tolist())
    reference_count = reference_counts.pop() if len(reference_counts) == 1 else -1
    systems: Any = [("against", _sacrebleu_rows(against)), ("arm", _sacrebleu_rows(arm))]
    results: dict[str, Any] = {}
    for kind in ("bs", "ar"):
        metrics: Mapping[str, Any] = {"BLEU": CountsMetric(reference_count)}
        signatures, scores = PairedTest(systems, metrics, None, test_type=kind)()
        results[kind], results[f"{kind} of"] = scores["BLEU"], str(signatures["BLEU"])
    against_score, arm_score = (float(result.score) for result in results["bs"])
    signature = f"{results['bs of']}, and {results['ar of'].split('|')[1]}"
    return PairedTests(arm_score, against_score, results["bs"][1].p_value, results["ar"][1].p_value, signature)


def _sacrebleu_rows(documents: DocumentLosses) -> list[list[int]]:
    """Returns the counts of each document in sacreBLEU's order: both lengths, correct n-grams, all n-grams."""
    order = [*BLEU_COLUMNS[-2:], *BLEU_COLUMNS[:-2]]
    rows: list[list[int]] = np.column_stack([documents.others[name] for name in order]).astype(int).tolist()
    return rows
