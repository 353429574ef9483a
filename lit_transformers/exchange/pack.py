"""Writes the weights of a run into one packed file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

from lit_transformers.config import ConfigError
from lit_transformers.packing.codings import raw_bytes
from lit_transformers.packing.packed_file import packed_contents, write_packed
from lit_transformers.training.checkpoints import read

__all__ = ["pack_checkpoint"]


def pack_checkpoint(source: Path, file: Path, progress: Callable[[str], None] = lambda step: None) -> list[str]:
    """Writes a packed checkpoint with the weights and plain data of a run's checkpoint, reads it back, and compares it
    to the bit. Returns lines that say how many bytes it takes, by coding.

    Raises ConfigError where the source is no checkpoint of a run or the file exists, and RuntimeError where a tensor
    would differ.
    """
    if file.exists():
        raise ConfigError("exists; name a new file", str(file))
    if source.is_dir() or source.suffix == ".safetensors":
        raise ConfigError("is no checkpoint of a run; --to packed packs checkpoint.ckpt", str(source))
    contents = read(source)
    weights = contents["state_dict"]
    stored = write_packed(file, contents["lit_transformers"], weights, lambda name: progress(f"packing {name}"))
    for name, tensor in packed_contents(file)[1].items():
        if raw_bytes(tensor) != raw_bytes(weights[name].contiguous()):
            file.unlink()
            raise RuntimeError(f"{name} is not read back to the bit; {file.name} was removed")
    counts, sizes = Counter(own.coding for own in stored.values()), defaultdict[str, int](int)
    for own in stored.values():
        sizes[own.coding] += len(own.data)
    whole = sum(weights[name].numel() * weights[name].element_size() for name in stored)
    size = file.stat().st_size
    by_coding = [f"{coding}: {counts[coding]} tensors, {sizes[coding]:,} bytes" for coding in sorted(counts)]
    ratio = f"{whole / size:.1f} times smaller than its weights without packing ({whole:,} bytes)"
    return [*by_coding, f"{file}: {size:,} bytes, {ratio}"]
