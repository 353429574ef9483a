"""The licences of weights and of their training data: reads them from a folder, and writes them into an export."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lit_transformers.plain_yaml import read_yaml

__all__ = ["licence_of_folder", "write_licences"]

CARD = "README.md"
TEXTS = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE", "LICENCE.txt", "COPYING")
"""The names of files with the text of a licence."""
SEVERAL = "other"
"""The hub's name for the licence of a model with several licences."""


def licence_of_folder(folder: Path) -> str | None:
    """Returns the licence that a folder of Hugging Face states: from the head of its model card, or the first line of
    the licence's text. None if it states no licence."""
    if (card := _read(folder / CARD)).startswith("---"):
        lines = card.split("---", 2)[1].splitlines()
        try:
            head = read_yaml(next((line for line in lines if line.startswith("license:")), ""))
        except ValueError:
            head = None
        if isinstance(head, Mapping) and isinstance(head.get("license"), str):
            return str(head["license"])
    texts = (_read(folder / name) for name in TEXTS)
    return next((line.strip() for text in texts for line in text.splitlines() if line.strip()), None)


def write_licences(folder: Path, licences: Mapping[str, str], library: str = "transformers") -> None:
    """Writes the model card of an exported folder, with the licences of the starting weights and of the data. Writes
    nothing if no licence is known. library: the hub's name of the program that reads the folder."""
    if not licences:
        return
    known = {*licences.values()}
    rows = "\n".join(f"| {name} | {licence} |" for name, licence in licences.items())
    text = (
        f"---\nlicense: {known.pop() if len(known) == 1 else SEVERAL}\nlibrary_name: {library}\n---\n\n"
        "Exported by lit-transformers. The licences of the weights that training started from and of its data:\n\n"
        f"| Part | Licence |\n| --- | --- |\n{rows}\n"
    )
    (folder / CARD).write_text(text, encoding="utf-8")


def _read(file: Path) -> str:
    """Returns the text of a file; an empty string if there is no such file."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
