"""Runs of LightningModules equal runs of Lightning's own Trainer, however often they are stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sampler.lightning_modules import OBSERVED, compare, observed, sampled


@pytest.mark.parametrize(
    "changes",
    [
        {"model.init_args": {"schedule": "validated_step"}, "trainer": {"limit_train_batches": 3}},
        {"model.init_args": {"schedule": "epoch_loss"}, "trainer": {"accumulate_grad_batches": 2}},
        {"model.init_args": {"by_hand": True}, "data.init_args": {"kind": "generator"}},
        {"data.init_args": {"kind": "drawn"}, "trainer": {"reload_dataloaders_every_n_epochs": 2}},
    ],
    ids=["limits and a plateau", "accumulation", "by hand", "reloading"],
)
def test_a_run_is_what_lightning_does_and_the_same_however_often_it_is_stopped(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    compare(OBSERVED.override({"training.steps": 8, **changes}), tmp_path, 0)


SEEDS = (0, 1, 4, 6, 7, 8, 9, 10, 13, 14)
"""Their configs have together every value of a setting that a config of the first fifteen seeds has."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_any_run_is_what_lightning_does_and_the_same_however_often_it_is_stopped(seed: int, tmp_path: Path) -> None:
    compare(sampled(seed), tmp_path, seed)


def test_with_accumulation_curves_and_validations_are_of_whole_updates(tmp_path: Path) -> None:
    """An epoch of five batches has updates of two, two and one."""
    config = OBSERVED.override(
        {
            "model.init_args": {"schedule": "constant_loss"},
            "trainer.accumulate_grad_batches": 2,
            "training.steps": 7,
        }
    )
    left = observed(config, tmp_path / "run", set())
    rows = [line.split(",") for line in left["curves"].splitlines()[1:]]
    assert [(int(step), float(value)) for step, _, name, value in rows if name == "train/loss"] == [
        (step, 1.0) for step in range(1, 8)
    ]
    assert [int(step) for step, _, name, _ in rows if name == "val/loss"] == [3, 6]
    assert [event[:3] for event in left["events"] if event[0] == "on_validation_end"] == [
        ("on_validation_end", 0, 3),
        ("on_validation_end", 1, 6),
    ]


def test_what_cannot_be_resumed_within_an_epoch_is_printed_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = OBSERVED.override({"data.init_args": {"kind": "two_streams"}, "training.steps": 1})
    observed(config, tmp_path / "run", set())
    assert "a run that is stopped resumes from the start of its epoch" in capsys.readouterr().out
