"""A study from Python: its arms are trained, and its comparisons come as a pandas DataFrame.

`python examples/study_from_python.py` takes some minutes and needs no data. Stopped, it goes on where it was; its
folder, `runs/studies/memory_reaches/`, holds the same report as that of a study of the command line.
"""

from __future__ import annotations

from ablations import Ablation, Margin, Metric
from lit_transformers import RunConfig, run_study

BASELINE = RunConfig.from_dict(
    {
        "model": {
            "kind": "language_model",
            "dim": 32,
            "heads": 4,
            "depth": 2,
            "mixer": {"kind": "attention", "memory": 16, "encoding": "xl"},
        },
        "task": {"kind": "causal_lm"},
        "data": {
            "kind": "language",
            # Nine symbols in ten repeat the one 8 places back.
            "source": {"kind": "lags", "symbols": 8, "lags": [8], "shares": [0.9]},
            "tokenizer": "characters",
            "segment_length": 8,
            "batch_size": 32,
        },
        "training": {"steps": 300, "optimizer": {"kind": "adamw", "learning_rate": 5e-3}, "device": "cpu"},
    }
)

STUDY = Ablation(
    question="Does memory carry what lies beyond a segment?",
    baseline=BASELINE,
    factors={"memory": {"16": {}, "0": {"model.mixer.memory": 0}}},
    seeds=3,
    metric=Metric("val/bpb", label="bits per byte", margin=Margin(0.02, "a small part of what can be known")),
)

if __name__ == "__main__":
    print(run_study(STUDY, name="memory_reaches")[["comparison", "difference", "low", "high", "verdict"]])
