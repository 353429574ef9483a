"""Quantisation of activations: the inputs of linear maps have few levels in every forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from pydantic import Field
from torch import Tensor, nn

from lit_transformers.compression.compression import Compression, CompressionConfig, matrices_of
from lit_transformers.config import ConfigError, Positive
from lit_transformers.maps import LinearMap
from lit_transformers.models.roles import EMBEDDINGS
from lit_transformers.quantisation import Execution, InputQuantiser, has_int8_product, int8_levels, most_level
from lit_transformers.training.groups import roles_of
from lit_transformers.training.ranks import from_all_ranks

__all__ = ["QuantiseActivationsConfig"]


@final
class QuantiseActivationsConfig(CompressionConfig, kind="quantise_activations"):
    """Replaces the inputs of the linear maps of sublayers, after training, by the nearest of 2^bits - 1 uniform levels
    around 0 in every forward pass (Zafrir et al. 2019, arXiv:1910.06188, equation 1). Put it last.

    parameters: the roles of the matrices whose inputs are quantised; embedding tables have none. bits: of an input.
    scales: ``dynamic``, from the inputs of each pass; or ``static``, from the largest magnitude in batches of training,
    kept in the checkpoint. by: the inputs that share a dynamic scale: each vector (``row``), so that a text has the
    same numbers alone and in any batch; or the ``tensor`` of a pass, which static scales are of. batches: of training
    text, for static scales; for dynamic ones, the first shows whether all maps are called. execution: ``simulated``, in
    float32; or ``int8``: the products of codes of 8 bits, by the instructions of the processor. Both differ
    by rounding alone, which later layers amplify to a part of the error of quantisation. An evaluation may set another.
    """

    changes_passes: ClassVar[bool] = True

    parameters: tuple[str, ...] = ("layers",)
    bits: Annotated[int, Field(ge=2, le=8)] = 8
    scales: Literal["dynamic", "static"] = "dynamic"
    by: Literal["row", "tensor"] = "row"
    batches: Positive = 16
    execution: Execution = "simulated"

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        if self.scales == "static" and self.by == "row":
            yield "static scales know no row of a later text; set by: tensor, or scales: dynamic"
        if self.execution == "int8" and self.bits != 8:
            yield f"the int8 product reads 8 bits, and bits is {self.bits}; set bits: 8, or execution: simulated"

    def build(self, task: nn.Module) -> QuantiseActivations:
        self.require_execution()
        return QuantiseActivations(self, self.maps_of(task))

    def maps_of(self, task: nn.Module) -> dict[str, LinearMap]:
        """Returns the linear maps whose inputs are quantised, by name. Raises ConfigError for a matrix that is of
        none."""
        maps = {id(m.weight): (name, m) for name, m in task.named_modules() if isinstance(m, LinearMap)}
        tables, named = roles_of(task).get(EMBEDDINGS, frozenset()), dict[str, LinearMap]()
        for name, matrix in matrices_of(task, self.parameters).items():
            if id(matrix) not in maps:
                if name in tables:
                    continue
                reason = f"{name} is no linear map of a sublayer, whose inputs could be quantised"
                raise ConfigError(f"{reason}; name others, such as [feedforwards]", "parameters")
            path, linear = maps[id(matrix)]
            if linear.adapter is not None:
                reason = f"{path} has an adapter, which reads the same inputs"
                raise ConfigError(f"{reason}; name other parameters, or train without adapters", "parameters")
            named[path] = linear
        if not named:
            raise ConfigError(f"{', '.join(self.parameters)} has no linear map; name others", "parameters")
        return named

    def require_execution(self) -> None:
        """Raises ConfigError where this processor has no int8 product."""
        if self.execution == "int8" and not has_int8_product():
            raise ConfigError("int8 needs a processor with AVX-512 VNNI; set it to simulated", "execution")

    def prepare(self, task: nn.Module) -> None:
        self.require_execution()
        for linear in self.maps_of(task).values():
            if linear.quantiser is not None:
                linear.quantiser.execution = self.execution

    def conflict_after(self, earlier: CompressionConfig) -> str | None:
        return "inputs that are quantised twice keep the error of both; drop one" if earlier.kind == self.kind else None

    def conflict_before(self, later: CompressionConfig) -> str | None:
        return f"inputs are quantised for the weights that they multiply; put {self.kind} last"


@final
class QuantiseActivations(Compression):
    """Quantises the inputs of linear maps from the end of training on. largest: the largest magnitude of the inputs of
    each map that was called in calibration."""

    def __init__(self, config: QuantiseActivationsConfig, maps: Mapping[str, LinearMap]) -> None:
        self.config, self.maps = config, maps
        self.calibration_batches = config.batches if config.scales == "static" else 1
        self.largest: dict[str, float] = {}

    def calibrate(self, task: Any, batches: Iterable[Any]) -> None:
        largest: dict[str, Tensor] = {}
        with torch.no_grad(), ExitStack() as stack:
            for name, linear in self.maps.items():

                def note(module: nn.Module, inputs: tuple[Tensor, ...], name: str = name) -> None:
                    own = inputs[0].abs().amax()
                    largest[name] = torch.maximum(largest.get(name, own), own)

                stack.callback(linear.register_forward_pre_hook(note).remove)
            for batch in batches:
                task.training_step(batch, 0)
        of_ranks = from_all_ranks({name: float(own) for name, own in largest.items()})
        self.largest = {name: max(own.get(name, 0.0) for own in of_ranks) for name in self.maps}

    def finish(self) -> None:
        for name, linear in self.maps.items():
            if not self.largest[name]:
                reason = f"{name} has no input but zero in {self.calibration_batches} batches of training"
                raise ConfigError(f"{reason}; name other parameters", "parameters")
            if self.config.execution == "int8":
                int8_levels(linear.weight)
            scale = self.largest[name] / most_level(self.config.bits) if self.config.scales == "static" else 0.0
            form = torch.tensor([self.config.bits, scale, self.config.by == "row"], dtype=torch.float32)
            linear.quantiser = InputQuantiser(form.to(linear.weight.device))
            linear.quantiser.execution = self.config.execution
