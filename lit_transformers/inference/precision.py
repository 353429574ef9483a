"""The precision in which a trained network reads lines: float32, bfloat16, or products of int8."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn

from lit_transformers import onednn
from lit_transformers.checked_files import Precision
from lit_transformers.compression.quantise_activations import QuantiseActivationsConfig
from lit_transformers.config import ConfigError
from lit_transformers.maps import LinearMap
from lit_transformers.quantisation import InputQuantiser, dequantised, form_of, has_int8_product, levels_of
from lit_transformers.tasks import Task
from lit_transformers.training.arithmetic import ArithmeticConfig, arithmetic

__all__ = ["computed_in", "prepare", "quantise_network"]

BITS = 8


def quantise_network(task: nn.Module, device: torch.device) -> None:
    """Gives the linear maps of the sublayers of a task weights of 8 bits, with a scale for each channel, and inputs of
    8 bits, with a scale for each vector, and lets them multiply by int8. All else stays in float32.

    A network that was compressed so keeps its weights and scales. Raises ConfigError where the processor has no int8
    product, or where a matrix of a sublayer is not that of a linear map without an adapter.
    """
    if device.type != "cpu" or not has_int8_product():
        raise ConfigError("int8 needs a CPU with AVX-512 VNNI; use bfloat16 or float32", "--precision")
    try:
        maps = QuantiseActivationsConfig(execution="int8").maps_of(task)
    except ConfigError as error:
        raise ConfigError(
            f"int8 cannot be computed: {error.reason.partition(';')[0]}; use float32", "--precision"
        ) from None
    for name, linear in maps.items():
        if linear.quantiser is None:
            linear.quantiser = InputQuantiser(form_of(BITS, by_row=True, symmetric=True, reach=None))
            linear.weight.data.copy_(dequantised(levels_of(linear.weight.detach(), BITS, symmetric=True)))
        elif linear.quantiser.bits != BITS:
            reason = (
                f"the inputs of {name} have {linear.quantiser.bits} bits, and those of int8 have {BITS}; use float32"
            )
            raise ConfigError(reason, "--precision")
        linear.quantiser.execution = "int8"


def prepare(task: Task, precision: Precision, device: torch.device) -> None:
    """Makes the networks of a task ready for passes without gradients in a precision: int8 by ``quantise_network``;
    float32 by the products of oneDNN on a CPU where they are faster, equal but for rounding. On a CPU it limits how
    many compiled products stay in memory. Raises ConfigError where int8 cannot be computed."""
    if device.type == "cpu":
        onednn.limit_caches()
    if precision == "int8":
        quantise_network(task, device)
    elif precision == "float32" and device.type == "cpu" and onednn.is_faster():
        for module in chain(task.modules(), task.evaluator().modules()):
            if isinstance(module, LinearMap) and module.packed is None and module.weight.dtype == torch.float32:
                module.packed = onednn.packed(module.weight)


@contextmanager
def computed_in(precision: Precision, training: ArithmeticConfig, device: torch.device) -> Iterator[None]:
    """Computes the forward passes within the block in a precision, with the arithmetic of training: bfloat16 by
    autocast; int8 in a network that ``quantise_network`` has changed."""
    with arithmetic(training), torch.autocast(device.type, torch.bfloat16, precision == "bfloat16"):
        yield
