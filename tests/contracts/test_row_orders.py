"""One network reads rows under any attention mask: no symbol sees another that its mask hides, through any mixer, and a
mask that hides nothing, or all later symbols, gives the same as a network that is built so."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from contract_cases import DIM, MIXER_CASES, Case, mixers, name, randomised
from numerics import placed, same
from test_masked_lm import BERT, DATA, LENGTHS, one, rows

from lit_transformers.batch import RowDescription
from lit_transformers.config import ConfigError
from lit_transformers.mixer import Context, MixerConfig
from lit_transformers.models import EncoderConfig
from lit_transformers.models.encoder import Encoder
from lit_transformers.tasks import ReplacedTokensConfig
from lit_transformers.tasks.masked_lm import MaskedLM, MaskedLMConfig
from lit_transformers.training.config import TrainingConfig

ORDERED = replace(DATA, ordered=True)
ORDER = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0], [0, 0, 0, 3, 4, 5, 6], [0] * 7])
"""Left to right, right to left, sequence to sequence, and bidirectional."""


def encoder(data: RowDescription = ORDERED, **fields: object) -> Encoder:
    network = BERT.override({"depth": 2, **fields}).build(data)
    assert isinstance(network, Encoder)
    return randomised(network.double()).eval()


@mixers("permuted")
def test_a_symbol_sees_those_that_are_not_after_it_in_the_order(case: Case) -> None:
    network = encoder(mixer=case.config, extra_tokens=1)
    embedded = torch.randn(4, 7, DIM, dtype=torch.float64, requires_grad=True)
    network.tokens.embed = lambda symbols: embedded  # type: ignore[method-assign]
    hidden = network(torch.zeros(4, 7, dtype=torch.long), order=ORDER).hidden
    for t in range(7):
        [gradient] = torch.autograd.grad(hidden[:, t].square().sum(), embedded, retain_graph=True)
        assert torch.equal(gradient.any(dim=-1), ORDER[:, t, None] >= ORDER)


def test_what_hides_nothing_and_what_hides_all_that_is_later_are_the_networks_that_are_built_so() -> None:
    symbols = torch.randint(10, (4, 7))
    ordered, plain = encoder(), encoder(DATA)
    torch.testing.assert_close(ordered(symbols, order=torch.zeros_like(symbols)).hidden, plain(symbols).hidden)
    torch.testing.assert_close(ordered(symbols).hidden, plain(symbols).hidden)
    forward = torch.arange(7).expand(4, -1)
    config = BERT.override({"depth": 2})
    assert isinstance(config, EncoderConfig)
    causal = config.build_stack("causal", DATA.length).double().eval()
    causal.load_state_dict(plain.stack.state_dict())
    assert plain.segments is not None
    x = plain.tokens.embed(symbols) + plain.segments(torch.zeros_like(symbols))
    expected = plain.norm(causal(x, Context(forward, causal=True)).y)
    torch.testing.assert_close(ordered(symbols, order=forward).hidden, expected)


def test_extra_tokens_see_all_where_no_symbol_is_hidden() -> None:
    symbols = torch.randint(10, (4, 7))
    ordered, plain = encoder(extra_tokens=2), encoder(DATA, extra_tokens=2)
    torch.testing.assert_close(ordered(symbols, order=torch.zeros_like(symbols)).hidden, plain(symbols).hidden)


def masked_lm() -> MaskedLM:
    torch.manual_seed(0)
    return placed(MaskedLMConfig().build(BERT, ORDERED, TrainingConfig(device="cpu")).double())


@pytest.mark.any_device
def test_hidden_symbols_are_predicted_alike_in_any_company_under_their_masks() -> None:
    task, batch = masked_lm(), rows(LENGTHS)
    order = torch.arange(batch.inputs.size(1)) * torch.tensor([[1], [0], [1], [1]])
    batch = batch._replace(order=order.masked_fill(~batch.padding_mask, 0))
    task.training_step(batch, 0)["loss"].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in task.parameters())
    task.eval()
    with torch.no_grad():
        together = task.evaluation_output(batch)
        assert not torch.allclose(together, task.evaluation_output(batch._replace(order=None)))
        for row, length in enumerate(LENGTHS):
            single = one(batch, row)._replace(order=batch.order[row : row + 1, :length])
            same(task.evaluation_output(single), together[2 * row : 2 * row + 2])


def test_replaced_symbols_are_told_under_the_mask_of_their_row_too() -> None:
    """Neither generator nor network sees the symbols after the second one where the row is read forward."""
    task = ReplacedTokensConfig(weight=1.0).build(BERT, ORDERED, TrainingConfig(device="cpu")).double().eval()
    batch = MaskedLMConfig().random_batch(ORDERED)
    batch = batch._replace(order=torch.arange(ORDERED.length).expand(2, -1))
    changed = batch._replace(inputs=batch.inputs.clone())
    changed.inputs[:, 3:] = (changed.inputs[:, 3:] + 1) % 10
    nats = []
    for each in (batch, changed):
        torch.manual_seed(0)
        nats.append(task.evaluation_output(each)[:, :3])
    torch.testing.assert_close(nats[0], nats[1])


MODES = {config: config.promises().modes for config in MIXER_CASES}
REFUSING = [config for config, modes in MODES.items() if "bidirectional" in modes and "permuted" not in modes]


@pytest.mark.parametrize("config", REFUSING, ids=name)
def test_a_mixer_that_takes_no_mask_for_each_row_refuses_by_its_name(config: MixerConfig) -> None:
    with pytest.raises(ConfigError, match=f"{config.mixer_name} cannot be permuted"):
        MaskedLMConfig().build(BERT.override({"mixer": config}), ORDERED, TrainingConfig(device="cpu"))
