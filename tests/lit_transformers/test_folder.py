"""A folder holds one run: another run is refused before anything is written, and the same run resumes or is read."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from lit_transformers.__main__ import main
from lit_transformers.config import ConfigError
from lit_transformers.records.files import CHECKPOINT, RECORD, RUN
from lit_transformers.runs import RunConfig, fit, keys, run_key
from lit_transformers.wandb_target import NO_TARGET
from sweeps.ledger.ticket import Ticket
from sweeps.process.order import Fault, RunOrder, perform

EVALUATED = {"task.evaluation": {"mixer.memory": 24}}


@pytest.fixture(scope="module")
def config(small_run: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A short run on a separate corpus."""
    corpus = tmp_path_factory.mktemp("own") / "corpus"
    shutil.copytree(small_run.data.source.path, corpus)
    return small_run.override({"training.steps": 4, "training.log_every": 2, "data.source.path": str(corpus)})


@pytest.fixture(scope="module")
def finished(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("finished") / "n"
    assert fit(config, directory)["outcome"] == "finished"
    return directory


@pytest.fixture
def occupied(finished: Path, tmp_path: Path) -> Path:
    """A folder with a finished run in it, to be changed at will."""
    return Path(shutil.copytree(finished, tmp_path / "n"))


def folder_contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its bytes and the time of its last change."""
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.iterdir()}


def refusal_message(config: RunConfig, directory: Path) -> str:
    """The error of a run that is refused and has left everything as it was."""
    before = folder_contents(directory)
    with pytest.raises(ConfigError) as error:
        fit(config, directory)
    assert folder_contents(directory) == before
    assert str(error.value).startswith(f"{directory}: holds another run: ")
    changed = "have changed since" in str(error.value) or "has changed since" in str(error.value)
    way_out = "remove its record.json and checkpoint.ckpt to train it again here" if changed else "remove this one"
    assert str(error.value).endswith(f"choose another folder (--to), or {way_out}")
    return str(error.value)


def test_a_finished_run_is_read_and_nothing_is_written(config: RunConfig, occupied: Path) -> None:
    before = folder_contents(occupied)
    assert fit(config, occupied) == json.loads((occupied / RECORD).read_text())
    assert folder_contents(occupied) == before


def test_a_run_of_another_config_is_refused_with_what_differs(config: RunConfig, occupied: Path) -> None:
    changes = {"training.optimizer.learning_rate": 1e-7, "seed": 7, "model.dim": 32, "model.depth": 3}
    error = refusal_message(config.override(changes), occupied)
    assert "model.dim is 16 there and 32 here; model.depth is 1 there and 3 here; " in error
    assert "; and 1 more; choose" in error


def test_a_config_that_was_not_trained_is_to_be_edited_and_not_removed(config: RunConfig, occupied: Path) -> None:
    (occupied / RECORD).unlink()
    (occupied / CHECKPOINT).unlink()
    before = folder_contents(occupied)
    with pytest.raises(ConfigError) as error:
        fit(config.override({"seed": 7}), occupied)
    assert folder_contents(occupied) == before
    reason = "holds the config of another run: seed is 0 there and 7 here; choose another folder (--to), or edit"
    assert str(error.value).startswith(f"{occupied}: {reason} {RUN}")


@pytest.mark.parametrize("lost", [(RECORD, RUN), (RUN, CHECKPOINT)])
def test_each_file_alone_says_whose_the_folder_is(config: RunConfig, occupied: Path, lost: tuple[str, str]) -> None:
    for name in lost:
        (occupied / name).unlink()
    assert "seed is 0 there and 7 here" in refusal_message(config.override({"seed": 7}), occupied)


def test_a_run_of_other_data_is_refused(config: RunConfig, occupied: Path) -> None:
    text = Path(config.data.source.path, "0.txt")
    before = text.read_text()
    text.write_text(before + "omega")
    try:
        assert "the data have changed since" in refusal_message(config, occupied)
    finally:
        text.write_text(before)


def test_a_run_of_other_code_is_refused_finished_or_not(
    config: RunConfig, occupied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "code_of", lambda config: "of later code")
    assert "the code has changed since" in refusal_message(config, occupied)
    (occupied / RECORD).unlink()
    assert "the code or the data have changed since" in refusal_message(config, occupied)


def test_a_folder_whose_run_is_of_other_code_trains_again_by_the_same_command_without_its_old_results(
    config: RunConfig, occupied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder holds the only copy of the config, so that the way out names the files to remove. A repeated command
    reads the new record."""
    command = ["fit", str(occupied / RUN)]
    monkeypatch.setattr(keys, "code_of", lambda config: "of later code")
    assert main(command) == 2
    names = re.search("or remove its (.+) and (.+) to train it again here", capsys.readouterr().err)
    assert names is not None
    for name in names.groups():
        (occupied / name).unlink()
    assert main(command) == 0
    record = (occupied / RECORD).read_bytes()
    printed = capsys.readouterr().out
    assert main(command) == 0 and capsys.readouterr().out == printed
    assert (occupied / RECORD).read_bytes() == record


@pytest.mark.slow
def test_a_run_whose_record_is_lost_or_damaged_goes_on_from_its_checkpoint(config: RunConfig, occupied: Path) -> None:
    def reproducible(record: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in record.items() if name not in ("measured", "environment")}

    text = (occupied / RECORD).read_text()
    (occupied / RECORD).write_text(text[: len(text) // 2])
    result = fit(config, occupied)
    assert (
        reproducible(result)
        == reproducible(json.loads(text))
        == reproducible(json.loads((occupied / RECORD).read_text()))
    )
    assert (occupied / "record.json.damaged").read_text() == text[: len(text) // 2]


@pytest.mark.slow
def test_weights_are_taken_over_from_no_folder_that_holds_another_run_by_now(config: RunConfig, occupied: Path) -> None:
    shutil.rmtree(occupied)
    fit(config, occupied)
    shutil.rmtree(occupied)
    assert fit(config.override({"model.dim": 32}), occupied)["outcome"] == "finished"
    record = fit(config.override(EVALUATED), occupied.with_name("measured otherwise"))
    assert (record["outcome"], record["measured"]["trained_by"]) == ("finished", None)


def test_a_worker_leaves_a_folder_that_holds_another_run_as_it_is(config: RunConfig, occupied: Path) -> None:
    other_config = config.override({"seed": 7})
    key = run_key(other_config)
    (occupied / RECORD).unlink()
    folder = occupied.rename(occupied.with_name(key))
    before = folder_contents(folder)
    order = RunOrder(
        Ticket(key, "arm", 7, other_config.to_dict()),
        folder.parent,
        RunConfig.runner,
        1,
        None,
        False,
        "s",
        NO_TARGET,
    )
    result = perform(order, None)
    assert isinstance(result, Fault) and "seed is 0 there and 7 here" in result.reason
    assert folder_contents(folder) == before
