"""The results that are meant to differ from those of an earlier commit, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CHANGES"]

READ = "costs count the tokens that were read, and record the planned ones as well"
NEW = "a field that records did not have"
CURVE = "every loss has a curve"
SUMS = "sums are divided by the targets of an update before they are differentiated, not after: other roundings"
OWN = "each loss is divided by its own targets in all batches of an update"
PREDICTED = "costs count the positions that are predicted, and all heads"

CHANGES: Mapping[str, Mapping[str, str]] = {
    "*": {
        **{f"record.json cost.{name}": READ for name in ("tokens", "train_flops", "planned_tokens")},
        **{f"record.json cost.{name}": NEW for name in ("frozen_parameters", "train_flops_per_token")},
        "record.json measurement.goals.*": NEW,
        "record.json gates.*.name": "gates are named in plainer words",
        "metrics.csv train/*_nats": CURVE,
    },
    "text-half-loss": {"record.json cost.flops_per_token": PREDICTED},
    **{name: {"*": SUMS} for name in ("text-accumulate", "translation-accumulate", "halting", "two-ranks")},
    **{name: {"*": OWN} for name in ("masked-lm-phrases", "replaced-tokens")},
    "character-losses": {"record.json cost.*": PREDICTED, "*": OWN},
}
"""By the name of a run, or a pattern of names, the reason of each field that differs: {"two-ranks": {"record.json
cost.tokens": "..."}}. A field is a path in record.json, a column of documents.csv, a name in metrics.csv or a key in
outputs.jsonl, after the name of its file, or a pattern of these."""
