"""The meaning of the symbols and labels of trained weights: it is read from their place, and given to data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from datamodules import Data, DataConfig, DataError, Split, TrainedSymbols, tokenizer_conflicts, with_errors_of
from datamodules.core.tokenizers import tokenizer_from_dict, tokenizer_of_folder
from datamodules.rows.symbols import RowSymbols
from lit_transformers.batch import (
    DataDescription,
    LabelledDescription,
    Labels,
    MixedDescription,
    PairDescription,
    Vocabulary,
)
from lit_transformers.config import ConfigError, Plain

__all__ = [
    "TrainedSymbols",
    "read_with",
    "separator_of",
    "symbols_of_checkpoint",
    "symbols_of_folder",
    "tokenizers_for",
    "unknown_lines",
    "what_is_read",
]

MOST_SYMBOLS = 1 << 17
"""The most symbols of a split that are looked at for unknown ones."""


def symbols_of_checkpoint(contents: Mapping[str, Any], place: str) -> TrainedSymbols:
    """Returns the meaning of the symbols of a run's checkpoint. Where an old checkpoint does not hold it, the data of
    its run state it as long as they are unchanged. Raises ConfigError where they have changed."""
    extra = contents["lit_transformers"]
    kept = TrainedSymbols.of(extra)
    if "labels" in extra or kept.tokenizer is not None:
        return kept
    reason = "they have changed"
    try:
        data = DataConfig.from_dict(extra["config"].get("data", {})).build()
        if contents.get(type(data).__qualname__, {}).get("of") == data.identity():
            return data.trained_symbols()
    except (DataError, ConfigError) as error:
        reason = str(error)
    raise ConfigError(
        "was written before checkpoints held the meaning of their symbols, and the data of its run do not tell it: "
        f"{reason}; put them back, or train anew",
        place,
    )


def symbols_of_folder(folder: Path, size: int) -> tuple[TrainedSymbols | None, str]:
    """Returns the meaning of the symbols of a network with a vocabulary of this size, by the files of a tokenizer in a
    folder of Hugging Face; None where they do not state it, and then the reason."""
    tokenizer = tokenizer_of_folder(folder)
    if tokenizer is None:
        return None, "tokenizer: its files cannot be read here, so a run has to name its own"
    if tokenizer.vocabulary.size != size:
        reason = f"its {tokenizer.vocabulary.size:,} symbols are not those of the network, {size:,}"
        return None, f"tokenizer: {reason}, so a run has to name its own"
    return TrainedSymbols(tokenizer.to_dict()), ""


def separator_of(tokenizer: Plain) -> int | None:
    """Returns the symbol that ends each text of a row, given a tokenizer as plain data; None without a tokenizer."""
    return None if tokenizer is None else RowSymbols.of(tokenizer_from_dict(tokenizer)).separator


def read_with(
    data: Data, trained: TrainedSymbols, description: DataDescription, content: Plain, place: str
) -> Iterator[str]:
    """Gives data the symbols and labels of a trained network, and yields a line on the symbols of the measured split
    that the network does not know. Raises ConfigError or DataError where the data cannot be read with these symbols.

    description, content: of the data that the network was trained on; None for content that is not known.
    """
    data.read_as(trained)
    is_unknown = trained == TrainedSymbols() and content is not None and content != data.content
    if is_unknown or what_is_read(data.description) != what_is_read(description):
        raise ConfigError(
            f"{place} cannot tell whether symbols of {data.config.name} are those that it was trained on; set data "
            "back, train anew, or return the symbols in trained_symbols() of your data",
            "data",
        )
    if content is None or content != data.content:
        yield from unknown_lines(data, [data.measured_split], place)


def what_is_read(description: DataDescription) -> tuple[Vocabulary, Vocabulary | Mapping[str, Labels] | None]:
    """Returns the vocabulary of data and, for pairs, the vocabulary of their sources or, for labelled examples, the
    labels in their columns."""
    match description:
        case PairDescription():
            return description.vocabulary, description.source
        case LabelledDescription():
            return description.vocabulary, description.label_columns
        case MixedDescription():
            columns = {
                f"{source}.{name}": labels
                for source, described in description.sources.items()
                for name, labels in described.label_columns.items()
            }
            return description.vocabulary, columns
    return description.vocabulary, None


def tokenizers_for(config: DataConfig, trained: TrainedSymbols) -> TrainedSymbols:
    """Returns the symbols of the weights that a run starts from, which treat bytes that are no text as its config says.
    Raises ConfigError where that asks for other tokenizers."""
    for reason in tokenizer_conflicts(config, trained, "data"):
        raise ConfigError(reason, "start")
    return with_errors_of(config, trained)


def unknown_lines(data: Data, splits: Sequence[Split], place: str) -> Iterator[str]:
    """Yields how many symbols of each split the tokenizer of trained weights does not know, where it may be some."""
    for split in dict.fromkeys(splits):
        unknown = total = 0
        for tokenizer, symbols in data.encoded(split):
            if tokenizer.unknown is None:
                return
            unknown, total = unknown + int((symbols == tokenizer.unknown).sum()), total + len(symbols)
            if total >= MOST_SYMBOLS:
                break
        if total:
            first = "the first " if total >= MOST_SYMBOLS else ""
            yield f"{split}: {unknown / total:.2%} of {first}{total:,} symbols are unknown to the tokenizer of {place}"
