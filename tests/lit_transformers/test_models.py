"""The three models, their symbols, and their learning."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lit_transformers.batch import IGNORED, LanguageDescription, PairDescription, SpelledNumbers, Vocabulary
from lit_transformers.config import ConfigError
from lit_transformers.encodings import XLConfig
from lit_transformers.encodings.positions import LearnedConfig, PositionError, SinusoidalConfig
from lit_transformers.gates.miniature import probe_data
from lit_transformers.mixers import AttentionConfig, WindowConfig
from lit_transformers.models import EncoderConfig, EncoderDecoderConfig, LanguageModelConfig
from lit_transformers.models.tokens import (
    AdaptiveTokenEmbeddingConfig,
    FullTokenEmbeddingConfig,
    TokenEmbedding,
    TokenEmbeddingConfig,
)
from lit_transformers.stacks import SharedConfig
from lit_transformers.stacks.block import Block

SMALL = {"dim": 32, "heads": 4, "depth": 2}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_post_norm_has_no_final_norm_and_pre_norm_has_one() -> None:
    post = LanguageModelConfig(**SMALL, norm="post").build(probe_data(11, 8))
    pre = LanguageModelConfig(**SMALL, norm="pre").build(probe_data(11, 8))
    assert isinstance(post.norm, nn.Identity)
    assert isinstance(pre.norm, nn.LayerNorm)
    hidden = post(torch.randint(0, 11, (2, 8))).hidden
    assert torch.allclose(hidden.mean(-1), torch.zeros(2, 8), atol=1e-5), "the last block's own norm ends the network"


def test_tied_symbols_share_one_table_and_untied_ones_do_not() -> None:
    tied, untied = (FullTokenEmbeddingConfig(tied=tied).build(11, 8) for tied in (True, False))
    assert tied.logits.weight is tied.table.weight
    assert sum(p.numel() for p in untied.parameters()) == sum(p.numel() for p in tied.parameters()) + 11 * 8


@pytest.mark.parametrize("config", [FullTokenEmbeddingConfig(), FullTokenEmbeddingConfig(tied=False, scaled=False)])
def test_embeddings_are_scaled_by_the_root_of_dim_where_asked(config: TokenEmbeddingConfig) -> None:
    tokens = config.build(11, 16)
    symbols = torch.arange(11)[None]
    assert torch.allclose(tokens.embed(symbols), tokens.look_up(symbols) * (4 if config.scaled else 1))


@pytest.mark.parametrize("tied", [True, False])
def test_adaptive_softmax_is_a_distribution_and_agrees_with_its_loss(tied: bool) -> None:
    tokens: TokenEmbedding = AdaptiveTokenEmbeddingConfig(cutoffs=(5, 12), shrink=2, tied=tied).build(23, 16)
    hidden, targets = torch.randn(2, 9, 16), torch.randint(0, 23, (2, 9))
    targets[0, :4] = IGNORED
    table = tokens.log_probabilities(hidden)
    assert torch.allclose(table.exp().sum(-1), torch.ones(2, 9), atol=1e-5)
    nats = tokens.nll(hidden, targets)
    expected = -table.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    assert torch.allclose(nats, expected.masked_fill(targets == IGNORED, 0), atol=1e-5)


def test_tied_adaptive_input_reads_the_tables_of_the_softmax() -> None:
    tokens = AdaptiveTokenEmbeddingConfig(cutoffs=(5, 12), shrink=2).build(23, 16)
    symbols = torch.tensor([[0, 4, 5, 11, 12, 22]])
    projection, table = tokens.softmax.tail[1].children()
    embeddings = tokens.look_up(symbols)[0]
    assert torch.allclose(embeddings[1], tokens.softmax.head.weight[4])
    assert torch.allclose(embeddings[5], table.weight[10] @ projection.weight)
    assert sum(p.numel() for p in tokens.parameters()) == sum(p.numel() for p in tokens.softmax.parameters())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (AdaptiveTokenEmbeddingConfig(cutoffs=(5, 30)), "cutoffs"),
        (AdaptiveTokenEmbeddingConfig(cutoffs=(12, 5)), "cutoffs"),
        (AdaptiveTokenEmbeddingConfig(cutoffs=(5, 12), shrink=8), "shrink"),
    ],
)
def test_impossible_cutoffs_are_refused(config: AdaptiveTokenEmbeddingConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.build(23, 16)


def test_positions_that_no_table_holds_are_an_error_that_explains_itself() -> None:
    positions = LearnedConfig(restart="document", max_length=8)
    network = LanguageModelConfig(**SMALL, mixer=AttentionConfig(memory=4), positions=positions).build(
        probe_data(11, 6)
    )
    output = network(torch.zeros(1, 6, dtype=torch.long))
    with pytest.raises(
        ValueError, match=r"position 11 lies beyond the 8 learned positions: set model.positions.max_length"
    ):
        network(torch.zeros(1, 6, dtype=torch.long), output.state)


def test_positions_that_restart_with_the_segment_are_the_same_in_every_segment() -> None:
    network = LanguageModelConfig(**SMALL, positions=SinusoidalConfig()).build(probe_data(11, 6)).eval()
    symbols = torch.randint(0, 11, (1, 6))
    first = network(symbols)
    assert torch.allclose(network(symbols, first.state).hidden, first.hidden, atol=1e-6)
    counting = (
        LanguageModelConfig(**SMALL, positions=SinusoidalConfig(restart="document")).build(probe_data(11, 6)).eval()
    )
    first = counting(symbols)
    assert not torch.allclose(counting(symbols, first.state).hidden, first.hidden, atol=1e-3)


def test_an_arm_may_not_put_memory_where_there_is_no_past() -> None:
    with pytest.raises(ConfigError, match="memory"):
        EncoderConfig(**SMALL, mixer=AttentionConfig(memory=8)).build(probe_data(11, 6))
    with pytest.raises(ConfigError, match="cross"):
        EncoderDecoderConfig(**SMALL, cross_mixer=AttentionConfig(encoding=XLConfig())).build(probe_data(11, 6))


def test_the_encoder_sees_both_sides_and_the_decoder_one() -> None:
    encoder = EncoderConfig(**SMALL).build(probe_data(11, 8)).eval()
    symbols = torch.randint(1, 11, (1, 8))
    changed = symbols.clone()
    changed[0, 7] = (changed[0, 7] + 1) % 11
    assert not torch.allclose(encoder(symbols).hidden[0, 0], encoder(changed).hidden[0, 0])
    translator = EncoderDecoderConfig(**SMALL).build(probe_data(11, 8)).eval()
    before, after = translator(symbols, symbols).hidden, translator(symbols, changed).hidden
    assert torch.allclose(before[0, :7], after[0, :7], atol=1e-6)
    assert not torch.allclose(before, translator(changed, symbols).hidden)


def test_decoding_step_by_step_equals_one_pass() -> None:
    config = EncoderDecoderConfig(**SMALL, decoder_mixer=AttentionConfig(memory=8), positions=SinusoidalConfig())
    network = config.build(probe_data(11, 8)).eval()
    source, target = torch.randint(0, 11, (2, 5)), torch.randint(0, 11, (2, 8))
    padding_mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    expected = network(source, target, padding_mask).hidden
    encoded = network.encode(source, padding_mask).hidden
    with torch.no_grad():
        state, hidden = None, []
        for t in range(8):
            output = network.decode(target[:, t : t + 1], encoded, padding_mask, state)
            state = output.state
            hidden.append(output.hidden)
    assert torch.allclose(torch.cat(hidden, 1), expected, atol=1e-5)


def vocabulary(size: int) -> Vocabulary:
    return Vocabulary(size=size, boundary=0, unit="piece", byte_lengths=None)


def paired(source: int, target: int, same_vocabulary: bool = False) -> PairDescription:
    """Data with a vocabulary for each side, or with one for both; sources of 9 symbols and targets of 7."""
    target_vocabulary = vocabulary(target)
    return PairDescription(
        vocabulary=target_vocabulary,
        length=7,
        source=target_vocabulary if same_vocabulary else vocabulary(source),
        source_length=9,
        detokenize=SpelledNumbers(),
    )


@pytest.mark.parametrize("tokens", [FullTokenEmbeddingConfig(), FullTokenEmbeddingConfig(tied=False)])
def test_sides_of_two_vocabularies_have_symbols_of_their_own_and_nothing_is_trained_in_vain(
    tokens: TokenEmbeddingConfig,
) -> None:
    network = EncoderDecoderConfig(**SMALL, tokens=tokens).build(paired(13, 11))
    source, target = torch.randint(0, 13, (4, 9)), torch.randint(0, 11, (4, 7))
    output = network(source, target)
    network.tokens.nll(output.hidden, target).sum().backward()
    frozen = [name for name, p in network.named_parameters() if not p.requires_grad]
    idle = [name for name, p in network.named_parameters() if p.grad is None or not p.grad.any()]
    assert frozen == idle == ["source_tokens.logits.bias"]
    assert sum(p.numel() for p in network.source_tokens.parameters()) == 13 * 32 + 13  # type: ignore[union-attr]


def test_sides_of_one_vocabulary_share_their_symbols_unless_told_not_to() -> None:
    config, data = EncoderDecoderConfig(**SMALL), paired(11, 11, same_vocabulary=True)
    assert config.build(data).source_tokens is None
    assert config.override({"shared_tokens": False}).build(data).source_tokens is not None
    assert config.build(paired(11, 11)).source_tokens is not None, "as many symbols are not the same symbols"


def test_data_without_sources_are_refused() -> None:
    with pytest.raises(ConfigError, match="data: these data have no sources"):
        EncoderDecoderConfig(**SMALL).build(LanguageDescription(vocabulary=vocabulary(11), length=7))


def test_a_decoder_is_as_deep_as_it_is_told_to_be() -> None:
    config = EncoderDecoderConfig(**SMALL)
    for depth in (None, 1, 3):
        network = config.override({"decoder_depth": depth}).build(probe_data(11, 8))
        assert len(network.encoder.blocks) == 2 and len(network.decoder.blocks) == (depth or 2)  # type: ignore[arg-type]
    assert len(network.crossings()) == 3


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_positions_of_a_sequence_that_is_longer_than_any_in_training_are_new_ones(norm: str) -> None:
    config = EncoderDecoderConfig.from_dict({**SMALL, "norm": norm, "positions": "sinusoidal", "dim": 32})
    network, symbols = config.build(probe_data(11, 4)).eval(), torch.full((1, 12), 5)
    with torch.no_grad():
        encoded = network.encode(symbols).hidden
        decoded = network.decode(symbols, encoded).hidden
    for hidden in (encoded, decoded):
        assert not torch.allclose(hidden[:, :4], hidden[:, 4:8], atol=1e-4)
    learned = config.override({"positions": LearnedConfig()}).build(probe_data(11, 4))
    with pytest.raises(PositionError, match="position 11 lies beyond the 4 learned positions"):
        learned.encode(symbols)


def test_shared_layers_have_one_set_of_weights_and_a_state_each() -> None:
    mixer = AttentionConfig(memory=4)
    shared = LanguageModelConfig(dim=32, heads=4, depth=4, mixer=mixer, stack=SharedConfig(groups=2)).build(
        probe_data(11, 8)
    )
    unshared = LanguageModelConfig(dim=32, heads=4, depth=2, mixer=mixer).build(probe_data(11, 8))
    assert sum(p.numel() for p in shared.parameters()) == sum(p.numel() for p in unshared.parameters())
    assert len(shared(torch.zeros(1, 8, dtype=torch.long)).state["layers"]) == 4
    with pytest.raises(ConfigError, match="depth 4 does not divide into 3 groups"):
        LanguageModelConfig(dim=32, heads=4, depth=4, stack=SharedConfig(groups=3)).build(probe_data(11, 8))


def test_a_masked_language_model_learns_to_copy() -> None:
    """The second half repeats the first, so a symbol masked in one half stands in the other."""
    torch.manual_seed(0)
    mask, size, half = 0, 5, 3
    network = EncoderConfig(dim=32, heads=4, depth=1, positions=LearnedConfig()).build(probe_data(size, 2 * half))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(60):
        first = torch.randint(1, size, (32, half))
        text = torch.cat([first, first], dim=1)
        left_masked = torch.rand(32, half) < 0.3
        masked = torch.cat([left_masked, ~left_masked & (torch.rand(32, half) < 0.3)], dim=1)
        targets = text.masked_fill(~masked, IGNORED)
        nats = network.tokens.nll(network(text.masked_fill(masked, mask)).hidden, targets)
        loss = nats.sum() / masked.sum().clamp(min=1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.02


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_no_logits_are_computed_for_what_is_ignored(smoothing: float) -> None:
    tokens = FullTokenEmbeddingConfig().build(11, 8)
    hidden, targets = torch.randn(3, 5, 8), torch.randint(11, (3, 5))
    logit_rows: list[int] = []
    tokens.logits.register_forward_hook(lambda module, inputs, logits: logit_rows.append(logits.numel() // 11))
    losses = tokens.smoothed(hidden, targets, smoothing)
    ignored = torch.arange(5) >= torch.tensor([[5], [2], [0]])
    losses_with_ignored = tokens.smoothed(hidden, targets.masked_fill(ignored, IGNORED), smoothing)
    losses_all_ignored = tokens.smoothed(hidden, torch.full_like(targets, IGNORED), smoothing)
    assert logit_rows == [15, 7, 0] and not torch.cat(losses_all_ignored).any()
    for expected, loss in zip(losses, losses_with_ignored, strict=True):
        torch.testing.assert_close(loss, expected.masked_fill(ignored, 0.0))


def test_weights_start_from_one_deviation_where_it_is_given() -> None:
    network = LanguageModelConfig(dim=256, heads=4, depth=1, initial_std=0.02).build(probe_data(500, 8))
    initial_weights = [module.weight for module in network.modules() if isinstance(module, nn.Linear | nn.Embedding)]
    assert len(initial_weights) > 4
    for weight in initial_weights:
        assert weight.std().item() == pytest.approx(0.02, rel=0.03)


def test_weights_start_so_that_signals_keep_their_size() -> None:
    """Maps from n inputs with n^-0.5; those that are added to the residual sum smaller the more layers there are."""
    decoder = EncoderDecoderConfig(dim=256, heads=4, depth=2, decoder_depth=8).build(probe_data(500, 8)).decoder
    block = next(module for module in decoder.modules() if isinstance(module, Block))
    network = LanguageModelConfig(dim=256, heads=4, depth=2).build(probe_data(500, 8))
    expected = [
        (network.tokens.table, 256),
        (block.feedforward.widen, 256),
        (block.mixer.value, 256),
        (block.mixer.merge, 256 * 16),
        (block.cross.merge, 256 * 16),
        (block.feedforward.narrow, 1024 * 16),
    ]
    for module, inputs in expected:
        assert module.weight.std().item() == pytest.approx(inputs**-0.5, rel=0.03)


def test_extra_tokens_are_seen_and_not_given_back() -> None:
    torch.manual_seed(0)
    window = WindowConfig(window=1, global_tokens="marked")
    config = EncoderConfig(dim=8, heads=2, depth=2, mixer=window, extra_tokens=2, initial_std=0.5)
    network, symbols = config.build(probe_data(11, 16)).double(), torch.randint(0, 11, (2, 9))
    padding_mask = torch.arange(9) < torch.tensor([[9], [4]])
    before = network(symbols, padding_mask).hidden
    assert before.shape == (2, 9, 8)
    torch.testing.assert_close(before[1:, :4], network(symbols[1:, :4]).hidden, atol=1e-12, rtol=0)
    changed = symbols.clone()
    changed[0, 8] = (changed[0, 8] + 1) % 11
    assert (network(changed, padding_mask).hidden[0, 0] - before[0, 0]).abs().max() > 1e-6, (
        "distant symbols are seen through the extra tokens"
    )
    without_extra = config.override({"extra_tokens": 0}).build(probe_data(11, 16)).double()
    assert torch.equal(
        without_extra(changed, padding_mask).hidden[0, 0], without_extra(symbols, padding_mask).hidden[0, 0]
    )


def test_both_sides_of_a_pair_count_from_the_same_random_offset() -> None:
    positions = SinusoidalConfig(restart="document", offset=50)
    network = EncoderDecoderConfig(**SMALL, positions=positions).build(probe_data(11, 8)).train()
    first_positions: list[Tensor] = []
    for stack in (network.encoder, network.decoder):
        assert stack.entry.positions is not None
        stack.entry.positions.register_forward_pre_hook(lambda module, inputs: first_positions.append(inputs[1][:, 0]))
    symbols = torch.randint(11, (32, 8))
    network(symbols, symbols)
    assert torch.equal(first_positions[0], first_positions[-1]) and len(first_positions[0].unique()) > 8
    network.eval()(symbols, symbols)
    assert not first_positions[-1].any()
