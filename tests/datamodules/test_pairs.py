"""PairData: batches within a budget of tokens, every pair once, resumed exactly, nothing left out in silence."""

import io
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import lightning as L
import pytest
import torch
import torch.distributed
from forked import Forked
from torch import Tensor

from datamodules import (
    DataError,
    JsonPairsConfig,
    PairData,
    PairDataConfig,
    Shard,
    WordsConfig,
    tokenizers_of,
)
from datamodules.pairs.source import Pair
from lit_transformers.batch import IGNORED, PairBatch
from lit_transformers.config import ConfigError

COUNTS = {"train": 53, "validation": 17, "test": 9}


def pair_record(split: str, number: int) -> dict[str, Any]:
    generator = Random(f"{split} {number}")
    words = [generator.choice("abcdefgh") for _ in range(generator.randint(1, 12))]
    return {"source": " ".join(words), "target": [" ".join(words[::-1]), f"{split} {number}"]}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs")
    for split, count in COUNTS.items():
        text = "".join(json.dumps(pair_record(split, number)) + "\n" for number in range(count))
        (path / f"{split}.jsonl").write_text(text)
    return path


@pytest.fixture
def config(folder: Path) -> PairDataConfig:
    source = JsonPairsConfig(path=str(folder))
    lengths = {"tokens_per_batch": 40, "window": 8, "longest_source": 20, "longest_target": 20}
    return PairDataConfig(source=source, tokenizer=WordsConfig()).override(lengths)


def example_ordinals(batches: list[PairBatch]) -> list[int]:
    return [ordinal for batch in batches for ordinal in batch.example[batch.padding_mask.any(dim=1)].tolist()]


def rows(batches: list[PairBatch]) -> list[list[Any]]:
    return [[part.tolist() if isinstance(part, Tensor) else part for part in batch[:8]] for batch in batches]


def training_batches(data_config: PairDataConfig, count: int) -> list[PairBatch]:
    return list(islice(data_config.build().train_dataloader(), count))


def encode(data: PairData, text: str) -> list[int]:
    return [int(symbol) for symbol in tokenizers_of(data.checkpoint_metadata())[0].encode(text.encode())]


def test_a_row_holds_a_whole_pair_between_boundaries_and_padding(config: PairDataConfig) -> None:
    data = config.build()
    boundary = data.description.vocabulary.boundary
    batch = next(iter(data.train_dataloader()))
    for row, ordinal in enumerate(batch.example.tolist()):
        record = pair_record("train", ordinal)
        source, target = encode(data, record["source"]), encode(data, record["target"][0])
        source_length, target_length = batch.source.size(1), batch.inputs.size(1)
        assert batch.source[row].tolist() == [*source, boundary, *[0] * (source_length - len(source) - 1)]
        assert batch.source_padding_mask[row].tolist() == [True] * (len(source) + 1) + [False] * (
            source_length - len(source) - 1
        )
        assert batch.inputs[row].tolist() == [boundary, *target, *[0] * (target_length - len(target) - 1)]
        assert batch.targets[row].tolist() == [*target, boundary, *[IGNORED] * (target_length - len(target) - 1)]
        assert torch.equal(batch.padding_mask[row], batch.targets[row] != IGNORED)
    assert batch.references == () and batch.requested_length.tolist() == [0] * len(batch.example)


def test_evaluation_carries_every_reference_as_it_was_written(config: PairDataConfig) -> None:
    data = config.build()
    for batch in data.val_dataloader():
        expected = [tuple(pair_record("validation", ordinal)["target"]) for ordinal in batch.example.tolist()]
        assert [*batch.references] == expected
        detokenize = data.description.detokenize
        for row, targets in enumerate(batch.targets):
            assert detokenize(targets[batch.padding_mask[row]].tolist()) == expected[row][0]
    assert data.example_name(4) == "validation.jsonl:5"


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_evaluation_shows_every_pair_once(config: PairDataConfig, workers: int) -> None:
    data = config.override({"workers": workers}).build()
    assert sorted(example_ordinals(list(data.val_dataloader()))) == list(range(17))
    assert sorted(example_ordinals(list(data.test_dataloader()))) == list(range(9))


