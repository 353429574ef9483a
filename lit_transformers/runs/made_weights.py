"""The files of sources of weights except runs: a file that exists, or one that is made once below LIT_CACHE.

``lit_transformers/exchange`` makes them. It imports runs, so it is imported here by name when it is needed.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datamodules import cache_folder
from lit_transformers.config import ConfigError, MissingFileError, Plain, canonical_hash, existing, named_by
from lit_transformers.runs.code import code_hash
from lit_transformers.runs.sources import (
    ConvertedWeightsConfig,
    FileWeightsConfig,
    ImportedWeightsConfig,
    WeightSourceConfig,
)
from lit_transformers.runs.starting_weights import (
    StartingWeights,
    digest_of,
    fingerprint,
    locate_weights,
    write_weights,
)
from lit_transformers.source_code import package_of, read, source

__all__ = ["content_of", "file_of_source"]

IMPORT, CONVERT = "lit_transformers.exchange.transfer", "lit_transformers.exchange.changed_network"
"""The modules that make imports and conversions."""


def file_of_source(config: WeightSourceConfig, field: str) -> Path:
    """Returns the file of a source of weights, except a run. Makes the file if it does not exist yet.

    field: the path of the source in the run's config, for errors. Raises MissingFileError if the source names a missing
    file or folder, and ConfigError if it cannot be read or converted, or the cache cannot be written.
    """
    if isinstance(config, FileWeightsConfig):
        return locate_weights(config.path, field)
    module = IMPORT if isinstance(config, ImportedWeightsConfig) else CONVERT
    address = canonical_hash({"of": _ingredients(config, field), "code": code_hash(config, (module,))}, 32)
    path = cache_folder() / "weights" / f"{address}.safetensors"
    if not path.exists():
        try:
            weights, notes = _make(config, field)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_weights(path, weights._replace(notes=(*weights.notes, *notes)))
        except ConfigError as error:
            raise ConfigError(str(error), field) from None
        except OSError as error:
            reason = f"cannot write the cache ({error.strerror}); set LIT_CACHE to a folder with room"
            raise ConfigError(f"{path.parent}: {reason}", field) from None
    return path


def content_of(config: WeightSourceConfig, field: str) -> dict[str, Plain]:
    """Returns the content of a source of weights, except a run, for the keys of runs: the digest of a file or an
    import; for a conversion its source, its changes and the code that makes it. The digest of a conversion would differ
    between machines, which draw new weights differently in the last bits. Raises the errors of ``file_of_source``."""
    if isinstance(config, ConvertedWeightsConfig):
        file = source(CONVERT)
        assert file is not None
        code, _ = read(file, package_of(CONVERT, file))
        return {"converted": _ingredients(config, field), "code": code[:16]}
    return {"weights": digest_of(file_of_source(config, field))}


def _ingredients(config: WeightSourceConfig, field: str) -> dict[str, Plain]:
    """Returns all values, except the code, that decide the content of the file of a source."""
    if isinstance(config, ImportedWeightsConfig):
        folder = _folder(config.path, field)
        files = {file.name: fingerprint(file) for file in folder.iterdir() if file.is_file()}
        return {"files": files, "architecture": config.architecture}
    assert isinstance(config, ConvertedWeightsConfig)
    changes = {name: value for name, value in config.to_dict().items() if name not in ("kind", "source")}
    return {"source": content_of(config.source, f"{field}.source"), **changes}


def _make(config: WeightSourceConfig, field: str) -> tuple[StartingWeights, Sequence[str]]:
    """Returns the weights of a source, and a line for each part that the original weights do not have."""
    transfer: Any = importlib.import_module(IMPORT)
    result: tuple[StartingWeights, Sequence[str]]
    if isinstance(config, ImportedWeightsConfig):
        result = transfer.imported(_folder(config.path, field), config.architecture)
    else:
        assert isinstance(config, ConvertedWeightsConfig)
        changed_network: Any = importlib.import_module(CONVERT)
        weights = transfer.weights_of(file_of_source(config.source, f"{field}.source"))
        result = changed_network.converted(weights, config.set, config.length, config.seed)
    return result


def _folder(path: str, field: str) -> Path:
    """Returns the folder that an import names. Raises MissingFileError, which names the field, if it is missing."""
    folder = existing(path, "LIT_WEIGHTS")
    if folder is None or not folder.is_dir():
        remedy = "put the folder of a model of Hugging Face there, with config.json and its weights"
        raise MissingFileError(f"{path}: no such folder ({named_by('LIT_WEIGHTS')}); {remedy}", field)
    return folder
