"""A function that is called in a forked process returns, raises and dies as its caller is to see it."""

from __future__ import annotations

import os
import signal

import pytest

from lit_transformers.config import ConfigError
from sweeps.process.call import call_forked
from sweeps.process.child import LaunchError

RUNNER = "standin.run:RUNNER"


def difference(left: int, right: int = 0) -> int:
    if left < right:
        raise ConfigError("is less than the other", "left")
    return left - right


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_forked_call_returns_and_raises_what_its_function_does() -> None:
    assert call_forked(RUNNER, difference, 5, right=3) == 2
    with pytest.raises(ConfigError, match="left: is less than the other") as error:
        call_forked(RUNNER, difference, 3, right=5)
    assert "in difference" in "".join(error.value.__notes__)


def test_a_forked_call_that_dies_is_one_clear_error() -> None:
    with pytest.raises(LaunchError, match="the process that was to die ended with status -9"):
        call_forked(RUNNER, die)
