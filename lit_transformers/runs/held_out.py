"""The gate of runs on labelled texts that start from earlier stages: no stage has trained on a held-out text or on a
sentence of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress

from datamodules import Data, LabelledData, cache_folder
from datamodules.core.documents import Split
from datamodules.core.held_out import digests_of_training, held_out_digests
from datamodules.text.text_data import TextData
from lit_transformers.config import canonical_hash
from lit_transformers.records.files import write_json
from lit_transformers.records.record import Gate
from lit_transformers.runs.config import RunConfig
from lit_transformers.runs.stages import stages_within

__all__ = ["held_out_gates"]

NAME = "held-out texts are new"
COUNTED = "texts and sentences of validation and test"
HELD_OUT: tuple[Split, ...] = ("validation", "test")
VERSION = 2


def held_out_gates(config: RunConfig, data: Data | None = None) -> tuple[Gate, ...]:
    """Returns the gate of a run on labelled texts; empty if the data are not labelled texts, or the run starts from no
    other run.

    The gate fails if a text of validation or test, or one of its sentences, has the same words as a training text of an
    earlier stage, or as a line or a sentence of one. data: the data of the config, if already built. Raises DataError.
    """
    _, *stages = stages_within(config)
    if not stages:
        return ()
    labelled = data or config.build_data()
    if not isinstance(labelled, LabelledData):
        return ()
    held_out = held_out_digests({one.text for split in HELD_OUT for one in labelled.examples.texts(split)})
    if not held_out:
        return ()
    for prefix, stage in stages:
        trained = stage.data.build()
        seen = _seen(trained, labelled.content, held_out)
        if seen:
            shown = held_out[seen[0]].decode(errors="replace")[:60]
            reason = f"{len(seen):,} of {len(held_out):,} {COUNTED} are among the training texts of "
            way_out = "read them by a source of kind labelled_training, which omits such texts"
            return (Gate(NAME, False, f"{reason}{prefix}data, such as {shown!r}; {way_out}"),)
    return (Gate(NAME, True, f"no earlier stage was trained on any of {len(held_out):,} {COUNTED}"),)


def _seen(data: Data, content: str, held_out: dict[bytes, bytes]) -> list[bytes]:
    """Returns the digests of held-out texts and sentences that are among the training texts of a stage, sorted. Cached
    below LIT_CACHE, since a large corpus takes time."""
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
    seen = sorted({one for text in _training_texts(data) for one in digests_of_training(text) if one in held_out})
    with suppress(OSError):
        write_json(path, [digest.hex() for digest in seen])
    return seen


def _training_texts(data: TextData | LabelledData) -> Iterator[bytes]:
    """Yields the training texts of data."""
    for document in data.corpus.documents("train") if isinstance(data, TextData) else data.examples.texts("train"):
        yield document.text
