"""The weights of a network as those of a smaller one, whose layers share weights or whose embeddings are factorised."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from lit_transformers.config import ConfigError, field_types
from lit_transformers.encodings.positions import LearnedConfig
from lit_transformers.models import ModelConfig
from lit_transformers.models.tokens import FullTokenEmbeddingConfig
from lit_transformers.runs.sources import Share, StartConfig
from lit_transformers.runs.starting_weights import StartingWeights, of_layers, own_names
from lit_transformers.stacks import SequentialConfig
from lit_transformers.stacks.shared import SharedConfig
from lit_transformers.stacks.universal import UniversalConfig
from lit_transformers.tasks import Task

__all__ = ["factorised", "model_of_start", "share_conflicts", "shared", "smaller_weights"]

LAYER = re.compile(r"(network\..*?)blocks\.(\d+)\.(.*)")
"""The name of a tensor of a layer, with the number of the layer."""
BLOCK = re.compile(r"(network\..*?)block\.(.*)")
"""The name of a tensor of the one block of a universal stack."""
ENTRY = "network.stack.entry."
TABLE = "network.tokens.table.weight"
TABLES = (TABLE, f"{ENTRY}positions.weight", "network.segments.weight", "network.extra.weight", "network.query.weight")
"""The tensors whose rows are vectors of the sum of embeddings."""
ANEW = ("network.transform.", "network.tokens.logits.weight")
"""The beginnings of the names of tensors that predict symbols from another width than the embeddings had."""


def share_conflicts(start: StartConfig, model: ModelConfig) -> Iterator[str]:
    """Yields why a network has no place for the shared layers or the factorised embeddings of its start."""
    if start.share is not None and not isinstance(model.stack, SharedConfig | UniversalConfig):
        reason = f"start.share computes weights that layers share, and model.stack is {model.stack.kind}"
        yield f"{reason}; set model.stack to shared or universal, or drop start.share"
    if start.factorise is None:
        return
    if embedding_dim(model) is None:
        reason = "start.factorise computes embeddings that are narrower than the layers, and model has none"
        yield f"{reason}; set model.embedding_dim of an encoder, or drop start.factorise"
    elif model.positions is not None and not isinstance(model.positions, LearnedConfig):
        yield f"{model.positions.kind} positions have no table to factorise; drop start.factorise"
    elif not isinstance(model.tokens, FullTokenEmbeddingConfig):
        yield f"{model.tokens.kind} token embeddings are no single table to factorise; drop start.factorise"


def model_of_start(there: ModelConfig, start: StartConfig, here: ModelConfig) -> ModelConfig:
    """Returns the config of the source's network after ``start.layers``, ``start.share`` and ``start.factorise``.

    here: the config of the run's network. Raises ConfigError if the source's layers share weights, or its embeddings
    are narrow already.
    """
    if start.layers is not None:
        there = there.override({"depth": len(start.layers)})
    if start.share is not None:
        if not isinstance(there.stack, SequentialConfig):
            reason = f"the layers of the source are a {there.stack.kind} stack already"
            raise ConfigError(f"{reason}; drop it, or name a source whose stack is sequential", "start.share")
        there = there.override({"stack": here.stack})
    if start.factorise is not None:
        if "embedding_dim" not in field_types(type(there)) or embedding_dim(there) is not None:
            reason = "the source has no embeddings as wide as its layers"
            raise ConfigError(f"{reason}; drop it, or name another source", "start.factorise")
        names = ("embedding_dim", "transform", "transform_bias")
        there = there.override({name: here.get(name) for name in names})
    return there


def embedding_dim(model: ModelConfig) -> int | None:
    """Returns the channels of embeddings that are narrower than the layers; None if they are as wide."""
    dim: int | None = dict(model.leaves()).get("embedding_dim")
    return dim


def smaller_weights(weights: StartingWeights, start: StartConfig, task: Task) -> StartingWeights:
    """Returns the weights of the source of a task's network as those of its smaller network. Raises ConfigError as
    ``of_layers``, ``model_of_start``, ``shared`` and ``factorised`` do."""
    weights = weights._replace(tensors=task.current_names(weights.tensors))
    if start.layers is not None:
        weights = of_layers(weights, start.layers)
    model, tensors = model_of_start(weights.model, start, task.model_config), weights.tensors
    if start.share is not None:
        tensors = shared(tensors, own_names(task), start.share)
    if start.factorise is not None:
        tensors = factorised(tensors, model)
    return weights._replace(model=model, tensors=tensors)


def shared(tensors: Mapping[str, Tensor], names: Mapping[str, str], share: Share) -> dict[str, Tensor]:
    """Returns the weights of a network with shared layers, given those of a network whose layers share none. Each
    tensor that layers share is computed from the tensors of these layers, and the others remain.

    names: the first name of the tensor of each name, in the task with shared layers. share: mean of the layers; first:
    of the first layer of each group; last: of its last one. Raises ConfigError if layers of a group differ in shape.
    """
    numbers = sorted({int(match[2]) for name in tensors if (match := LAYER.fullmatch(name))})
    groups: dict[str, list[str]] = {}
    for name, first in names.items():
        if LAYER.fullmatch(name):
            groups.setdefault(first, []).append(name)
        elif match := BLOCK.fullmatch(name):
            groups[name] = [f"{match[1]}blocks.{number}.{match[2]}" for number in numbers]
    result = {name: tensor for name, tensor in tensors.items() if not LAYER.fullmatch(name)}
    for first, members in groups.items():
        parts = [tensors[name] for name in members if name in tensors]
        if len({part.shape for part in parts}) > 1:
            reason = f"{first} stands for tensors of several shapes in the source, of which there is no mean"
            raise ConfigError(f"{reason}; share other layers", "start.share")
        if parts:
            result[first] = combined(parts, share)
    return result


def combined(parts: Sequence[Float[Tensor, "*s"]], share: Share) -> Float[Tensor, "*s"]:
    """Returns the mean of tensors, or one of them."""
    if share == "mean":
        return torch.stack([part.double() for part in parts]).mean(dim=0).to(parts[0].dtype)
    return parts[0 if share == "first" else -1]


def factorised(tensors: Mapping[str, Tensor], model: ModelConfig) -> dict[str, Tensor]:
    """Returns the weights of a network with narrow embeddings and a linear map (arXiv:1909.11942, section 3.1), given
    those of a network with wide ones. model: the config of the network with narrow embeddings.

    The rows A (n, d) of the tables of symbols, positions and segments become A V, and the map V^T, for the leading
    right singular vectors V (d, e) of A: no factors of this size are closer to A. With ``embedding_norm``, the map
    comes after the norm. It has the gain and bias of the wide norm, and the norm has none. A is centred, and e - 1
    singular vectors are kept, so that vectors of e channels have the mean 0 and the variance of the wide ones. With
    e = d, both networks compute the same. The tensors that predict symbols start anew. Raises ConfigError for
    embeddings wider than the layers.
    """
    dim, width, has_norm = model.dim, model.get("embedding_dim"), model.get("embedding_norm")
    if width > dim:
        raise ConfigError(
            f"{width} channels are more than the {dim} of the source; set it lower", "model.embedding_dim"
        )
    result = {name: tensor for name, tensor in tensors.items() if not name.startswith(ANEW)}
    scale = dim**0.5 if model.tokens.scaled else 1.0
    rows = {name: tensors[name].double() * (scale if name == TABLE else 1.0) for name in TABLES if name in tensors}
    gain = torch.ones(dim, dtype=torch.float64)
    if has_norm:
        rows = {name: vectors - vectors.mean(dim=-1, keepdim=True) for name, vectors in rows.items()}
        gain = tensors[f"{ENTRY}norm.weight"].double()
    joined = torch.cat([vectors.reshape(-1, dim) for vectors in rows.values()])
    count = width - 1 if has_norm else width
    directions = torch.linalg.svd(joined, full_matrices=False).Vh[:count].mT
    if directions.size(1) < count:  # fewer rows than channels
        directions = torch.nn.functional.pad(directions, (0, count - directions.size(1)))
    shrink, bias = 1.0, torch.zeros(dim)
    if has_norm:
        directions, shrink = directions @ without_mean(width), (width / dim) ** 0.5
        bias = tensors[f"{ENTRY}norm.bias"]
        result |= {f"{ENTRY}norm.weight": torch.ones(width), f"{ENTRY}norm.bias": torch.zeros(width)}
    result[f"{ENTRY}widen.bias"] = bias
    own_scale = width**0.5 if model.tokens.scaled else 1.0
    for name, vectors in rows.items():
        narrow = shrink * (vectors @ directions) / (own_scale if name == TABLE else 1.0)
        result[name] = narrow.to(tensors[name].dtype)
    result[f"{ENTRY}widen.weight"] = (gain[:, None] * directions / shrink).float()
    return result


def without_mean(width: int) -> Float[Tensor, "m e"]:
    """Returns e - 1 orthonormal vectors of e channels whose mean is zero (Helmert's, in float64)."""
    rows = torch.arange(1, width, dtype=torch.float64)[:, None]
    columns = torch.arange(width)
    vectors = (columns < rows).double() - rows * (columns == rows).double()
    return vectors / (rows * (rows + 1)).sqrt()
