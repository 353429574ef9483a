"""On what device and in what precision tests marked ``any_device`` run, and how exact they have to be there.

A test says ``placed(module)`` for ``module.double()``, ``real()`` for the dtype of what it draws, ``same(x, y)`` for
a comparison. Tensors that a test makes lie on the device by themselves. Those that the library makes do not, as in a
run, so that one made without ``device=`` is an error here too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pretended_device
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

Network = TypeVar("Network", bound=nn.Module)
TESTS = str(Path(__file__).resolve().parent)
DEVICES = ("cpu", "cuda", "pretended")


class Precision(NamedTuple):
    """dtype: of weights and of what is drawn. mixed: forward passes run under autocast to bfloat16, as in training.

    How far two results may lie apart, as a share of the greatest magnitude among them; None where every test says for
    itself how exact it is. unmoved: of the same operations, when what they must not read was changed; values: of other
    operations for the same equation; gradients: those of such.
    """

    dtype: torch.dtype
    mixed: bool = False
    unmoved: float | None = None
    values: float | None = None
    gradients: float | None = None


PRECISIONS: Mapping[str, Precision] = {
    # Each test's own bounds, 1e-10 for the most part.
    "float64": Precision(torch.float64),
    # On a CPU at most 2e-7 (LSH, whose sums go by what was sorted), 4e-5 (linear attention, whose denominators come
    # near zero; all else 1e-6) and 2e-5 lay apart. Other kernels add up in other orders: some times as much.
    "float32": Precision(torch.float32, unmoved=2e-6, values=2e-4, gradients=2e-4),
    # Eight bits, so that a number that is rounded the other way moves by up to 2^-7. On a CPU nothing, 1.5e-2 (two such
    # steps) and 2e-3 lay apart. A key too many among 300 moves less than one such step: float32 sees it, the shorter
    # rows do in bf16.
    "bf16": Precision(torch.float32, mixed=True, unmoved=1e-2, values=5e-2, gradients=2e-2),
}


class Numerics(NamedTuple):
    """What the options ask for."""

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
        help="in what precision tests marked any_device compute; unless it is float64, all others are deselected. "
        "'bf16' is mixed: weights in float32, forward passes under autocast to bfloat16, as a run trains",
    )


def configure(config: pytest.Config) -> None:
    """Takes over what the options ask for. Raises UsageError where there is no such device."""
    global in_force
    device, precision = config.getoption("device"), config.getoption("precision")
    if device == "cuda" and not torch.cuda.is_available():
        raise pytest.UsageError("--device cuda: this machine has no CUDA device; rehearse with --device pretended")
    if device == "pretended" and precision == "bf16":
        raise pytest.UsageError("--device pretended knows no autocast; rehearse bf16 with --device cpu")
    pretended = device == "pretended"
    place = pretended_device.DEVICE if pretended else torch.device(device)
    in_force = Numerics(place, PRECISIONS[precision], pretended)


def of_any_device(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests to run under the options, and those that would compute elsewhere or otherwise than asked for."""
    if in_force.usual:
        return items, []
    selected = [item for item in items if item.get_closest_marker("any_device")]
    return selected, [item for item in items if not item.get_closest_marker("any_device")]


@contextmanager
def numerics(asked: bool) -> Iterator[None]:
    """Within it a test runs; ``asked``: it is marked ``any_device``."""
    with ExitStack() as stack:
        if not asked or in_force.usual:
            yield
            return
        if in_force.pretended:
            stack.enter_context(pretended_device.pretended())
        if in_force.device.type != "cpu":
            stack.enter_context(MadeByTests(in_force.device))
        if in_force.device.type == "cuda":
            # Convolutions and LSTMs of cuDNN round their factors to ten bits otherwise, even of float32.
            allowed = torch.backends.cudnn.allow_tf32
            torch.backends.cudnn.allow_tf32 = False
            stack.callback(setattr, torch.backends.cudnn, "allow_tf32", allowed)
        yield


