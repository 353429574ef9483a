"""PairData: batches within a budget of tokens, every pair once, resumed exactly, nothing left out in silence."""

import io
import json
import pickle
from collections import Counter
from collections.abc import Iterator
from itertools import islice, takewhile
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
from datamodules.loading import Batches
from datamodules.pairs_source import Pair
from lit_transformers.batch import IGNORED, PairBatch
from lit_transformers.config import ConfigError

COUNTS = {"train": 53, "validation": 17, "test": 9}


def line(split: str, number: int) -> dict[str, Any]:
    chance = Random(f"{split} {number}")
    words = [chance.choice("abcdefgh") for _ in range(chance.randint(1, 12))]
    return {"source": " ".join(words), "target": [" ".join(words[::-1]), f"{split} {number}"]}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pairs")
    for split, count in COUNTS.items():
        written = "".join(json.dumps(line(split, number)) + "\n" for number in range(count))
        (made / f"{split}.jsonl").write_text(written)
    return made


@pytest.fixture
def config(folder: Path) -> PairDataConfig:
    source = JsonPairsConfig(path=str(folder))
    lengths = {"tokens_per_batch": 40, "window": 8, "longest_source": 20, "longest_target": 20}
    return PairDataConfig(source=source, tokenizer=WordsConfig()).override(lengths)


def examples(batches: list[PairBatch]) -> list[int]:
    return [ordinal for batch in batches for ordinal in batch.example[batch.keep.any(dim=1)].tolist()]


def rows(batches: list[PairBatch]) -> list[list[Any]]:
    return [[part.tolist() if isinstance(part, Tensor) else part for part in batch[:8]] for batch in batches]


def training(made: PairDataConfig, count: int) -> list[PairBatch]:
    return list(islice(made.build().train_dataloader(), count))


def symbols(data: PairData, text: str) -> list[int]:
    return [int(symbol) for symbol in tokenizers_of(data.kept())[0].encode(text.encode())]


def test_a_row_holds_a_whole_pair_between_boundaries_and_padding(config: PairDataConfig) -> None:
    data = config.build()
    boundary = data.description.vocabulary.boundary
    batch = next(iter(data.train_dataloader()))
    for row, ordinal in enumerate(batch.example.tolist()):
        said = line("train", ordinal)
        source, target = symbols(data, said["source"]), symbols(data, said["target"][0])
        s, t = batch.source.size(1), batch.inputs.size(1)
        assert batch.source[row].tolist() == [*source, boundary, *[0] * (s - len(source) - 1)]
        assert batch.source_keep[row].tolist() == [True] * (len(source) + 1) + [False] * (s - len(source) - 1)
        assert batch.inputs[row].tolist() == [boundary, *target, *[0] * (t - len(target) - 1)]
        assert batch.targets[row].tolist() == [*target, boundary, *[IGNORED] * (t - len(target) - 1)]
        assert torch.equal(batch.keep[row], batch.targets[row] != IGNORED)
    assert batch.references == () and batch.asked.tolist() == [0] * len(batch.example)


def test_evaluation_carries_every_reference_as_it_was_written(config: PairDataConfig) -> None:
    data = config.build()
    for batch in data.val_dataloader():
        expected = [tuple(line("validation", ordinal)["target"]) for ordinal in batch.example.tolist()]
        assert [*batch.references] == expected
        written = data.description.written
        assert written is not None
        for row, targets in enumerate(batch.targets):
            assert written(targets[batch.keep[row]].tolist()) == expected[row][0]
    assert data.example_name(4) == "validation.jsonl:5"


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_shows_every_pair_once(config: PairDataConfig, workers: int) -> None:
    data = config.override({"workers": workers}).build()
    assert sorted(examples(list(data.val_dataloader()))) == list(range(17))
    assert sorted(examples(list(data.test_dataloader()))) == list(range(9))


def test_a_part_is_evaluated_that_no_seed_changes(config: PairDataConfig) -> None:
    parts = [
        sorted(examples(list(config.override({"seed": seed, "evaluation.examples": 6}).build().val_dataloader())))
        for seed in (0, 1)
    ]
    assert parts[0] == parts[1] != list(range(6)) and len(parts[0]) == 6


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("window", [1, 7, 60])
def test_training_takes_every_pair_of_a_pass_once(config: PairDataConfig, workers: int, window: int) -> None:
    """As many windows as a reader's share has pairs are as many passes as a window has pairs."""
    reading = config.override({"workers": workers, "window": window}).build().training()
    seen = Counter[int]()
    for number in range(reading.streams):
        end = window * len(range(number, 53, reading.streams))
        batches = takewhile(lambda batch, end=end: json.loads(batch.cursor)[0] < end, reading.stream(number))
        seen.update(examples(list(batches)))
    assert seen == dict.fromkeys(range(53), window)


