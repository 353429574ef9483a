"""A study's workspace and report on W&B: defined as plain data, made by W&B's own classes, written as files, and built
where there is a network."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lit_transformers.config import ConfigError, Plain
from lit_transformers.records.files import write_json, write_text
from lit_transformers.records.measurement import named_on
from lit_transformers.wandb_target import WandbTarget
from sweeps.wandb.answer import JOB_TYPE, PICTURES, TABLES
from sweeps.wandb.sent import SentViews, place_of, read_sent, write_sent

__all__ = [
    "ShownAnswer",
    "build",
    "define",
    "make_report",
    "make_workspace",
    "require_workspaces",
    "write_definition",
    "write_views",
]

UPDATES = ("train/learning_rate", "train/gradient_norm", "train/tokens_per_second", "train/peak_memory_bytes")
"""The metrics of updates that runs send (``wandb_logging``)."""


class ShownAnswer(NamedTuple):
    """The parts of the answer of a study that a dashboard shows.

    first: paragraphs of Markdown that answer the question, or say that the answer is pending. further: the rest of the
    report, likewise. tables and pictures: the names of the tables and pictures in the run of the answer.
    """

    first: Sequence[str]
    further: Sequence[str] = ()
    tables: Sequence[str] = ()
    pictures: Sequence[str] = ()


def define(
    project: str, study: str, question: str, metric: str, arms: Sequence[str], answer: ShownAnswer
) -> dict[str, Plain]:
    """Defines the panels: the answer's pictures and tables, learning curves by arm over steps and over tokens, the
    metric, the cost of runs, and updates over tokens."""
    answers: list[Plain] = [{"kind": "markdown", "text": "\n\n".join(answer.first)}]
    answers += (
        [{"kind": "media", "keys": [f"{PICTURES}/{name}" for name in answer.pictures]}] if answer.pictures else []
    )
    answers += [{"kind": "table", "name": f"{TABLES}/{name}"} for name in answer.tables]
    validated = named_on(metric, "validation")
    curves = [
        {"kind": "line", "x": "Step", "y": [validated]},
        {"kind": "line", "x": "tokens", "y": [validated]},
        {"kind": "line", "x": "tokens", "y": ["train/loss"]},
    ]
    updates = [{"kind": "line", "x": "tokens", "y": [name]} for name in UPDATES]
    final_values = [
        {"kind": "bar", "metrics": [metric]},
        {"kind": "scatter", "x": "cost/train_flops", "y": metric},
        {"kind": "bar", "metrics": ["cost/parameters"]},
    ]
    return {
        "project": project,
        "study": study,
        "title": study,
        "question": question,
        "arms": list(arms),
        "group_by": "job_type",
        "answer": {"first": [*answer.first], "further": [*answer.further]},
        "sections": [
            {"name": "answer", "panels": answers},
            {"name": "learning curves", "panels": curves},
            {"name": "where they end", "panels": final_values},
            {"name": "updates", "panels": updates},
        ],
    }


def write_definition(folder: Path, definition: dict[str, Plain]) -> Path:
    """Writes the definition to a file, for a machine that has a network, and returns its path."""
    path = folder / "dashboard.json"
    write_json(path, definition)
    return path


def require_workspaces() -> None:
    """Raises ConfigError where the library of W&B's workspaces and reports is not installed."""
    try:
        importlib.import_module("wandb_workspaces")
    except ImportError:
        raise ConfigError('needs wandb-workspaces: pip install "lit-transformers[dashboard]"', "dashboard") from None


def write_views(folder: Path, definition: dict[str, Plain]) -> tuple[Path, Path]:
    """Writes workspace and report as W&B's own classes write them, which needs no network, and returns both paths."""
    paths = folder / "workspace.json", folder / "report.json"
    for path, view in zip(paths, (make_workspace(definition, None), make_report(definition, None)), strict=True):
        write_text(path, _model_of(view).model_dump_json(by_alias=True, exclude_none=True, indent=2) + "\n")
    return paths


def _model_of(view: Any) -> Any:
    """Returns the model of a workspace or a report, as W&B saves it: the only form in which it can be written to a
    file."""
    return view._to_model()


