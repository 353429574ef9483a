"""A study of a train.py that knows nothing of this suite: a GPT in one file, which prints its losses.

`python -m ablations run examples/commands/nano_gpt_study.py`, from the folder of the repository, takes about a minute.
The arms have the same number of parameters, which the command prints: the second layer is paid for by a smaller width.
"""

from ablations.ablation import Ablation, Match, Metric
from lit_transformers.command_runs import CommandRunConfig
from lit_transformers.command_runs.values import PatternConfig

ABLATION = Ablation(
    question="Is a second layer worth its parameters?",
    baseline=CommandRunConfig(
        command="{python} train.py --lr {lr} --n_layer {layers} --n_embd {width} --max_iters {steps} --seed {seed}",
        params={"lr": 3e-3, "layers": 1, "width": 32},
        metrics={"val_loss": "minimize"},
        values=PatternConfig(
            patterns=(
                r"number of parameters: (?P<parameters>\d+)",
                r"step (?P<step>\d+): train loss (?P<train_loss>[\d.]+), val loss (?P<val_loss>[\d.]+)",
            )
        ),
        folder="examples/commands/nano_gpt",
        training={"steps": 60, "device": "cpu"},
        budgets={"parameters": "parameters"},
        short={"training.steps": 1},
    ),
    factors={"layers": {"1": {}, "2": {"params.layers": 2}}},
    seeds=3,
    metric=Metric("val_loss", label="nats per byte"),
    match=Match("parameters", free="params.width", step=2, tolerance=0.05),
)
