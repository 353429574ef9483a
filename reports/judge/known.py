"""The share of the known optimum that each arm has learned, for data whose truth is known.

The share of an arm is how far its mean has come from the value of a model that knows nothing of its data to the best
possible value. This best value holds for all data that the source may give. The measured data are a sample, whose own
best value lies above or below, so that a share may exceed one: by chance where its interval reaches one.

Where no arm that reads the same data has come to ``LEAST``, all were trained too little to be distinguished: they have
learned close to nothing, and "equal" would be true of any two networks that were trained for a moment. A comparison of
such arms is not judged. Where one has come further, training sufficed, and another one that has learned nothing is an
answer.

A quarter is half of the share of the least trained baseline of the published studies (49 %, in ``universal_depth``);
n-gram models reach up to 37 % of the known optimum of generated topics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lit_transformers.records.reference import Reference
from reports.judge.evidence import Evidence, gather
from reports.judge.statistics import LEVEL, ConfidenceInterval, estimate
from reports.read.study import Study

__all__ = ["LEAST", "KnownShare", "known_shares", "learned_too_little", "share"]

LEAST = 0.25
"""The least share of the known optimum that some arm of a comparison must have learned."""


def share(references: Sequence[Reference], value: float) -> float | None:
    """Returns how far a value has come from the first reference to the last; None where nothing is known."""
    if not references or references[0].value == references[-1].value:
        return None
    first, last = references[0].value, references[-1].value
    return (first - value) / (first - last)


def learned_too_little(study: Study, arms: Iterable[str]) -> dict[str, float]:
    """Returns by name the shares of arms that were all trained too little to be compared; empty where one was not,
    where nothing is known of its data, or where it has not finished."""
    shares: dict[str, float] = {}
    for arm in arms:
        own = _share_of(study, arm)
        if own is None:
            return {}
        of_readers = (_share_of(study, name) for name in _readers(study, arm))
        if max((learned for learned in of_readers if learned is not None), default=1) >= LEAST:
            return {}
        shares[arm] = own
    return shares


def _share_of(study: Study, arm: str) -> float | None:
    references = study.plan.references
    if study.plan.references_by_data:
        references = next(one for one in study.plan.arms if one.name == arm).references or references
    mean = study.mean_of(arm) if references else None
    return None if mean is None else share(references, mean)


def _readers(study: Study, arm: str) -> list[str]:
    """Returns the arms whose first runs read the same data as that of an arm, and the arm itself."""
    own = _data(study, arm)
    return [name for name in study.arm_names if name == arm or _data(study, name) == own]


def _data(study: Study, arm: str) -> Any:
    records = [run.record for run in study.finished(arm) if run.record]
    return records[0].config.get("data") if records else None


class KnownShare(NamedTuple):
    """A share of the known optimum, with its 95 % interval over seeds and documents; None for a single seed."""

    share: float
    interval: ConfidenceInterval | None


def known_shares(study: Study, references: Mapping[str, Sequence[Reference]]) -> dict[str, KnownShare]:
    """Returns the share of every arm with a finished run and with ``references``, those of its data by its name."""
    ends = {arm: (known[0].value, known[-1].value) for arm, known in references.items() if known}
    ends = {arm: (first, last) for arm, (first, last) in ends.items() if first != last}
    evidence = gather(study, []) if ends else Evidence({})
    shares = {arm: _share(arm, study, evidence, *known) for arm, known in ends.items()}
    return {arm: share for arm, share in shares.items() if share is not None}


def _share(arm: str, study: Study, evidence: Evidence, first: float, last: float) -> KnownShare | None:
    """Returns the share of an arm, by the value of who knows nothing and the best possible one; None without a run."""
    mean, seeds = study.mean_of(arm), evidence.seeds([arm])
    if mean is None:
        return None
    share = (first - mean) / (first - last)
    if evidence.without_value([arm], seeds) or evidence.without_interval([arm], seeds):
        return KnownShare(share, None)
    values = evidence.pairs({arm: 1.0}, seeds)
    variances = estimate(values, evidence.at_documents({arm: 1.0}, seeds)).variances
    if variances is None:
        return KnownShare(share, None)
    middle, width = sum(values) / len(values), variances.half_width(LEVEL)
    ends = (math.exp(end) if evidence.ratio else end for end in (middle - width, middle + width))
    low, high = sorted((first - end) / (first - last) for end in ends)
    return KnownShare(share, ConfidenceInterval(low, high))