def build(definition: dict[str, Plain], target: WandbTarget, folder: Path, say: Callable[[str], None]) -> None:
    """Creates workspace and report on W&B, or updates those that were created from this folder of a study, and prints
    their addresses. Raises the errors of wandb where they cannot be saved."""
    import wandb

    place, before = place_of(target), read_sent(folder)
    sent = before.get(place, SentViews())
    owner = target.entity or wandb.Api().default_entity
    workspace = make_workspace(definition, owner)
    if sent.workspace:
        workspace = _updated_workspace(sent.workspace, workspace)
    workspace = workspace.save()
    say(f"workspace: {workspace.url}")
    write_sent(folder, before | {place: sent._replace(workspace=workspace.url)})
    report = make_report(definition, owner)
    report.id = sent.report
    report = report.save()
    say(f"report: {report.url}")
    write_sent(folder, before | {place: sent._replace(workspace=workspace.url, report=report.id)})


def _updated_workspace(address: str, content: Any) -> Any:
    """Returns the workspace at an address with the content of another one, or that other one if the first was
    deleted."""
    import wandb_workspaces.workspaces as workspaces

    try:
        workspace = workspaces.Workspace.from_url(address)
    except ValueError:
        return content
    workspace.name, workspace.sections, workspace.runset_settings = (
        content.name,
        content.sections,
        content.runset_settings,
    )
    return workspace


def make_workspace(definition: dict[str, Plain], entity: str | None) -> Any:
    """Returns the workspace of the study's runs, grouped by arm."""
    import wandb_workspaces.workspaces as workspaces

    reports = _reports_module()

    sections = [
        workspaces.Section(
            name=section["name"], panels=[_panel(reports, panel) for panel in section["panels"]], is_open=True
        )
        for section in definition["sections"]
    ]
    runs = workspaces.RunsetSettings(
        filters=f"Metric('Group') == {definition['study']!r}",
        groupby=[workspaces.Metric("JobType")],
    )
    return workspaces.Workspace(
        entity=entity or "", project=definition["project"], name=definition["title"], sections=sections,
        runset_settings=runs,
    )  # fmt: skip


def make_report(definition: dict[str, Plain], entity: str | None) -> Any:
    """Returns the report: the question, the answer, the panels over the study's runs, and the tables of the report."""
    reports = _reports_module()

    def runset(of: str, group_by: Sequence[str]) -> Any:
        return reports.Runset(
            entity=entity or "", project=definition["project"], name=definition["study"],
            filters=f"Metric('Group') == {definition['study']!r} and Metric('JobType') {of} {JOB_TYPE!r}",
            groupby=[*group_by],
        )  # fmt: skip

    answer = definition["answer"]
    blocks: list[Any] = [reports.MarkdownBlock(text=text) for text in answer["first"]]
    for section in definition["sections"]:
        is_answer = section["name"] == "answer"
        panels = [_panel(reports, panel) for panel in section["panels"] if panel["kind"] != "markdown"]
        runs = runset("==", []) if is_answer else runset("!=", ["JobType"])
        if panels:
            blocks += [reports.H2(section["name"]), reports.PanelGrid(runsets=[runs], panels=panels)]
    blocks += [reports.MarkdownBlock(text=text) for text in answer["further"]]
    return reports.Report(
        project=definition["project"], entity=entity or "", title=definition["title"],
        description=definition["question"], blocks=blocks,
    )  # fmt: skip


def _reports_module() -> Any:
    """Imports the module of report blocks by name: its star imports are not followed by type checkers."""
    return importlib.import_module("wandb_workspaces.reports.v2")


def _panel(reports: Any, panel: dict[str, Plain]) -> Any:
    match panel["kind"]:
        case "line":
            return reports.LinePlot(x=panel["x"], y=panel["y"])
        case "markdown":
            return reports.MarkdownPanel(markdown=panel["text"])
        case "media":
            return reports.MediaBrowser(media_keys=panel["keys"], num_columns=1)
        case "table":
            return reports.WeavePanelSummaryTable(table_name=panel["name"])
        case "bar":
            return reports.BarPlot(metrics=panel["metrics"])
        case _:
            x, y = (reports.SummaryMetric(panel[axis]) for axis in ("x", "y"))
            return reports.ScatterPlot(x=x, y=y)
