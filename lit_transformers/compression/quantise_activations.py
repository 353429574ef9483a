"""Quantisation of activations: the inputs of linear maps have few levels in every forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor, nn

from lit_transformers.compression.compression import CompressionConfig, matrices_of
from lit_transformers.compression.quantise import Quantise, QuantiseConfig
from lit_transformers.config import ConfigError, Positive
from lit_transformers.maps import LinearMap
from lit_transformers.models.roles import EMBEDDINGS
from lit_transformers.quantisation import Execution, InputQuantiser, form_of, has_int8_product, int8_levels
from lit_transformers.training.groups import roles_of
from lit_transformers.training.ranks import from_all_ranks

__all__ = ["QuantiseActivationsConfig"]


@final
class QuantiseActivationsConfig(QuantiseConfig, kind="quantise_activations"):
    """Replaces the inputs of the linear maps of sublayers by the nearest of uniform levels in every forward pass
    (Zafrir et al. 2019, arXiv:1910.06188, equation 1). Put it last.

    parameters: the roles of the matrices whose inputs are quantised; embedding tables have none. symmetric: 2^bits - 1
    levels around 0; if false, 2^bits levels from the smallest input to the largest, 0 included. scales: ``dynamic``,
    from the inputs of each pass; or ``static``, from all inputs in batches of training, kept in the checkpoint.
    Passes of training read dynamic ones. by: the inputs that share a dynamic scale: each vector (``row``), so that a
    text has the same numbers alone and in any batch; or the ``tensor`` of a pass, which static scales are of. batches:
    of training text, for static scales; for dynamic ones, the first shows whether all maps are called. execution:
    ``simulated``, in float32; or ``int8``: the products of codes of 8 bits, by the instructions of the processor. Both
    differ by rounding alone, which later layers amplify to a part of the error of quantisation. An evaluation may set
    another; passes of training are simulated.
    """

    changes_passes: ClassVar[bool] = True

    parameters: tuple[str, ...] = ("layers",)
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

    @property
    def needs_whole_batches(self) -> bool:
        return self.when == "during" and self.by == "tensor"

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
class QuantiseActivations(Quantise):
    """Quantises the inputs of linear maps for each forward pass of training, or from its end on. reach: how far the
    inputs of each map reached below and above 0 in calibration; 0 for a map that was not called."""

    def __init__(self, config: QuantiseActivationsConfig, maps: Mapping[str, LinearMap]) -> None:
        super().__init__(config)
        self.config, self.maps = config, maps
        self.calibration_batches = config.batches if config.scales == "static" else 1
        self.reach: dict[str, tuple[float, float]] = {}
        self._in_training = {name: InputQuantiser(self._form(None)) for name in maps}

    def before_forward(self) -> None:
        for name, linear in self.maps.items() if self.is_due else ():
            linear.quantiser = self._in_training[name]

    def after_backward(self) -> None:
        for linear in self.maps.values():
            linear.quantiser = None

    def calibrate(self, task: Any, batches: Iterable[Any]) -> None:
        reach: dict[str, Tensor] = {}
        with torch.no_grad(), ExitStack() as stack:
            for name, linear in self.maps.items():

                def note(module: nn.Module, inputs: tuple[Tensor, ...], name: str = name) -> None:
                    low, high = inputs[0].aminmax()
                    own = torch.stack([-low, high]).clamp(min=0)
                    reach[name] = torch.maximum(reach.get(name, own), own)

                stack.callback(linear.register_forward_pre_hook(note).remove)
            for batch in batches:
                task.training_step(batch, 0)
        of_ranks = from_all_ranks({name: own.tolist() for name, own in reach.items()})
        for name in self.maps:
            below, above = zip(*(own.get(name, (0.0, 0.0)) for own in of_ranks), strict=True)
            self.reach[name] = max(below), max(above)

    def finish(self) -> None:
        for name, linear in self.maps.items():
            if not any(self.reach[name]):
                reason = f"{name} has no input but zero in {self.calibration_batches} batches of training"
                raise ConfigError(f"{reason}; name other parameters", "parameters")
            if self.config.execution == "int8":
                int8_levels(linear.weight)
            reach = self.reach[name] if self.config.scales == "static" else None
            linear.quantiser = InputQuantiser(self._form(reach).to(linear.weight.device))
            linear.quantiser.execution = self.config.execution

    def _form(self, reach: tuple[float, float] | None) -> Tensor:
        """Returns the form of a quantiser with a fixed scale for a reach, or with dynamic ones."""
        return form_of(self.config.bits, self.config.by == "row", self.config.symmetric, reach)
