"""Pairs that are empty, unlike or too long are counted by reason, reported once, and never dropped in silence."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import lightning as L
import pytest

from datamodules import BytesConfig, DataError, JsonPairsConfig, PairData, PairDataConfig, WordsConfig
from lit_transformers.batch import PairBatch


class Nothing(L.LightningModule):
    """A model whose validation step does nothing."""

    def validation_step(self, batch: PairBatch, index: int) -> None:
        """Nothing."""


def pair_data(tmp_path: Path, pairs: list[tuple[str, str]], **changes: Any) -> PairData:
    for split in ("train", "validation"):
        lines = (json.dumps({"source": source, "target": target}) + "\n" for source, target in pairs)
        (tmp_path / f"{split}.jsonl").write_text("".join(lines))
    data_config = PairDataConfig(source=JsonPairsConfig(path=str(tmp_path)), tokenizer=BytesConfig())
    options = {"longest_source": 6, "longest_target": 5, "tokens_per_batch": 64, "window": 100}
    return data_config.override(options | changes).build()


UNCLEAN = [
    ("abc", "abc"),
    ("", "a"),
    ("a", " \n"),
    ("abcdefgh", "ab"),
    ("ab", "abcdefgh"),
    ("abcde", "a"),
    ("ab", "cd"),
]


def one_pass(data: PairData) -> dict[int, tuple[list[int], list[int], list[int]]]:
    """Maps the ordinal of every pair that training reads to its source, inputs and targets without padding."""
    stream, pairs = data.training().batches(), dict[int, tuple[list[int], list[int], list[int]]]()
    for batch in islice(stream, 40):
        for row, ordinal in enumerate(batch.example.tolist()):
            source, padding_mask = batch.source[row][batch.source_padding_mask[row]], batch.padding_mask[row]
            pairs[ordinal] = (
                source.tolist(),
                batch.inputs[row][padding_mask].tolist(),
                batch.targets[row][padding_mask].tolist(),
            )
    return pairs


def test_training_cuts_what_is_too_long_and_leaves_out_what_is_empty(tmp_path: Path) -> None:
    data = pair_data(tmp_path, UNCLEAN)
    pairs = one_pass(data)
    assert sorted(pairs) == [0, 3, 4, 5, 6]
    assert bytes(pairs[3][0][:-1]) == b"abcde" and pairs[3][0][-1] == 256, "a source that is cut still ends"
    assert pairs[4][1:] == ([256, *b"abcd"], [*b"abcde"]), "a target that is cut does not end"
    assert pairs[5][0] == [*b"abcde", 256], "as long as may be"
    assert data.checkpoint_metadata()["counts"] == {
        "read": 7,
        "left out, empty on one side": 2,
        "sources cut": 1,
        "targets cut": 1,
    }


def test_a_boundary_counts_towards_the_length_of_its_side(tmp_path: Path) -> None:
    data = pair_data(tmp_path, [("abcde", "abcd"), ("abcdef", "a"), ("a", "abcde")], overlong="drop")
    assert sorted(one_pass(data)) == [0]


def test_training_leaves_out_long_and_unlike_pairs_where_told_to(tmp_path: Path) -> None:
    data = pair_data(tmp_path, UNCLEAN, overlong="drop", ratio=2.0)
    assert sorted(one_pass(data)) == [0, 6]
    assert data.cleaned("train", True).counts == {
        "read": 7,
        "left out, empty on one side": 2,
        "left out, of lengths further apart than 2 to 1": 3,
        "left out, too long": 0,
    }
    assert sorted(one_pass(pair_data(tmp_path, UNCLEAN, overlong="drop"))) == [0, 5, 6]


def test_training_refuses_long_pairs_by_name_where_told_to(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"train.jsonl:4: a source of 9 symbols .* more than 6 \(2 such pairs\); set data.lo"
    ):
        one_pass(pair_data(tmp_path, UNCLEAN, overlong="refuse"))
    with pytest.raises(DataError, match=r"train.jsonl:5: a target of 9 symbols .* more than 5 .*data.longest_target"):
        one_pass(pair_data(tmp_path, UNCLEAN, overlong="refuse", longest_source=20))


def test_evaluation_leaves_out_nothing_and_cuts_with_whole_references(tmp_path: Path) -> None:
    data = pair_data(tmp_path, UNCLEAN, overlong="drop", ratio=1.0)
    rows = {
        ordinal: (batch.source[row][batch.source_padding_mask[row]].tolist(), batch.references[row])
        for batch in data.val_dataloader()
        for row, ordinal in enumerate(batch.example.tolist())
    }
    assert sorted(rows) == list(range(7))
    assert rows[1] == ([256], ("a",)), "an empty source is its boundary alone"
    assert rows[3][0] == [*b"abcde", 256] and rows[4][1] == ("abcdefgh",)
    assert data.cleaned("validation", False).counts == {"read": 7, "sources cut": 1, "targets cut": 1}


def test_what_was_left_out_or_cut_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = pair_data(tmp_path, UNCLEAN, ratio=2.0)
    data.prepare_data()
    expected = "train: 7 read, 2 left out, empty on one side, 3 left out, of lengths further apart than 2 to 1; "
    # Of 7 sources with 21 symbols one of 8 keeps 5; of 7 targets with 17 one of 8 keeps 5: white space is none.
    expected += "6 of 7 texts of validation stand in train too; "
    expected += "validation: 7 read, 1 sources cut (14.3% of them, 14.3% of their symbols), "
    expected += "1 targets cut (14.3% of them, 17.6% of their symbols)"
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("pairs of")]
    assert lines == [f"pairs of jsonl: {expected}"]


def test_unknown_symbols_are_counted_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair_data(tmp_path, [("a b", "c d"), ("a b", "c e")])
    (tmp_path / "validation.jsonl").write_text('{"source": "a b x y", "target": "c d e f"}\n')
    source = JsonPairsConfig(path=str(tmp_path))
    data = PairDataConfig(source=source, tokenizer=WordsConfig(), source_tokenizer=WordsConfig()).build()
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    L.Trainer(accelerator="cpu", use_distributed_sampler=False, **quiet).validate(Nothing(), data, verbose=False)
    output = capsys.readouterr().err
    assert "50.00% of the source symbols unknown" in output and "25.00% of the target symbols unknown" in output
    assert "train:" not in output, "an evaluation does not count the symbols of training"


def test_nothing_left_to_train_on_says_why(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no pair of train is left \(2 read; 2 left out, empty on one side\)"):
        one_pass(pair_data(tmp_path, [("", "a"), ("b", "")]))


def test_a_split_that_the_source_lacks_is_named(tmp_path: Path) -> None:
    data = pair_data(tmp_path, UNCLEAN)
    with pytest.raises(
        DataError, match=r"no pair in the split 'test' \(7 in train, 7 in validation\); correct data.source.path"
    ):
        list(data.test_dataloader())
    (tmp_path / "train.jsonl").write_text("")
    with pytest.raises(DataError, match=r"no pair in the split 'train' \("):
        PairDataConfig(source=JsonPairsConfig(path=str(tmp_path))).build().fingerprint  # noqa: B018
