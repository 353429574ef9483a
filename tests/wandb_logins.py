"""An environment in which nobody is logged in to W&B, regardless of earlier tests in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import wandb

__all__ = ["end_wandb", "logged_out"]


def end_wandb() -> None:
    """Ends wandb's process, and forgets its settings and keys."""
    with suppress(ConnectionError):  # a test has killed the process
        wandb.teardown()
    wandb.teardown()


@contextmanager
def logged_out(home: Path) -> Iterator[pytest.MonkeyPatch]:
    """An environment in which nobody is logged in, and which may be changed."""
    end_wandb()  # or the address of its process, which a variable holds, would come back when that has ended
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        patch.delenv("NETRC", raising=False)
        patch.setenv("HOME", str(home))
        yield patch
        end_wandb()
