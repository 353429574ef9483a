"""A run, and everything that reads its network, computes as its config says, and nothing after it does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_transformers.decoding.sampling import SamplingConfig
from lit_transformers.inference.write import write
from lit_transformers.models.language_model import LanguageModel
from lit_transformers.precision import tf32
from lit_transformers.records.files import CHECKPOINT
from lit_transformers.runs import RunConfig, evaluate, fit
from lit_transformers.runs.cut_context import context_losses
from lit_transformers.runs.probe import probe
from lit_transformers.runs.train import train

Settings = tuple[bool, bool, bool, bool]


def settings() -> Settings:
    """Whether TF32 is allowed in products, in convolutions and in LSTMs, and whether the flash kernel is."""
    cudnn = torch.backends.cudnn
    rounded = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    products, convolutions, lstms = (backend.fp32_precision == "tf32" for backend in rounded)
    return products, convolutions, lstms, torch.backends.cuda.flash_sdp_enabled()


@pytest.fixture
def of_passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Settings]]:
    """The settings under which networks are run."""
    seen: set[Settings] = set()
    forward = LanguageModel.forward

    def seeing(self: LanguageModel, *arguments: Any, **options: Any) -> Any:
        seen.add(settings())
        return forward(self, *arguments, **options)

    monkeypatch.setattr(LanguageModel, "forward", seeing)
    yield seen


def test_a_run_and_all_that_read_its_network_compute_as_its_config_says(
    small_run: RunConfig, tmp_path: Path, of_passes: set[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = settings()
    config = small_run.override(
        {"training.tf32": True, "training.attention_kernel": "math", "training.steps": 2, "model.mixer.encoding": None}
    )

    def without_gates(*arguments: Any, **options: Any) -> Any:
        of_passes.clear()
        return train(*arguments, **options)

    monkeypatch.setattr(sys.modules["lit_transformers.runs.fit"], "train", without_gates)
    record = fit(config, tmp_path)
    checkpoint = tmp_path / CHECKPOINT
    assert record["environment"]["attention"] == "math" and record["environment"]["float32"] == "IEEE 754"
    for read in (
        lambda: None,
        lambda: evaluate(checkpoint),
        lambda: [*write(checkpoint, "alpha", 2, SamplingConfig())],
        lambda: context_losses(checkpoint, 64),
        lambda: probe(config),
    ):
        read()
        assert of_passes == {(True, True, True, False)}
        assert settings() == usual
        of_passes.clear()


@pytest.mark.parametrize("is_allowed", [False, True])
def test_tf32_is_one_setting_of_products_convolutions_and_lstms(is_allowed: bool) -> None:
    usual = settings()
    with tf32(is_allowed):
        assert settings()[:3] == (is_allowed,) * 3
        # Lightning and torch.compile read it so, which raises where both interfaces were mixed
        assert torch.get_float32_matmul_precision() == ("high" if is_allowed else "highest")
        assert torch.backends.cudnn.allow_tf32 is is_allowed
    assert settings() == usual
