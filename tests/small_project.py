"""The project that init writes, with two arms in place of three: one with the plug-in's mixer, and one without."""

from __future__ import annotations

from pathlib import Path

from lit_transformers.template import write_project

SMALL = ("--seeds", "1", "--set", "training.steps=2", "--set", "data.evaluation.examples=16")
"""The options by which its runs take no time."""
THIRD_ARM = '            "decay64": {"model.mixer": DecayConfig(horizon=64)},\n'


def write_small_project(folder: Path) -> Path:
    """Writes the project into a folder. Returns its study, of an arm with "attention" and one with "decay"."""
    write_project(folder)
    study = folder / "studies" / "decay_or_attention.py"
    text = study.read_text(encoding="utf-8")
    assert THIRD_ARM in text
    study.write_text(text.replace(THIRD_ARM, ""), encoding="utf-8")
    return study
