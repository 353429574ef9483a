"""Heads that a task is given besides those of its kind: which names they may have."""

from __future__ import annotations

import pytest
from test_masked_lm import BERT, DATA

from lit_transformers.config import ConfigError
from lit_transformers.heads import HiddenSymbolsConfig
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
