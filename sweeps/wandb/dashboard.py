"""A study's workspace and report on W&B, which are defined as plain data and built where there is a network."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lit_transformers.config import Plain
from lit_transformers.printing.error_lines import first_line
from lit_transformers.records.files import write_json

__all__ = ["build", "define", "make_report", "make_workspace", "write_definition"]

UPDATES = ("train/learning_rate", "train/gradient_norm", "train/tokens_per_second", "train/peak_memory_bytes")
"""What runs send of their updates (``wandb_logging``)."""


def define(project: str, study: str, question: str, metric: str, arms: Sequence[str]) -> dict[str, Plain]:
    """Defines the panels: learning curves by arm over steps and over tokens, updates over tokens, the metric, and the
    cost of runs."""
    curves = [
        {"kind": "line", "x": "Step", "y": [metric]},
        {"kind": "line", "x": "tokens", "y": [metric]},
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
        "sections": [
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


def build(definition: dict[str, Plain], entity: str | None, say: Callable[[str], None]) -> str | None:
    """Creates workspace and report on W&B and prints their addresses. Returns the reason where that fails, or None."""
    try:
        workspace = make_workspace(definition, entity).save()
        say(f"workspace: {workspace.url}")
        report = make_report(definition, entity).save()
        say(f"report: {report.url}")
    except Exception as error:  # any error of the network: the definition is on disk
        return first_line(error)
    return None


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
        filters=[workspaces.Metric("Group") == definition["study"]],
        groupby=[workspaces.Metric("JobType")],
    )
    return workspaces.Workspace(
        entity=entity or "", project=definition["project"], name=definition["title"], sections=sections,
        runset_settings=runs,
    )  # fmt: skip


def make_report(definition: dict[str, Plain], entity: str | None) -> Any:
    """Returns the report: the question, and the same panels over the study's runs."""
    reports = _reports_module()
    runs = reports.Runset(
        entity=entity or "", project=definition["project"], name=definition["study"],
        filters=f"Metric('Group') == {definition['study']!r}", groupby=["JobType"],
    )  # fmt: skip
    blocks: list[Any] = [reports.P(definition["question"]), reports.P(f"Arms: {'; '.join(definition['arms'])}.")]
    for section in definition["sections"]:
        panels = [_panel(reports, panel) for panel in section["panels"]]
        blocks += [reports.H2(section["name"]), reports.PanelGrid(runsets=[runs], panels=panels)]
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
        case "bar":
            return reports.BarPlot(metrics=panel["metrics"])
        case _:
            x, y = (reports.SummaryMetric(panel[axis]) for axis in ("x", "y"))
            return reports.ScatterPlot(x=x, y=y)
