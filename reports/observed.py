"""What mixers were seen to do after training, as a page shows it: numbers of each head, and maps of attention."""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping

from pydantic import Field, ValidationError

from reports.markup import Html, element, escape, joined, name_of
from reports.plans import Data
from reports.records import Run
from reports.tables import Cell, Column, Table, to_html

_COLOUR = (46, 125, 209)
"""Of the pixels of a map, seen on white and on black; how opaque they are says the weight."""


class Map(Data):
    """How much each part of the queries (rows) attends to each part of the keys: ``side`` by ``side`` bytes, 255 for
    ``peak``; base64."""

    side: int = Field(ge=1, le=256)
    peak: float
    levels: str


class Seen(Data):
    """What one part of a network told of one pass: ``values`` by what they mean, one for each head or step."""

    part: str
    values: Mapping[str, tuple[float, ...]] = Field(default_factory=dict)
    maps: tuple[Map, ...] = ()


class Observed(Data):
    """What all parts told of the same ``tokens``, and what a token costs in rows of several lengths."""

    tokens: int = 0
    flops_by_length: tuple[tuple[int, float], ...] = ()
    parts: tuple[Seen, ...] = ()


def observed(runs: Iterable[Run]) -> Iterator[Html]:
    """Of the first finished seed that tells anything; what cannot be read is left away."""
    for run in runs:
        if run.missing is None and (found := read(run)) and found.parts:
            yield element("h3", f"Seen after training, seed {run.seed}, over {found.tokens:,} tokens")
            yield from _values(found)
            yield from _maps(found)
            return


def read(run: Run) -> Observed | None:
    """What a run's record says, or None where it says nothing or nothing that can be read."""
    try:
        return Observed.model_validate(run.record.observed) if run.record is not None else None
    except ValidationError:
        return None


def _values(found: Observed) -> Iterator[Html]:
    titles = dict.fromkeys(title for part in found.parts for title in part.values)
    for number, title in enumerate(titles):
        rows = [(part.part, part.values[title]) for part in found.parts if title in part.values]
        width = max(len(values) for _, values in rows)
        columns = (Column("Part"), *(Column(str(place), "number") for place in range(1, width + 1)))
        cells = tuple(
            (Cell(part), *(Cell(value) for value in values), *[Cell()] * (width - len(values))) for part, values in rows
        )
        yield to_html(Table(f"observed_{number}", title, columns, cells))


def _maps(found: Observed) -> Iterator[Html]:
    for part in found.parts:
        pictures = [picture for head, one in enumerate(part.maps, 1) if (picture := _picture(part.part, head, one))]
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


def _picture(part: str, head: int, found: Map) -> Html | None:
    try:
        levels = base64.b64decode(found.levels, validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(levels) != found.side**2:
        return None
    address = f"data:image/png;base64,{base64.b64encode(png(found.side, levels)).decode()}"
    image = element("img", src=address, alt=f"Attention of {part}, head {head}", width="120", height="120")
    return element("span", image, escape(f"head {head}, at most {found.peak:.2g}"), class_="map")


def png(side: int, levels: bytes) -> bytes:
    """A square image of one colour, whose opacity is the level."""
    rows = b"".join(b"\0" + levels[start : start + side] for start in range(0, side * side, side))
    header = struct.pack(">IIBBBBB", side, side, 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", header),
        (b"PLTE", bytes(_COLOUR) * 256),
        (b"tRNS", bytes(range(256))),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in chunks)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
