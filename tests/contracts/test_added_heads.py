"""Heads that a task is given besides those of its kind: which names they may have, and when their weights learn."""

from __future__ import annotations

import pytest
import torch
from test_masked_lm import BERT, DATA

from lit_transformers.config import ConfigError
from lit_transformers.heads import HiddenSymbolsConfig, SpanBoundaryConfig
from lit_transformers.tasks.masked_lm import MaskedLMConfig
from lit_transformers.training.config import TrainingConfig


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("forward", "'forward' cannot be the name of a head"),
        ("two.words", "'two.words' cannot be the name of a head"),
        ("training", "'training' cannot be the name of a head"),
        ("relation", "there is a head relation already"),
    ],
)
def test_a_name_that_is_taken_or_that_no_module_can_have_is_refused(name: str, reason: str) -> None:
    config = MaskedLMConfig(heads=(HiddenSymbolsConfig(name="again"), HiddenSymbolsConfig(name=name)))
    with pytest.raises(ConfigError, match=rf"^task\.heads\.1\.name: {reason}"):
        config.build(BERT, DATA, TrainingConfig(device="cpu"))


def test_an_added_head_has_its_name() -> None:
    task = MaskedLMConfig(heads=(HiddenSymbolsConfig(name="again"),)).build(BERT, DATA, TrainingConfig(device="cpu"))
    assert [*task.heads] == ["symbols", "relation", "again"]
    assert task.config.measures(DATA).keys() >= {"again_nats", "again_accuracy"}


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_weights_that_do_not_learn_are_not_waited_for(weight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks wait for the gradient of each weight that requires one: it is zero while a head rests, and those of a head
    that is measured alone require none."""
    config = MaskedLMConfig(heads=(SpanBoundaryConfig(name="again", width=3, weight=weight),))
    task = config.build(BERT, DATA, TrainingConfig(device="cpu"))
    monkeypatch.setattr(task.heads["again"], "learns", lambda progress: False)
    output = task.training_step(config.random_batch(DATA), 0)
    output["loss"].backward()
    assert output["heads"].keys() == {"relation"}
    for parameter in task.heads["again"].parameters():
        assert parameter.requires_grad == (weight > 0)
        assert parameter.grad is None if weight == 0 else torch.equal(parameter.grad, torch.zeros_like(parameter))
