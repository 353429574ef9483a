"""HTML in pieces: text is escaped where it enters an element, and markup is a type of its own."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

_VOID = frozenset({"meta", "img", "br", "link"})
# Characters that HTML cannot hold, escaped or not.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


class Html(str):
    """Markup. Any other string that enters an element is text, and is escaped."""

    __slots__ = ()


def printable(text: str) -> str:
    """The text with a mark in place of each character that no page can hold."""
    return _FORBIDDEN.sub("\ufffd", text)


def escape(text: str) -> Html:
    """Text as markup that shows it, inside an element or in an attribute's quotes."""
    return text if isinstance(text, Html) else Html(html.escape(printable(text), quote=True))


def element(name: str, /, *inside: str, **attributes: str | bool | None) -> Html:
    """An element. A trailing underscore of an attribute's name is dropped and others are hyphens; None and False leave
    it away, True writes its name alone."""
    said = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Html(f"<{name}{said}>")
    return Html(f"<{name}{said}>{''.join(map(escape, inside))}</{name}>")


def _attribute(name: str, value: str | bool | None) -> str:
    if value is None or value is False:
        return ""
    plain = name.rstrip("_").replace("_", "-")
    return f" {plain}" if value is True else f' {plain}="{html.escape(printable(value), quote=True)}"'


def name_of(text: str) -> Html:
    """A name that a person chose: whichever way it is written, what stands around it keeps its order."""
    return element("bdi", text)


def paragraphs(texts: Iterable[str], **attributes: str | bool | None) -> Html:
    """Each text as a paragraph."""
    return joined(element("p", text, **attributes) for text in texts)


def items(texts: Iterable[str]) -> Html:
    """A list of points; nothing where there is none."""
    listed = [element("li", text) for text in texts]
    return element("ul", *listed) if listed else Html()


def pairs(facts: Iterable[tuple[str, str]]) -> Html:
    """Terms and what is said of each; nothing where there is none."""
    listed = [part for term, text in facts for part in (element("dt", term), element("dd", text))]
    return element("dl", *listed) if listed else Html()


def details(summary: str, *inside: str, opened: bool = False) -> Html:
    """A part that a reader unfolds."""
    return element("details", element("summary", summary), *inside, open=opened)


def joined(parts: Iterable[str]) -> Html:
    """Pieces of markup or text, one after another."""
    return Html("".join(map(escape, parts)))
