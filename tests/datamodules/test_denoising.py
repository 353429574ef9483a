"""DenoisingData: rows of text as pairs, whose noise only seed, epoch and row decide."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from datamodules import (
    CORRUPTIONS,
    DataError,
    DenoisingDataConfig,
    FilesConfig,
    MASSConfig,
    PhasesConfig,
    SpanCorruptionConfig,
    TopicsConfig,
    WordsConfig,
)
from datamodules.core.windows import Visit
from datamodules.floors.measure import floors
from lit_transformers.batch import IGNORED, PairBatch
from lit_transformers.config import ConfigError

TOPICS = TopicsConfig(documents=30, sentences=6, content=2, validation=0.3, test=0.2)


def config(**changes: Any) -> DenoisingDataConfig:
    data_config = DenoisingDataConfig(source=TOPICS, tokenizer=WordsConfig(), length=24, batch_size=2, window=2)
    return data_config.override(changes)


def training_batches(data_config: DenoisingDataConfig, count: int) -> list[PairBatch]:
    return list(islice(data_config.build().train_dataloader(), count))


def plain(batches: list[PairBatch]) -> list[list[Any]]:
    parts = [(*batch[:6], batch.start) for batch in batches]
    return [[part.tolist() if isinstance(part, Tensor) else part for part in batch] for batch in parts]


def rows_of(batches: list[PairBatch]) -> dict[int, list[Any]]:
    """Returns source, inputs and targets of each row by its ordinal, without padding."""
    rows = {}
    for batch in batches:
        for number, ordinal in enumerate(batch.example.tolist()):
            real = batch.padding_mask[number]
            source = batch.source[number][batch.source_padding_mask[number]].tolist()
            rows[ordinal] = [source, batch.inputs[number][real].tolist(), batch.targets[number][real].tolist()]
    return rows


def files(folder: Path, documents: list[str]) -> DenoisingDataConfig:
    for split in ("train", "validation"):
        (folder / split).mkdir(parents=True)
        for number, document in enumerate(documents):
            (folder / split / f"{number}.txt").write_text(document)
    return config(source=FilesConfig(path=str(folder), splits="folders"))


def test_rows_are_whole_sentences_with_a_separator_between_documents(tmp_path: Path) -> None:
    data = files(tmp_path, ["a b\nc d e\n", "f\n", "g h i j k l m n\no\n"]).override({"length": 12}).build()
    words, reader = data.tokenizer.to_dict()["words"], data.reader("train", ())
    texts = [reader.text(ordinal) for ordinal in range(reader.total)]
    names = [*words, "[END]", "[SEP]", "[MASK]"]
    assert [" ".join(names[symbol] for symbol in text.symbols) for text in texts] == [
        "a b c d e [SEP] f",
        "g h i j k l m n o",
    ]
    assert [text.sentences.tolist() for text in texts] == [[0, 2, 6], [0, 8]]
    whole = files(tmp_path / "doc", ["a b\nc d e\n", "f\n"]).override({"length": 12, "packing": "doc_sentences"})
    assert whole.build().reader("train", ()).total == 2


def test_a_batch_has_the_boundary_where_pairs_have_it_and_counts_what_is_written() -> None:
    for kind in CORRUPTIONS:
        data_config = config(noise=kind, batch_size=4)
        data, boundary = data_config.build(), data_config.build().description.vocabulary.boundary
        reader = data.reader("train", (1, 0))
        for ordinal, (source, inputs, targets) in rows_of(training_batches(data_config, 4)).items():
            pair = reader.row(Visit(ordinal, 0)).parts
            assert source == [*pair.source, boundary] and inputs[0] == boundary
            assert targets == [*pair.target, *[boundary] * pair.ends] and inputs[1:] == targets[:-1]
            assert len(source) <= data.description.source_length and len(targets) <= data.description.length


def test_what_is_done_depends_on_seed_epoch_and_row_and_on_nothing_else() -> None:
    """In two passes, each of which is read in two orders."""
    total = config().build().reader("train", ()).total
    readings = [config(batch_size=1, window=window).build().training().batches() for window in (1, total)]
    in_two_orders = [[rows_of([*islice(batches, total)]) for _ in range(2)] for batches in readings]
    assert in_two_orders[0] == in_two_orders[1]
    first, second = in_two_orders[0]
    assert len(first) == len(second) == total
    assert sum(first[row] == second[row] for row in first) <= 0.1 * total, "drawn anew"
    reader = config(variants=2, seed=3).build().reader("train", (1, 3))
    shown = [[reader.row(Visit(row, epoch)).parts.source.tolist() for row in range(total)] for epoch in range(4)]
    assert shown[0] == shown[2] != shown[1] == shown[3]


@pytest.mark.parametrize("window", [1, 3])
def test_a_cursor_makes_the_next_batch_come(window: int) -> None:
    """Also in the middle of a window, and across the epoch in which one noise takes the place of another."""
    phases = PhasesConfig(first=MASSConfig(), then=SpanCorruptionConfig())
    total = config().build().reader("train", ()).total

    def open_stream(cursor: str = "") -> Iterator[PairBatch]:
        return config(window=window, noise=phases).build().training().batches(cursor)

    batches = list(islice(open_stream(), total + 10))
    starts = torch.cat([batch.start for batch in batches])
    assert starts[:total].any() and not starts[2 * ((total + 5) // 2 + 3 * window) :].any()
    for taken in (1, 2, total // 2, total - 1):
        resumed = open_stream(batches[taken - 1].cursor)
        assert plain(list(islice(resumed, 5))) == plain(batches[taken : taken + 5])


def test_an_evaluation_is_the_same_for_every_seed_and_training_and_every_time() -> None:
    shown = []
    for seed, noise in ((0, "mass"), (1, "deshuffling"), (1, "lm")):
        data = config(seed=seed, noise=noise, **{"evaluation.noise": "mass"}).build()
        shown += [plain(list(data.val_dataloader())) for _ in range(2)]
    assert all(each == shown[0] for each in shown)
    trained = [plain(training_batches(config(seed=seed), 5)) for seed in (0, 1)]
    assert trained[0] != trained[1]
    ordinals = [ordinal for batch in data.val_dataloader() for ordinal in batch.example.tolist()]
    assert sorted(ordinals) == list(range(data.reader("validation", ()).total))
    assert data.example_name(0).endswith("row 0")


def test_what_is_written_is_compared_with_its_text_in_evaluation_alone() -> None:
    [batch, *_] = config(noise="prefix_lm").build().val_dataloader()
    data = config(noise="prefix_lm").build()
    for references, targets in zip(batch.references, batch.targets, strict=True):
        assert references == (data.tokenizer.decode(targets[targets != IGNORED].tolist()),)
    assert training_batches(config(), 1)[0].references == ()


CHANGES: list[dict[str, Any]] = [
    {"seed": 1},
    {"window": 5},
    {"length": 25},
    {"batch_size": 8},
    {"packing": "doc_sentences"},
    {"noise.rate": 0.2},
    {"noise": "mass"},
    {"variants": 3},
    {"sentinels": 4},
    {"tokenizer": "bytes"},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_what_decides_a_batch_is_told_apart_and_a_position_of_other_data_refused(change: dict[str, Any]) -> None:
    data, changed = config().build(), config(**change).build()
    assert config().build().fingerprint == data.fingerprint != changed.fingerprint
    data._cursor = next(iter(data.train_dataloader())).cursor
    changed.load_state_dict(data.state_dict())
    with pytest.raises(DataError, match=r"^data\.\w+: the checkpoint's position in the data"):
        next(iter(changed.train_dataloader()))


def test_sentinels_are_added_to_a_vocabulary_or_lent_by_a_tokenizer_or_refused(tmp_path: Path) -> None:
    plain_size = config(tokenizer="bytes").build().description.vocabulary.size
    data = config(tokenizer="bytes", noise="span_corruption").build()
    assert data.description.vocabulary.size == plain_size + 2 and data.description.usual == (22, 6, 24)
    assert data.description.detokenize([104, 105, 256, 259, 260]) == "hi", "sentinels stand for no text"
    assert data.config.description_from(data.checkpoint_metadata()).vocabulary == data.description.vocabulary
    words = sorted({word for number in range(30) for word in TOPICS.document(number).decode().split()})
    special = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    for lent in (0, 2):
        own = [f"<extra_id_{number}>" for number in range(lent)]
        (tmp_path / "vocab.txt").write_text("\n".join([*special, *own, *words]) + "\n")
        lending = config(tokenizer={"kind": "pretrained", "path": str(tmp_path / "vocab.txt")}, noise="span_corruption")
        if lent:
            reader = lending.build().reader("train", (0,))
            assert reader.symbols.sentinels.tolist() == [4, 5] and reader.symbols.drawable.min() == 6
            continue
        with pytest.raises(DataError, match="has 0 of the 2 sentinels <extra_id_0>, <extra_id_1>"):
            lending.build().prepare_data()


def test_what_does_not_fit_a_row_or_a_corpus_is_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"noise: spans of 9 symbols do not fit into a row of 24, .* that is 3"):
        config(noise=SpanCorruptionConfig(mean=9.0))
    with pytest.raises(ConfigError, match=r"evaluation.noise: spans of 3 symbols do not fit into a row of 8"):
        config(noise="lm", length=8, **{"evaluation.noise": "span_corruption"})
    with pytest.raises(ConfigError, match=r"sentinels 1 are fewer than rows of 24 need .* set sentinels to 2 or more"):
        config(noise="span_corruption", sentinels=1)
    one = files(tmp_path, ["the only sentence\n"]).override({"noise": "composed", "length": 30})
    with pytest.raises(DataError, match=r"no row of 30 symbols in the split 'train' has two sentences to permute"):
        one.build().prepare_data()
    assert one.override({"noise": "text_infilling"}).build().reader("train", (0,)).total == 1


def test_simple_predictors_know_frequencies_the_symbol_before_and_copies() -> None:
    values = {kind: floors(config(noise=kind).build(), "accuracy", 30) for kind in ("text_infilling", "lm")}
    assert values["text_infilling"]["copy of the source"] > values["text_infilling"]["the symbol before"] + 0.2
    nats = floors(config(noise="document_rotation").build(), "nats", 30)
    assert min(nats["frequencies of symbols"], nats["the symbol before"]) > nats["copy of the source"] + 0.5
    data = config(noise="mass").build()
    batches = training_batches(config(noise="mass"), 30)
    trained = torch.cat([batch.targets[batch.targets != IGNORED] for batch in batches])
    size = data.description.vocabulary.size
    frequency = torch.log((torch.bincount(trained, minlength=size) + 1.0) / (len(trained) + size))
    evaluated = torch.cat([batch.targets[batch.targets != IGNORED] for batch in data.val_dataloader()])
    expected = -frequency[evaluated].mean().item()
    assert floors(data, "nats", 30)["frequencies of symbols"] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(DataError, match="no predictor of damaged texts has a value of bleu"):
        floors(data, "bleu", 1)
