"""Checks of sources whose documents are generated from their configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from datamodules import SourceConfig
from datamodules.core.documents import SPLITS
from lit_transformers.config import field_types


def documents(config: SourceConfig) -> dict[str, bytes]:
    """All documents by their split and name."""
    corpus = config.build()
    return {f"{split} {d.name}": d.text for split in SPLITS for d in corpus.documents(split)}


def check_every_field(config: SourceConfig, changed_values: Mapping[str, Any]) -> None:
    """Every field changes documents, splits and the fingerprint, but for ``piece``, of which a document is smaller."""
    assert set(changed_values) == set(field_types(type(config)))
    fingerprint = config.build().fingerprint
    for name, value in changed_values.items():
        changed = config.override({name: value})
        changes_documents = name != "piece"
        assert (documents(changed) != documents(config)) == changes_documents, name
        assert (changed.build().fingerprint != fingerprint) == changes_documents, name
