"""HTML elements: text is escaped where it enters an element, and markup has a separate type."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

_VOID = frozenset({"meta", "img", "br", "link"})
# Characters that HTML cannot hold, escaped or not.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


class Html(str):
    """A string that is HTML markup; any other string that enters an element is text and is escaped."""

    __slots__ = ()


def printable(text: str) -> str:
    """Returns the text with U+FFFD in place of each character that HTML cannot hold."""
    return _FORBIDDEN.sub("\ufffd", text)


def escape(text: str) -> Html:
    """Escapes text for use inside an element or a quoted attribute; markup is returned as it is."""
    return text if isinstance(text, Html) else Html(html.escape(printable(text), quote=True))


def css_string(text: str) -> str:
    """Returns text as a string of CSS."""
    escaped = re.sub(r'[\\"\n\r\f]', lambda match: f"\\{ord(match[0]):x} ", printable(text))
    return f'"{escaped}"'


def element(name: str, /, *inside: str, **attributes: str | bool | None) -> Html:
    """Returns an element.

    A trailing underscore of an attribute's name is dropped and other underscores become hyphens. An attribute that is
    None or False is omitted; of one that is True only the name is written.
    """
    attribute_text = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Html(f"<{name}{attribute_text}>")
    return Html(f"<{name}{attribute_text}>{''.join(map(escape, inside))}</{name}>")


def _attribute(name: str, value: str | bool | None) -> str:
    if value is None or value is False:
        return ""
    plain = name.rstrip("_").replace("_", "-")
    return f" {plain}" if value is True else f' {plain}="{html.escape(printable(value), quote=True)}"'


def name_of(text: str) -> Html:
    """Returns a user-chosen name as a ``bdi`` element: its writing direction does not affect the text around it."""
    return element("bdi", text)


def paragraphs(texts: Iterable[str], **attributes: str | bool | None) -> Html:
    """Returns each text as a paragraph."""
    return joined(element("p", text, **attributes) for text in texts)


def items(texts: Iterable[str]) -> Html:
    """Returns a bulleted list, or nothing where there are no texts."""
    list_items = [element("li", text) for text in texts]
    return element("ul", *list_items) if list_items else Html()


def pairs(facts: Iterable[tuple[str, str]]) -> Html:
    """Returns a description list of terms and their texts, or nothing where there are none."""
    entries = [part for term, text in facts for part in (element("dt", term), element("dd", text))]
    return element("dl", *entries) if entries else Html()


def details(summary: str, *inside: str, opened: bool = False) -> Html:
    """Returns a folded ``details`` element with its summary."""
    return element("details", element("summary", summary), *inside, open=opened)


def joined(parts: Iterable[str]) -> Html:
    """Concatenates pieces of markup or text."""
    return Html("".join(map(escape, parts)))