@pytest.mark.parametrize("tokens", [20, 33, 70])
@pytest.mark.parametrize("window", [1, 9, 200])
def test_no_batch_exceeds_the_budget_and_none_that_could_hold_more_is_cut_short(
    config: PairDataConfig, tokens: int, window: int
) -> None:
    made = config.override({"tokens_per_batch": tokens, "window": window})
    for batch in [*training(made, 60), *made.build().val_dataloader()]:
        assert batch.source.numel() <= tokens and batch.inputs.numel() <= tokens
    if window == 200:
        most = max(
            batch.inputs.size(0) * max(batch.inputs.size(1), batch.source.size(1)) for batch in training(made, 60)
        )
        assert most > 0.7 * tokens


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
    def padded(window: int) -> float:
        made = training(config.override({"window": window, "tokens_per_batch": 80}), 60)
        return sum((~batch.keep).sum().item() for batch in made) / sum(batch.keep.numel() for batch in made)

    assert padded(53) < 0.5 * padded(7)
    lengths = [batch.inputs.size(1) for batch in training(config.override({"window": 53}), 12)]
    assert lengths != sorted(lengths) and lengths != sorted(lengths, reverse=True)


def test_order_follows_from_the_seed_alone(config: PairDataConfig) -> None:
    again = [rows(training(config.override({"seed": seed}), 9)) for seed in (0, 0, 1)]
    assert again[0] == again[1] != again[2]


@pytest.mark.parametrize("window", [1, 6, 100])
@pytest.mark.parametrize("taken", [1, 2, 3, 7, 20])
def test_a_cursor_makes_the_next_batch_come(config: PairDataConfig, window: int, taken: int) -> None:
    """Also in the middle of a window, and of a pass."""

    def opened() -> Batches:
        return config.override({"window": window}).build().training().stream(0)

    whole = list(islice(opened(), 30))
    resumed = opened()
    resumed.go_to(whole[taken - 1].cursor)
    assert rows(list(islice(resumed, 30 - taken))) == rows(whole[taken:])


