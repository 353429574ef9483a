"""``python -m lit_transformers init | check-plugin``: a project of one's own, and the checks of its parts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lit_transformers.cli.program import program_name
from lit_transformers.startup.quick_imports import quick_imports

if TYPE_CHECKING:
    from lit_transformers.template.fine_tuning import Purpose

__all__ = ["check_plugin", "init"]


def check_plugin(
    plugin: Annotated[str, typer.Argument(help="The file or module of the plug-in.", metavar="FILE")],
) -> None:
    """Check every part of a plug-in as the parts of this library are checked: leaks, padding, segments, gradients,
    fields, FLOPs.

    Every kind of part has its checks; the line of a failed check says how to mend it. The checks use the defaults of a
    config, or the CASES of the plug-in. Exit status 1 if a check failed.

    Example: python -m lit_transformers check-plugin my_parts.py
    """
    from rich.console import Console

    with quick_imports():
        from lit_transformers.checks import contract
    from lit_transformers.cli.contract_view import contract_view

    parts = contract.check_plugin(plugin)
    Console().print(contract_view(parts))
    raise SystemExit(int(any(not check.passed for part in parts for check in part.checks)))


def init(
    directory: Annotated[
        Path, typer.Argument(help="The folder of the new files, which must not exist in it yet.")
    ] = Path(),
    classify: Annotated[str | None, typer.Option(help="Predict the classes of texts: a table.", metavar="FILE")] = None,
    score: Annotated[str | None, typer.Option(help="Predict numbers for texts: a table.", metavar="FILE")] = None,
    tag: Annotated[str | None, typer.Option(help="Predict the tag of each word: a CoNLL file.", metavar="FILE")] = None,
    answer: Annotated[
        str | None,
        typer.Option(help="Predict answers in passages: a table, JSON lines or SQuAD's JSON.", metavar="FILE"),
    ] = None,
    retrieve: Annotated[
        str | None,
        typer.Option(help="Find the passage that answers a question: a table or SQuAD's JSON.", metavar="FILE"),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Start from a folder in the format of transformers, or a model on the Hugging Face hub.",
            metavar="PATH|NAME",
            show_default="a small untrained network",
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Read texts from this column.", show_default="by its name")] = None,
    second: Annotated[str | None, typer.Option(help="Read the second texts of pairs from this column.")] = None,
    label: Annotated[str | None, typer.Option(help="Read labels from this column.", show_default="by its name")] = None,
) -> None:
    """Write a small project: a mixer, a data set, a study, a test and a README. With one of --classify, --score, --tag,
    --answer and --retrieve, write the run.yaml that fine-tunes a network on your own data.

    A table is CSV, TSV, JSON lines, JSON or parquet with column names; for --answer the columns question, context and
    answer; for --retrieve a question (--text) and the passage that answers it (--second). A tenth of a file is held out
    for validation and a tenth for the test; a folder is split by its file names (train, validation, test). The first
    run takes a few minutes: init prints its time, and the command of a longer run.

    Example: python -m lit_transformers init my_project

    Example: python -m lit_transformers init reviews --classify reviews.csv --weights models/bert
    """
    purposes: dict[Purpose, str | None] = {"classify": classify, "score": score, "tag": tag}
    purposes |= {"answer": answer, "retrieve": retrieve}
    given = {purpose: data for purpose, data in purposes.items() if data is not None}
    if len(given) > 1:
        raise typer.BadParameter(f"choose one of {', '.join(f'--{purpose}' for purpose in given)}")
    if not given:
        from lit_transformers.template import write_project

        for path in write_project(directory):
            print(path)
        return
    with quick_imports():
        from lit_transformers.template.fine_tuning import Columns, write_fine_tuning
    for purpose, data in given.items():
        for line in write_fine_tuning(purpose, data, directory, weights, Columns(text, second, label)):
            print(line)
    print(f"next: {program_name('lit_transformers')} fit {directory / 'run.yaml'}")
