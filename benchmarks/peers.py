"""Attention layers of other libraries, unchanged: a layer without an output projection is not given one. Bare kernels
are placed between projections like those of our layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.layer_timing import DIM, HEADS, Step, Work, stepper
from lit_transformers.attention.flex import compiled
from lit_transformers.mixers.feature_maps import elu_plus_one

WINDOW, BLOCK, CHUNK, ROUNDS, RANK, KEPT = 128, 64, 64, 4, 128, 8


def sequence(work: Work, device: torch.device) -> Tensor:
    return torch.randn(work.rows, work.length, DIM, device=device, requires_grad=True)


def longformer(work: Work, device: torch.device) -> Step:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = LongformerConfig(
        hidden_size=DIM, num_attention_heads=HEADS, attention_window=[2 * WINDOW], attention_probs_dropout_prob=0.0
    )
    layer: Any = LongformerSelfAttention(config, 0).to(device)  # type: ignore[no-untyped-call]
    x = sequence(work, device)
    attention_mask = torch.zeros(work.rows, work.length, device=device)
    no_tokens = attention_mask > 0

    def forward() -> Tensor:
        return layer(
            x, attention_mask, is_index_masked=no_tokens, is_index_global_attn=no_tokens, is_global_attn=False
        )[0]

    return stepper(layer, x, forward)


def local_attention(work: Work, device: torch.device) -> Step:
    from local_attention.transformer import LocalMHA

    layer = LocalMHA(dim=DIM, heads=HEADS, dim_head=DIM // HEADS, window_size=WINDOW, causal=True).to(device)
    x = sequence(work, device)
    return stepper(layer, x, lambda: layer(x))


def big_bird(work: Work, device: torch.device) -> Step:
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

    config = BigBirdConfig(
        hidden_size=DIM, num_attention_heads=HEADS, block_size=BLOCK, num_random_blocks=3,
        max_position_embeddings=work.length, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    layer: Any = BigBirdBlockSparseAttention(config, seed=0).to(device)
    x = sequence(work, device)
    ones = torch.ones(work.rows, work.length, device=device)
    blocked, band, from_mask, to_mask = BigBirdModel.create_masks_for_block_sparse_attn(ones, BLOCK)

    def forward() -> Tensor:
        return layer(x, band, from_mask, to_mask, blocked, blocked)[0]

    return stepper(layer, x, forward)


def hf_reformer(work: Work, device: torch.device) -> Step:
    from transformers import ReformerConfig
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    config = ReformerConfig(
        hidden_size=DIM, num_attention_heads=HEADS, attention_head_size=DIM // HEADS, lsh_attn_chunk_length=CHUNK,
        num_hashes=ROUNDS, is_decoder=True, max_position_embeddings=work.length, axial_pos_embds=False,
        num_buckets=2 * work.length // CHUNK, lsh_attention_probs_dropout_prob=0.0, hash_seed=0,
    )  # fmt: skip
    layer: Any = LSHSelfAttention(config).to(device)
    x = sequence(work, device)
    return stepper(layer, x, lambda: layer(x)[0])


def reformer_pytorch(work: Work, device: torch.device) -> Step:
    from reformer_pytorch import LSHSelfAttention

    layer = LSHSelfAttention(dim=DIM, heads=HEADS, bucket_size=CHUNK, n_hashes=ROUNDS, causal=True).to(device)
    x = sequence(work, device)
    return stepper(layer, x, lambda: layer(x))


def linformer(work: Work, device: torch.device) -> Step:
    from linformer import LinformerSelfAttention

    layer = LinformerSelfAttention(dim=DIM, seq_len=work.length, heads=HEADS, k=RANK).to(device)
    x = sequence(work, device)
    return stepper(layer, x, lambda: layer(x))


def top_k(work: Work, device: torch.device) -> Step:
    from x_transformers.x_transformers import Attention

    layer = Attention(dim=DIM, heads=HEADS, dim_head=DIM // HEADS, causal=True, sparse_topk=KEPT).to(device)
    x = sequence(work, device)
    return stepper(layer, x, lambda: layer(x)[0])


def projected(work: Work, device: torch.device, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Step:
    """Returns a step of a layer that projects to heads (b, h, t, k), applies ``attend``, and projects back."""
    layer = nn.ModuleList(nn.Linear(DIM, DIM, bias=False) for _ in range(4)).to(device)
    query, key, value, merge = layer
    x = sequence(work, device)

    def forward() -> Tensor:
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (query, key, value))
        return merge(attend(q, k, v).transpose(1, 2).flatten(2))

    return stepper(layer, x, forward)


def entmax(function: str, work: Work, device: torch.device) -> Step:
    """Causal attention by one of the functions of the package entmax, which takes the whole matrix of scores; alpha is
    1.5."""
    import entmax

    hidden = torch.ones(work.length, work.length, dtype=torch.bool, device=device).triu(1)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = (q * q.size(-1) ** -0.5 @ k.mT).masked_fill(hidden, float("-inf"))
        weights: Tensor = getattr(entmax, function)(logits, dim=-1)
        return weights @ v

    return projected(work, device, attend)


def running_sums(work: Work, device: torch.device) -> Step:
    """Causal linear attention as in its equations: sums of outer products at every position. No package builds."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = F.elu(q) + 1, F.elu(k) + 1
        sums = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(dim=2)
        return (q.unsqueeze(-2) @ sums).squeeze(-2) / (q * k.cumsum(dim=2)).sum(-1, keepdim=True)

    return projected(work, device, attend)


def flash_linear_attention(work: Work, device: torch.device) -> Step:
    """Causal linear attention by the Triton kernels of flash-linear-attention, which take (b, t, h, k)."""
    from fla.ops.linear_attn import chunk_linear_attn

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in (elu_plus_one(q), elu_plus_one(k), v))
        y, _ = chunk_linear_attn(q.to(v.dtype), k.to(v.dtype), v, scale=1.0, normalize=True)
        return y.transpose(1, 2)

    return projected(work, device, attend)


def fused(backend: str, work: Work, device: torch.device) -> Step:
    """Plain causal attention by one named kernel of torch. Raises RuntimeError where that kernel is not available."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return projected(work, device, attend)


def flex(window: int | None, work: Work, device: torch.device) -> Step:
    """Causal FlexAttention over all keys, or over the last ``window`` keys. Raises RuntimeError on a CPU."""
    if device.type != "cuda":
        raise RuntimeError("FlexAttention trains on CUDA alone")

    def is_visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return j <= i if window is None else (j <= i) & (i - j <= window)

    blocks = compiled(create_block_mask)(is_visible, None, None, work.length, work.length, device=str(device))
    return projected(work, device, lambda q, k, v: compiled(flex_attention)(q, k, v, block_mask=blocks))
