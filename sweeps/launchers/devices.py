"""The CUDA devices of this machine, as torch sees them.

Torch looks for them in a process that ends afterwards, because a process that has initialised CUDA cannot fork others
that use it.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

from sweeps.process.call import call_forked

__all__ = ["cuda_devices", "cuda_models"]

VISIBLE = "CUDA_VISIBLE_DEVICES"
DRIVER = "libcuda.so.1"
"""The library of NVIDIA's driver, on Linux and in WSL2."""
RUNNER = "lit_transformers.runs.runner:RUNNER"
"""The runner that the server of processes imports, where it does not run yet."""


def cuda_devices() -> tuple[str, ...]:
    """Lists the CUDA devices that processes may use, by their names in CUDA_VISIBLE_DEVICES."""
    return tuple(name for name, _ in _devices(os.environ.get(VISIBLE)))


def cuda_models() -> tuple[str, ...]:
    """Lists the models of these devices, as records name them."""
    return tuple(model for _, model in _devices(os.environ.get(VISIBLE)))


@cache
def _devices(visible: str | None) -> tuple[tuple[str, str], ...]:
    """Returns the names and models of devices. CUDA ignores the first name that is not a device, and all names after
    it. A process can use only one MIG instance, so torch looks for each of them in a separate process."""
    if not _has_driver():
        return ()
    names = None if visible is None else [name.strip() for name in visible.split(",")]
    if names and names[0].startswith("MIG-"):
        instances = {name: call_forked(RUNNER, models_seen, name) for name in dict.fromkeys(names)}
        return tuple((name, models[0]) for name, models in instances.items() if models)
    models = call_forked(RUNNER, models_seen, visible)
    return tuple(zip(names or map(str, range(len(models))), models, strict=False))


def _has_driver() -> bool:
    """Whether there is a driver, without which torch need not be imported. It is loaded and not initialised."""
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return False
    return True


def models_seen(visible: str | None) -> list[str]:
    """Returns the models of the devices that torch sees under a value of CUDA_VISIBLE_DEVICES; None for no value. It
    initialises CUDA, so this process can fork none that uses it."""
    import torch  # imported here, since only the process that looks needs it

    os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)  # which counts devices that CUDA cannot use
    os.environ.pop(VISIBLE, None)
    if visible is not None:
        os.environ[VISIBLE] = visible
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
