"""A plan: the runs that answer a study, with their keys, configs and costs, as plain data. Nothing is trained."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from ablations.ablation import Ablation, Published, Resolved
from ablations.arms import require_distinct, select
from ablations.matching import Matched, match_arms
from ablations.probing import measured_spending
from lit_transformers.cli.amounts import count
from lit_transformers.config import Config, ConfigError, Plain, parse_assignments
from lit_transformers.records.files import PLAN, write_json
from lit_transformers.runner import Runner, load_runner, runner_of
from sweeps.ledger.ticket import Ticket
from sweeps.study_folder import PLAIN_SCALE, folder_name

__all__ = ["Plan", "Request", "as_typed", "folder_of", "make_plan", "plan_path", "read_plan_document", "write_document"]

VERSION = 1
Tuned = Mapping[str, Mapping[str, Plain]]


@dataclass(frozen=True)
class Request:
    """The command line's options that select runs: a scale, overrides as typed, and a number of seeds."""

    scale: str = PLAIN_SCALE
    assignments: tuple[str, ...] = ()
    seeds: int | None = None

    @property
    def changes(self) -> dict[str, Plain]:
        """The overrides as a mapping from path to value."""
        return parse_assignments(self.assignments)

    def arguments(self) -> list[str]:
        """Returns the request as words of a command line."""
        words = ["--scale", self.scale]
        for assignment in self.assignments:
            words += ["--set", assignment]
        return words + (["--seeds", str(self.seeds)] if self.seeds else [])


@dataclass(frozen=True)
class Plan:
    """The runs of a study: ``document`` is what ``plan.json`` holds, ``configs`` are by key, ``costs`` by arm.

    ``runner`` names the object that does a run.
    """

    document: dict[str, Plain]
    configs: dict[str, dict[str, Plain]]
    costs: dict[str, dict[str, float]]
    runner: str

    @property
    def study(self) -> str:
        """The study's name."""
        return str(self.document["study"])

    @property
    def metric(self) -> str:
        """The name of the metric in a record."""
        return str(self.document["metric"]["name"])

    def tickets(self) -> list[Ticket]:
        """Lists every run once, the first seed of all arms first, so that arms can be compared early."""
        tickets: dict[str, Ticket] = {}
        arms = self.document["arms"]
        for index in range(max(len(arm["runs"]) for arm in arms)):
            for arm in arms:
                run = arm["runs"][index]
                tickets.setdefault(run["key"], Ticket(run["key"], arm["name"], run["seed"], self.configs[run["key"]]))
        return list(tickets.values())

    @property
    def folder(self) -> str:
        """The name of the plan's folder below ``runs/studies``."""
        return folder_of(self.document)

    def write(self, runs: Path) -> None:
        """Writes ``plan.json`` where reports look for it."""
        write_document(runs, self.document)

    def require_all_seeds(self, runs: Path) -> None:
        """Raises ConfigError where this plan's report would replace a report of more seeds."""
        previous = read_plan_document(runs, self.folder)
        has_report = plan_path(runs, self.folder).with_name("report").is_dir()
        previous_seeds, new_seeds = (
            max(len(arm["runs"]) for arm in document["arms"]) if document else 0
            for document in (previous, self.document)
        )
        if has_report and previous_seeds > new_seeds:
            raise ConfigError(
                f"a report of {previous_seeds} seeds stands there, and this one would be of {new_seeds}; "
                f"ask for --seeds {previous_seeds}, or remove that folder",
                str(runs / "studies" / self.folder),
            )

    def to_dict(self) -> dict[str, Plain]:
        """Returns the plan as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: dict[str, Plain]) -> Self:
        """Reads what ``to_dict`` wrote."""
        return cls(**plain)


def plan_path(runs: Path, folder: str) -> Path:
    """Returns the path of a plan's ``plan.json``. folder: the name of its folder, as ``folder_of`` returns it."""
    return runs / "studies" / folder / PLAN


