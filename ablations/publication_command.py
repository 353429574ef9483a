"""``python -m ablations remark | answers | floors | restore | reproduce | adopt``: results from elsewhere, and results
that are published."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ablations import catalog
from ablations.options import (
    Scale,
    Seeds,
    Set,
    Study,
    Threads,
    Workers,
    ends_when_stopped,
    exit_of,
    out,
    request_of,
    whole_plan_for,
)
from ablations.study_floors import floors_of_published
from ablations.training import LaunchSettings, survey_to_train, train_left
from lit_transformers.cli.allow_option import AllowedModules
from lit_transformers.records.files import RESULTS
from lit_transformers.records.study_folder import folder_name
from lit_transformers.runner import runner_of
from lit_transformers.trust import require_allowed
from sweeps.options import Runs, Storage

__all__ = ["adopt", "answers", "floors", "remark", "reproduce", "restore"]

PublishedIn = Annotated[
    Path | None, typer.Option("--in", metavar="DIR", help="Folder of the publications.", show_default="published")
]
PublishedArms = Annotated[
    list[str] | None,
    typer.Option(
        "--arm", metavar="NAME", help="An arm by its name in the report. Repeatable.", show_default="the baseline"
    ),
]
RepeatedSeeds = Annotated[
    int, typer.Option("--seeds", metavar="N", min=1, help="Number of seeds of each arm, from the first.")
]
WriteRepeated = Annotated[bool, typer.Option("--write", help="Also write the result into the publication.")]


def remark(study: Study, folder: PublishedIn = None, scale: Scale = "demo", changes: Set = None) -> None:
    """Write the study's remarks on its results and the description of its pilot into its publication. Needs no run."""
    from reports.publish import publish_remarks

    path = catalog.find(study)
    ablation = catalog.load(path)
    numbers, pilot = ablation.published, ablation.resolve(scale).pilot
    directory = publication_of(path, folder, scale, changes)
    print_publication(publish_remarks(directory, numbers.remarks if numbers else {}, pilot))


def answers(folder: PublishedIn = None) -> None:
    """Write which comparisons answer the questions of published studies whose plans do not state it."""
    from lit_transformers.records.files import PUBLISHED
    from reports.publish import published
    from reports.read.answers import write_answers
    from reports.read.results import read_results

    plans = {path.name: read_results(path / RESULTS).plan for path in published(folder or PUBLISHED)}
    stated = {
        name: catalog.load(catalog.find(plan.study)).answer for name, plan in plans.items() if plan.answer is None
    }
    path = write_answers(folder or PUBLISHED, {name: answer for name, answer in stated.items() if answer})
    out.print(f"{path}; next: python -m reports gallery --render", markup=False, soft_wrap=True)


def floors(study: Study, folder: PublishedIn = None, scale: Scale = "demo", changes: Set = None) -> None:
    """Measure the floors of a published study that has none, and write them into its publication."""
    from reports.publish import publish_floors

    path = catalog.find(study)
    runner = runner_of(catalog.load(path).baseline)
    measure = partial(floors_of_published, runner=runner, console=out)
    print_publication(publish_floors(publication_of(path, folder, scale, changes), measure))


def restore(
    study: Study, folder: PublishedIn = None, runs: Runs = Path("runs"), scale: Scale = "demo", changes: Set = None
) -> None:  # fmt: skip
    """Restore published runs (without weights) so that `run` can add seeds or arms. Runs of other code, configs or data
    are refused."""
    from ablations.restore import restore_published
    from lit_transformers.records.files import PUBLISHED

    whole = whole_plan_for(study, runs, request_of(scale, changes, None, None))
    restored, known = restore_published((folder or PUBLISHED) / whole.folder, whole, runs)
    text = f"{restored} runs restored, {known - restored} were there"
    out.print(f"{text}; next: {whole.plan.commands['run']}", markup=False, highlight=False, soft_wrap=True)


