"""The gate of runs on labelled texts that start from earlier stages: no stage has trained on a held-out text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress

from datamodules import Data, LabelledData, cache_folder
from datamodules.core.documents import Split
from datamodules.core.held_out import text_digest, words_of
from datamodules.text.text_data import TextData
from lit_transformers.config import canonical_hash
from lit_transformers.records.files import write_json
from lit_transformers.records.record import Gate
from lit_transformers.runs.config import RunConfig
from lit_transformers.runs.stages import stages_within

__all__ = ["held_out_gates"]

NAME = "held-out texts are new"
LEAST_WORDS = 5
"""The fewest words of a text that counts; a shorter text may occur twice by chance."""
HELD_OUT: tuple[Split, ...] = ("validation", "test")
VERSION = 1


def held_out_gates(config: RunConfig, data: Data | None = None) -> tuple[Gate, ...]:
    """Returns the gate of a run on labelled texts; empty if the data are not labelled texts, or the run starts from no
    other run.

    The gate fails if a text of validation or test has the same words as a training text, or a line of a training text,
    of an earlier stage. data: the data of the config, if already built. Raises DataError.
    """
    _, *stages = stages_within(config)
    if not stages:
        return ()
    labelled = data or config.build_data()
    if not isinstance(labelled, LabelledData):
        return ()
    texts = {one.text for split in HELD_OUT for one in labelled.examples.texts(split)}
    held_out = {text_digest(text): text for text in texts if len(words_of(text)) >= LEAST_WORDS}
    if not held_out:
        return ()
    for prefix, stage in stages:
        trained = stage.data.build()
        seen = _seen(trained, labelled.content, held_out)
        if seen:
            shown = held_out[seen[0]].decode(errors="replace")[:60]
            reason = f"{len(seen):,} of {len(held_out):,} texts of validation and test are among the training texts of "
            way_out = "read them by a source of kind labelled_training, which omits such texts"
            return (Gate(NAME, False, f"{reason}{prefix}data, such as {shown!r}; {way_out}"),)
    return (Gate(NAME, True, f"no earlier stage was trained on any of {len(held_out):,} texts of validation and test"),)


def _seen(data: Data, content: str, held_out: dict[bytes, bytes]) -> list[bytes]:
    """Returns the digests of held-out texts that are among the training texts of a stage, sorted. Cached below
    LIT_CACHE, since a large corpus takes time."""
    if not isinstance(data, TextData | LabelledData):
        return []
    own = data.corpus.fingerprint if isinstance(data, TextData) else data.examples.fingerprint
    path = (
        cache_folder()
        / "held-out"
        / f"{canonical_hash([VERSION, own, content, sorted(map(bytes.hex, held_out))])}.json"
    )
    with suppress(OSError, ValueError):
        return [bytes.fromhex(digest) for digest in json.loads(path.read_text(encoding="utf-8"))]
    seen = sorted({digest for text in _training_texts(data) if (digest := text_digest(text)) in held_out})
    with suppress(OSError):
        write_json(path, [digest.hex() for digest in seen])
    return seen


def _training_texts(data: TextData | LabelledData) -> Iterator[bytes]:
    """Yields the training texts of data, whole and line by line."""
    for document in data.corpus.documents("train") if isinstance(data, TextData) else data.examples.texts("train"):
        yield document.text
        lines = document.text.splitlines()
        yield from lines if len(lines) > 1 else ()