def folder_of(document: Mapping[str, Plain]) -> str:
    """Returns the name of a plan's folder from what ``plan.json`` holds."""
    return folder_name(document["study"], document["scale"], document["changes"])


def write_document(runs: Path, document: dict[str, Plain]) -> None:
    """Writes ``plan.json`` to the plan's folder."""
    write_json(plan_path(runs, folder_of(document)), document)


def read_plan_document(runs: Path, folder: str) -> dict[str, Plain] | None:
    """Returns what the ``plan.json`` of a folder holds; None where it is missing, cannot be read, or is of another
    scale or changes, which occurs in folders from when a study had one folder for all of them."""
    try:
        document: dict[str, Plain] = json.loads(plan_path(runs, folder).read_text(encoding="utf-8"))
        is_own = folder_of(document) == folder and all(arm["runs"] for arm in document["arms"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return document if is_own else None


def as_typed(words: Sequence[str], runs: Path) -> str:
    """Returns a command that can be pasted into a shell, with the folder of runs where that is not the default one."""
    return shlex.join([*words, *([] if runs == Path("runs") else ["--runs", str(runs)])])


def make_plan(
    study: str,
    ablation: Ablation,
    request: Request,
    tuned: Tuned | None = None,
    runs: Path = Path("runs"),
    typed: str | None = None,
) -> Plan:
    """Resolves, matches and names every run. Raises ConfigError that names the study and the place.

    tuned: the values that a search selected, by arm; they win over the arm's own overrides. runs: where measurements
    of budgets are kept. typed: the study as the command line names it, where that is not its name.
    The runner that the baseline's class names computes what a run costs and what its key is.
    """
    try:
        name = runner_of(ablation.baseline)
        runner = load_runner(name)
        resolved = _with_values(ablation.resolve(request.scale, request.changes), tuned or {})
        configs, matched = _match_budgets(ablation, resolved, name, runs)
        _require_effects(configs, runner)
        configs_by_key, runs_by_arm = _list_runs(resolved, configs, request.seeds or resolved.seeds, runner)
        costs = {arm: dict(runner.describe(config)._asdict()) for arm, config in configs.items()}
    except ConfigError as error:
        raise ConfigError(str(error), f"study {study}") from None
    document = _document(study, ablation, request, resolved, matched) | {
        "protocol": _protocol(configs, costs, runs_by_arm),
        "commands": {
            verb: as_typed(["python", "-m", "ablations", verb, typed or study, *request.arguments()], runs)
            for verb in ("run", "report")
        },
    }
    for arm in document["arms"]:
        arm["runs"] = runs_by_arm[arm["name"]]
    return Plan(document, configs_by_key, costs, name)


def _with_values(resolved: Resolved, tuned: Tuned) -> Resolved:
    configs = {name: config.override(tuned.get(name, {})) for name, config in resolved.configs.items()}
    return resolved._replace(configs=configs)


def _match_budgets(
    ablation: Ablation, resolved: Resolved, runner: str, runs: Path
) -> tuple[dict[str, Config], dict[str, Matched]]:
    match = ablation.match
    if match is None:
        return resolved.configs, {}
    measure = measured_spending(match.on, runner, runs / "probes") if match.measured else None
    describe = load_runner(runner).describe
    configs, matched = match_arms(match, resolved.configs, resolved.arms[0].name, describe, measure)
    require_distinct(resolved.arms, configs)
    return configs, matched


def _require_effects(configs: dict[str, Config], runner: Runner) -> None:
    """Raises ConfigError for an arm that computes what the baseline computes, though its config differs."""
    baseline, *others = configs
    for name in others:
        if runner.changes_nothing(configs[name], configs[baseline]):
            raise ConfigError("computes what the baseline computes: what it overrides does nothing here", name)


def _list_runs(
    resolved: Resolved, configs: dict[str, Config], seeds: int, runner: Runner
) -> tuple[dict[str, dict[str, Plain]], dict[str, list[dict[str, Plain]]]]:
    """Returns the config of every key, and the runs of every arm."""
    configs_by_key: dict[str, dict[str, Plain]] = {}
    runs_by_arm: dict[str, list[dict[str, Plain]]] = {}
    for arm in resolved.arms:
        for seed in range(seeds):
            config = configs[arm.name].override(_seed_overrides(configs[arm.name], seed))
            key = runner.run_key(config)
            configs_by_key[key] = config.to_dict()
            runs_by_arm.setdefault(arm.name, []).append({"seed": seed, "key": key})
    return configs_by_key, runs_by_arm


def _seed_overrides(config: Config, seed: int) -> dict[str, int]:
    """Returns the overrides of a seed: of the weights and of the order of the data, so that seeds vary both."""
    return {path: seed for path, _ in config.leaves() if path in ("seed", "data.seed")}


def _document(
    study: str, ablation: Ablation, request: Request, resolved: Resolved, matched: dict[str, Matched]
) -> dict[str, Plain]:
    match, metric = ablation.match, ablation.metric
    return {
        "version": VERSION,
        "study": study,
        "scale": request.scale,
        "changes": request.changes,
        "question": ablation.question,
        "source": asdict(ablation.source) if ablation.source else None,
        "metric": asdict(metric),
        "design": ablation.design,
        "factors": {name: list(levels) for name, levels in ablation.factors.items()},
        "baseline": resolved.arms[0].name,
        "match": match
        and {
            "on": match.on,
            "free": match.free,
            "tolerance": match.allowed,
            "per_arm": {arm_name: closeness._asdict() for arm_name, closeness in matched.items()},
        },
        "arms": [{"name": arm.name, "levels": arm.levels} for arm in resolved.arms],
        "contrasts": _contrasts(ablation, resolved),
        "published": ablation.published and _published(ablation.published, ablation, resolved),
        "left_out": [{"arm": name, "reason": reason} for name, reason in resolved.left_out.items()],
    }


def _contrasts(ablation: Ablation, resolved: Resolved) -> list[dict[str, str]] | None:
    """Returns the contrasts whose arms are run at this scale; None, for every arm against the baseline, without any."""
    arm_names = {arm.name for arm in resolved.arms}
    return [
        asdict(contrast) for contrast in ablation.contrasts if {contrast.arm, contrast.against} <= arm_names
    ] or None


def _published(published: Published, ablation: Ablation, resolved: Resolved) -> dict[str, Plain]:
    """Returns the published values, each by the name of its arm if it is about one, else by the levels it names."""
    cells = []
    for cell in published.cells:
        arms = select(ablation.all_arms(), cell.arm, "published.cells")
        arm = arms[0].name if len(arms) == 1 else dict(part.split("=", 1) for part in cell.arm.split())
        cells.append({"arm": arm, "value": cell.value, "note": cell.note})
    return {
        "protocol": {"text": published.protocol},
        "metric": published.metric,
        "cells": cells,
        "claims": list(published.claims),
    }


def _protocol(configs: dict[str, Config], costs: dict[str, dict[str, float]], runs: dict[str, list[Any]]) -> str:
    """Returns our protocol in a line: the corpus, the budget and the size of the baseline, and the number of seeds."""
    baseline = next(iter(configs))
    # The kind of the data is one level below it: data.source.kind, or data.generator.kind.
    source_kinds = (value for path, value in configs[baseline].leaves() if re.fullmatch(r"data\.\w+\.kind", path))
    corpus = next(source_kinds, None)
    parts = [str(corpus)] if corpus else []
    parts.append(f"{count(costs[baseline]['tokens'])} training tokens")
    parts.append(f"{count(costs[baseline]['parameters'])} parameters")
    seeds = len(runs[baseline])
    return ", ".join([*parts, f"{seeds} seed{'s' if seeds > 1 else ''}"])
