"""sacreBLEU's own paired tests of every contrast, seed by seed, for runs that stored their outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lit_transformers.scores import ScoreWords
from reports.judge.comparisons import Comparison
from reports.read.outputs import BLEU_COLUMNS, PairedTests, paired_tests, tok_of
from reports.read.study import Study
from reports.show.tables import Cell, Column, Table

__all__ = ["bleu_tests"]

_COLUMNS = (
    Column("Comparison"),
    Column("Seed"),
    Column("BLEU", "number", decimals=2),
    Column("Against", "number", decimals=2),
    Column("p (paired bootstrap)", "p"),
    Column("p (approximate randomization)", "p"),
)


def bleu_tests(study: Study, contrasts: Sequence[Comparison]) -> Table:
    """Returns a table with a row for each contrast and seed with outputs; it is empty if the metric is not BLEU."""
    results = list(_run_tests(study, contrasts)) if study.plan.metric.name.endswith("/bleu") else []
    rows = tuple(
        (
            Cell(name),
            Cell(str(seed)),
            Cell(tests.score),
            Cell(tests.against),
            Cell(tests.p_bootstrap),
            Cell(tests.p_randomization),
        )
        for name, seed, tests in results
    )
    notes = tuple(
        f"By sacreBLEU: {signature}. Both tests take the two trained models as they are: "
        "they speak of other documents, not of other seeds, and decide no verdict."
        for signature in dict.fromkeys(tests.signature for _, _, tests in results)
    )
    return Table("bleu_tests", "sacreBLEU's paired tests", _COLUMNS, rows, notes)


def _run_tests(study: Study, contrasts: Sequence[Comparison]) -> Iterator[tuple[str, int, PairedTests]]:
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
                yield contrast.name, seed, paired_tests(arm_documents, against_documents, tok)
