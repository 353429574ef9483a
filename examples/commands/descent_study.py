"""A study of a program that is no Python: gradient descent in awk, which writes a table.

`python -m ablations run examples/commands/descent_study.py --until decided`, from the folder of the repository, takes
seconds. It looks at two seeds, and adds two more, for the first two do not decide.
"""

from ablations.ablation import Ablation, Looks, Metric
from lit_transformers.command_runs import CommandRunConfig
from lit_transformers.command_runs.values import CsvConfig

ABLATION = Ablation(
    question="Does a rate ten times smaller reach the minimum in as many steps?",
    baseline=CommandRunConfig(
        command="./descend.sh {rate} {steps} {seed}",
        params={"rate": 0.1},
        metrics={"loss": "minimize"},
        values=CsvConfig(file="log.csv"),
        folder="examples/commands/descent",
        training={"steps": 40, "device": "cpu"},
    ),
    factors={"rate": {"0.1": {}, "0.01": {"params.rate": 0.01}}},
    seeds=Looks(2, 4),
    metric=Metric("loss"),
)
