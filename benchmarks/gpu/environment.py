"""The properties of a machine, and its kernel of attention: ``python -m benchmarks.gpu.environment --json FILE``.

PyTorch chooses among its kernels of attention by device, type, width, mask and dropout, and a choice that falls back to
products of matrices costs memory in the square of the length. Each choice is printed with the time of a pass.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch.nn import functional as F

from benchmarks.hardware import describe
from lit_transformers.records.files import write_json

KERNELS = ("products", "flash", "memory-efficient", "cuDNN")
"""The kernels, by the numbers of torch's choice."""
WIDTHS, LENGTHS = (16, 64, 128), (300, 4096)
CALLS: Mapping[str, Mapping[str, Any]] = {
    "causal": {"is_causal": True},
    "padded": {"masked": True},
    "with dropout": {"is_causal": True, "dropout_p": 0.1},
}
"""How our mixers call it: without padding, with a mask of keys, and in training."""


def choice(device: str, dtype: torch.dtype, width: int, length: int, call: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the kernel that is chosen, and the milliseconds of a pass forward and backward after a first one."""
    q, k, v = (torch.randn(2, 4, length, width, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    mask = torch.ones(2, 1, 1, length, dtype=torch.bool, device=device) if call.get("masked") else None
    options = {name: value for name, value in call.items() if name != "masked"}
    number = torch.ops.aten._fused_sdp_choice.default(q, k, v, mask, **options)
    milliseconds = 0.0
    for _ in range(2):
        synchronise(device)
        begun = time.perf_counter()
        F.scaled_dot_product_attention(q, k, v, mask, **options).sum().backward()
        synchronise(device)
        milliseconds = 1e3 * (time.perf_counter() - begun)
    return {"kernel": KERNELS[number] if number < len(KERNELS) else str(number), "milliseconds": milliseconds}


def synchronise(device: str) -> None:
    """Waits for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def main(
    json_file: Annotated[Path | None, typer.Option("--json", help="Where the result is written.")] = None,
    longest: Annotated[int, typer.Option(help="Leave out longer rows.")] = max(LENGTHS),
) -> None:
    """Prints hardware and versions, and the kernel of attention for each type, width, length and call."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    machine = describe(("lightning", "transformers", "tokenizers", "fla-core", "numpy", "pydantic"))
    print(", ".join(f"{name} {value}" for name, value in machine["versions"].items()), flush=True)
    print(f"{machine['gpu'] or machine['processor']}, CUDA {machine['cuda']}, driver {machine['driver']}", flush=True)
    rows: list[dict[str, Any]] = []
    for dtype, width, length, name in product((torch.float32, torch.bfloat16), WIDTHS, LENGTHS, CALLS):
        if length > longest:
            continue
        row: dict[str, Any] = {"type": str(dtype).removeprefix("torch."), "width": width, "length": length}
        try:
            row |= {"call": name} | choice(device, dtype, width, length, CALLS[name])
        except RuntimeError as error:  # the next call may be computed
            row |= {"call": name, "kernel": "none", "error": str(error).splitlines()[0]}
        rows.append(row)
        print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        if json_file is not None:
            write_json(json_file, {"machine": machine, "choices": rows})


if __name__ == "__main__":
    typer.run(main)
