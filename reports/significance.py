"""sacreBLEU's own paired tests of every contrast, seed by seed, where runs left what they wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reports.comparisons import Comparison
from reports.outputs import BLEU_COLUMNS, PairedTests, paired_tests
from reports.records import Study
from reports.tables import Cell, Column, Table

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
    """A row for each contrast and seed whose outputs are there; none where the metric is another."""
    found = list(_tested(study, contrasts)) if study.plan.metric.name.endswith("/bleu") else []
    rows = tuple(
        (
            Cell(name),
            Cell(str(seed)),
            Cell(tests.score),
            Cell(tests.against),
            Cell(tests.p_bootstrap),
            Cell(tests.p_randomization),
        )
        for name, seed, tests in found
    )
    notes = tuple(
        f"By sacreBLEU: {signature}. Both tests take the two trained models as they are: "
        "they speak of other documents, not of other seeds, and decide no verdict."
        for signature in dict.fromkeys(tests.signature for _, _, tests in found)
    )
    return Table("bleu_tests", "sacreBLEU's paired tests", _COLUMNS, rows, notes)


def _tested(study: Study, contrasts: Sequence[Comparison]) -> Iterator[tuple[str, int, PairedTests]]:
    documents = {(run.arm, run.seed): run.documents() for run in study.runs if run.missing is None}
    for contrast in contrasts:
        arm, against = contrast.weights
        for seed in sorted({seed for _, seed in documents}):
            one, other = documents.get((arm, seed)), documents.get((against, seed))
            if one is None or other is None or one.names != other.names:
                continue
            if BLEU_COLUMNS[0] in one.others and BLEU_COLUMNS[0] in other.others:
                yield contrast.name, seed, paired_tests(one, other)
