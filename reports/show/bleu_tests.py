"""sacreBLEU's own paired tests of every contrast, as a table."""

from __future__ import annotations

from reports.judge.findings import Findings
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


def bleu_tests(findings: Findings) -> Table:
    """Returns a table with a row for each contrast and seed with outputs; it is empty if the metric is not BLEU."""
    rows = tuple(
        (
            Cell(name),
            Cell(str(seed)),
            Cell(tests.score),
            Cell(tests.against),
            Cell(tests.p_bootstrap),
            Cell(tests.p_randomization),
        )
        for name, seed, tests in findings.bleu_tests
    )
    notes = tuple(
        f"By sacreBLEU: {signature}. Both tests take the two trained models as they are: "
        "they speak of other documents, not of other seeds, and decide no verdict."
        for signature in dict.fromkeys(one.tests.signature for one in findings.bleu_tests)
    )
    return Table("bleu_tests", "sacreBLEU's paired tests", _COLUMNS, rows, notes)
