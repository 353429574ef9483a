"""What runs that write text have written, and how alike it is to the references: BLEU and ROUGE with their tests.

A run of such a task leaves ``outputs.jsonl`` beside its ``documents.csv``: for each document a line with its ordinal
there, as ``id``, the ``hypothesis``, and its ``references``. Both scores are functions of sums over documents, so these
become columns of the documents, and intervals over seeds and documents follow as for any other metric. sacreBLEU's own
paired tests stand beside, made by its own code from the same sums.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from lit_transformers.files import OUTPUTS
from lit_transformers.scores import ROUGES, metric_of, rouge_of_each, streams
from reports.measurements import Array, Documents, rounded

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
"""Of n-grams those that are right and all, and the lengths in tokens of hypothesis and nearest reference."""

_REFERENCES = "bleu_references"


class Output(BaseModel):
    """What a run wrote for one document."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    id: int
    hypothesis: str
    references: Annotated[list[str], Field(min_length=1)]


class PairedTests(NamedTuple):
    """BLEU of two systems, and how likely sacreBLEU's tests call a difference as large where there is none."""

    score: float
    against: float
    p_bootstrap: float
    p_randomization: float
    signature: str


def read_outputs(path: Path) -> dict[int, Output]:
    """Outputs by the ordinal of their document. Raises ValueError that names the line, and OSError."""
    found: dict[int, Output] = {}
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                output = Output.model_validate(json.loads(line))
            except (ValueError, RecursionError):
                raise ValueError(f"line {number} is no output") from None
            if output.id in found:
                raise ValueError(f"line {number}: document {output.id} is there twice")
            found[output.id] = output
    return found


def with_outputs(documents: Documents, path: Path, metrics: Iterable[str], notes: list[str]) -> Documents:
    """The documents with the columns that BLEU and ROUGE are made of, where they are among a run's metrics.

    They stay as they are, with a note, where outputs are damaged or lack for a document.
    """
    wanted = {metric.rpartition("/")[2] for metric in metrics}
    if not wanted & {"bleu", *ROUGES}:
        return documents
    try:
        found = read_outputs(path)
        ordered = [found[int(name.partition(" ")[0])] for name in documents.names]
    except (OSError, ValueError, KeyError) as error:
        told = error.strerror if isinstance(error, OSError) else error
        reason = f"document {error} is missing" if isinstance(error, KeyError) else f"cannot be read ({told})"
        notes.append(f"{path.parent.name}/{path.name}: {reason}; the run's outputs are not used")
        return documents
    columns = bleu_columns(ordered) if "bleu" in wanted else {}
    columns |= rouge_columns(ordered) if wanted & set(ROUGES) else {}
    return replace(documents, others={**documents.others, **columns})


def bleu_columns(outputs: Sequence[Output]) -> dict[str, Array]:
    """The counts of every output that BLEU is made of, by sacreBLEU with its defaults."""
    hypotheses, references = [output.hypothesis for output in outputs], [output.references for output in outputs]
    # What sacreBLEU's own paired tests are made of.
    counted = np.array(metric_of("bleu")._extract_corpus_statistics(hypotheses, streams(references)), dtype=np.float64)
    length, reference, grams = counted[:, 0], counted[:, 1], counted[:, 2:]
    columns = dict(zip(BLEU_COLUMNS, [*grams.T, length, reference], strict=True))
    return columns | {_REFERENCES: np.array([len(output.references) for output in outputs], dtype=np.float64)}


def rouge_columns(outputs: Sequence[Output]) -> dict[str, Array]:
    """The F-measures of every output."""
    of_each = rouge_of_each([output.hypothesis for output in outputs], [output.references for output in outputs])
    return {name: rounded(np.array([score[name] for score in of_each], dtype=np.float64)) for name in ROUGES}


def bleu(totals: Array) -> Array:
    """BLEU of totals [..., 10] in the order of BLEU_COLUMNS, smoothed as sacreBLEU does by default (``exp``)."""
    correct, total = totals[..., :ORDERS], totals[..., ORDERS : 2 * ORDERS]
    length, reference = totals[..., -2], totals[..., -1]
    missed = (correct == 0) & (total > 0)
    smoothed = np.where(missed, 0.5 ** np.cumsum(missed, axis=-1), correct)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.log(smoothed / total).mean(axis=-1)
        penalty = np.where(length < reference, 1 - reference / length, 0.0)
    usable = (total > 0).all(axis=-1) & (correct > 0).any(axis=-1)
    found: Array = np.where(usable, 100.0 * np.exp(np.where(usable, precision + penalty, 0.0)), 0.0)
    return found


class _Counted:
    """What PairedTest asks of a metric, for systems that are given as their counts instead of their sentences."""

    def __init__(self, references: int) -> None:
        self.metric: Any = metric_of("bleu")
        self.metric.num_refs = references

    def _extract_corpus_statistics(self, counts: Any, references: None) -> Any:
        return counts

    def _aggregate_and_compute(self, counts: Any) -> Any:
        return self.metric._aggregate_and_compute(counts)

    def _compute_score_from_stats(self, counts: Any) -> Any:
        return self.metric._compute_score_from_stats(counts)

    def get_signature(self) -> Any:
        return self.metric.get_signature()


def paired_tests(arm: Documents, against: Documents) -> PairedTests:
    """sacreBLEU's paired bootstrap and approximate randomization of one run's outputs against another's."""
    from sacrebleu.significance import PairedTest

    counts = set(against.others[_REFERENCES].astype(int).tolist())
    references = counts.pop() if len(counts) == 1 else -1
    systems: Any = [("against", _counts(against)), ("arm", _counts(arm))]
    found: dict[str, Any] = {}
    for kind in ("bs", "ar"):
        metrics: Mapping[str, Any] = {"BLEU": _Counted(references)}
        signatures, scores = PairedTest(systems, metrics, None, test_type=kind)()
        found[kind], found[f"{kind} of"] = scores["BLEU"], str(signatures["BLEU"])
    against_score, arm_score = (float(result.score) for result in found["bs"])
    signature = f"{found['bs of']}, and {found['ar of'].split('|')[1]}"
    return PairedTests(arm_score, against_score, found["bs"][1].p_value, found["ar"][1].p_value, signature)


def _counts(documents: Documents) -> list[list[int]]:
    """Rows as sacreBLEU orders them: both lengths, then n-grams that are right, then all."""
    order = [*BLEU_COLUMNS[-2:], *BLEU_COLUMNS[:-2]]
    rows: list[list[int]] = np.column_stack([documents.others[name] for name in order]).astype(int).tolist()
    return rows
