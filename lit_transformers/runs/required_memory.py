"""Whether a machine has the memory that a run takes at the least, before anything is built.

Only memory that every run needs is counted: its weights, and of a batch the symbols and one vector for each. So no run
is refused that would have fitted, and a run that is far too large ends at once, in a line.
"""

from __future__ import annotations

import torch

from lit_transformers.config import ConfigError
from lit_transformers.machine.cores import machine_memory
from lit_transformers.models.cost import require_held
from lit_transformers.printing.amounts import memory
from lit_transformers.runs.config import RunConfig

__all__ = ["require_memory"]


def require_memory(config: RunConfig, parameters: int) -> None:
    """Raises ConfigError where this machine cannot hold a run with n parameters, or a batch of it."""
    on_device = config.training.device != "cpu" and torch.cuda.is_available()
    room = torch.cuda.get_device_properties(0).total_memory if on_device else machine_memory()
    require_held(parameters // (config.training.devices if config.training.strategy == "fsdp" else 1), room)
    tokens = config.data.tokens_per_step // config.training.devices if config.data.fills_batches else 0
    batch = tokens * (16 + config.model.dim * (4 if config.training.precision == "32" else 2))
    if batch > room:
        reason = f"a batch of {tokens:,} symbols takes {memory(batch)} or more, and there are {memory(room)}"
        raise ConfigError(f"{reason}; set data.batch_size lower, and training.accumulate higher in its place", "data")
