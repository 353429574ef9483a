"""The outputs of a frozen network, or of its lowest layers, for all rows: computed once and stored in a memory-mapped
table that training reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from lit_transformers.batch import LabelledBatch, row_lengths
from lit_transformers.checked_files import CheckedFile, CheckedWriter, Extent, VectorLayout
from lit_transformers.config import ConfigError, Plain, canonical_hash

__all__ = ["META", "FeatureTable", "FeatureWriter", "row_keys", "weights_digest"]

VALUES, INDEX, META = "values.f32", "index.npz", "meta.json"
KEY_BYTES = 16


def weights_digest(module: nn.Module, unused: Iterable[nn.Parameter] = ()) -> str:
    """Returns a hash of the names, dtypes, shapes and values of all weights and buffers of a module, except those that
    are unused."""
    hashed, omitted = hashlib.sha256(), {id(parameter) for parameter in unused}
    names = {name for name, weight in module.named_parameters(remove_duplicate=False) if id(weight) in omitted}
    for name, tensor in sorted(module.state_dict().items()):
        if name in names:
            continue
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        hashed.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()[:32]


class KeyedRow(NamedTuple):
    """A row of a batch: the hash of the symbols, marks and segments that a network reads, its number in the batch, and
    the number of its tokens up to the last real one."""

    key: bytes
    number: int
    tokens: int


def row_keys(batch: LabelledBatch) -> Iterator[KeyedRow]:
    """Yields the rows of a batch, except rows of padding alone. The host waits for the device."""
    parts = [part for part in (batch.inputs, batch.marked, batch.segments) if part is not None]
    stacked, masks = torch.stack([part.long() for part in parts], dim=1).cpu().numpy(), batch.padding_mask.cpu().numpy()
    for number, tokens in enumerate(row_lengths(batch.padding_mask).tolist()):
        if tokens:
            content, real = np.ascontiguousarray(stacked[number, :, :tokens]), masks[number, :tokens]
            gaps = b"" if real.all() else real.tobytes()
            key = hashlib.blake2b(content.tobytes() + gaps, digest_size=KEY_BYTES).digest()
            yield KeyedRow(key, number, tokens)


class FeatureWriter:
    """Writes the vectors (t, width) of rows to a folder, each row once. meta: is written next to them; its "weights" is
    the digest of the weights that computed the vectors."""

    def __init__(self, folder: Path, meta: Mapping[str, Plain], width: int) -> None:
        self.folder, self.meta, self.layout = folder, dict(meta), VectorLayout("float32", width)
        self.values = CheckedWriter(folder / VALUES)
        self.starts: dict[bytes, int] = {}

    def has(self, key: bytes) -> bool:
        """Whether a row with that key is written."""
        return key in self.starts

    def add(self, key: bytes, vectors: Float[Tensor, "t w"]) -> None:
        """Writes the vectors of the real tokens of a row."""
        self.starts[key] = self.values.append(self.layout.written(vectors))

    def finish(self) -> None:
        """Writes the index."""
        self.values.save()
        self.values.close()
        keys = np.frombuffer(b"".join(self.starts), np.uint8).reshape(-1, KEY_BYTES)
        starts = np.array([*self.starts.values()], np.int64)
        np.savez(self.folder / INDEX, keys=keys, starts=starts)
        meta: dict[str, Plain] = self.meta | {"width": self.layout.width, "values": [*self.values.extent]}
        (self.folder / META).write_text(json.dumps(meta | {"checksum": canonical_hash(meta, 32)}))


class FeatureTable:
    """Reads the vectors of rows from the folder of a ``FeatureWriter``, memory-mapped.

    weights: the digest of the weights of the network or of its lowest layers. lower: the number of these layers; 0 if
    the vectors are the outputs of the network. Raises ConfigError if the table is damaged, or if other weights computed
    it.
    """

    def __init__(self, folder: Path, weights: str, lower: int = 0) -> None:
        self.lower = lower
        try:
            meta = json.loads((folder / META).read_text())
            index = np.load(folder / INDEX)
            keys, starts = index["keys"], index["starts"].tolist()
            is_whole = meta.pop("checksum") == canonical_hash(meta, 32)
            made_by, extent, self.layout = meta["weights"], meta["values"], VectorLayout("float32", meta["width"])
        except (OSError, EOFError, BadZipFile, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(f"is a damaged cache ({error}); remove the folder", str(folder)) from None
        if not is_whole:
            raise ConfigError(f"is a damaged cache: {META} has changed since then; remove the folder", str(folder))
        if made_by != weights:
            raise ConfigError("is a cache of other weights; remove the folder", str(folder))
        self.values = CheckedFile(folder / VALUES, Extent(*extent))
        self.starts = dict(zip((key.tobytes() for key in keys), starts, strict=True))

    def read(self, batch: LabelledBatch) -> Float[Tensor, "b t w"] | None:
        """Returns the vectors of a batch, zeros at padding. None if a row of the batch is not in the table."""
        rows = list(row_keys(batch))
        if not all(row.key in self.starts for row in rows):
            return None
        vectors = torch.zeros(*batch.inputs.shape, self.layout.width)
        for row in rows:
            content = self.values.read(self.starts[row.key], self.layout.size(row.tokens))
            vectors[row.number, : row.tokens] = self.layout.read(content, row.tokens)
        return vectors.to(batch.inputs.device)