def test_a_part_is_evaluated_that_no_seed_changes(config: PairDataConfig) -> None:
    parts = [
        sorted(
            example_ordinals(list(config.override({"seed": seed, "evaluation.examples": 6}).build().val_dataloader()))
        )
        for seed in (0, 1)
    ]
    assert parts[0] == parts[1] != list(range(6)) and len(parts[0]) == 6


@pytest.mark.parametrize(("window", "workers"), [(1, 0), (7, 0), (60, 0), pytest.param(7, 2, marks=pytest.mark.slow)])
def test_training_takes_every_pair_of_a_pass_once(config: PairDataConfig, window: int, workers: int) -> None:
    """As many windows as there are pairs contain each pair ``window`` times. A cursor stands after its batch."""
    reading = config.override({"workers": workers, "window": window}).build().training()
    batches, last = [], [window * 53, 0]
    for batch in reading.batches():
        batches.append(batch)
        if json.loads(batch.cursor) == last:
            break
    assert Counter(example_ordinals(batches)) == dict.fromkeys(range(53), window)


@pytest.mark.parametrize("tokens", [20, 33, 70])
@pytest.mark.parametrize("window", [1, 9, 200])
def test_no_batch_exceeds_the_budget_and_none_that_could_hold_more_is_cut_short(
    config: PairDataConfig, tokens: int, window: int
) -> None:
    data_config = config.override({"tokens_per_batch": tokens, "window": window})
    for batch in [*training_batches(data_config, 60), *data_config.build().val_dataloader()]:
        assert batch.source.numel() <= tokens and batch.inputs.numel() <= tokens
    if window == 200:
        largest = max(
            batch.inputs.size(0) * max(batch.inputs.size(1), batch.source.size(1))
            for batch in training_batches(data_config, 60)
        )
        assert largest > 0.7 * tokens


def test_evaluation_has_a_budget_of_its_own(config: PairDataConfig) -> None:
    sizes = [
        max(
            len(batch.example)
            for batch in config.override({"evaluation.tokens_per_batch": tokens}).build().val_dataloader()
        )
        for tokens in (20, 200)
    ]
    assert sizes[0] < sizes[1]


def test_rows_of_a_batch_are_about_as_long_and_batches_come_in_no_order(config: PairDataConfig) -> None:
    def padding_share(window: int) -> float:
        batches = training_batches(config.override({"window": window, "tokens_per_batch": 80}), 60)
        return sum((~batch.padding_mask).sum().item() for batch in batches) / sum(
            batch.padding_mask.numel() for batch in batches
        )

    assert padding_share(53) < 0.5 * padding_share(7)
    lengths = [batch.inputs.size(1) for batch in training_batches(config.override({"window": 53}), 12)]
    assert lengths != sorted(lengths) and lengths != sorted(lengths, reverse=True)


def test_order_follows_from_the_seed_alone(config: PairDataConfig) -> None:
    rows_by_seed = [rows(training_batches(config.override({"seed": seed}), 9)) for seed in (0, 0, 1)]
    assert rows_by_seed[0] == rows_by_seed[1] != rows_by_seed[2]


@pytest.mark.parametrize("window", [1, 6, 100])
@pytest.mark.parametrize("taken", [1, 2, 3, 7, 20])
def test_a_cursor_makes_the_next_batch_come(config: PairDataConfig, window: int, taken: int) -> None:
    """This holds in the middle of a window too, and of a pass."""

    def open_stream(cursor: str = "") -> Iterator[PairBatch]:
        return config.override({"window": window}).build().training().batches(cursor)

    batches = list(islice(open_stream(), 30))
    resumed = open_stream(batches[taken - 1].cursor)
    assert rows(list(islice(resumed, 30 - taken))) == rows(batches[taken:])


