"""python -m lit_transformers fit | evaluate | generate | translate | predict | encode | answer | import | config ..."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import lit_transformers.startup.search_path  # noqa: F401  # isort: split
from lit_transformers.cli.command_table import ListedCommand, Program
from lit_transformers.cli.commands import run_command

HELP = "Train, evaluate and use one model at a time, and exchange weights with other libraries."

TABLE = (
    ListedCommand(
        "fit",
        "train_command:fit",
        "Train the run that RUN describes, or resume it from its checkpoint. With a class_path, RUN may train any "
        "LightningModule.",
    ),
    ListedCommand("evaluate", "train_command:evaluate", "Evaluate a trained model, with its own or another protocol."),
    ListedCommand(
        "generate",
        "inference_command:generate",
        "Continue a prompt; by a run of the task strings on prompts, write the answer to it.",
    ),
    ListedCommand("translate", "inference_command:translate", "Translate standard input line by line, in order."),
    ListedCommand(
        "summarize",
        "inference_command:summarize",
        "Summarize standard input: one document per line, one summary per line, in order.",
    ),
    ListedCommand(
        "predict",
        "inference_command:predict",
        "Predict from every line of standard input, and write one line of JSON for each, in order.",
    ),
    ListedCommand(
        "encode",
        "inference_command:encode",
        "Compute the lower states of passages once, so that answer computes only the upper layers.",
    ),
    ListedCommand(
        "answer",
        "inference_command:answer",
        "Answer every question of standard input from encoded passages; write one JSON line for each, in order.",
    ),
    ListedCommand(
        "serve",
        "inference_command:serve",
        "Serve a checkpoint by HTTP: classify, tag, answer, search, embed, fill, translate, generate, as its task can.",
    ),
    ListedCommand(
        "calibrate",
        "train_command:calibrate",
        "Calibrate the probabilities of predict by a temperature, and print the calibration error before and after.",
    ),
    ListedCommand(
        "import",
        "exchange_command:import_weights",
        "Import weights from a folder of transformers, as the start of runs.",
        only_reads=True,
    ),
    ListedCommand("export", "exchange_command:export_weights", "Export a trained network to one of five forms."),
    ListedCommand(
        "convert",
        "exchange_command:convert_weights",
        "Convert a trained network into the start of another one: with another mixer, or for longer rows.",
    ),
    ListedCommand(
        "kinds",
        "config_command:kinds",
        "List the kinds of model, mixer, task, data and other parts, by their path in the config.",
        only_reads=True,
    ),
    ListedCommand(
        "config",
        "config_command:config",
        "Print a whole config with every default, type, range and doc, as YAML that fit takes.",
        only_reads=True,
    ),
    ListedCommand(
        "schema",
        "config_command:schema",
        "Print the JSON schema of a run's config, with which editors complete fields and kinds and mark errors.",
        only_reads=True,
    ),
    ListedCommand(
        "check-plugin",
        "project_command:check_plugin",
        "Check every part of a plug-in as the parts of this library are checked: leaks, padding, segments, "
        "gradients, fields, FLOPs.",
    ),
    ListedCommand(
        "init",
        "project_command:init",
        "Write a small project: a mixer, a data set, a study, a test and a README. With one of --classify, "
        "--score, --tag, --answer and --retrieve, write the run.yaml that fine-tunes a network on your own data.",
        only_reads=True,
    ),
)
PROGRAM = Program("lit_transformers", TABLE, help=HELP, load_plugins=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status. Bad input ends in one line on standard error."""
    return run_command(PROGRAM, arguments)


if __name__ == "__main__":
    sys.exit(main())
