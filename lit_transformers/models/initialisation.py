"""Initialises weights so that signals keep their size on the way through a network of any depth, and parts start alike.

Networks of one seed have the same starting weights wherever their parts have the same names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from lit_transformers.encodings.positions import Learned
from lit_transformers.mixer import OutputProjection

__all__ = ["initialise_normal", "initialise_scaled"]


@runtime_checkable
class HasRandomWeights(Protocol):
    """A module that draws its own weights in ``reset_parameters``, as modules of torch do."""

    def reset_parameters(self) -> None: ...


def initialise_scaled(network: nn.Module, dim: int, embedding_factor: float) -> None:
    """Fills weights from normal distributions with a variance that depends on each part's role, and biases with zeros.

    A linear map of n inputs has n^-0.5 as its standard deviation, which keeps the size of its inputs. An output
    projection has (2 depth n)^-0.5, so that all residual branches together start about as large as the vectors that
    they are added to (arXiv:1908.11365, section 4; GPT-2 does the same): with n^-0.5 post-norm translators lose up to a
    quarter of their BLEU, or diverge. Embeddings have dim^-0.5, with which symbols scaled by dim^0.5 are as large as
    the sinusoids that they are added to.
    embedding_factor: the factor by which embeddings are multiplied when they are read. Learned positions are added to
    symbols and start as large as these: with scaled symbols and positions of 0.02 a small masked model did not learn to
    copy.
    """

    def std(module: nn.Linear | nn.Embedding) -> float:
        if isinstance(module, nn.Embedding):
            return float(dim**-0.5)
        inputs = module.in_features * (module.sublayers if isinstance(module, OutputProjection) else 1)
        return float(inputs**-0.5)

    initialise(network, std, dim**-0.5 * embedding_factor)


def initialise_normal(network: nn.Module, std: float, embedding_factor: float) -> None:
    """Fills all weights from one normal distribution, as the scripts of GPT-2 and Transformer-XL do with 0.02."""
    initialise(network, lambda module: std, std * embedding_factor)


def initialise(network: nn.Module, std: Callable[[nn.Linear | nn.Embedding], float], positions_std: float) -> None:
    """Draws the weights of each module from a stream of random numbers that its name and torch's seed determine.

    Linear maps and embeddings have the standard deviation ``std(module)``, learned positions ``positions_std``, and
    biases of linear maps are zero. A module with other random weights draws them in ``reset_parameters``. The draws of
    a module do not depend on the other modules, so arms of a study that are trained from one seed start from the same
    weights in all modules that they share, and their differences vary less between seeds.
    """
    seed = torch.initial_seed()
    with torch.random.fork_rng(devices=[]):
        for name, module in network.named_modules():
            torch.default_generator.manual_seed(stream(seed, name))
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=std(module))
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, Learned):
                nn.init.normal_(module.weight, std=positions_std)
            elif isinstance(module, HasRandomWeights):
                module.reset_parameters()


def stream(seed: int, name: str) -> int:
    """Returns the seed of the random numbers that a module of this name draws."""
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "big")
