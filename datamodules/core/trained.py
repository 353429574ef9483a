"""The meanings of the symbols and labels of a trained network, by which all its later data are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Self

from datamodules.core.errors import DataError
from datamodules.core.tokenizers import Tokenizer, TokenizerConfig, tokenizer_from_dict
from lit_transformers.batch import LABEL
from lit_transformers.config import Config, Plain, canonical_hash, parts_below

__all__ = ["TrainedSymbols", "require_tokenizer", "tokenizer_conflicts", "with_errors_of"]

SOURCE_TOKENIZER = "source_tokenizer"
"""The field of a tokenizer for the sources of pairs."""


class TrainedSymbols(NamedTuple):
    """The meanings of symbols and labels, as plain data, which checkpoints and files of weights hold.

    tokenizer         of texts, for pairs of their targets; None where symbols stand for no text
    source_tokenizer  of the sources of pairs; None where both sides share one
    labels            the names of classes, in the order of their numbers; of several sources of examples, by the name
                      of each; None where they have none
    columns           the same of further columns of labels, by their names; None where none has any
    meanings          the facts that decide the meanings of symbols without a text; None for those of a tokenizer
    """

    tokenizer: Plain = None
    source_tokenizer: Plain = None
    labels: Plain = None
    meanings: Plain = None
    columns: Plain = None

    @classmethod
    def of(cls, metadata: Mapping[str, Plain]) -> Self:
        """Returns those of ``Data.checkpoint_metadata``, or of ``to_dict``."""
        return cls(**{name: metadata.get(name) for name in cls._fields})

    def to_dict(self) -> dict[str, Plain]:
        """Returns them as plain data, each by its name."""
        return self._asdict()

    def of_source(self, name: str) -> TrainedSymbols:
        """Returns those of one source of several that share symbols, each with its own labels; without labels where
        none of that name were trained."""
        labels = self.labels.get(name) if isinstance(self.labels, Mapping) else None
        return self._replace(labels=labels)

    def stand_for_those_of(self, other: TrainedSymbols) -> bool:
        """Whether symbols have the same meanings as others, apart from labels; a file may have made lists of tuples."""
        plain = [symbols._replace(labels=None, columns=None).to_dict() for symbols in (self, other)]
        return canonical_hash(plain[0]) == canonical_hash(plain[1])

    def names_in(self, column: str) -> Plain:
        """Returns the names of the classes of a column of labels; None where it has none."""
        return self.labels if column == LABEL else (self.columns or {}).get(column)

    def label_numbers(self, names: Sequence[str], column: str = LABEL) -> list[int]:
        """Returns the number of each of these labels of a column, by its name. Raises DataError for one that was never
        trained."""
        trained = self.names_in(column)
        if trained is None:
            return [*range(len(names))]
        unknown = [name for name in names if name not in trained]
        if unknown:
            raise DataError(
                f"data.source: the label {unknown[0]!r} was never trained; the network knows {', '.join(trained)}, "
                "so leave its examples out, or train a network with a new head"
            )
        return [trained.index(name) for name in names]


def require_tokenizer(trained: Plain) -> Tokenizer:
    """Returns the tokenizer of a trained network. Raises DataError where the network was not trained on text."""
    if trained is None:
        raise DataError("data: are text, and the network was not trained on text; set data back, or train anew")
    return tokenizer_from_dict(trained)


def tokenizer_conflicts(config: Config, trained: TrainedSymbols, path: str) -> Iterator[str]:
    """Yields why the tokenizers of a trained network cannot stand in the place of those in a config at this path: one
    that is learned from a text gives way to one of its kind, and any other has to be the same."""
    for place, part in tokenizers_in(config, path):
        if (reason := _conflict(part, trained, place)) is not None:
            yield reason


def with_errors_of(config: Config, trained: TrainedSymbols) -> TrainedSymbols:
    """Returns the symbols of a trained network with the ``errors`` of the tokenizers in a config: the treatment of
    undecodable bytes does not change the meanings of symbols."""
    for place, part in tokenizers_in(config, ""):
        name, errors = place.rpartition(".")[2], part.to_dict().get("errors")
        plain = getattr(trained, name, None)
        if errors is not None and plain is not None and "errors" in plain:
            trained = trained._replace(**{name: plain | {"errors": errors}})
    return trained


def tokenizers_in(config: Config, path: str) -> Iterator[tuple[str, TokenizerConfig]]:
    """Yields the tokenizers in a config at this path, with their paths."""
    for name, value in vars(config).items():
        for place, part in parts_below(name, value):
            if isinstance(part, TokenizerConfig):
                yield f"{path}.{place}", part
            else:
                yield from tokenizers_in(part, f"{path}.{place}")


def _conflict(config: TokenizerConfig, trained: TrainedSymbols, path: str) -> str | None:
    is_of_sources = path.endswith(SOURCE_TOKENIZER)
    plain = trained.source_tokenizer if is_of_sources else trained.tokenizer
    if plain is None:
        has = "one tokenizer for sources and targets" if is_of_sources else "no tokenizer"
        return f"{path}: the network was trained with {has}; leave it out, or train anew"
    tokenizer, remedy = tokenizer_from_dict(plain), "set it to that of the network's training, or train anew"
    if config.builds is not None and config.builds != tokenizer.kind:
        return f"{path}: {config.kind} gives other symbols than the network's tokenizer, of {tokenizer.kind}; {remedy}"
    if not config.learned and not config.build([]).has_symbols_of(tokenizer):
        return f"{path}: {config.kind} gives other symbols than the network's tokenizer; {remedy}"
    return None
