"""A study of an image classifier of the transformers library, which this suite knows nothing of.

`python -m ablations run examples/lightning_digits_study.py`, from the folder of the repository, takes about a minute;
`python -m ablations tune examples/lightning_digits_study.py` finds a learning rate for each arm first. It needs the
extra `examples`.
"""

from ablations.ablation import Ablation, Margin, Metric
from lit_transformers.lightning_runs import LightningRunConfig

ABLATION = Ablation(
    question="How large may the patches of a vision Transformer be on images of 8 x 8 pixels?",
    baseline=LightningRunConfig(
        model={
            "class_path": "examples.lightning_digits.DigitClassifier",
            "init_args": {"patch_size": 2, "learning_rate": 3e-3},
        },
        data={"class_path": "examples.lightning_digits.Digits"},
        training={"steps": 250, "log_every": 10, "device": "cpu"},
        trainer={"gradient_clip_val": 1.0},
        search={"model.init_args.learning_rate": {"low": 3e-4, "high": 3e-2, "log": True}},
    ),
    factors={"patch": {"2": {}, "4": {"model.init_args.patch_size": 4}, "8": {"model.init_args.patch_size": 8}}},
    metric=Metric("val/accuracy", goal="maximize", margin=Margin(0.02, "six images of the three hundred measured")),
)
