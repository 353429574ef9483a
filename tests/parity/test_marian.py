"""Our encoder-decoder, greedy decoding and beam search equal those of transformers' Marian with its weights."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from copying import close
from torch import Tensor, nn
from transformers import MarianMTModel

from benchmarks.marian import BOUNDARY, Sizes, copied, theirs
from lit_transformers.decoding.decode import BeamConfig, DecodingConfig, GreedyConfig, decode

SIZES = Sizes(symbols=17, dim=16, heads=2, width=24, depth=2, decoder_depth=3, longest=64)
LONGEST = 14


def marian(sizes: Sizes = SIZES, seed: int = 0) -> MarianMTModel:
    """A model whose outputs differ, end now and then, and depend on the source: weights are small next to the symbols'
    vectors, and the last norm negates its output, since a symbol would otherwise predict itself."""
    torch.manual_seed(seed)
    model = theirs(sizes).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                std = 1.0 if "shared" in name else 0.2 if parameter.dim() > 1 else 0.02
                nn.init.normal_(parameter, mean=float("layer_norm.weight" in name), std=std)
        model.get_decoder().layers[-1].final_layer_norm.weight.neg_()
        nn.init.normal_(model.final_logits_bias, std=0.1)
        model.final_logits_bias[:, BOUNDARY] += 2.0
    return model


def sources() -> tuple[Tensor, Tensor]:
    """Rows of several lengths, each with its boundary, padded as Marian pads."""
    lengths = torch.tensor([[9], [3], [1], [6], [9], [5], [2], [8]])
    padding_mask = torch.arange(9) < lengths
    symbols = torch.randint(1, SIZES.symbols - 1, padding_mask.shape, generator=torch.Generator().manual_seed(1))
    symbols = symbols.masked_fill(torch.arange(9) == lengths - 1, BOUNDARY)
    return symbols.masked_fill(~padding_mask, SIZES.symbols - 1), padding_mask


def generated(model: MarianMTModel, source: Tensor, padding_mask: Tensor, **settings: Any) -> list[list[int]]:
    """The outputs of transformers' ``generate``, up to the boundary, or to the padding behind it."""
    outputs = model.generate(
        source, attention_mask=padding_mask.long(), max_new_tokens=LONGEST, do_sample=False, use_cache=True, **settings
    )
    assert isinstance(outputs, Tensor)
    rows = []
    for row in outputs[:, 1:].tolist():
        rows.append(row[: row.index(BOUNDARY)] if BOUNDARY in row else row)
    return rows


@pytest.mark.parametrize("activation", ["relu", "silu"])
@pytest.mark.parametrize("scaled", [True, False])
def test_our_network_says_what_marian_says(activation: Literal["relu", "silu"], scaled: bool) -> None:
    sizes = SIZES._replace(activation=activation, scaled=scaled)
    model = marian(sizes)
    network, (source, padding_mask) = copied(model, sizes).double(), sources()
    target = torch.randint(0, sizes.symbols - 1, (len(source), 11))
    expected = model(input_ids=source, attention_mask=padding_mask.long(), decoder_input_ids=target).logits
    hidden = network(source, target, padding_mask).hidden
    close(network.tokens.log_probabilities(hidden), expected.log_softmax(dim=-1), 1e-6)  # their sinusoids are single


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_greedy_decoding_says_what_generate_says(seed: int, cache: bool) -> None:
    model, (source, padding_mask) = marian(seed=seed), sources()
    decoded = decode(
        copied(model, SIZES).double(), source, padding_mask, limit_length(GreedyConfig(cache=cache)), BOUNDARY
    )
    assert decoded.symbols == generated(model, source, padding_mask, num_beams=1)


@pytest.mark.slow
@pytest.mark.parametrize("early", ["never", True])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("beams", [2, 5])
@pytest.mark.parametrize("seed", range(3))
def test_beam_search_says_what_generate_says(
    seed: int, beams: int, penalty: float, early: Literal["never", True]
) -> None:
    """Their penalty is a power of the length; ``early_stopping`` of "never" stops when nothing can be better."""
    model, (source, padding_mask) = marian(seed=seed), sources()
    config = BeamConfig(
        beams=beams, length_penalty=penalty, lengths="power", until="sure" if early == "never" else "full"
    )
    decoded = decode(copied(model, SIZES).double(), source, padding_mask, limit_length(config), BOUNDARY)
    expected = generated(model, source, padding_mask, num_beams=beams, length_penalty=penalty, early_stopping=early)
    assert decoded.symbols == expected


@pytest.mark.parametrize("beams", [1, 5])
def test_what_is_compared_differs_and_ends_in_both_ways(beams: int) -> None:
    source, padding_mask = sources()
    rows = [row for seed in range(3) for row in generated(marian(seed=seed), source, padding_mask, num_beams=beams)]
    assert {len(row) < LONGEST for row in rows} == {True, False}
    assert len({tuple(row) for row in rows}) > len(rows) / 2
    assert sum(len(set(row)) > 2 for row in rows) > len(rows) / 3


def limit_length(config: DecodingConfig) -> DecodingConfig:
    """Gives all outputs the same limit of length, for any source."""
    return config.override({"ratio": 0.0, "extra": LONGEST})
