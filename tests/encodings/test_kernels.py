"""The kernel of torch that computes attention is noted, and can be fixed."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lit_transformers.attention.executors import Inputs, attend
from lit_transformers.attention.kernels import attention_kernel, sdpa, used_kernels
from lit_transformers.attention.patterns import Band
from lit_transformers.config import ConfigError


class CausalSelfAttention(nn.Module):
    """Causal attention of a row to itself, as the library's mixers compute it."""

    def forward(self, x: Tensor) -> Tensor:
        return attend(Band(None, 0), Inputs(x, x, x, None), scale=0.5)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_the_kernel_of_a_call_is_noted_once(is_compiled: bool) -> None:
    attention, x = CausalSelfAttention(), torch.randn(2, 2, 8, 4, requires_grad=True)
    torch.compiler.reset()
    if is_compiled:
        attention.compile(backend="aot_eager", fullgraph=True)
    for backend, name in ((SDPBackend.FLASH_ATTENTION, "flash"), (SDPBackend.MATH, "math")):
        torch.compiler.reset()
        with used_kernels() as used, sdpa_kernel(backend):
            attention(x).sum().backward()
            assert used == {name}
            used.clear()
            attention(x)
            assert not used


def test_attention_in_blocks_by_the_kernel_of_a_cpu_is_noted() -> None:
    x = torch.randn(1, 1, 600, 8)
    with used_kernels() as used:
        attend(Band(20, 0), Inputs(x, x, x, None), scale=0.5)
    assert used == {"flash"}


def test_only_the_fixed_kernel_runs_and_the_others_are_allowed_again() -> None:
    x = torch.randn(1, 1, 8, 4)
    with used_kernels() as used:
        with attention_kernel("math"):
            attend(Band(None, 0), Inputs(x, x, x, None), scale=0.5)
        assert used == {"math"}
    with used_kernels() as used:
        attend(Band(None, 0), Inputs(x, x, x, None), scale=0.5)
    assert used == {"flash"}


def test_a_fixed_kernel_that_does_not_support_a_call_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    x = torch.randn(1, 1, 8, 4)
    with (
        attention_kernel("cudnn"),
        pytest.raises(ConfigError, match=r"training\.attention_kernel: cudnn does not support this attention on a cpu"),
    ):
        sdpa(x, x, x, None, 0.0, False, 1.0)
    with (
        pytest.raises(ConfigError, match="cudnn does not support this attention, and torch's warnings say why"),
        attention_kernel("cudnn"),
    ):
        nn.functional.scaled_dot_product_attention(x, x, x)


def test_a_refusal_has_the_reason_that_torch_gives_for_the_fixed_kernel_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch warns on CUDA, of all kernels in turn."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def refuse(*arguments: Any, **options: Any) -> Tensor:
        for kernel, reason in (
            ("Memory efficient kernel", "It has been runtime disabled."),
            ("cuDNN attention kernel", "Expected dtype Half. Got float."),
            ("Flash attention kernel", "It has been runtime disabled."),
        ):
            for text in (f"{kernel} not used because:", reason):
                warnings.warn(f"{text} (Triggered internally at sdp_utils.cpp:986.)", stacklevel=1)
        raise RuntimeError("No available kernel. Aborting execution.")

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", refuse)
    x = torch.randn(1, 1, 8, 4)
    with (
        warnings.catch_warnings(action="ignore"),
        attention_kernel("cudnn"),
        pytest.raises(ConfigError, match=r"cudnn .* on a cpu: Expected dtype Half\. Got float; set it to auto"),
    ):
        sdpa(x, x, x, None, 0.0, False, 1.0)


def test_a_network_that_was_trained_with_a_kernel_of_cuda_is_read_without() -> None:
    x = torch.randn(1, 1, 8, 4)
    with attention_kernel("cudnn"):
        assert sdpa(x, x, x, None, 0.0, False, 1.0).shape == x.shape
