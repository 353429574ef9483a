"""A study's workspace and report on W&B: defined as plain data, built where there is a network."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lit_transformers.config import Plain
from lit_transformers.files import write_json
from lit_transformers.record import first_line

__all__ = ["build", "define", "has_key", "make_report", "make_workspace", "write_definition"]

SERVER = "https://api.wandb.ai"


def define(project: str, study: str, question: str, metric: str, arms: Sequence[str]) -> dict[str, Plain]:
    """What is shown: learning curves by arm over steps and over tokens, the metric, and what runs cost."""
    curves = [
        {"kind": "line", "x": "Step", "y": [metric]},
        {"kind": "line", "x": "tokens", "y": [metric]},
        {"kind": "line", "x": "tokens", "y": ["train/loss"]},
    ]
    ends = [
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
        "sections": [{"name": "learning curves", "panels": curves}, {"name": "where they end", "panels": ends}],
    }


def write_definition(folder: Path, definition: dict[str, Plain]) -> Path:
    """Leaves the definition as a file, for a machine that has a network."""
    path = folder / "dashboard.json"
    write_json(path, definition)
    return path


def has_key() -> bool:
    """Whether W&B's own places hold a key. It is not read further, printed or kept."""
    from requests.utils import get_netrc_auth

    return bool(os.environ.get("WANDB_API_KEY") or get_netrc_auth(os.environ.get("WANDB_BASE_URL", SERVER)))


def build(definition: dict[str, Plain], entity: str | None, say: Callable[[str], None]) -> str | None:
    """Makes both on W&B and says where; why not, where that fails."""
    try:
        workspace = make_workspace(definition, entity).save()
        say(f"workspace: {workspace.url}")
        report = make_report(definition, entity).save()
        say(f"report: {report.url}")
    except Exception as error:  # whatever a network does: the definition is on disk
        return first_line(error)
    return None


def make_workspace(definition: dict[str, Plain], entity: str | None) -> Any:
    """The workspace: runs of the study, grouped by arm."""
    import wandb_workspaces.workspaces as workspaces

    reports = _blocks()

    sections = [
        workspaces.Section(name=part["name"], panels=[_panel(reports, panel) for panel in part["panels"]], is_open=True)
        for part in definition["sections"]
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
    """The report: the question, and the same panels over the study's runs."""
    reports = _blocks()
    runs = reports.Runset(
        entity=entity or "", project=definition["project"], name=definition["study"],
        filters=f"Metric('Group') == {definition['study']!r}", groupby=["JobType"],
    )  # fmt: skip
    blocks: list[Any] = [reports.P(definition["question"]), reports.P(f"Arms: {'; '.join(definition['arms'])}.")]
    for part in definition["sections"]:
        panels = [_panel(reports, panel) for panel in part["panels"]]
        blocks += [reports.H2(part["name"]), reports.PanelGrid(runsets=[runs], panels=panels)]
    return reports.Report(
        project=definition["project"], entity=entity or "", title=definition["title"],
        description=definition["question"], blocks=blocks,
    )  # fmt: skip


def _blocks() -> Any:
    """What reports are built of; its names come in by a star, which type checkers do not follow."""
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
