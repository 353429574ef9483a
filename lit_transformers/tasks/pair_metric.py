"""The base of the metrics of rows, which count minimal pairs too (Warstadt et al. 2020, arXiv:1912.00582)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lit_transformers.batch import IGNORED, RowBatch, RowDescription
from lit_transformers.config import ConfigError
from lit_transformers.heads.head import Head
from lit_transformers.heads.metric import HeadsMetric
from lit_transformers.records.measure import Measure, maximized, minimized


class PairMetric(HeadsMetric):
    """Of each rule, the share of minimal pairs whose row that obeys it has the higher score, a log likelihood.

    rules: their names. ``pair_nats`` is the name of the mean loss of a symbol in rows that obey rules: their score,
    negated and divided by their symbols.
    """

    pair_nats: ClassVar[str]
    pairs: Tensor

    def __init__(
        self, heads: Mapping[str, Head], rules: Sequence[str] = (), absent: Mapping[str, type[Head]] | None = None
    ) -> None:
        super().__init__(heads, absent)
        self.rules = tuple(rules)
        columns = torch.zeros(max(len(self.rules), 1), 4, dtype=torch.float64)
        self.add_state("pairs", default=columns, dist_reduce_fx="sum")

    def update_pairs(self, scores: Float[Tensor, " b"], batch: RowBatch) -> None:
        """Adds the scores of a batch of minimal pairs, for each rule: pairs, right ones, nats and symbols."""
        assert batch.rule is not None
        obeying, breaking = scores.double().unflatten(0, (-1, 2)).unbind(dim=1)
        symbols = (batch.targets[::2] != IGNORED).sum(dim=1)
        columns = [torch.ones_like(obeying), obeying > breaking, -obeying, symbols]
        sums = torch.stack([column.to(self.pairs) for column in columns], dim=1)
        self.pairs = self.pairs.index_add(0, batch.rule[::2], sums)

    def compute(self) -> dict[str, float]:
        """Returns the measures of the heads, and the results of minimal pairs; nothing where no symbol was read."""
        rows = self.rows()
        return self.results_of(rows) | self.pair_results() if rows else {}

    def pair_results(self) -> dict[str, float]:
        """Returns the accuracy of each rule by its name, and of all as pairs_accuracy, and ``pair_nats``; nothing
        where there were no pairs. Equal scores are no knowledge, and count as wrong."""
        count, right, nats, symbols = self.pairs.sum(dim=0).tolist()
        if not count:
            return {}
        shares = (self.pairs[:, 1] / self.pairs[:, 0]).tolist()
        of_rules = {f"{rule}_accuracy": share for rule, share in zip(self.rules, shares, strict=True)}
        return of_rules | {"pairs_accuracy": right / count, self.pair_nats: nats / symbols}


def pair_measures(rules: Sequence[str], nats: str) -> dict[str, Measure]:
    """Returns the measures of the results of minimal pairs, none without rules. nats: their ``pair_nats``."""
    if not rules:
        return {}
    names = (*(f"{rule}_accuracy" for rule in rules), "pairs_accuracy")
    return maximized(*names, per="minimal pair") | minimized(nats, per="symbol")


def refuse_pairs(rows: RowDescription, task: str) -> None:
    """Raises ConfigError where the data have minimal pairs: ``task`` gives no row a likelihood."""
    if rows.rules:
        reason = "gives no row a likelihood, as masked_lm and replaced_tokens do; drop data.evaluation.pairs"
        raise ConfigError(f"{task} {reason}", "task")