class MadeByTests(TorchFunctionMode):
    """Puts tensors on a device that a file of tests makes without saying where. ``torch.set_default_device`` would put
    those there that the library makes, and so hide that it forgot to say where."""

    constructors = frozenset(_device_constructors())

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        caller = sys._getframe(1)
        if caller.f_code.co_filename == pretended_device.__file__ and caller.f_back:
            caller = caller.f_back
        here = caller.f_code.co_filename.startswith(TESTS)
        if func in self.constructors and here and kwargs.get("device") is None and kwargs.get("generator") is None:
            kwargs = kwargs | {"device": self.device}
            func = pretended_device.tensor if in_force.pretended and func is pretended_device.made else func
        return func(*args, **kwargs)


@contextmanager
def exactly() -> Iterator[None]:
    """Within it what is placed is in float64, whatever the options say: an oracle of every precision."""
    global in_force
    before = in_force
    in_force = before._replace(precision=PRECISIONS["float64"])
    try:
        yield
    finally:
        in_force = before


def real() -> torch.dtype:
    """Of inputs and weights."""
    return in_force.precision.dtype


def half(enabled: bool = True) -> AbstractContextManager[Any]:
    """Autocast to bfloat16 on the device, unless it is not enabled."""
    if not enabled:
        return nullcontext()
    if in_force.pretended:
        pytest.skip("the pretended device knows no autocast")
    return torch.autocast(in_force.device.type, torch.bfloat16)


def placed(network: Network) -> Network:
    """The module on the device, in the precision; under mixed precision each of its passes forward runs as a training
    step does, and what is done with its outputs, backward passes among it, does not."""
    network.to(in_force.device, real())
    if in_force.precision.mixed:
        for name in ("forward", "encode", "decode", "training_step", "measured"):
            if hasattr(network, name):
                setattr(network, name, in_half(getattr(network, name)))
    return network


def in_half(called: Callable[..., Any]) -> Callable[..., Any]:
    def under_autocast(*args: Any, **kwargs: Any) -> Any:
        with half():
            return called(*args, **kwargs)

    return under_autocast


def as_trained(called: Callable[..., Any]) -> Callable[..., Any]:
    """A function that tests call as modules do theirs: under autocast where the precision is mixed."""

    def trained(*args: Any, **kwargs: Any) -> Any:
        with half(in_force.precision.mixed):
            return called(*args, **kwargs)

    return trained


def projected(x: Tensor) -> Tensor:
    """What a test drew, as a projection would put it out: in bfloat16 where the precision is mixed."""
    return x.to(torch.bfloat16) if in_force.precision.mixed else x


def here(x: Tensor) -> Tensor:
    """What was made before the test began, on the device."""
    return x.to(in_force.device)


def unmoved(one: Tensor, other: Tensor, exact: float = 1e-10) -> None:
    """A result stayed what it was when something changed that must not be read."""
    compare([one], [other], exact, in_force.precision.unmoved)


def same(one: Tensor, other: Tensor, exact: float = 1e-10) -> None:
    """Two results are one, to ``exact`` in float64 and to the precision's own bound elsewhere."""
    compare([one], [other], exact, in_force.precision.values)


def same_gradients(ones: Sequence[Tensor | None], others: Sequence[Tensor | None], exact: float = 1e-10) -> None:
    """The same of the gradients of one pass, measured by the greatest of them all: that of a key's bias, say, is zero
    but for what was rounded off."""
    compare(ones, others, exact, in_force.precision.gradients)


def compare(ones: Sequence[Tensor | None], others: Sequence[Tensor | None], exact: float, share: float | None) -> None:
    ones, others = (tuple(None if part is None else part.detach().cpu() for part in parts) for parts in (ones, others))
    sizes = [part.abs().max().item() for part in (*ones, *others) if part is not None and part.numel()]
    absolute, relative = (exact, exact) if share is None else (share * max(sizes, default=0.0), 0.0)
    for one, other in zip(ones, others, strict=True):
        torch.testing.assert_close(one, other, atol=absolute, rtol=relative)


def bound(exact: float) -> float:
    """For a number that is zero in exact arithmetic, of tensors of magnitude one."""
    return in_force.precision.values or exact
