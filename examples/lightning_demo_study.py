"""A study of a LightningModule that is no part of this suite: Lightning's own demo of a Transformer.

`python -m ablations run examples/lightning_demo_study.py`, from the folder of the repository, takes about a minute.
"""

from ablations.ablation import Ablation, Match, Metric
from lit_transformers.lightning_runs import LightningRunConfig

ABLATION = Ablation(
    question="Does Lightning's demo of a Transformer predict its targets, or does it read them?",
    baseline=LightningRunConfig(
        model={"class_path": "examples.lightning_demo.Demo", "init_args": {"vocab_size": 128}},
        data={"class_path": "examples.lightning_demo.PythonReference"},
        training={"steps": 150, "log_every": 10, "device": "cpu"},
    ),
    factors={"decoder_reads": {"inputs": {}, "targets": {"model.init_args.shows_targets": True}}},
    seeds=2,
    metric=Metric("val/loss", goal="minimize", label="nats per character"),
    match=Match("parameters"),
)
