"""LanguageData under a plain Lightning trainer."""

import io
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
import torch.distributed
from forked import Forked
from torch import Tensor

from datamodules import (
    BytesConfig,
    CharactersConfig,
    DataError,
    EvaluationConfig,
    FilesConfig,
    LanguageData,
    LanguageDataConfig,
)
from lit_transformers.batch import IGNORED, TextBatch
from lit_transformers.config import ConfigError


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> FilesConfig:
    folder = tmp_path_factory.mktemp("corpus")
    for split, count in (("train", 23), ("validation", 5), ("test", 3)):
        (folder / split).mkdir()
        for number in range(count):
            # No text repeats, so that two equal batches can only be one batch given twice.
            words = (f"{split[:2]}{number * 100 + place} " for place in range(4 + number % 7))
            (folder / split / f"{number:02}.txt").write_text("".join(words))
    return FilesConfig(path=str(folder), splits="folders")


def config(corpus: FilesConfig, **changes: Any) -> LanguageDataConfig:
    return LanguageDataConfig(source=corpus, segment_length=8, batch_size=4).override(changes)


class Recorder(L.LightningModule):
    """A model that learns nothing and stores the batches that it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.batches: list[TextBatch] = []
        self.validated = 0

    def training_step(self, batch: TextBatch, index: int) -> Tensor:
        self.batches.append(batch)
        return self.weight * 1.0

    def validation_step(self, batch: TextBatch, index: int) -> None:
        self.validated += int((batch.targets != IGNORED).sum())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer(**options: Any) -> L.Trainer:
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(accelerator="cpu", enable_checkpointing=False, use_distributed_sampler=False, **quiet, **options)


def rows(batches: list[TextBatch]) -> list[list[list[int]]]:
    return [torch.cat([batch.inputs, batch.targets, batch.document], dim=1).tolist() for batch in batches]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "workers"), [({}, 2), ({"limit_train_batches": 5}, 0), ({"val_check_interval": 3}, 0)], ids=str
)
def test_a_resumed_fit_gets_exactly_the_next_batch(
    corpus: FilesConfig, tmp_path: Path, options: dict[str, Any], workers: int
) -> None:
    validation_options = {"check_val_every_n_epoch": None} if "val_check_interval" in options else {}
    data_config = config(corpus, workers=workers)

    def fit(steps: int, checkpoint: Path | None = None) -> tuple[Recorder, L.Trainer]:
        model, fitter = Recorder(), trainer(max_steps=steps, max_epochs=-1, **options, **validation_options)
        fitter.fit(model, LanguageData(data_config), ckpt_path=checkpoint, weights_only=True)
        return model, fitter

    uninterrupted, _ = fit(13)
    first, fitter = fit(7)
    fitter.save_checkpoint(tmp_path / "stopped.ckpt")
    second, _ = fit(13, tmp_path / "stopped.ckpt")
    assert len(second.batches) == 6
    assert rows(first.batches + second.batches) == rows(uninterrupted.batches)
    assert len({str(row) for row in rows(uninterrupted.batches)}) == 13


def test_a_position_counts_what_was_trained_on_not_what_was_fetched(corpus: FilesConfig, tmp_path: Path) -> None:
    class Keep(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
            if trainer.global_step == 4:
                trainer.save_checkpoint(tmp_path / "middle.ckpt")

    uninterrupted, resumed = Recorder(), Recorder()
    trainer(max_steps=9, callbacks=[Keep()]).fit(uninterrupted, LanguageData(config(corpus)))
    trainer(max_steps=9).fit(resumed, LanguageData(config(corpus)), ckpt_path=tmp_path / "middle.ckpt")
    assert rows(resumed.batches) == rows(uninterrupted.batches[4:])


def test_a_second_fit_starts_at_the_beginning(corpus: FilesConfig) -> None:
    data, first, second = LanguageData(config(corpus)), Recorder(), Recorder()
    trainer(max_steps=4).fit(first, data)
    trainer(max_steps=4).fit(second, data)
    assert rows(first.batches) == rows(second.batches)


def test_an_epoch_goes_on_where_the_last_one_stopped(corpus: FilesConfig) -> None:
    in_epochs, uninterrupted = Recorder(), Recorder()
    trainer(max_epochs=3, limit_train_batches=4, limit_val_batches=0).fit(in_epochs, LanguageData(config(corpus)))
    trainer(max_steps=12).fit(uninterrupted, LanguageData(config(corpus)))
    assert rows(in_epochs.batches) == rows(uninterrupted.batches)


def test_validation_during_training_sees_every_symbol_and_moves_nothing(corpus: FilesConfig) -> None:
    data, model = LanguageData(config(corpus)), Recorder()
    trainer(max_steps=6, val_check_interval=6, check_val_every_n_epoch=None, num_sanity_val_steps=0).fit(model, data)
    assert model.validated == sum(len(document.text) for document in data.documents("validation"))
    without_validation = Recorder()
    trainer(max_steps=6, limit_val_batches=0).fit(without_validation, LanguageData(config(corpus)))
    assert rows(model.batches) == rows(without_validation.batches)


def test_the_state_is_plain_data_that_loads_with_weights_only(corpus: FilesConfig) -> None:
    data, model = LanguageData(config(corpus)), Recorder()
    trainer(max_steps=3).fit(model, data)
    file = io.BytesIO()
    torch.save(data.state_dict(), file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == data.state_dict()


def test_without_a_trainer_a_state_resumes_too(corpus: FilesConfig) -> None:
    data = LanguageData(config(corpus, workers=2))
    batches = list(islice(data.train_dataloader(), 9))
    resumed = LanguageData(config(corpus, workers=2))
    resumed.load_state_dict({"of": data.identity(), "cursor": batches[4].cursor})
    assert rows(list(islice(resumed.train_dataloader(), 4))) == rows(batches[5:])


@pytest.mark.parametrize(
    ("path", "value"),
    [("seed", 1), ("batch_size", 8), ("segment_length", 16), ("documents", "stream")],
)
def test_a_position_of_other_data_is_refused(corpus: FilesConfig, path: str, value: Any) -> None:
    data, model = LanguageData(config(corpus)), Recorder()
    trainer(max_steps=2).fit(model, data)
    changed_data = LanguageData(config(corpus, **{path: value}))
    changed_data.load_state_dict(data.state_dict())
    with pytest.raises(DataError, match=f"^data.{path}: the checkpoint"):
        next(iter(changed_data.train_dataloader()))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stride", [None, 3])
def test_an_evaluation_loader_scores_every_symbol_once(corpus: FilesConfig, workers: int, stride: int | None) -> None:
    data_config = config(corpus, workers=workers, **{"evaluation.segment_length": 16, "evaluation.stride": stride})
    data = LanguageData(data_config)
    batches = list(data.test_dataloader())
    assert batches[0].inputs.shape == (4, 16)
    scored_documents = [batch.document[batch.targets != IGNORED] for batch in batches]
    counts = torch.bincount(torch.cat(scored_documents), minlength=3).tolist()
    assert counts == [len(document.text) for document in data.documents("test")]
    assert [data.documents("test").name(ordinal) for ordinal in range(3)] == [f"test/0{n}.txt" for n in range(3)]


def test_the_evaluation_split_and_limit_are_config(corpus: FilesConfig) -> None:
    data = LanguageData(config(corpus, **{"evaluation.split": "train", "evaluation.documents": 2}))
    ordinals = {int(d) for batch in data.val_dataloader() for d in batch.document[batch.padding_mask]}
    assert ordinals == {0, 1}


def changed_configs(corpus: FilesConfig) -> Iterator[tuple[str, LanguageDataConfig]]:
    yield "seed", config(corpus, seed=1)
    yield "tokenizer", config(corpus, tokenizer="characters")
    yield "segment_length", config(corpus, segment_length=9)
    yield "documents", config(corpus, documents="stream")
    yield "evaluation", config(corpus, **{"evaluation.stride": 2})
    yield "piece", config(corpus, **{"source.piece": 64})


def test_the_fingerprint_tells_everything_apart_that_decides_a_batch(corpus: FilesConfig) -> None:
    fingerprint = LanguageData(config(corpus)).fingerprint
    assert fingerprint == LanguageData(config(corpus)).fingerprint
    for name, changed_config in changed_configs(corpus):
        assert LanguageData(changed_config).fingerprint != fingerprint, name


def test_the_fingerprint_follows_the_content_and_not_the_place(corpus: FilesConfig, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(corpus.path, moved)
    fingerprint = LanguageData(config(corpus)).fingerprint
    assert LanguageData(config(corpus, **{"source.path": str(moved)})).fingerprint == fingerprint
    (moved / "test" / "00.txt").write_text("another text")
    assert LanguageData(config(corpus, **{"source.path": str(moved)})).fingerprint != fingerprint


def test_data_shorter_than_one_segment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("short")
    data = LanguageData(LanguageDataConfig(source=FilesConfig(path=str(tmp_path), splits="folders")))
    with pytest.raises(DataError, match="5 symbols, less than one segment of 128") as error:
        data.prepare_data()
    assert "\n" not in str(error.value)


def test_a_batch_that_ranks_cannot_share_is_refused(corpus: FilesConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    data = LanguageData(config(corpus, batch_size=6))
    four_ranks = SimpleNamespace(global_rank=0, world_size=4, strategy=SimpleNamespace(root_device=torch.device("cpu")))
    monkeypatch.setattr(data, "trainer", four_ranks)
    with pytest.raises(DataError, match=r"^data.batch_size: 6 rows cannot be shared by 4 ranks"):
        next(iter(data.train_dataloader()))


@pytest.mark.parametrize("workers", [0, 1])
def test_undecodable_bytes_name_the_file_and_the_byte_even_from_a_worker(tmp_path: Path, workers: int) -> None:
    for split in ("train", "validation"):
        (tmp_path / f"{split}.txt").write_bytes(b"fine\n" * 50)
    (tmp_path / "test.txt").write_bytes(b"good \xe9 bad")
    source = FilesConfig(path=str(tmp_path), splits="folders")
    data_config = LanguageDataConfig(source=source, tokenizer=CharactersConfig(), segment_length=8, workers=workers)
    with pytest.raises(DataError, match=r"^test.txt: byte 5 is not UTF-8") as error:
        list(LanguageData(data_config).test_dataloader())
    assert "\n" not in str(error.value)


def test_a_stride_beyond_the_segment_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"evaluation.stride 200"):
        LanguageDataConfig(segment_length=128, evaluation=EvaluationConfig(stride=200))


def test_a_config_survives_the_round_trip(corpus: FilesConfig) -> None:
    data_config = config(corpus, tokenizer=BytesConfig(), workers=1)
    assert LanguageDataConfig.from_dict(data_config.to_dict()) == data_config


def _rank(data_config: LanguageDataConfig, folder: Path) -> None:
    """Runs on each of two ranks: reads the validation split and six training batches, and saves rows and state."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    data = LanguageData(data_config)
    evaluated, trained_on = list(data.val_dataloader()), list(islice(data.train_dataloader(), 6))
    data._cursor = trained_on[2].cursor
    torch.save((rows(evaluated), rows(trained_on), data.state_dict()), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_ranks_end_together_share_everything_and_resume(corpus: FilesConfig, tmp_path: Path) -> None:
    data_config = config(corpus)
    Forked(tmp_path / "output.txt", _rank, data_config, tmp_path, ranks=2).finish()
    results = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    assert len({len(evaluated_rows) for evaluated_rows, _, _ in results}) == 1
    targets = torch.tensor([row for evaluated_rows, _, _ in results for batch in evaluated_rows for row in batch])[
        ..., 8:16
    ]
    total = sum(len(document.text) for document in LanguageData(data_config).documents("validation"))
    assert int((targets != IGNORED).sum()) == total
    assert results[0][2] == results[1][2]
    trained_rows = [str(batch) for _, rank_rows, _ in results for batch in rank_rows]
    assert len(set(trained_rows)) == len(trained_rows)


@pytest.mark.parametrize("workers", [0, 2])
def test_as_many_bytes_are_measured_as_the_config_names(
    corpus: FilesConfig, workers: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also where workers share the lengths of documents, of which the last one has another length than elsewhere."""

    def measured(**evaluation: Any) -> int:
        data = LanguageData(config(corpus, workers=workers, evaluation=evaluation))
        data.prepare_data()
        return sum(int((batch.targets != IGNORED).sum()) for batch in data.val_dataloader())

    whole = measured(bytes=64)
    [line] = [line for line in capfd.readouterr().err.splitlines() if line.startswith("evaluation")]
    assert whole > 64 and line.startswith(f"evaluation: {whole} bytes are measured and not 64: ")
    assert measured(bytes=64, last="cut") == 64 and measured(bytes=64) == whole
    capfd.readouterr()
    assert measured() > whole and not capfd.readouterr().err