class Recorder(L.LightningModule):
    """A model that learns nothing and stores the batches that it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.batches: list[PairBatch] = []

    def training_step(self, batch: PairBatch, index: int) -> Tensor:
        self.batches.append(batch)
        return self.weight * 1.0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer(**options: Any) -> L.Trainer:
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"limit_val_batches": 0, "enable_checkpointing": False, "use_distributed_sampler": False}
    return L.Trainer(accelerator="cpu", **quiet, **options)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_resumed_fit_gets_exactly_the_next_batch(config: PairDataConfig, tmp_path: Path, workers: int) -> None:
    def fit(steps: int, checkpoint: Path | None = None) -> tuple[Recorder, L.Trainer]:
        model, fitter = Recorder(), trainer(max_steps=steps, max_epochs=-1)
        data = config.override({"workers": workers}).build()
        fitter.fit(model, data, ckpt_path=checkpoint, weights_only=True)
        return model, fitter

    uninterrupted, _ = fit(13)
    first, fitter = fit(7)
    fitter.save_checkpoint(tmp_path / "stopped.ckpt")
    second, _ = fit(13, tmp_path / "stopped.ckpt")
    assert len(second.batches) == 6
    assert rows(first.batches + second.batches) == rows(uninterrupted.batches)


def test_the_state_is_plain_data_that_loads_with_weights_only(config: PairDataConfig) -> None:
    data = config.build()
    trainer(max_steps=3).fit(Recorder(), data)
    file = io.BytesIO()
    torch.save([data.state_dict(), data.checkpoint_metadata()], file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == [data.state_dict(), data.checkpoint_metadata()]


CHANGES = [
    {"seed": 1},
    {"tokens_per_batch": 44},
    {"window": 5},
    {"longest_source": 7},
    {"longest_target": 7},
    {"ratio": 3.0},
    {"overlong": "drop"},
    {"tokenizer": "bytes"},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_a_position_of_other_data_is_refused(config: PairDataConfig, changes: dict[str, Any]) -> None:
    data = config.build()
    trainer(max_steps=2).fit(Recorder(), data)
    changed_data = config.override(changes).build()
    changed_data.load_state_dict(data.state_dict())
    with pytest.raises(DataError, match=f"^data.{next(iter(changes))}: the checkpoint"):
        next(iter(changed_data.train_dataloader()))


@pytest.mark.parametrize(
    "changes",
    [
        *CHANGES,
        {"source_tokenizer": "words"},
        {"evaluation.examples": 3},
        {"evaluation.split": "test"},
        {"evaluation.tokens_per_batch": 90},
    ],
    ids=str,
)
def test_the_fingerprint_tells_everything_apart_that_decides_a_batch(
    config: PairDataConfig, changes: dict[str, Any]
) -> None:
    assert config.build().fingerprint == config.build().fingerprint != config.override(changes).build().fingerprint


@pytest.mark.parametrize("separate", [False, True])
def test_a_checkpoint_describes_its_data_without_them(config: PairDataConfig, separate: bool) -> None:
    data_config = config.override({"source_tokenizer": {"kind": "characters"} if separate else None})
    data = data_config.build()
    metadata = data.checkpoint_metadata()
    description = data_config.override({"source.path": "gone"}).description_from(json.loads(json.dumps(metadata)))
    assert replace(description, detokenize=data.description.detokenize) == data.description
    assert (description.source is description.vocabulary) is (data.description.source is data.description.vocabulary)
    assert (description.source is description.vocabulary) is not separate
    assert (description.length, description.source_length) == (20, 20)
    assert description.detokenize(encode(data, "a b") if not separate else [1, 2])
    assert metadata["languages"] is None
    data_with_languages = data_config.override({"source.languages": ["en", "de"]}).build()
    assert (
        data_with_languages.checkpoint_metadata()["languages"] == ["en", "de"]
        and data_with_languages.content == data.content
    )


def test_with_two_tokenizers_each_side_has_its_own_symbols(config: PairDataConfig) -> None:
    data_config = config.override({"source_tokenizer": "bytes", "longest_source": 40})
    batch = next(iter(data_config.build().train_dataloader()))
    record = pair_record("train", int(batch.example[0]))
    assert bytes(batch.source[0][batch.source_padding_mask[0]].tolist()[:-1]).decode() == record["source"]
    description = data_config.build().description
    assert description.source is not None and description.source.size == 257 != description.vocabulary.size


def test_runs_that_train_alike_share_their_training(config: PairDataConfig) -> None:
    data_config = config.override({"evaluation.examples": 3, "evaluation.split": "test"})
    assert data_config.with_default_evaluation() == config
    assert PairDataConfig.from_dict(data_config.to_dict()) == data_config
    assert data_config.protocol() == {
        "split": "test", "examples": 3, "languages": None, "longest_source": 20, "longest_target": 20
    }  # fmt: skip
    assert (data_config.name, data_config.length, data_config.tokens_per_step) == ("jsonl", 20, 40)


def refusals() -> Iterator[tuple[dict[str, Any], str]]:
    yield {"tokens_per_batch": 19}, "tokens_per_batch 19 does not hold one pair, of up to 20 tokens a side; make it 20"
    yield {"evaluation.tokens_per_batch": 19}, "evaluation.tokens_per_batch 19 does not hold one pair"
    yield {"evaluation.lengths": [4]}, "evaluation.lengths 4: .* so no result for 4 symbols exists"
    yield {"evaluation.lengths": [4, 4]}, "evaluation: lengths names one twice"
    yield {"ratio": 0.5}, "ratio: "
    yield {"overlong": "leave"}, "overlong: "
    yield {"longest_source": 1}, "longest_source: "


@pytest.mark.parametrize(("changes", "message"), [*refusals()], ids=str)
def test_what_cannot_be_is_refused_when_the_config_is_made(
    config: PairDataConfig, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        config.override(changes)


def test_ranks_that_cannot_share_the_budget_are_refused(
    config: PairDataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = config.build()
    monkeypatch.setattr(data, "rank", lambda: Shard(0, 4))
    with pytest.raises(
        DataError, match=r"tokens_per_batch 40 over 4 ranks does not hold one pair each, of up to 20 .* 80 or more"
    ):
        data.training()


def test_symbols_are_made_once_and_are_views_of_a_file(config: PairDataConfig, folder: Path) -> None:
    first, second = config.build(), config.override({"seed": 9, "longest_source": 9}).build()
    assert first.pairs.pair("train", 0).source.base is not None
    assert isinstance(first.pairs.pair("train", 0), Pair)
    list(islice(first.train_dataloader(), 2))
    file_times = sorted((path, path.stat().st_mtime_ns) for path in first.pairs._folder("train").iterdir())  # type: ignore[attr-defined]
    list(islice(second.train_dataloader(), 2))
    assert file_times == sorted((path, path.stat().st_mtime_ns) for path in second.pairs._folder("train").iterdir())  # type: ignore[attr-defined]


def test_what_a_rank_shows_without_a_share_of_a_batch_is_a_row_without_a_target(config: PairDataConfig) -> None:
    data = config.build()
    batch = next(data.evaluation("test")._replace(rank=Shard(63, 64)).batches())
    boundary = data.description.vocabulary.boundary
    assert batch.padding_mask.tolist() == [[False]] and batch.targets.tolist() == [[IGNORED]]
    assert batch.source.tolist() == [[boundary]] and batch.source_padding_mask.tolist() == [[True]]
    assert batch.references == ((),)


def _rank(data_config: PairDataConfig, batches: int, folder: Path) -> None:
    """Runs on each of two ranks: reads the validation split and one pass of training, and saves the ordinals."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    data = data_config.build()
    evaluated = list(data.val_dataloader())
    trained_on = example_ordinals(islice(data.train_dataloader(), batches))
    torch.save((len(evaluated), example_ordinals(evaluated), trained_on), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_ranks_end_together_and_share_everything(config: PairDataConfig, tmp_path: Path) -> None:
    """A window as large as a pass keeps passes apart."""
    config, count, batches = config.override({"window": 53}), 0, 0
    alone = iter(config.build().train_dataloader())
    while count < 53:
        count, batches = count + len(example_ordinals([next(alone)])), batches + 1
    assert count == 53 and batches > 2
    Forked(tmp_path / "output.txt", _rank, config, batches, tmp_path, ranks=2).finish()
    results = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    assert results[0][0] == results[1][0]
    assert sorted(results[0][1] + results[1][1]) == list(range(17))
    assert sorted(results[0][2] + results[1][2]) == list(range(53))
