"""The device and the precision of tests marked ``any_device``, and the tolerances of their comparisons.

A test uses ``placed(module)`` for ``module.double()``, ``real()`` for the dtype of its random tensors, and ``same(x,
y)`` for a comparison. Tensors that a test makes are on the device automatically. Those that the library makes are not,
as in a run, so that one made without ``device=`` is an error here too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pretended_device
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from lit_transformers.precision import tf32

Network = TypeVar("Network", bound=nn.Module)
TESTS = str(Path(__file__).resolve().parent)
DEVICES = ("cpu", "cuda", "pretended")


class Precision(NamedTuple):
    """dtype: of weights and random tensors. mixed: forward passes run under autocast to bfloat16, as in training.

    The other fields are tolerances as a share of the greatest magnitude among the results compared; None where every
    test has its own. unmoved: for the same operations after a change of inputs that they must not read. values: for
    different operations that compute the same equation. gradients: for the gradients of such operations.
    """

    dtype: torch.dtype
    mixed: bool = False
    unmoved: float | None = None
    values: float | None = None
    gradients: float | None = None


PRECISIONS: Mapping[str, Precision] = {
    # Each test's own bounds, 1e-10 for the most part.
    "float64": Precision(torch.float64),
    # The largest differences on a CPU were 2e-7 (LSH, whose order of sums depends on sorting), 4e-5 (linear attention,
    # whose denominators come near zero; 1e-6 elsewhere) and 2e-5. Other kernels sum in other orders: some times that.
    "float32": Precision(torch.float32, unmoved=2e-6, values=2e-4, gradients=2e-4),
    # Eight bits of precision, so that a different rounding changes a number by up to 2^-7. The largest differences on a
    # CPU were 0, 1.5e-2 (two such steps) and 2e-3. One key too many among 300 changes less than one such step: float32
    # detects it, and bf16 does in shorter rows.
    "bf16": Precision(torch.float32, mixed=True, unmoved=1e-2, values=5e-2, gradients=2e-2),
}


class Numerics(NamedTuple):
    """The device and precision that the options choose. pretended: the device is ``pretended_device``'s."""

    device: torch.device
    precision: Precision
    pretended: bool = False

    @property
    def usual(self) -> bool:
        return self.device.type == "cpu" and self.precision == PRECISIONS["float64"]


in_force = Numerics(torch.device("cpu"), PRECISIONS["float64"])


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("numerics", "device and precision of tests marked any_device")
    group.addoption(
        "--device",
        choices=DEVICES,
        default="cpu",
        help="where tests marked any_device run; unless it is the CPU, all others are deselected. "
        "'pretended' is the CPU in the guise of another device, a rehearsal that needs none: where tensors of two "
        "devices meet, it fails as one does",
    )
    group.addoption(
        "--precision",
        choices=tuple(PRECISIONS),
        default="float64",
        help="the precision in which tests marked any_device compute; unless it is float64, others are deselected. "
        "'bf16' is mixed: weights in float32, forward passes under autocast to bfloat16, as a run trains",
    )


def configure(config: pytest.Config) -> None:
    """Applies the options. Raises UsageError where there is no such device, or it does not support the precision."""
    global in_force
    device, precision = config.getoption("device"), config.getoption("precision")
    if device == "cuda" and not torch.cuda.is_available():
        raise pytest.UsageError("--device cuda: this machine has no CUDA device; rehearse with --device pretended")
    if device == "pretended" and precision == "bf16":
        raise pytest.UsageError("--device pretended knows no autocast; rehearse bf16 with --device cpu")
    pretended = device == "pretended"
    torch_device = pretended_device.DEVICE if pretended else torch.device(device)
    in_force = Numerics(torch_device, PRECISIONS[precision], pretended)


