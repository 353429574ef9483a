"""Pairs from columns of tables and fields of nested records: TSV, CSV, JSON lines, JSON and parquet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

from datamodules.core.index import IndexedCorpus, Text
from datamodules.pairs.source import Languages, Longest
from datamodules.pairs.stored_pairs import TextPairsConfig, Texts, pair_text
from datamodules.text.nested_records import Column, FileRecord, RecordsConfig

__all__ = ["RecordPairsConfig"]


class RecordPairsConfig(TextPairsConfig, RecordsConfig, kind="records"):
    """Two columns of a table, or two fields of records, in a file, a folder or a tar.

    source     a column by its name, or its number from 1, or a JMESPath in nested records, such as
               questions[*].responses[0].text; a name that a record has is no path. The texts of a list are joined with
               spaces; join(`"\\n"`, turns[*].text) joins otherwise
    target     likewise; each text of a list is a reference, the first of which training reads
    languages  of sources and targets, where they are known
    split_by   of a split by hash: the side that decides it. The target keeps pairs with the same target, such as the
               questions of a passage, in one split
    """

    usual: ClassVar[Longest] = Longest(256, 256)

    source: Column = "source"
    target: Column = "target"
    languages: Languages | None = None
    split_by: Literal["source", "target"] = "source"

    def conflicts(self) -> Iterator[str]:
        yield from self.conflicts_of(source=self.source, target=self.target)
        if self.source == self.target:
            yield f"source and target are both {self.source!r}: pairs are of two columns"

    def corpus(self) -> IndexedCorpus:
        return self.indexed(self.to_dict() | {"languages": None}, (self.source, self.target), self._pair)

    def _pair(self, record: FileRecord, sides: list[list[str]], path: Path) -> Text:
        texts = Texts(" ".join(sides[0]), tuple(sides[1]))
        decisive = texts.source if self.split_by == "source" else texts.targets[0]
        return pair_text(record.origin, self.split_of(record, decisive), record.row, texts, path)
