"""Feature maps phi of linear attention: phi(q) . phi(k) replaces exp(q . k) and is never negative."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

Features = Literal["elu", "relu", "softplus", "polynomial"]


class FeatureMap(NamedTuple):
    """apply: maps the channels of a head to features; channels: the number of features for a number of channels."""

    apply: Callable[[Float[Tensor, "*b k"]], Float[Tensor, "*b f"]]
    channels: Callable[[int], int]


def elu_plus_one(x: Float[Tensor, "*b k"]) -> Float[Tensor, "*b k"]:
    """elu(x) + 1 (arXiv:2006.16236, equation 7), written as x + 1 above zero and exp(x) below.

    In the sum elu(x) + 1 float32 rounds everything below -17 to zero.
    """
    positive = F.relu(x)
    return positive + (x - positive).exp()


def polynomial(x: Float[Tensor, "*b k"]) -> Float[Tensor, "*b f"]:
    """All products of two channels, so that phi(q) . phi(k) = (q . k)^2 (arXiv:2006.16236, section 3.2.1).

    The paper has k^2 of them; here x_i x_j and x_j x_i are one feature, times sqrt(2): k (k + 1) / 2, the same kernel.
    """
    i, j = torch.triu_indices(x.size(-1), x.size(-1), device=x.device)
    return x[..., i] * x[..., j] * x.new_full(i.shape, 2**0.5).masked_fill(i == j, 1.0)


def as_many(channels: int) -> int:
    """Returns the number of features where each channel gives one."""
    return channels


def pairs(channels: int) -> int:
    """Returns the number of features where each pair of channels gives one, a channel with itself included."""
    return channels * (channels + 1) // 2


FEATURE_MAPS: Mapping[Features, FeatureMap] = {
    "elu": FeatureMap(elu_plus_one, as_many),
    "relu": FeatureMap(F.relu, as_many),
    "softplus": FeatureMap(F.softplus, as_many),
    "polynomial": FeatureMap(polynomial, pairs),
}
