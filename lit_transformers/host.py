"""The operations that the host can do without waiting for a device.

A read of a value of a device makes the host wait until the device has computed everything before it, and so does a copy
from memory that is not pinned. ``mixers/waits.py`` lists the mixers that have to wait.
"""

from __future__ import annotations

import torch
from torch import Tensor

HOST = torch.device("cpu")


def reads_at_once(tensor: Tensor) -> bool:
    """Whether the host can read the values of a tensor without waiting for a device. An export has no values."""
    return tensor.device.type == "cpu" and not torch.compiler.is_exporting()


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Copies a tensor of the host to a device without waiting for the device. A tensor that is elsewhere, or that stays
    on the host, is returned as it is."""
    if tensor.device.type != "cpu" or device.type == "cpu":
        return tensor
    if device.type == "cuda" and not torch.compiler.is_compiling():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
