"""Observations of mixers after training, as a page shows them: numbers of each head, and attention maps."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from PIL import Image
from pydantic import Field, ValidationError

from lit_transformers.records.schema import parse
from reports.read.study import Run
from reports.show.markup import Html, element, escape, joined, name_of
from reports.show.tables import Cell, Column, Table, to_html

_COLOUR = (46, 125, 209)
"""The colour of the pixels of a map, visible on white and on black; their opacity shows the attention weight."""


@dataclass(frozen=True)
class Map:
    """An attention map: how much each part of the queries (rows) attends to each part of the keys (columns).

    ``levels`` is base64 of ``side`` by ``side`` bytes, where 255 stands for the weight ``peak``.
    """

    side: Annotated[int, Field(ge=1, le=256)]
    peak: float
    levels: str


@dataclass(frozen=True)
class ModuleObservation:
    """The observations of one part of a network: ``values`` by title, one for each head or step, and maps."""

    part: str
    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    maps: tuple[Map, ...] = ()


@dataclass(frozen=True)
class Observed:
    """The observations of all parts on the same number of ``tokens``, and FLOPs per token by the length of a row."""

    tokens: int = 0
    flops_by_length: tuple[tuple[int, float], ...] = ()
    parts: tuple[ModuleObservation, ...] = ()


def observed(runs: Iterable[Run]) -> Iterator[Html]:
    """Yields the observations of the first finished run that has any; those that cannot be read are skipped."""
    for run in runs:
        if run.missing is None and (observation := read(run)) and observation.parts:
            yield element("h3", f"Seen after training, seed {run.seed}, over {observation.tokens:,} tokens")
            yield from _values(observation)
            yield from _maps(observation)
            return


def read(run: Run) -> Observed | None:
    """Returns the observations in a run's record, or None where there is no record or they cannot be read."""
    try:
        return parse(Observed, run.record.observed) if run.record is not None else None
    except ValidationError:
        return None


def _values(observation: Observed) -> Iterator[Html]:
    titles = dict.fromkeys(title for part in observation.parts for title in part.values)
    for number, title in enumerate(titles):
        rows = [(part.part, part.values[title]) for part in observation.parts if title in part.values]
        width = max(len(values) for _, values in rows)
        columns = (Column("Part"), *(Column(str(column), "number") for column in range(1, width + 1)))
        cells = tuple(
            (Cell(part), *(Cell(value) for value in values), *[Cell()] * (width - len(values))) for part, values in rows
        )
        yield to_html(Table(f"observed_{number}", title, columns, cells))


def _maps(observation: Observed) -> Iterator[Html]:
    for part in observation.parts:
        pictures = [
            picture
            for head, attention_map in enumerate(part.maps, 1)
            if (picture := _picture(part.part, head, attention_map))
        ]
        if pictures:
            name = joined(["Attention of ", name_of(part.part)])
            button = element(
                "button",
                element("span", *pictures, class_="maps"),
                type="button",
                class_="zoom",
                aria_label=f"Enlarge: attention of {part.part}",
            )
            caption = (
                "Queries from top to bottom, keys from left to right, the newest last; more colour is more weight."
            )
            yield Html(element("h3", name) + element("figure", button, element("figcaption", caption)))


def _picture(part: str, head: int, attention_map: Map) -> Html | None:
    try:
        levels = base64.b64decode(attention_map.levels, validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(levels) != attention_map.side**2:
        return None
    address = f"data:image/png;base64,{base64.b64encode(png(attention_map.side, levels)).decode()}"
    image = element("img", src=address, alt=f"Attention of {part}, head {head}", width="120", height="120")
    return element("span", image, escape(f"head {head}, at most {attention_map.peak:.2g}"), class_="map")


def png(side: int, levels: bytes) -> bytes:
    """Returns a square PNG image in one colour; the opacity of each pixel is its level in 0 to 255."""
    image = Image.frombytes("P", (side, side), levels)
    image.putpalette(bytes(_COLOUR) * 256)
    file = io.BytesIO()
    image.save(file, "PNG", transparency=bytes(range(256)), optimize=True)
    return file.getvalue()
