"""Every decoder under every noise: no symbol is predicted from itself, and hidden symbols can be read nowhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from contract_cases import DIM, HEADS, Case, mixers
from numerics import here, placed, same
from torch import Tensor

from datamodules import CORRUPTIONS, DenoisingDataConfig, MASSConfig
from datamodules.denoising.corruptions import PlainText
from datamodules.denoising.denoising import paired
from datamodules.denoising.reader import DamagedRow
from datamodules.denoising.symbols import DenoisingSymbols
from lit_transformers.batch import IGNORED, PairBatch, PairDescription, SpelledNumbers, Vocabulary
from lit_transformers.config import ConfigError
from lit_transformers.encodings.positions import LearnedConfig, SinusoidalConfig
from lit_transformers.models import EncoderDecoderConfig
from lit_transformers.tasks import Seq2SeqConfig
from lit_transformers.tasks.seq2seq import Seq2Seq
from lit_transformers.training.config import TrainingConfig

WORDS, MASK, LENGTH = 40, 42, 16
VOCABULARY = Vocabulary(size=48, boundary=40, unit="word", byte_lengths=None)
SYMBOLS = DenoisingSymbols(VOCABULARY, MASK, 41, np.arange(43, 48), np.arange(WORDS))
MODEL = EncoderDecoderConfig(dim=DIM, heads=HEADS, depth=1, positions=SinusoidalConfig(restart="document"))
DAMAGING = sorted(CORRUPTIONS)
HIDING = ("mass", "span_corruption", "prefix_lm", "lm")
"""The noises whose targets are only symbols that the encoder does not read."""


def described(kind: str) -> PairDescription:
    longest = CORRUPTIONS[kind]().longest(LENGTH)
    return PairDescription(
        vocabulary=VOCABULARY,
        length=longest.target,
        source=VOCABULARY,
        source_length=longest.source,
        detokenize=SpelledNumbers(),
        placed=CORRUPTIONS[kind].placed,
    )


def batch_of(kind: str, count: int = 3) -> PairBatch:
    """Rows in which no symbol is twice, of two lengths."""
    noise, rows = CORRUPTIONS[kind](), []
    for number in range(count):
        chance = np.random.default_rng(number)
        text = PlainText(chance.permutation(WORDS)[: LENGTH - 1 - 2 * (number % 2)], np.array([0, 4, 8, 12]))
        rows.append(DamagedRow(number, noise.corrupt(text, SYMBOLS, chance), len(text.symbols) + 1))
    batch = paired(described(kind), False, rows, "")
    return batch._replace(**{name: here(part) for name, part in batch._asdict().items() if isinstance(part, Tensor)})


def seq2seq(kind: str, model: EncoderDecoderConfig = MODEL) -> Seq2Seq:
    torch.manual_seed(0)
    config = Seq2SeqConfig(metrics=("accuracy",))
    return placed(config.build(model, described(kind), TrainingConfig(device="cpu")).double().eval())


def losses(task: Seq2Seq, batch: PairBatch) -> Tensor:
    """The loss of every symbol that is written (n,), 0 where nothing is."""
    chosen = batch.targets.clamp(min=0)[..., None]
    nats = -task.evaluation_output(batch).gather(-1, chosen)[..., 0]
    return nats * (batch.targets != IGNORED)


@pytest.mark.parametrize("kind", HIDING)
def test_no_symbol_that_is_hidden_can_be_read_in_the_source(kind: str) -> None:
    batch = batch_of(kind)
    for source, targets in zip(batch.source, batch.targets, strict=True):
        assert {*targets.tolist()}.isdisjoint({*source.tolist()} - {40, 43, 44, 45, 46, 47, 0}), "a hidden word"


@pytest.mark.any_device
@pytest.mark.parametrize("kind", DAMAGING)
def test_no_loss_depends_on_its_own_symbol_or_a_later_one_as_input(kind: str) -> None:
    task, batch = seq2seq(kind), batch_of(kind)
    with torch.no_grad():
        expected = task.evaluation_output(batch)
        for place in range(1, batch.inputs.size(1)):
            inputs = batch.inputs.clone()
            inputs[:, place:] = (inputs[:, place:] + 7) % WORDS
            changed = task.evaluation_output(batch._replace(inputs=inputs))
            same(changed[:, :place], expected[:, :place], exact=1e-9)
            assert place >= batch.padding_mask.sum(dim=1).max() or not torch.allclose(changed, expected)


@pytest.mark.any_device
@mixers("causal", encodings="none")
def test_a_span_is_written_alike_in_any_company_by_every_decoder(case: Case) -> None:
    task = seq2seq("mass", MODEL.override({"decoder_mixer": case.config}))
    batch = batch_of("mass")
    with torch.no_grad():
        together = losses(task, batch)
        for row in range(len(batch.example)):
            wide, narrow = int(batch.source_padding_mask[row].sum()), int(batch.padding_mask[row].sum())
            alone = PairBatch(
                *(part[row : row + 1, :wide] for part in batch[:2]),
                *(part[row : row + 1, :narrow] for part in batch[2:5]),
                *(part[row : row + 1] for part in batch[5:7]),
                (), "", batch.start[row : row + 1],
            )  # fmt: skip
            same(losses(task, alone)[0], together[row, :narrow], exact=1e-7)


def test_a_span_is_read_at_its_original_positions() -> None:
    """As a decoder that reads all of the row reads it, where nothing but positions reaches the output."""
    task, batch = seq2seq("mass"), batch_of("mass")
    network: Any = task.network
    with torch.no_grad():
        encoded = network.encode(batch.source, batch.source_padding_mask).hidden
        for row, start in enumerate(batch.start.tolist()):
            whole = torch.zeros(1, LENGTH, dtype=torch.long)
            whole[0, start] = batch.inputs[row, 0]
            first = network.decode(
                whole[:, start : start + 1], encoded[row : row + 1], start=batch.start[row : row + 1]
            )
            x = network.tokens.embed(whole)
            vectors = network.decoder.entry.positions.vectors(0, torch.arange(LENGTH)[None], x.dtype)
            embedded = (x + vectors)[:, start : start + 1]
            plain = MODEL.override({"positions": None}).build(task.data).double().eval()
            plain.load_state_dict(network.state_dict(), strict=False)
            plain.tokens.embed = lambda _, embedded=embedded: embedded
            mask = batch.source_padding_mask[row : row + 1]
            first = network.decode(
                whole[:, start : start + 1], encoded[row : row + 1], mask, start=batch.start[row : row + 1]
            )
            expected = plain.decode(whole[:, :1], encoded[row : row + 1], mask)
            torch.testing.assert_close(first.hidden, expected.hidden)
            assert int(first.state["length"]) == start + 1
    assert len({*batch.start.tolist()}) > 1


def test_the_loss_counts_the_span_alone() -> None:
    task, batch = seq2seq("mass"), batch_of("mass")
    output = task.training_step(batch, 0)
    assert int(output["targets"]) == sum(round(0.5 * length) for length in (15, 13, 15))
    torch.testing.assert_close(output["nats"], losses(task, batch).sum() / output["targets"])


def test_learned_positions_reach_the_end_of_a_row_and_costs_count_what_is_usual() -> None:
    task = seq2seq("mass", MODEL.override({"positions": LearnedConfig()}))
    assert torch.isfinite(losses(task, batch_of("mass", 20))).all()
    data, costs = DenoisingDataConfig(tokenizer="bytes", length=LENGTH), {}
    for share in (0.25, 1.0):
        description = data.override({"noise": MASSConfig(share=share)}).build().description
        costs[share] = Seq2SeqConfig().counted_lengths(description)
    assert costs == {0.25: (16, 4), 1.0: (16, 15)}


def test_texts_that_begin_at_unknown_positions_are_not_decoded() -> None:
    with pytest.raises(ConfigError, match=r"^task.metrics: bleu, chrf and rouge are of texts .* to accuracy"):
        Seq2SeqConfig().build(MODEL, described("mass"), TrainingConfig(device="cpu"))


def test_flops_are_those_of_what_is_read_and_written_by_a_token_of_the_text() -> None:
    data = DenoisingDataConfig(tokenizer="bytes", length=LENGTH, noise=MASSConfig(share=0.25)).build().description
    network = MODEL.build(data)
    flops = Seq2SeqConfig(metrics=("accuracy",)).cost(MODEL, data).flops_per_token
    assert flops * LENGTH == pytest.approx(network.flops(4, 0, 16))
