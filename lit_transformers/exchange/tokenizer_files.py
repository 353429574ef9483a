"""Writes the tokenizer of a run as files that transformers reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lit_transformers.config import Plain
from lit_transformers.training.checkpoints import read

__all__ = ["write_tokenizer"]

JSON, CONFIG = "tokenizer.json", "tokenizer_config.json"
WRITABLE = ("bpe", "pieces")
"""The kinds of tokenizers that are ones of Hugging Face."""
OF_TEXT, OF_ROWS = ("<|endoftext|>",), ("[CLS]", "[SEP]", "[MASK]")
"""The names of the symbols that data add after those of a tokenizer: the boundary before a document, and those of rows
in which symbols are hidden, of which the first is the boundary."""
NAMES = {
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
    "unk_token": ("[UNK]", "<unk>"),
    "pad_token": ("[PAD]", "<pad>"),
    "bos_token": ("<|endoftext|>",),
    "eos_token": ("<|endoftext|>",),
}
"""What transformers calls special symbols, and the names that each may have."""
NO_PADDING = "tokenizer: has no symbol that stands for no text, so set its pad_token before rows are padded"


def write_tokenizer(checkpoint: Path, folder: Path, symbols: int) -> str:
    """Writes the tokenizer of a run's checkpoint into a folder, with the special symbols of the run's data, so that a
    text becomes the row that the network has read. Returns what to tell where there is none to write, or where it
    cannot pad, else "".

    Runs pad with symbol 0, which a mask hides; it is the padding where it stands for no text. symbols: those of the
    network.
    """
    saved = read(checkpoint, mmap=True)["lit_transformers"]
    plain = saved.get("tokenizer")
    if plain is None:
        return "tokenizer: left out, for the run's data have none"
    if saved.get("source_tokenizer") is not None:
        return "tokenizer: left out, for sources and targets have one each, and there is one file"
    if plain.get("kind") not in WRITABLE:
        return f"tokenizer: left out, for one of {plain.get('kind')} is none of Hugging Face"
    return _write(plain, folder, symbols)


def _write(plain: Mapping[str, Plain], folder: Path, symbols: int) -> str:
    from tokenizers import AddedToken, Tokenizer

    model: Any = Tokenizer.from_str(plain["model"])
    size = max(model.get_vocab().values()) + 1
    names = {0: (), len(OF_TEXT): OF_TEXT, len(OF_ROWS): OF_ROWS}.get(symbols - size)
    if names is None:
        return f"tokenizer: left out, for its {size} symbols are not those of the network, {symbols}"
    model.no_padding()
    model.no_truncation()
    model.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    if [model.token_to_id(name) for name in names] != list(range(size, symbols)):
        return f"tokenizer: left out, for it has a piece of its own called {' or '.join(names)}"
    special = {
        role: name
        for role, choices in NAMES.items()
        if (name := next((name for name in choices if model.token_to_id(name) is not None), None)) is not None
    }
    if "pad_token" not in special and model.id_to_token(0) in special.values():
        special["pad_token"] = model.id_to_token(0)
    if model.post_processor is None or names:
        model.post_processor = _rows(model, special)
    model.save(str(folder / JSON))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **special}
    (folder / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return "" if "pad_token" in special else NO_PADDING


def _rows(model: Any, special: Mapping[str, str]) -> Any:
    """Returns what puts special symbols around a text, and around two: [CLS] A [SEP] B [SEP], or the boundary before
    each document; None where a tokenizer has neither."""
    from tokenizers import processors

    first, last = special.get("cls_token", special.get("bos_token")), special.get("sep_token")
    if first is None:
        return model.post_processor
    own = [(name, model.token_to_id(name)) for name in (first, last) if name is not None]
    if last is None:
        return processors.TemplateProcessing(single=f"{first} $A", pair=f"{first} $A {first} $B", special_tokens=own)
    pair = f"{first} $A {last} $B:1 {last}:1"
    return processors.TemplateProcessing(single=f"{first} $A {last}", pair=pair, special_tokens=own)
