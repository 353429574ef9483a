"""A second stream of queries reads the vectors of the first one, through the same weights, in an order that data
give."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from contract_cases import DIM, HEADS, MIXER_CASES, POSITION_CASES, STACK_CASES, Case, mixers, name, noise, randomised
from torch import Tensor, nn
from toy_two_streams import PermutedConfig

from lit_transformers.attention.patterns import Ordered
from lit_transformers.config import ConfigError
from lit_transformers.encodings.positions import PositionsConfig
from lit_transformers.gates import gates
from lit_transformers.mixer import Context, MixerConfig
from lit_transformers.mixers import AttentionConfig
from lit_transformers.mixers.attention import Attention
from lit_transformers.models import LanguageModelConfig
from lit_transformers.models.model import ModelConfig
from lit_transformers.stacks import Stack, StackConfig
from lit_transformers.stacks.feedforward import SeparableConvolutionConfig

PLACES = torch.tensor([[3, 0, 4, 1, 2, 5], [5, 4, 3, 2, 1, 0]])
"""The places of six tokens in the orders of two rows."""


def stack_of(mode: str = "permuted", **fields: object) -> Stack:
    config = LanguageModelConfig(dim=DIM, heads=HEADS, depth=3, **fields)  # type: ignore[arg-type]
    torch.manual_seed(0)
    return randomised(config.build_stack(mode, 300).double()).eval()


def everywhere(padding_mask: Tensor | None = None, length: int = 6) -> Context:
    return Context(torch.arange(length).expand(2, -1), causal=False, padding_mask=padding_mask)


@mixers("permuted")
def test_a_query_sees_what_is_before_it_in_its_row_and_content_itself_too(case: Case) -> None:
    stack = stack_of(mixer=case.config)
    x, queries = noise(2, 6, DIM).requires_grad_(), noise(2, 6, DIM).requires_grad_()
    output = stack.forward_with_queries(x, queries, everywhere(), PLACES)
    for t in range(6):
        before = PLACES[:, t, None] > PLACES
        own = torch.arange(6).expand(2, -1) == t
        content = torch.autograd.grad(output.content[:, t].square().sum(), x, retain_graph=True)[0]
        assert torch.equal(content.any(dim=-1), before | own)
        of_content, of_queries = torch.autograd.grad(
            output.queries[:, t].square().sum(), (x, queries), retain_graph=True, materialize_grads=True
        )
        assert torch.equal(of_content.any(dim=-1), before)
        assert torch.equal(of_queries.any(dim=-1), own)
        assert of_content.isfinite().all()


def attended(mixer: Attention, queries: Tensor, content: Tensor, limits: Tensor) -> Tensor:
    """Plain attention, query by query: each sees the content of places below its limit."""
    outputs = torch.zeros_like(queries)
    for b, t in product(range(2), range(6)):
        visible = content[b, PLACES[b] < limits[b, t]]
        q, keys, values = (
            part(z).unflatten(-1, (HEADS, -1))
            for part, z in ((mixer.query, queries[b, t]), (mixer.key, visible), (mixer.value, visible))
        )
        weights = (torch.einsum("hk,shk->hs", q, keys) * mixer.scale).softmax(dim=-1)
        outputs[b, t] = mixer.merge(torch.einsum("hs,shk->hk", weights, values).flatten())
    return outputs


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_query_stream_is_that_of_its_equations(norm: str) -> None:
    """h += Attn(h, h of places <= its own) and g += Attn(g, h of places < its own) (arXiv:1906.08237, section 2.3)."""
    stack, h, g = stack_of(norm=norm), noise(2, 6, DIM), noise(2, 6, DIM)
    output, ctx = stack.forward_with_queries(h, g, everywhere(), PLACES), everywhere()
    for block in stack.steps():
        before, after = (nn.Identity(), block.mixer_norm) if norm == "post" else (block.mixer_norm, nn.Identity())
        content = before(h)
        h, g = (
            after(h + attended(block.mixer, content, content, PLACES + 1)),
            after(g + attended(block.mixer, before(g), content, PLACES)),
        )
        before, after = (before, block.feedforward_norm) if norm == "post" else (block.feedforward_norm, after)
        h, g = (after(z + block.feedforward(before(z), ctx).y) for z in (h, g))
    torch.testing.assert_close(output.queries, g, rtol=0, atol=1e-10)
    torch.testing.assert_close(output.content, h, rtol=0, atol=1e-10)


def test_both_streams_read_all_of_a_source() -> None:
    config = LanguageModelConfig(dim=DIM, heads=HEADS, depth=1)
    stack = randomised(config.build_stack("permuted", 6, cross=AttentionConfig()).double()).eval()
    source = noise(2, 4, DIM).requires_grad_()
    output = stack.forward_with_queries(
        noise(2, 6, DIM), noise(2, 6, DIM), everywhere()._replace(source=source), PLACES
    )
    for stream in (output.content, output.queries):
        (gradient,) = torch.autograd.grad(stream[:, 1].square().sum(), source, retain_graph=True)
        assert gradient.any(dim=-1).all()


@pytest.mark.parametrize(("positions", "length"), [(None, 300), *((positions, 40) for positions in POSITION_CASES)])
def test_in_the_order_of_reading_content_is_the_ordinary_causal_pass(
    positions: PositionsConfig | None, length: int
) -> None:
    """Also in rows of more than a block of queries."""
    x, places, ctx = noise(2, length, DIM), torch.arange(length).expand(2, -1), everywhere(length=length)
    permuted, causal = stack_of(positions=positions), stack_of("causal", positions=positions)
    output = permuted.forward_with_queries(x, noise(2, length, DIM), ctx, places)
    torch.testing.assert_close(output.content, causal(x, ctx._replace(causal=True)).y, rtol=0, atol=1e-10)


def test_content_is_that_of_a_pass_without_queries() -> None:
    stack, x = stack_of(), noise(2, 6, DIM)
    alone = stack(x, everywhere()._replace(pattern=Ordered(PLACES, itself=True))).y
    assert torch.equal(stack.forward_with_queries(x, noise(2, 6, DIM), everywhere(), PLACES).content, alone)


def test_where_no_pattern_is_given_every_token_sees_every_other() -> None:
    x = noise(2, 6, DIM)
    assert torch.equal(stack_of()(x, everywhere()).y, stack_of("bidirectional")(x, everywhere()).y)


def test_padding_is_seen_by_neither_stream() -> None:
    stack, x, queries = stack_of(), noise(2, 6, DIM), noise(2, 6, DIM)
    padding_mask = torch.arange(6) < torch.tensor([[4], [6]])
    changed = torch.where(padding_mask[..., None], x, noise(2, 6, DIM))
    first, second = (stack.forward_with_queries(z, queries, everywhere(padding_mask), PLACES) for z in (x, changed))
    assert torch.equal(first.content[padding_mask], second.content[padding_mask])
    assert torch.equal(first.queries[padding_mask], second.queries[padding_mask])
    assert first.queries.isfinite().all()


REFUSING = [config for config in MIXER_CASES if "permuted" not in config.promises().modes]


@pytest.mark.parametrize("config", REFUSING, ids=name)
def test_a_mixer_that_cannot_obey_an_order_refuses_by_its_name(config: MixerConfig) -> None:
    with pytest.raises(ConfigError, match=f"{config.mixer_name} cannot be permuted"):
        config.require("permuted")


def test_what_reads_neighbours_whatever_the_order_is_refused() -> None:
    with pytest.raises(ConfigError, match="feedforward: a convolution reads neighbours"):
        stack_of(feedforward=SeparableConvolutionConfig())


def test_a_block_that_was_not_built_for_patterns_obeys_none_silently() -> None:
    ctx = everywhere()._replace(pattern=Ordered(PLACES, itself=True))
    with pytest.raises(ValueError, match="this block of Attention obeys no pattern: build it as permuted"):
        stack_of("bidirectional")(noise(2, 6, DIM), ctx)


@pytest.mark.parametrize(
    "config", [stack for stack in STACK_CASES if stack.kind in ("universal", "reversible")], ids=name
)
def test_a_stack_without_a_place_for_queries_refuses_them(config: StackConfig) -> None:
    x = noise(2, 6, DIM)
    with pytest.raises(ConfigError, match=r"stack: a (Universal|Reversible) stack reads no second stream"):
        stack_of(stack=config).forward_with_queries(x, x, everywhere(), PLACES)


MODEL = PermutedConfig(dim=16, heads=2, depth=2)


def failed(config: ModelConfig) -> list[str]:
    return [gate.name for gate in gates.check(config) if not gate.passed]


def test_a_family_with_two_streams_passes_its_gates_and_a_leak_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failed(MODEL) == []
    monkeypatch.setattr(Ordered, "sees", lambda self, b, h, i, j: self.places[b, j] <= self.places[b, i])
    assert failed(MODEL) == ["queries see no token of theirs"]
