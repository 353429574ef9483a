"""The benchmark of pretraining compares equal networks, by the loss that both are trained with."""

from __future__ import annotations

import pytest
import torch

from benchmarks.pretraining import CASES, TINY, BertForRows, ChunkRates, XLNetForRows, summarise
from lit_transformers.batch import IGNORED, RowDescription, Vocabulary
from lit_transformers.exchange.architectures import BERT, XLNET
from lit_transformers.exchange.convert import layout_of, read_tensors
from lit_transformers.exchange.mapping import ENCODERS, Architecture
from lit_transformers.tasks import MaskedLMConfig

SYMBOLS = 60
DATA = RowDescription(
    vocabulary=Vocabulary(size=SYMBOLS, boundary=0, unit="piece", byte_lengths=None),
    length=TINY.length,
    mask=1,
    separator=0,
    segments=1,
    predictions=4,
    relations=0,
)


@pytest.mark.parametrize("name", CASES)
def test_both_train_as_many_weights(name: str) -> None:
    case = CASES[name](TINY)
    config, theirs = case.config, case.theirs(DATA)
    ours = config.task.build(config.model, DATA, config.training)
    counts = [sum(p.numel() for p in network.parameters() if p.requires_grad) for network in (ours, theirs)]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(("name", "architecture"), [("masked symbols", BERT), ("symbols in order", XLNET)])
def test_with_equal_weights_both_have_the_same_loss(name: str, architecture: Architecture) -> None:
    case = CASES[name](TINY)
    config, theirs = case.config, case.theirs(DATA).eval()
    assert isinstance(theirs, BertForRows | XLNetForRows)
    ours = config.task.build(config.model, DATA, config.training).eval()
    tensors, _ = read_tensors(architecture, theirs.model.state_dict(), layout_of(ENCODERS, config.model, SYMBOLS))
    ours.load_state_dict(tensors, strict=False)
    batch = MaskedLMConfig().random_batch(DATA)
    real = torch.arange(TINY.length) < torch.tensor([[TINY.length], [TINY.length // 2]])
    batch = batch._replace(padding_mask=real, targets=batch.targets.masked_fill(~real, IGNORED), padded=True)
    torch.testing.assert_close(ours.training_step(batch, 0)["total"], theirs(batch).detach())


def test_ratios_are_taken_between_neighbours_so_that_load_cancels() -> None:
    rates = [ChunkRates(300 * load, 200 * load, 600 * load, 300 * load) for load in (1.0, 0.5, 0.1)]
    summary = summarise("a case", rates)
    assert summary["ratio"] == pytest.approx(1.5) and summary["ratio_processor"] == pytest.approx(2.0)
