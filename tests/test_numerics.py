"""The options ``--device`` and ``--precision`` do as their help says, and their bounds detect a fault."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numerics
import pretended_device
import pytest
import torch
from numerics import PRECISIONS, MadeByTests, Numerics
from pretended_device import DEVICE

OF_THE_LIBRARY = compile("torch.ones(2), torch.tensor([1.0])", "/somewhere/lit_transformers/attention/masks.py", "eval")


@pytest.fixture(params=["float32", "bf16"])
def _in_precision(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "in_force", Numerics(torch.device("cpu"), PRECISIONS[request.param]))


@pytest.fixture
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(numerics, "in_force", Numerics(DEVICE, PRECISIONS["float64"], True))
    with pretended_device.pretended(), MadeByTests(DEVICE):
        yield


@pytest.mark.usefixtures("_elsewhere")
def test_tensors_of_tests_are_put_on_the_device_and_those_of_the_library_are_not() -> None:
    assert torch.ones(2).device == torch.tensor([1.0]).device == torch.arange(3).device == DEVICE
    assert {tensor.device.type for tensor in eval(OF_THE_LIBRARY)} == {"cpu"}


@pytest.mark.usefixtures("_in_precision")
def test_a_key_too_many_of_a_short_row_is_seen_in_every_precision() -> None:
    scores, values = torch.randn(40, 12).softmax(dim=-1), torch.randn(12, 8)
    outputs, with_extra_key = scores[:, :11] @ values[:11], scores @ values
    for assert_equal in (numerics.unmoved, numerics.same):
        assert_equal(outputs, outputs.clone())
        with pytest.raises(AssertionError):
            assert_equal(outputs, with_extra_key)
    with pytest.raises(AssertionError):
        numerics.same_gradients([outputs], [with_extra_key])


def options(**values: str) -> Any:
    return SimpleNamespace(getoption=values.__getitem__)


def test_what_cannot_be_run_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match="--device pretended knows no autocast"):
        numerics.configure(options(device="pretended", precision="bf16"))
    if not torch.cuda.is_available():
        with pytest.raises(pytest.UsageError, match="this machine has no CUDA device"):
            numerics.configure(options(device="cuda", precision="float32"))
