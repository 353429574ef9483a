"""``python -m ablations``: the command line that lists, plans, runs and reports ablation studies."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import lit_transformers.startup.search_path  # noqa: F401  # isort: split
from lit_transformers.cli.command_table import ListedCommand, Program
from lit_transformers.cli.commands import run_command

HELP = """Run ablation studies: train every arm over several seeds, and report the differences with intervals.

STUDY is the name of a file in ablations/studies, or the path to your .py file.
"""

EXAMPLES = """Examples:

python -m ablations list                                       list the studies

python -m ablations plan xl_recurrence                         show runs, FLOPs and time; train nothing

python -m ablations plan xl_recurrence --power 0.8             forecast the verdicts of more seeds

python -m ablations run xl_recurrence                          train and report; after a stop the same command resumes

python -m ablations run xl_recurrence --seeds 5                add two seeds; after a report they count as a look

python -m ablations run xl_recurrence --rates 2                show whether verdicts stand at half and twice the rate

python -m ablations run NAME --until decided --max-hours 2     take the looks of seeds=Looks(3, 6, 10, 16) in turn

python -m ablations run xl_recurrence --set training.steps=50  try a short run; it has a separate report

python -m ablations run xl_recurrence --scale gpu --device cuda

python -m ablations run xl_recurrence --scale gpu --devices 2  train each run on two ranks, started by torchrun

python -m ablations run xl_recurrence --launcher slurm --slurm partition=gpu --slurm gpus_per_node=1 --slurm time=2h

python -m ablations run xl_recurrence --launcher ray --ray address=auto --ray cpus=2

python -m ablations run xl_recurrence --runs s3://bucket/prefixkeep runs in an object store

python -m ablations tune xl_recurrence --trials 16             tune each arm with the same budget, then compare

python -m ablations worker xl_recurrence                       take waiting runs, on any further machine

python -m ablations wandb xl_recurrence                        create a W&B sweep, for python -m ablations agent

python -m ablations remark diet_masks                          publish the study's remarks on disagreements

python -m ablations answers                                    publish which comparisons answer the questions

python -m ablations floors star_links                          publish floors that were measured later

python -m ablations restore xl_memory                          restore published runs, to add seeds or arms

python -m ablations adopt logs xl_recurrence --metric val/bpb  take over runs that were done elsewhere

python -m ablations reproduce xl_recurrence                    repeat a published run with today's code

python -m ablations new longer_memory                          write a study file with comments

python -m ablations new rates --command "python train.py --lr 0.1 --seed 0"  write a study of any command

python -m ablations config xl_recurrence > mine.yaml           write the config with all fields, to edit and fit

python -m lit_transformers kinds                               list models, mixers, tasks and data

Exit status: 0 success, 1 runs or gates failed, 2 bad input, 130 or 143 stopped.
"""


TABLE = (
    ListedCommand("list", "study_command:list_studies", "List all studies with their questions.", only_reads=True),
    ListedCommand(
        "show",
        "study_command:show",
        "Show a study: factors, levels, scales and published numbers.",
        only_reads=True,
    ),
    ListedCommand(
        "plan",
        "run_command:plan",
        "Show the runs with parameters, FLOPs and estimated time; with --power, forecast verdicts. Train nothing.",
        only_reads=True,
    ),
    ListedCommand(
        "check",
        "run_command:check",
        "Check the gates of every arm: no leak from the future, padding ignored, every parameter trains. Takes "
        "seconds.",
    ),
    ListedCommand(
        "run",
        "run_command:run",
        "Train every arm and report. Finished runs are reused. Stop at any time: the same command resumes.",
    ),
    ListedCommand(
        "status",
        "run_command:status",
        "Show the state of every run, its worker, and the time left. Beyond 500 runs, count them by arm and state.",
        only_reads=True,
    ),
    ListedCommand(
        "report",
        "run_command:report",
        "Write and print the report of the finished runs. Without --seeds, it has the seeds of the last run.",
        only_reads=True,
    ),
    ListedCommand(
        "remark",
        "publication_command:remark",
        "Write the study's remarks on its results and the description of its pilot into its publication. Needs no run.",
        only_reads=True,
    ),
    ListedCommand(
        "answers",
        "publication_command:answers",
        "Write which comparisons answer the questions of published studies whose plans do not state it.",
        only_reads=True,
    ),
    ListedCommand(
        "floors",
        "publication_command:floors",
        "Measure the floors of a published study that has none, and write them into its publication.",
    ),
    ListedCommand(
        "clean",
        "run_command:clean",
        "Remove the checkpoints of stages that no run of the study will start from any more. Their records stay.",
    ),
    ListedCommand(
        "restore",
        "publication_command:restore",
        "Restore published runs (without weights) so that `run` can add seeds or arms. Runs of other code, configs "
        "or data are refused.",
    ),
    ListedCommand(
        "adopt",
        "publication_command:adopt",
        "Adopt runs that were done elsewhere as runs of a study, so that `run` does the missing seeds and judges all.",
    ),
    ListedCommand(
        "reproduce",
        "publication_command:reproduce",
        "Repeat published runs with today's code and compare. By default: the baseline's first seed, with the same "
        "number of threads.",
    ),
    ListedCommand(
        "new",
        "study_command:new",
        "Write a commented study file, ready to run: of networks of this suite, or of any command.",
        only_reads=True,
    ),
    ListedCommand(
        "config",
        "config_command:config",
        "Print the whole config of an arm with every default, type, range and doc, as YAML that fit takes. --diff "
        "OTHER: a table of the paths in which another arm of the study, another study, or a run differs.",
        only_reads=True,
    ),
    ListedCommand(
        "worker",
        "worker_command:worker",
        "Join a study: do runs that wait, take over those of workers that die, and leave when all are over.",
    ),
    ListedCommand(
        "tune",
        "tune_command:tune",
        "Tune every arm with the same budget, then train the winners over the study's seeds and report.",
    ),
    ListedCommand(
        "wandb",
        "wandb_command:wandb",
        "Write the study as W&B sweeps, whose agents run python -m ablations agent. Needs no network and no key.",
    ),
    ListedCommand(
        "agent",
        "wandb_command:agent",
        "Do the run that a W&B sweep asks for, by --arm=NAME, --seed=N and --path=value as its agent gives them.",
        open=True,
    ),
    ListedCommand(
        "dashboard",
        "wandb_command:dashboard",
        "Show the study on W&B: its answer as a run, a workspace and a report. Without a key, leave them as files.",
    ),
)
PROGRAM = Program("ablations", TABLE, help=HELP, epilog=EXAMPLES)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status. Bad input ends in one line on standard error."""
    return run_command(PROGRAM, arguments)


if __name__ == "__main__":
    sys.exit(main())
