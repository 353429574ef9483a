"""Writes the tokenizer of a run as files that transformers reads, and says the numbers of its special symbols."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lit_transformers.batch import LabelledDescription, PairDescription, RowDescription
from lit_transformers.config import ConfigError, Plain
from lit_transformers.runs.trained_symbols import TrainedSymbols, separator_of
from lit_transformers.training.checkpoints import read

__all__ = ["symbol_numbers", "write_tokenizer"]

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
"""The roles of special symbols in transformers, and the names that each symbol may have."""
NO_PADDING = "tokenizer: has no symbol that stands for no text, so set its pad_token before rows are padded"


def write_tokenizer(trained: TrainedSymbols, folder: Path, symbols: int, ends: bool, segments: bool) -> str:
    """Writes the tokenizer of trained weights into a folder, with the special symbols of the run's data, so that a text
    becomes the row that the network has read. Returns a note where there is no tokenizer to write, or where it
    cannot pad, else "".

    Runs pad with symbol 0, which a mask hides; it is the padding where it stands for no text. symbols: those of the
    network. ends: whether the boundary ends a text, as it does a source. segments: whether the network tells the two
    texts of a row apart by their segments.
    """
    plain = trained.tokenizer
    if plain is None:
        return "tokenizer: left out, for the run's data have none"
    if trained.source_tokenizer is not None:
        return "tokenizer: left out, for sources and targets have one each, and there is one file"
    if plain.get("kind") not in WRITABLE:
        return f"tokenizer: left out, for one of {plain.get('kind')} is none of Hugging Face"
    return _write(plain, folder, symbols, ends, segments)


def symbol_numbers(checkpoint: Path) -> dict[str, Plain]:
    """Returns the numbers of the symbols that a run's data put around texts, by the fields of config.json that hold
    such numbers. It is empty where the data are of a plug-in that is not loaded.

    A target begins with the symbol that ends it, by which a network that writes texts begins and ends them.
    """
    from lit_transformers.runs import RunConfig

    saved = read(checkpoint, mmap=True)["lit_transformers"]
    try:
        data = RunConfig.from_dict(saved["config"]).data.description_from(saved)
    except ConfigError:
        return {}
    boundary, padding = data.vocabulary.boundary, padding_of(saved.get("tokenizer"))
    match data:
        case RowDescription(separator=separator, mask=mask):
            numbers = {"bos": boundary, "cls": boundary, "eos": separator, "sep": separator, "mask": mask}
        case PairDescription():
            numbers = {"eos": boundary, "decoder_start": boundary, "pad": boundary}
        case LabelledDescription() if (end := separator_of(saved.get("tokenizer"))) is not None:
            numbers = {"bos": boundary, "cls": boundary, "eos": end, "sep": end}
        case _:
            numbers = {"bos": boundary, "cls": boundary, "eos": boundary}
    numbers |= {} if padding is None else {"pad": padding}
    return {f"{role}_token_id": number for role, number in numbers.items()}


def padding_of(plain: Mapping[str, Plain] | None) -> int | None:
    """Returns the symbol of a tokenizer that stands for no text and fills rows; None where there is none."""
    if plain is None or plain.get("kind") not in WRITABLE:
        return None
    from tokenizers import Tokenizer

    model: Any = Tokenizer.from_str(plain["model"])
    name = special_names(model).get("pad_token")
    return None if name is None else model.token_to_id(name)


def special_names(model: Any) -> dict[str, str]:
    """Returns the names of a tokenizer's special symbols, by their roles in transformers."""
    special = {
        role: name
        for role, choices in NAMES.items()
        if (name := next((name for name in choices if model.token_to_id(name) is not None), None)) is not None
    }
    if "pad_token" not in special and model.id_to_token(0) in special.values():
        special["pad_token"] = model.id_to_token(0)
    return special


def _write(plain: Mapping[str, Plain], folder: Path, symbols: int, ends: bool, segments: bool) -> str:
    """Writes a tokenizer. Arguments and result are those of ``write_tokenizer``."""
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
        return f"tokenizer: omitted, for it has a piece called {' or '.join(names)}"
    special = special_names(model)
    if ends:
        model.post_processor = _sources(model, special)
    elif model.post_processor is None or names:
        model.post_processor = _rows(model, special)
    model.save(str(folder / JSON))
    config: dict[str, Plain] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config |= special
    if segments:  # by default transformers gives a network none, and it reads both texts as the first
        config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    (folder / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return "" if "pad_token" in special else NO_PADDING


def _sources(model: Any, special: Mapping[str, str]) -> Any:
    """Returns the post-processor that puts the boundary after a source; the present one where there is no boundary."""
    from tokenizers import processors

    last = special.get("cls_token", special.get("bos_token"))
    if last is None:
        return model.post_processor
    own = [(last, model.token_to_id(last))]
    return processors.TemplateProcessing(single=f"$A {last}", pair=f"$A {last} $B {last}", special_tokens=own)


def _rows(model: Any, special: Mapping[str, str]) -> Any:
    """Returns the post-processor that puts special symbols around a text, and around two: [CLS] A [SEP] B [SEP], or the
    boundary before each document; the present one where a tokenizer has neither kind of symbol."""
    from tokenizers import processors

    first, last = special.get("cls_token", special.get("bos_token")), special.get("sep_token")
    if first is None:
        return model.post_processor
    own = [(name, model.token_to_id(name)) for name in (first, last) if name is not None]
    if last is None:
        return processors.TemplateProcessing(single=f"{first} $A", pair=f"{first} $A {first} $B", special_tokens=own)
    pair = f"{first} $A {last} $B:1 {last}:1"
    return processors.TemplateProcessing(single=f"{first} $A {last}", pair=pair, special_tokens=own)
