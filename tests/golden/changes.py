"""The results that are meant to differ from those of an earlier commit, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CHANGES"]

READ = "costs count the tokens that were read, and record those that were planned beside them"

CHANGES: Mapping[str, Mapping[str, str]] = {
    "*": {f"record.json cost.{name}": READ for name in ("tokens", "train_flops", "planned_tokens")},
}
"""By the name of a run, or a pattern of names, the reason of each field that differs: {"two-ranks": {"record.json
cost.tokens": "..."}}. A field is a path in record.json, a column of documents.csv, a name in metrics.csv or a key in
outputs.jsonl, after the name of its file, or a pattern of these."""
