"""``python -m lit_transformers fit | evaluate | calibrate``: one run, trained and measured."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lit_transformers.cli.allow_option import AllowedModules
from lit_transformers.cli.callback_options import Callbacks, Loggers, callback_assignments, chosen_loggers
from lit_transformers.startup.quick_imports import quick_imports

__all__ = ["calibrate", "evaluate", "fit"]

Assignments = Annotated[
    list[str] | None, typer.Option("--set", help="Override a path of the run's config, e.g. model.dim=64. Repeatable.")
]


def fit(
    run: Annotated[Path, typer.Argument(help="The run.yaml of a run, or your own.")],
    directory: Annotated[
        Path | None,
        typer.Option("--to", help="An empty folder, or the folder of the run.", show_default="the folder of RUN"),
    ] = None,
    changes: Assignments = None,
    callbacks: Callbacks = None,
    loggers: Loggers = None,
    allowed: AllowedModules = None,
) -> None:
    """Train the run that RUN describes, or resume it from its checkpoint. With a class_path, RUN may train any
    LightningModule.

    RUN may name classes of this library, torch and Lightning. Allow other modules with --allow-module.

    Example: python -m lit_transformers fit runs/3f2a9c0e11d2b470/run.yaml --to /tmp/again
    """
    from lit_transformers.cli.console import SteadyConsole

    with quick_imports():
        from lit_transformers.run_file import read_run
        from lit_transformers.runs.loggers import LoggerConfig
        from lit_transformers.runs.wandb_logging import WandbConfig
    from lit_transformers.cli.progress import shown
    from lit_transformers.config import ConfigError, parse_assignments
    from lit_transformers.machine.cores import limit_threads
    from lit_transformers.records.files import LOG
    from lit_transformers.runner import load_runner, runner_of
    from lit_transformers.training.loader_processes import set_loaders_apart
    from lit_transformers.training.ranks import is_first_rank
    from lit_transformers.training.stopping import ProcessKilled
    from lit_transformers.trust import remember
    from lit_transformers.wandb_target import wandb_target

    limit_threads()
    set_loaders_apart()
    changes = [*(changes or ()), *callback_assignments(callbacks or ())]
    values, chosen = parse_assignments(changes), chosen_loggers(loggers)
    remember(values)
    config = read_run(run).override(values)
    runner = load_runner(runner_of(config))
    wandb_config = WandbConfig(wandb_target(chosen.wandb))
    with shown(SteadyConsole(stderr=True)) as report:
        try:
            progress, logger_config = report if is_first_rank() else None, LoggerConfig(chosen.names)
            folder = directory or run.parent
            for stage in runner.earlier(config):
                record = runner.fit(stage, folder.parent / runner.run_key(stage), progress)
                if record["outcome"] != "finished":
                    raise ConfigError(f"its source {record['key']} {record['outcome']}: {record['reason']}", "start")
            record = runner.fit(config, folder, progress, wandb_config=wandb_config, logger_config=logger_config)
        except runner.interrupted as stop:
            print(stop, file=sys.stderr)
            raise SystemExit(143) from None
        except ProcessKilled as death:
            print(f"{death}; run again to resume", file=sys.stderr)
            raise SystemExit(1) from None
    if not is_first_rank():
        raise SystemExit(record["outcome"] != "finished")
    for name, value in record["metrics"].items():
        print(f"{name} {value:.6f}")
    if record["outcome"] != "finished":
        see = f"; see {(directory or run.parent) / LOG}" if record["outcome"] == "failed" else ""
        print(f"{record['outcome']}: {record['reason']}{see}", file=sys.stderr)
        raise SystemExit(1)


def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help="The checkpoint.ckpt of a run.")],
    changes: Assignments = None,
    allowed: AllowedModules = None,
) -> None:
    """Evaluate a trained model, with its own or another protocol.

    Example: python -m lit_transformers evaluate runs/KEY/checkpoint.ckpt --set 'task.evaluation={mixer.memory: 512}'
    """
    with quick_imports():
        from lit_transformers import runs
    from lit_transformers.config import parse_assignments
    from lit_transformers.machine.cores import limit_threads

    limit_threads()
    for name, value in runs.evaluate(checkpoint, parse_assignments(changes or [])).items():
        print(f"{name} {value:.6f}")


def calibrate(
    checkpoint: Annotated[Path, typer.Argument(help="The checkpoint.ckpt of a classification or multi_label run.")],
    allowed: AllowedModules = None,
) -> None:
    """Calibrate the probabilities of predict by a temperature, and print the calibration error before and after.

    The temperature is fitted on a random half of the validation split, and measured on the other half. It is written to
    calibration.json next to the checkpoint, where predict reads it.

    Example: python -m lit_transformers calibrate runs/KEY/checkpoint.ckpt
    """
    from lit_transformers.machine.cores import limit_threads

    with quick_imports():
        from lit_transformers.inference import calibration

    limit_threads()
    for line in calibration.calibrate(checkpoint).lines():
        print(line)
