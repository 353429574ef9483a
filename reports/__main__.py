"""The command line ``python -m reports``: publishes studies, compares them, and renders reports from stored results."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import lit_transformers.startup.search_path  # noqa: F401  # isort: split
from lit_transformers.cli.command_table import ListedCommand, Program
from lit_transformers.cli.commands import run_command

HELP = """Publish, compare and render the results of studies.

A report needs one file: results.jsonl, which holds all runs of a study. It needs neither the run folders nor torch.
"""

EXAMPLES = """Examples:

python -m reports publish xl_recurrence                                 write results and report.md into published/

python -m reports withdraw xl_recurrence "REASON"                       mark a publication as wrong

python -m reports gallery                                               write the index of all published studies

python -m reports gallery --render                                      render all reports again, then the index

python -m reports site                                                  write every study as a page, CSV and LaTeX

python -m reports report xl_recurrence                                  render one report again

python -m reports compare xl_recurrence runs2/studies/xl_recurrence     compare two studies arm by arm

python -m reports order everything everything_text                      compare the order of mixers in both

python -m reports judge lightning_logs --metric val_loss                judge runs as a tracker keeps them

python -m reports judge results.csv --metric val_loss --minimize        judge runs that any program trained

python -m reports compare 8d193d82e0b72ae0 b1b730320b6c1a21 --to difference.md  compare two runs

Exit status: 0 success, 1 another verdict than the one required, 2 bad input.
"""


TABLE = (
    ListedCommand(
        "publish",
        "publication_command:publish",
        "Publish the results and the report of a study. Neither names a machine, person or date.",
    ),
    ListedCommand(
        "withdraw",
        "publication_command:withdraw",
        "Mark a published study as wrong. Its report and the gallery show the reason in place of the answer.",
    ),
    ListedCommand(
        "gallery",
        "publication_command:gallery",
        "Write the index of all published studies: findings, disagreements with sources, unresolved comparisons.",
    ),
    ListedCommand(
        "site",
        "publication_command:site",
        "Write every published study as a page, CSV, LaTeX and SVG, with an index. Open index.html; no server needed.",
    ),
    ListedCommand(
        "report",
        "publication_command:report",
        "Render a report again: from the last run here, or from the published results.",
    ),
    ListedCommand(
        "compare",
        "compare_command:compare",
        "Compare two runs or two studies: configs path by path, metrics with intervals, costs as ratios.",
    ),
    ListedCommand(
        "order",
        "order_command:order",
        "Compare the order of a factor's levels in two studies: ranks, their correlation, pairs that both decide.",
    ),
    ListedCommand(
        "judge",
        "judge_command:judge",
        "Judge runs of any program, in a table or a tracker: paired seeds, intervals, one error rate, four verdicts.",
    ),
)
PROGRAM = Program("reports", TABLE, help=HELP, epilog=EXAMPLES)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status. Bad input ends in one line on standard error."""
    return run_command(PROGRAM, arguments)


if __name__ == "__main__":
    sys.exit(main())