def of_any_device(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests to run under the options, and those to deselect because they do not follow the options."""
    if in_force.usual:
        return items, []
    selected = [item for item in items if item.get_closest_marker("any_device")]
    return selected, [item for item in items if not item.get_closest_marker("any_device")]


@contextmanager
def numerics(is_marked: bool) -> Iterator[None]:
    """The context in which a test runs. ``is_marked``: whether the test is marked ``any_device``."""
    with ExitStack() as stack:
        if not is_marked or in_force.usual:
            yield
            return
        if in_force.pretended:
            stack.enter_context(pretended_device.pretended())
        if in_force.device.type != "cpu":
            stack.enter_context(MadeByTests(in_force.device))
        if in_force.device.type == "cuda":
            stack.enter_context(tf32(is_allowed=False))
        yield


class MadeByTests(TorchFunctionMode):
    """Puts tensors that test files make without ``device=`` on a device. ``torch.set_default_device`` would also affect
    tensors that the library makes, and so hide a missing ``device=`` there."""

    constructors = frozenset(_device_constructors())

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        caller = sys._getframe(1)
        if caller.f_code.co_filename == pretended_device.__file__ and caller.f_back:
            caller = caller.f_back
        is_from_tests = caller.f_code.co_filename.startswith(TESTS)
        if (
            func in self.constructors
            and is_from_tests
            and kwargs.get("device") is None
            and kwargs.get("generator") is None
        ):
            kwargs = kwargs | {"device": self.device}
            func = pretended_device.tensor if in_force.pretended and func is pretended_device.original_tensor else func
        return func(*args, **kwargs)


@contextmanager
def exactly() -> Iterator[None]:
    """Within it ``placed`` and ``real`` use float64, regardless of the options: a reference for every precision."""
    global in_force
    previous = in_force
    in_force = previous._replace(precision=PRECISIONS["float64"])
    try:
        yield
    finally:
        in_force = previous


def real() -> torch.dtype:
    """The dtype of inputs and weights."""
    return in_force.precision.dtype


@contextmanager
def half(enabled: bool = True) -> Iterator[None]:
    """Autocast to bfloat16 on the device where it is enabled; otherwise a context that does nothing.

    PyTorch's own kernels compute it on a CPU, for oneDNN has no LSTM in bfloat16 where the processor has no AVX-512.
    """
    if not enabled:
        yield
        return
    if in_force.pretended:
        pytest.skip("the pretended device knows no autocast")
    with torch.autocast(in_force.device.type, torch.bfloat16), torch.backends.mkldnn.flags(enabled=False):
        yield


def placed(network: Network) -> Network:
    """Moves a module to the device and the precision. Under mixed precision its forward passes run under autocast, as
    in a training step; operations on their outputs, backward passes included, do not."""
    network.to(in_force.device, real())
    if in_force.precision.mixed:
        for name in ("forward", "encode", "decode", "training_step", "measured"):
            if hasattr(network, name):
                setattr(network, name, in_half(getattr(network, name)))
    return network


def in_half(function: Callable[..., Any]) -> Callable[..., Any]:
    def under_autocast(*args: Any, **kwargs: Any) -> Any:
        with half():
            return function(*args, **kwargs)

    return under_autocast


def as_trained(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called under autocast where the precision is mixed, as within a module's forward pass."""

    def trained(*args: Any, **kwargs: Any) -> Any:
        with half(in_force.precision.mixed):
            return function(*args, **kwargs)

    return trained


def projected(x: Tensor) -> Tensor:
    """The tensor in the dtype of a projection's output: bfloat16 where the precision is mixed."""
    return x.to(torch.bfloat16) if in_force.precision.mixed else x


def here(x: Tensor) -> Tensor:
    """Moves a tensor that was made before the test began to the device."""
    return x.to(in_force.device)


def unmoved(outputs: Tensor, expected: Tensor, exact: float = 1e-10) -> None:
    """Asserts that outputs did not change when inputs that must not be read changed."""
    compare([outputs], [expected], exact, in_force.precision.unmoved)


def same(outputs: Tensor, expected: Tensor, exact: float = 1e-10) -> None:
    """Asserts that outputs are as expected, to ``exact`` in float64 and to the precision's tolerance elsewhere."""
    compare([outputs], [expected], exact, in_force.precision.values)


def same_gradients(gradients: Sequence[Tensor | None], expected: Sequence[Tensor | None], exact: float = 1e-10) -> None:
    """Asserts the same of the gradients of one pass, relative to the greatest of them all: that of a key's bias, for
    example, is zero except for rounding errors."""
    compare(gradients, expected, exact, in_force.precision.gradients)


def compare(
    outputs: Sequence[Tensor | None], expected: Sequence[Tensor | None], exact: float, share: float | None
) -> None:
    outputs, expected = (
        tuple(None if part is None else part.detach().cpu() for part in parts) for parts in (outputs, expected)
    )
    sizes = [part.abs().max().item() for part in (*outputs, *expected) if part is not None and part.numel()]
    absolute, relative = (exact, exact) if share is None else (share * max(sizes, default=0.0), 0.0)
    for output, reference in zip(outputs, expected, strict=True):
        torch.testing.assert_close(output, reference, atol=absolute, rtol=relative)


def bound(exact: float) -> float:
    """The tolerance for a number that is zero in exact arithmetic, of tensors of magnitude one."""
    return in_force.precision.values or exact
