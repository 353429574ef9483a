"""Reads and writes folders of Hugging Face. No pickle is executed, and no folder is left half-written."""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lit_transformers.config import ConfigError, Plain
from lit_transformers.printing.error_lines import first_line
from lit_transformers.training.checkpoints import damaged_part

__all__ = [
    "copy_tokenizer",
    "fresh_folder",
    "local_folder",
    "read_checkpoint",
    "read_fields",
    "write_fields",
    "write_folder",
]

FIELDS, SAFE, PICKLED = "config.json", "model.safetensors", "pytorch_model.bin"
ADAPTERS = "adapter_config.json"
"""The file of adapters of peft, which are no network."""
INDEX = ".index.json"
"""The suffix that makes the name of a divided file of weights the name of the list of its parts."""
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.txt",
    "vocab.json",
    "target_vocab.json",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "source.spm",
    "target.spm",
    "sentencepiece.bpe.model",
)
"""The files of a tokenizer, which are copied as they are."""
GENERATION = "generation_config.json"
"""The file with the symbols that begin and end a generated text, and the settings of generation; copied as it is."""


def local_folder(source: str) -> Path:
    """Returns a folder: ``source`` itself where there is one, or else that of the model of this name on the Hugging
    Face hub, which is downloaded where the local cache lacks it. Raises ConfigError where neither can be had."""
    folder = Path(source)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ConfigError("is a file; name the folder that holds config.json and the weights", source)
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        reason = "is no folder, and a model of the hub needs a package: pip install huggingface-hub"
        raise ConfigError(reason, source) from None
    patterns = [FIELDS, *TOKENIZER, GENERATION, f"{SAFE}{INDEX}", "model*.safetensors"]
    try:
        cached = Path(snapshot_download(source, allow_patterns=patterns, local_files_only=True))
        if (cached / FIELDS).exists() and any((cached / name).exists() for name in weight_files()):
            return cached
    except Exception:  # there is none in the cache: the library raises several kinds
        pass
    try:
        folder = Path(snapshot_download(source, allow_patterns=patterns))
        if not any((folder / name).exists() for name in weight_files()):
            folder = Path(snapshot_download(source, allow_patterns=["pytorch_model*.bin", f"{PICKLED}{INDEX}"]))
    except Exception as error:  # as above, some of its HTTP client
        reason = f"is no folder, and no model of the hub that can be had: {first_line(error)}"
        raise ConfigError(reason, source) from None
    return folder


def weight_files() -> list[str]:
    """Returns the names that a folder's weights may have, in the order in which they are looked for."""
    return [f"{name}{end}" for name in (SAFE, PICKLED) for end in ("", INDEX)]


def read_fields(folder: Path) -> dict[str, Plain]:
    """Returns the fields of the folder's config.json. Raises ConfigError where it is missing or damaged."""
    try:
        fields = json.loads((folder / FIELDS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        reason = f"has no {FIELDS}, and is no model of Hugging Face"
        if (folder / ADAPTERS).is_file():
            reason = (
                "holds adapters without their network; merge them by merge_and_unload of peft, and name that folder"
            )
        raise ConfigError(reason, str(folder)) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot be read: {first_line(error)}", str(folder / FIELDS)) from None
    if not isinstance(fields, dict):
        raise ConfigError("holds no fields of a model", str(folder / FIELDS))
    return fields


def read_checkpoint(folder: Path) -> dict[str, Tensor]:
    """Returns all tensors of a folder by name, on the CPU, half precision as float32.

    Raises ConfigError for a file that is missing, damaged, or would execute code.
    """
    name = next((name for name in weight_files() if (folder / name).exists()), None)
    if name is None:
        raise ConfigError(f"holds neither {SAFE} nor {PICKLED}", str(folder))
    files = parts(folder / name) if name.endswith(INDEX) else [folder / name]
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= read_safe(file) if file.suffix == ".safetensors" else read_pickled(file)
    half = (torch.float16, torch.bfloat16)
    return {name: tensor.float() if tensor.dtype in half else tensor for name, tensor in tensors.items()}


def parts(index: Path) -> list[Path]:
    """Returns the files of divided weights. Raises ConfigError for a damaged list, and for a file elsewhere."""
    try:
        names = sorted({str(name) for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"is no list of the parts of weights: {first_line(error)}", str(index)) from None
    for name in names:
        if name != Path(name).name or not (index.parent / name).is_file():
            raise ConfigError(f"names {name}, which is no file of that folder", str(index))
    return [index.parent / name for name in names]


def read_safe(file: Path) -> dict[str, Tensor]:
    """Returns the tensors of a safetensors file. Raises ConfigError where it is damaged."""
    try:
        return load_file(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise ConfigError(f"is damaged or no file of weights: {first_line(error)}", str(file)) from None


def read_pickled(file: Path) -> dict[str, Tensor]:
    """Returns the tensors of a file that torch.save wrote. Nothing in it is executed.

    Raises ConfigError where it is damaged, holds something else, or would execute code.
    """
    try:
        if zipfile.is_zipfile(file) and (damaged := damaged_part(file)) is not None:
            raise ValueError(f"its part {damaged} has changed since it was written")
        with warnings.catch_warnings(action="ignore"):  # of pickles that torch did not write
            tensors = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # the type of the error varies with the damage
        refused = type(error).__name__ == "UnpicklingError" and re.search("Unsupported|GLOBAL", str(error))
        reason = f"is damaged or no file of weights: {first_line(error)}"
        if refused:
            reason = f"holds more than tensors, and would execute code when it is read; have it converted to {SAFE}"
        raise ConfigError(reason, str(file)) from None
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in tensors.items()
    ):
        raise ConfigError("holds something else than tensors by name", str(file))
    return dict(tensors)


@contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """Yields a new folder next to ``folder``, which is renamed to it once the block ends without an error.

    Raises ConfigError where ``folder`` is a file, holds anything, or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError("exists and is not an empty folder; choose another, or remove it", str(folder))
    fresh = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    try:
        fresh.mkdir(parents=True)
        yield fresh
        fresh.replace(folder)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror or error}", str(folder)) from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def copy_tokenizer(source: Path, target: Path) -> list[str]:
    """Copies the files of a folder's tokenizer, whose names it returns, and the file with settings of generation."""
    names = [name for name in (*TOKENIZER, GENERATION) if (source / name).is_file()]
    for name in names:
        shutil.copyfile(source / name, target / name)
    return [name for name in names if name != GENERATION]


def write_folder(folder: Path, fields: Mapping[str, Plain], tensors: dict[str, Tensor]) -> None:
    """Writes config.json and the weights into a folder."""
    write_fields(folder, fields)
    save_file(tensors, folder / SAFE, {"format": "pt"})


def write_fields(folder: Path, fields: Mapping[str, Plain]) -> None:
    """Writes config.json into a folder."""
    (folder / FIELDS).write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")
