"""sacreBLEU's own paired tests of every contrast, seed by seed, for runs that stored their outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lit_transformers.scores import ScoreWords
from reports.judge.comparisons import Comparison
from reports.read.outputs import BLEU_COLUMNS, PairedTests, paired_tests, tok_of
from reports.read.study import Study

__all__ = ["ContrastTests", "bleu_tests"]


class ContrastTests(NamedTuple):
    """The tests of one seed of a contrast, which is called ``name``."""

    name: str
    seed: int
    tests: PairedTests


def bleu_tests(study: Study, contrasts: Sequence[Comparison]) -> tuple[ContrastTests, ...]:
    """Returns the tests of each contrast and seed with outputs; none if the metric is not BLEU."""
    return tuple(_run_tests(study, contrasts)) if study.plan.metric.name.endswith("/bleu") else ()


def _run_tests(study: Study, contrasts: Sequence[Comparison]) -> Iterator[ContrastTests]:
    documents = {(run.arm, run.seed): run.documents() for run in study.runs if run.missing is None}
    toks = {
        (run.arm, run.seed): tok_of(run.record) or ScoreWords().bleu for run in study.runs if run.record is not None
    }
    for contrast in contrasts:
        if contrast.estimate is None:  # its arms are not measured alike, or have no seed in common
            continue
        arm, against = contrast.weights
        for seed in sorted({seed for _, seed in documents}):
            arm_documents, against_documents = documents.get((arm, seed)), documents.get((against, seed))
            if arm_documents is None or against_documents is None or arm_documents.names != against_documents.names:
                continue
            tok, are_alike = toks[arm, seed], toks[arm, seed] == toks[against, seed]
            if are_alike and all(BLEU_COLUMNS[0] in both.others for both in (arm_documents, against_documents)):
                yield ContrastTests(contrast.name, seed, paired_tests(arm_documents, against_documents, tok))
