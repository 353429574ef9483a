"""The network that studies of compression compress: MiniLM, fine-tuned on sentences of SST-2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Metric, Scale
from ablations.fine_tuning import TUNED, WHOLE, after

DENSE = TUNED.override(
    {"data.source.examples": 8000, "training.steps": 250, "training.schedule.warmup": 25, "task.dropout": 0.1}
)
"""MiniLM fine-tuned on one pass of 8,000 sentences."""


COMPRESSED = DENSE.override(after(DENSE))
"""The dense network as it is, measured again: the baseline of compressions without training."""

LARGER: Mapping[str, Any] = {
    **{path: value for path, value in WHOLE.items() if not path.startswith("training.")},
    "training.device": "cuda",
    "training.precision": "bf16",
    **{path: value for path, value in after(DENSE.override(WHOLE)).items() if path.startswith("start.")},
}
"""Overrides of COMPRESSED: the dense network has had three passes of all sentences on a GPU."""

SINGLE: Mapping[str, Any] = {**LARGER, "training.precision": "32"}
"""The same, and the dense network is measured in float32."""

PACKED = Metric("measured/packed_bytes", goal="minimize", label="bytes of the packed checkpoint", compare="ratio")
"""The size of the checkpoint of a run, packed without loss."""

SCALES = {"demo": Scale(), "gpu": Scale(overrides=LARGER), "paper": Scale(overrides=LARGER, seeds=1)}
