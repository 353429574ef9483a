"""A run small enough to be trained in a test."""

from __future__ import annotations

import random

import pytest

from lit_transformers.runs import RunConfig


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A recurrent model on a few small files of unequal length."""
    folder = tmp_path_factory.mktemp("corpus")
    generator = random.Random(0)
    for index in range(61):
        lines = [
            " ".join(generator.choices(["alpha", "beta", "gamma", "delta"], k=6))
            for _ in range(generator.randint(2, 20))
        ]
        (folder / f"{index}.txt").write_text("\n".join(lines))
    mixer = {"kind": "attention", "memory": 8, "encoding": "xl"}
    return RunConfig.from_dict(
        {
            "model": {"kind": "language_model", "dim": 16, "heads": 2, "depth": 1, "mixer": mixer},
            "data": {
                "source": {"kind": "files", "path": str(folder), "validation": 0.2},
                "segment_length": 8,
                "batch_size": 4,
                "evaluation": {"documents": 3},
            },
            "training": {"steps": 30, "device": "cpu"},
        }
    )
