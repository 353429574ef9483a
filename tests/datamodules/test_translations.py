"""Translation language modelling: a row is a text and its translation, whole, and symbols of both are hidden."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datamodules import DataError, ParallelConfig, RowDataConfig, StringPairsConfig, TranslationsConfig, WordsConfig
from datamodules.core.windows import Visit
from datamodules.rows.stored_sentences import SentenceStore
from lit_transformers.batch import IGNORED
from lit_transformers.config import ConfigError

PAIRS = [
    ("One sentence. And another! 3 more.", "Un. Deux."),
    ("a b c", "A B C"),
    ("", "nothing to translate"),
    ("long " * 30, "court"),
    ("d e f g", "D E"),
]


@pytest.fixture
def config(tmp_path: Path) -> RowDataConfig:
    for split, pairs in (("train", PAIRS * 4), ("validation", PAIRS[:2])):
        for side, language in enumerate(("en", "fr")):
            (tmp_path / f"{split}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
    source = TranslationsConfig(pairs=ParallelConfig(path=str(tmp_path), source="en", target="fr"))
    return RowDataConfig(source=source, tokenizer=WordsConfig(), packing="translations", length=23, batch_size=2)


def test_a_row_is_a_pair_each_side_of_which_is_one_segment_cut_to_half_of_a_row(config: RowDataConfig) -> None:
    data = config.build()
    names = [*data.tokenizer.to_dict()["words"], "[CLS]", "[SEP]", "[MASK]"]
    reader, hidden = data.reader("train", (0,)), Counter[int]()
    rows = []
    for ordinal in range(reader.total):
        row = reader.row(Visit(ordinal, 0))
        symbols = np.where(row.targets == IGNORED, row.inputs, row.targets)
        rows.append((" ".join(names[symbol] for symbol in symbols), int(row.segments.sum())))
        hidden.update(row.segments[row.targets != IGNORED].tolist())
        assert row.relation == IGNORED
    expected = {
        (f"[CLS] {' '.join(source.split()[:10])} [SEP] {' '.join(target.split()[:10])} [SEP]", len(target.split()) + 1)
        for source, target in PAIRS
        if source
    }
    assert {*rows} == expected and reader.total == 4 * 4, "a pair without a source is left out"
    assert set(hidden) == {0, 1}, "of both languages"
    assert data.description.segments == 2 and data.description.relations == 0


def test_the_same_texts_are_sentences_elsewhere_and_lines_here(config: RowDataConfig) -> None:
    """The cache of one is not that of the other."""
    data = config.build()
    folders = [SentenceStore(data.corpus, data.tokenizer, lines).folder for lines in (False, True)]
    assert folders[0] != folders[1] == data.store.folder


def test_what_does_not_go_together_is_refused(config: RowDataConfig) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"packing": "sentence_pair"}, "packing translations and a source of kind translations go together"),
        ({"source": "stdlib"}, "packing translations and a source of kind translations go together"),
        ({"relation": "sentence_order"}, "of two translations no relation is predicted"),
        ({"source": "stdlib", "packing": "full_sentences", "restart": True}, "packing full_sentences has one; drop"),
    ]
    for changes, message in wrong:
        with pytest.raises(ConfigError, match=message):
            config.override(changes)
    with pytest.raises(ConfigError, match="pairs of kind strings are no texts"):
        TranslationsConfig(pairs=StringPairsConfig())


def test_whether_positions_restart_is_part_of_the_description_and_of_the_protocol(config: RowDataConfig) -> None:
    restarting = config.override({"restart": True})
    assert restarting.build().description.restarts and not config.build().description.restarts
    assert restarting.protocol()["restart"] and "restart" not in config.protocol()


def test_a_split_without_a_whole_pair_is_refused(tmp_path: Path) -> None:
    for language in ("en", "fr"):
        (tmp_path / f"train.{language}").write_text("\n" if language == "en" else "seul\n")
    source = TranslationsConfig(pairs=ParallelConfig(path=str(tmp_path), source="en", target="fr"))
    data_config = RowDataConfig(source=source, tokenizer=WordsConfig(), packing="translations")
    with pytest.raises(DataError, match="has no document of two sentences, so no row of packing translations"):
        data_config.build().prepare_data()


@pytest.mark.slow
def test_captions_and_their_translations_become_rows(real_data: Path) -> None:
    source, tokenizer = TranslationsConfig(), WordsConfig(minimum=2)
    data_config = RowDataConfig(source=source, packing="translations", length=64, restart=True, tokenizer=tokenizer)
    data = data_config.build()
    assert data.reader("train", ()).total == 29_000
    batch = next(iter(data.val_dataloader()))
    assert ((batch.segments == 1).sum(dim=1) > 3).all() and (batch.targets != IGNORED).any(dim=1).all()
