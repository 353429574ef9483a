"""A study of a script of the transformers library, whose Trainer writes its losses into trainer_state.json.

`python -m ablations run examples/commands/trainer_study.py`, from the folder of the repository, takes about a minute. A
run that is stopped continues from the last checkpoint that the Trainer has written.
"""

from ablations.ablation import Ablation, Metric
from lit_transformers.command_runs import CommandRunConfig
from lit_transformers.command_runs.values import JsonFileConfig

ABLATION = Ablation(
    question="Does a learning rate ten times smaller suffice?",
    baseline=CommandRunConfig(
        command=(
            "{python} train.py out --learning_rate {learning_rate} --max_steps {steps} --seed {seed} "
            "--resume_from={resume_from}"
        ),
        params={"learning_rate": 3e-3},
        metrics={"eval_loss": "minimize"},
        values=JsonFileConfig(file="out/trainer_state.json", entries="log_history"),
        folder="examples/commands/trainer",
        training={"steps": 60, "device": "cpu"},
        resume="folder",
        short={"training.steps": 20},
    ),
    factors={"learning_rate": {"3e-3": {}, "3e-4": {"params.learning_rate": 3e-4}}},
    seeds=3,
    metric=Metric("eval_loss", label="nats per row"),
)
