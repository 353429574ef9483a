"""The metric of answers of several lengths: all measures for all of them, and for each length."""

from __future__ import annotations

from lit_transformers.heads.metric import HeadsMetric


class StringMetric(HeadsMetric):
    """Accuracy of symbols and of whole answers, and nats per symbol, of all answers and of each requested length."""

    def compute(self) -> dict[str, float]:
        """Returns the measures of the heads, and each of them per length as name@length."""
        rows = self.rows()
        results = self.results_of(rows)
        for length in sorted({row.length for row in rows} - {0}):
            of_length = self.results_of([row for row in rows if row.length == length])
            results |= {f"{name}@{length}": value for name, value in of_length.items()}
        return results