class Recorder(L.LightningModule):
    """A model that learns nothing and remembers the batches it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[PairBatch] = []

    def training_step(self, batch: PairBatch, index: int) -> Tensor:
        self.seen.append(batch)
        return self.weight * 1.0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer(**options: Any) -> L.Trainer:
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"limit_val_batches": 0, "enable_checkpointing": False, "use_distributed_sampler": False}
    return L.Trainer(accelerator="cpu", **quiet, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_fit_gets_exactly_the_next_batch(config: PairDataConfig, tmp_path: Path, workers: int) -> None:
    def fit(steps: int, checkpoint: Path | None = None) -> tuple[Recorder, L.Trainer]:
        model, fitter = Recorder(), trainer(max_steps=steps, max_epochs=-1)
        data = config.override({"workers": workers}).build()
        fitter.fit(model, data, ckpt_path=checkpoint, weights_only=True)
        return model, fitter

    whole, _ = fit(13)
    first, fitter = fit(7)
    fitter.save_checkpoint(tmp_path / "stopped.ckpt")
    second, _ = fit(13, tmp_path / "stopped.ckpt")
    assert len(second.seen) == 6
    assert rows(first.seen + second.seen) == rows(whole.seen)


def test_the_state_is_plain_data_that_loads_with_weights_only(config: PairDataConfig) -> None:
    data = config.build()
    trainer(max_steps=3).fit(Recorder(), data)
    file = io.BytesIO()
    torch.save([data.state_dict(), data.kept()], file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == [data.state_dict(), data.kept()]


CHANGES = [
    {"seed": 1},
    {"workers": 2},
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
    other = config.override(changes).build()
    other.load_state_dict(data.state_dict())
    with pytest.raises(DataError, match=f"^data.{next(iter(changes))}: the checkpoint"):
        next(iter(other.train_dataloader()))


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
    made = config.override({"source_tokenizer": {"kind": "characters"} if separate else None})
    data = made.build()
    kept = data.kept()
    described = made.override({"source.path": "gone"}).describe(json.loads(json.dumps(kept)))
    assert described[:5] == data.description[:5]
    assert (described.source is described.vocabulary) is (data.description.source is data.description.vocabulary)
    assert (described.source is described.vocabulary) is not separate
    assert (described.length, described.source_length) == (20, 20)
    assert described.written is not None and described.written(symbols(data, "a b") if not separate else [1, 2])
    assert kept["languages"] is None
    named = made.override({"source.languages": ["en", "de"]}).build()
    assert named.kept()["languages"] == ["en", "de"] and named.content == data.content


def test_with_two_tokenizers_each_side_has_its_own_symbols(config: PairDataConfig) -> None:
    made = config.override({"source_tokenizer": "bytes", "longest_source": 40})
    batch = next(iter(made.build().train_dataloader()))
    said = line("train", int(batch.example[0]))
    assert bytes(batch.source[0][batch.source_keep[0]].tolist()[:-1]).decode() == said["source"]
    description = made.build().description
    assert description.source is not None and description.source.size == 257 != description.vocabulary.size


def test_runs_that_train_alike_share_their_training(config: PairDataConfig) -> None:
    made = config.override({"evaluation.examples": 3, "evaluation.split": "test"})
    assert made.trained_alike() == config
    assert PairDataConfig.from_dict(made.to_dict()) == made
    assert made.protocol() == {
        "split": "test", "examples": 3, "languages": None, "longest_source": 20, "longest_target": 20
    }  # fmt: skip
    assert (made.name, made.length, made.tokens_per_step) == ("jsonl", 20, 40)


def refusals() -> Iterator[tuple[dict[str, Any], str]]:
    yield {"tokens_per_batch": 19}, "tokens_per_batch 19 does not hold one pair, of up to 20 tokens a side; make it 20"
    yield {"evaluation.tokens_per_batch": 19}, "evaluation.tokens_per_batch 19 does not hold one pair"
    yield {"evaluation.lengths": [4]}, "evaluation.lengths 4: .* nothing can be asked of 4 symbols"
    yield {"evaluation.lengths": [4, 4]}, "evaluation: lengths names one twice"
    yield {"ratio": 0.5}, "ratio: "
    yield {"overlong": "leave"}, "overlong: "
    yield {"longest_source": 1}, "longest_source: "


@pytest.mark.parametrize(("changes", "said"), [*refusals()], ids=str)
def test_what_cannot_be_is_refused_when_the_config_is_made(
    config: PairDataConfig, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
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
    made = sorted((path, path.stat().st_mtime_ns) for path in first.pairs._folder("train").iterdir())  # type: ignore[attr-defined]
    list(islice(second.train_dataloader(), 2))
    assert made == sorted((path, path.stat().st_mtime_ns) for path in second.pairs._folder("train").iterdir())  # type: ignore[attr-defined]


def test_what_a_rank_shows_that_is_through_is_a_row_without_a_target(config: PairDataConfig) -> None:
    data = config.build()
    batch = pickle.loads(pickle.dumps(data.evaluation("test").empty))()
    boundary = data.description.vocabulary.boundary
    assert batch.keep.tolist() == [[False]] and batch.targets.tolist() == [[IGNORED]]
    assert batch.source.tolist() == [[boundary]] and batch.source_keep.tolist() == [[True]]
    assert batch.references == ((),)


def _rank(made: PairDataConfig, folder: Path) -> None:
    """One rank of two: evaluates, and trains a little."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    data = made.build()
    validated = list(data.val_dataloader())
    stream, trained = iter(data.train_dataloader()), list[int]()
    while len(trained) < len(range(rank, 53, 2)):
        trained += examples([next(stream)])
    torch.save((len(validated), examples(validated), trained), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_ranks_end_together_and_share_everything(config: PairDataConfig, tmp_path: Path) -> None:
    """A window of one pair keeps the order of a pass, so that its end can be seen."""
    Forked(tmp_path / "said.txt", _rank, config.override({"window": 1}), tmp_path, ranks=2).finish()
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    assert found[0][0] == found[1][0]
    assert sorted(found[0][1] + found[1][1]) == list(range(17))
    assert sorted(found[0][2] + found[1][2]) == list(range(53))
