"""Two small corpora of text files: texts that networks are trained on, and texts with symbols unknown to them."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from random import Random

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
OTHER = ["alpha", "beta", "omega", "phi-3", "Qatar"]
DOCUMENTS = 24


@cache
def folder() -> Path:
    """The folder of both corpora, ``usual`` and ``other``, which ends with the process that first asks for it."""
    path = Path(tempfile.mkdtemp(prefix="sampler"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    for name, words in (("usual", WORDS), ("other", OTHER)):
        random = Random(name)
        (path / name).mkdir()
        for number in range(DOCUMENTS):
            sentences = [" ".join(random.choices(words, k=random.randint(3, 7))) + "." for _ in range(5)]
            (path / name / f"{number}.txt").write_text(" ".join(sentences) + "\n", encoding="utf-8")
    return path


def corpus(name: str) -> str:
    """The path of a corpus."""
    return str(folder() / name)