def adopt(
    source: Annotated[str, typer.Argument(help="Runs of a tracker: a folder, a database, or wandb:ENTITY/PROJECT.")],
    study: Study,
    metric: Annotated[str, typer.Option("--metric", metavar="NAME", help="The study's metric, as its name is there.")],
    arm: Annotated[
        list[str] | None, typer.Option("--arm", metavar="KEY", help="The config key of arms. Repeat it for factors.")
    ] = None,
    seed: Annotated[str | None, typer.Option("--seed", metavar="KEY", help="The config key of seeds.")] = None,
    match: Annotated[
        list[str] | None,
        typer.Option("--match", metavar="ARM=LEVEL", help="Name the level there of an arm of the study. Repeatable."),
    ] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Adopt missing runs, and leave those as they are that were done here.")
    ] = False,
    where: Annotated[
        list[str] | None, typer.Option("--where", metavar="KEY=VALUE", help="Keep runs with this config. Repeatable.")
    ] = None,
    tracker: Annotated[str | None, typer.Option("--from", metavar="TRACKER", help="Read runs of this tracker.")] = None,
    values: Annotated[
        str | None,
        typer.Option("--values", metavar="FILE", help="Read values of Hydra's jobs from this file in their folders."),
    ] = None,
    runs: Runs = Path("runs"),
    scale: Scale = "demo",
    changes: Set = None,
    seeds: Seeds = None,
) -> None:
    """Adopt runs that were done elsewhere as runs of a study, so that `run` does the missing seeds and judges all."""
    from lit_transformers.cli.pairs import pairs_of
    from reports.adopt import AdoptQuestion
    from reports.adopt import adopt as adopt_runs
    from reports.read.trackers.selection import TrackerQuestion

    whole = whole_plan_for(study, runs, request_of(scale, changes, seeds, None))
    of_tracker = TrackerQuestion(tracker, pairs_of("--where", where), values=values)
    question = AdoptQuestion(metric, tuple(arm or ()), seed, pairs_of("--match", match), missing, of_tracker)
    adopted = adopt_runs(source, whole.plan, runs, question)
    for note in adopted.notes:
        out.print(note, markup=False, highlight=False)
    text = f"{adopted.written} runs adopted, {adopted.present} were there"
    out.print(f"{text}; next: {whole.plan.commands['run']}", markup=False, highlight=False, soft_wrap=True)


def reproduce(
    study: Study, folder: PublishedIn = None, runs: Runs = Path("runs"), scale: Scale = "demo", changes: Set = None,
    arms: PublishedArms = None, seeds: RepeatedSeeds = 1, write: WriteRepeated = False, workers: Workers = None,
    threads: Threads = None, storage: Storage = None, allowed: AllowedModules = None,
) -> None:  # fmt: skip
    """Repeat published runs with today's code and compare. By default: the baseline's first seed, with the same number
    of threads."""
    from ablations.reproduce import prepare_repetition
    from ablations.show import reproduction_view
    from reports.publish import publish_reproductions
    from reports.read.results import read_results

    path = catalog.find(study)
    directory = publication_of(path, folder, scale, changes)
    published = read_results(directory / RESULTS)
    ablation = catalog.load(path)
    configs = [run.record.config for run in published.runs if run.record]
    require_allowed(configs, str(directory / RESULTS), ablation.classes)
    repetition = prepare_repetition(published, runner_of(ablation.baseline), arms or (), seeds)
    planned, apart = repetition.planned, runs / "reproduced"
    settings = LaunchSettings(workers, threads or repetition.threads, storage=storage)
    with ends_when_stopped():
        rows = train_left(planned, apart, survey_to_train(planned, apart, settings), settings, out)
    reproductions = repetition.reproductions(apart)
    out.print(reproduction_view(published, reproductions))
    if write and reproductions:
        print_publication(publish_reproductions(directory, reproductions))
    raise exit_of(rows)


def publication_of(study: Path, folder: Path | None, scale: str, changes: list[str] | None) -> Path:
    """Returns where the results of a study, by its file, are published at a scale and with changes."""
    from lit_transformers.records.files import PUBLISHED

    return (folder or PUBLISHED) / folder_name(study.stem, scale, request_of(scale, changes, None, None).changes)


def print_publication(page: Path) -> None:
    """Prints where a publication has changed, and how the index follows."""
    out.print(f"{page}; next: python -m reports gallery", markup=False, highlight=False, soft_wrap=True)
