"""A study of a script of scikit-learn, which prints one line of JSON.

`python -m ablations run examples/commands/forest_study.py`, from the folder of the repository, takes seconds.
"""

from ablations.ablation import Ablation, Margin, Metric
from lit_transformers.command_runs import CommandRunConfig

ABLATION = Ablation(
    question="Are four trees as good as sixteen?",
    baseline=CommandRunConfig(
        command="{python} fit.py --trees {trees} --seed {seed}",
        params={"trees": 16},
        metrics={"accuracy": "maximize"},
        folder="examples/commands/forest",
        training={"device": "cpu"},
    ),
    factors={"trees": {"16": {}, "4": {"params.trees": 4}}},
    seeds=4,
    metric=Metric("accuracy", margin=Margin(0.01, "five images of the five hundred and forty measured")),
)
