"""Reads the entities that tags of words spell: phrases with a type, in the schemes IOB1, IOB2, IOBES and BILOU.

Entities equal those of seqeval (1.2.2) in strict mode: tags that the scheme does not allow, such as I- without a B-
before it in IOB2, spell no entity. Seqeval's rules are tables over pairs of tags here, which read the entities of a
batch without a loop over words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["LONGEST", "OUTSIDE", "SCHEMES", "EntityRules", "Scheme", "WordSpans", "entities_of_words", "scheme_of"]

Scheme = Literal["IOB1", "IOB2", "IOBES", "BILOU"]
OUTSIDE = "O"
"""The tag of words outside entities."""
LONGEST = 62
"""The most words of a training entity that is recognized: the bits of an integer."""


class SchemeRules(NamedTuple):
    """The rules of a scheme for two neighbouring tags. begins: the second tag begins an entity. continues: it continues
    the entity of the first. ends: an entity ends between them.

    A rule is the prefixes of the first tag, the prefixes of the second tag, and the condition on their types: equal
    (True), different (False) or any (None).
    """

    prefixes: str
    begins: tuple[tuple[str, str, bool | None], ...]
    continues: tuple[tuple[str, str, bool | None], ...]
    ends: tuple[tuple[str, str, bool | None], ...]


SCHEMES: dict[Scheme, SchemeRules] = {
    "IOB1": SchemeRules(
        "IOB",
        (("O", "I", None), ("I", "I", False), ("B", "I", None), ("IB", "B", True)),
        (("IB", "I", True),),
        (("I", "I", False), ("I", "OB", None), ("B", "O", None), ("B", "I", False), ("B", "B", True)),
    ),
    "IOB2": SchemeRules(
        "IOB",
        (("IOB", "B", None),),
        (("IB", "I", True),),
        (("IB", "OB", None), ("IB", "I", False)),
    ),
    "IOBES": SchemeRules(
        "IOBES",
        (("IOBES", "BS", None),),
        (("IB", "IE", True),),
        (("ES", "IOBES", None),),
    ),
    "BILOU": SchemeRules(
        "BILOU",
        (("BILOU", "BU", None),),
        (("IB", "IL", True),),
        (("LU", "BILOU", None),),
    ),
}


def scheme_of(names: Sequence[str], scheme: Scheme | Literal["none"] | None = None) -> Scheme | None:
    """Returns the scheme of tags; None if they do not spell entities.

    scheme: the scheme, or "none"; None derives it from the prefixes: IOBES if they include E- or S-, BILOU if they
    include L- or U-, else IOB2. Tags do not spell entities if all are O, or if one is neither O nor a prefix with a
    type.
    """
    if scheme is not None:
        return None if scheme == "none" else scheme
    tags = [name for name in names if name != OUTSIDE]
    if not tags or not all(re.fullmatch(r"[BIESLU]-.+", tag) for tag in tags):
        return None
    prefixes = {tag[0] for tag in tags}
    return next((known for known in ("IOB2", "IOBES", "BILOU") if prefixes <= {*SCHEMES[known].prefixes}), None)


class WordSpans(NamedTuple):
    """Spans of words in rows of w words, stored at their first words.

    begins  (b, w) True at the first word of a span
    stops   (b, w) the number of the word after the last word of the span
    types   (b, w) the number of the type of the span
    """

    begins: Bool[Tensor, "b w"]
    stops: Int[Tensor, "b w"]
    types: Int[Tensor, "b w"]

    def common(self, other: WordSpans) -> Bool[Tensor, "b w"]:
        """Returns a mask of the first words of spans that are in both, with the same end and type."""
        return self.begins & other.begins & (self.stops == other.stops) & (self.types == other.types)


class EntityRules(nn.Module):
    """The rules of a scheme for tags with these names. A number without a name, such as IGNORED, counts as O."""

    type_of: Int[Tensor, " n"]
    pairs: Bool[Tensor, "3 n n"]

    def __init__(self, names: Sequence[str], scheme: Scheme) -> None:
        super().__init__()
        rules, known = SCHEMES[scheme], [*names, OUTSIDE]
        parts = [(name[0], name[1:].strip("-") or "_") for name in known]
        self.types = [*dict.fromkeys(kind for _, kind in parts)]
        self.outside = len(names)
        pairs = [_table(parts, rule) for rule in (rules.begins, rules.continues, rules.ends)]
        self.register_buffer("type_of", torch.tensor([self.types.index(kind) for _, kind in parts]), persistent=False)
        self.register_buffer("pairs", torch.stack(pairs), persistent=False)

    def spans(self, tags: Int[Tensor, "b w"]) -> WordSpans:
        """Returns the entities of rows of tags."""
        count = tags.size(1)
        tags = torch.where((tags < 0) | (tags > self.outside), self.outside, tags)
        around = F.pad(tags, (1, 1), value=self.outside)
        begins, continues, ends = self.pairs[:, around[:, :-1], around[:, 1:]]
        place = torch.arange(count + 1, device=tags.device)
        # A run of continuing words is within an entity from the first word of the run that begins one.
        broken = torch.where(continues, -1, place).cummax(dim=1).values
        within = torch.where(begins, place, -1).cummax(dim=1).values >= broken
        before = F.pad(within[:, :-1], (1, 0), value=False)
        first = begins & ~(continues & before)
        breaks = torch.where(continues, count + 1, place).flip(1).cummin(dim=1).values.flip(1)
        stops = breaks[:, 1:]
        return WordSpans(first[:, :-1] & ends.gather(1, stops), stops, self.type_of[tags])


def _table(parts: Sequence[tuple[str, str]], rules: Sequence[tuple[str, str, bool | None]]) -> Bool[Tensor, "n n"]:
    """Returns for each pair of tags, given as prefixes and types, whether a rule applies."""
    return torch.tensor(
        [
            [
                any(
                    before in first and after in second and same in (None, of_before == of_after)
                    for first, second, same in rules
                )
                for after, of_after in parts
            ]
            for before, of_before in parts
        ]
    )


def entities_of_words(
    rules: EntityRules, predicted: Int[Tensor, "b w"], labels: Int[Tensor, "b w 2"]
) -> list[Bool[Tensor, "b w"]]:
    """Returns six masks of the first words of entities: right, predicted and labelled entities, and the same three
    without entities that occur in training."""
    spans, true = rules.spans(predicted), rules.spans(labels[..., 0])
    right = spans.common(true)
    parts = [(right, true), (spans.begins, spans), (true.begins, true)]
    return [begins for begins, _ in parts] + [begins & ~seen(of, labels[..., 1]) for begins, of in parts]


def seen(spans: WordSpans, known: Int[Tensor, "b w"]) -> Bool[Tensor, "b w"]:
    """Returns a mask of the spans whose words are an entity of training. known: the training entities that begin at
    each word, as the bits of ``WordTagLabels``."""
    count = spans.stops - torch.arange(known.size(1), device=known.device)
    bits = known.clamp(min=0) >> (count - 1).clamp(0, LONGEST)
    return (bits & 1 == 1) & (count <= LONGEST)
