"""Plans the stages of a study: the runs that its runs start from, each once and before the runs that need it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lit_transformers.config import Config, Plain
from lit_transformers.records.files import CHECKPOINT
from lit_transformers.records.plan import Plan, PlannedRun, PlannedStage
from lit_transformers.records.rate_values import load_rates
from lit_transformers.runner import Runner
from sweeps.ledger.run_records import read_record

__all__ = ["ChainCost", "Stages", "chain_cost", "spare_checkpoints"]


@dataclass
class Stages:
    """The runs of a plan and their stages, by key, in an order in which they can be done."""

    runner: Runner
    configs: dict[str, dict[str, Plain]] = field(default_factory=dict)
    stages: dict[str, PlannedStage] = field(default_factory=dict)
    examples: dict[str, Config] = field(default_factory=dict)
    """The config of the first seed of each stage, by the name of the stage."""
    _keys: dict[Config, str] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)

    def planned(self, config: Config, seed: int, arm: str) -> PlannedRun:
        """Returns a run of an arm, and plans its stages."""
        return PlannedRun(seed, self._enter(config), self._sources(config, seed, arm))

    def measured(self, config: Config, seed: int, name: str) -> PlannedRun:
        """Returns a run that measures retention, whose stages are already planned. name: its displayed name."""
        keys = [self._enter(source) for source in self.runner.sources(config).values()]
        self.examples.setdefault(name, config)
        return PlannedRun(seed, self._enter(config), tuple(dict.fromkeys(keys)))

    def _enter(self, config: Config) -> str:
        """Returns the key of a run, and stores its config under the key."""
        if config not in self._keys:
            self._keys[config] = self.runner.run_key(config)
            self.configs[self._keys[config]] = config.to_dict()
        return self._keys[config]

    def _sources(self, config: Config, seed: int, place: str) -> tuple[str, ...]:
        """Plans the runs that a run starts from, and returns their keys. place: the name of the run."""
        keys = []
        for path, source in self.runner.sources(config).items():
            field = f"{place}: {path}"
            inner = self._sources(source, seed, field)
            key = self._enter(source)
            keys.append(key)
            if key not in self.stages:
                name = self._names.setdefault(field, f"stage {len(self._names) + 1}")
                self.stages[key] = PlannedStage(name, field, seed, key, inner)
                self.examples.setdefault(name, source)
        return tuple(dict.fromkeys(keys))


def spare_checkpoints(plan: Plan, runs: Path) -> list[Path]:
    """Returns the checkpoints that no run of a plan needs any more: of stages whose later runs have all finished,
    unless the stage is also a run of an arm; and of finished runs that measure retention or other learning rates."""
    following: dict[str, list[str]] = {key: [key] for key in (*plan.retention_runs(), *_rate_runs(plan, runs))}
    planned: list[PlannedRun | PlannedStage] = [*plan.by_key().values(), *plan.stages, *plan.retention_runs().values()]
    for run in planned:
        for source in run.sources:
            following.setdefault(source, []).append(run.key)
    return [
        path
        for key, others in following.items()
        if key not in plan.by_key() and all(_has_finished(runs / other) for other in others)
        if (path := runs / key / CHECKPOINT).exists()
    ]


def _rate_runs(plan: Plan, runs: Path) -> list[str]:
    """Returns the keys of a plan's runs at other learning rates."""
    try:
        rates = load_rates(runs, plan.folder)
    except (OSError, ValueError, RecursionError):
        return []
    return [run.key for run in rates.runs] if rates else []


def _has_finished(directory: Path) -> bool:
    """Whether a folder holds the record of a run that has finished."""
    record = read_record(directory).record
    return record is not None and record.outcome == "finished"


class ChainCost(NamedTuple):
    """The cost of a run together with its stages; None if unknown. parameters: of the run alone."""

    parameters: int
    train_flops: float | None
    tokens: int | None


def chain_cost(config: Config, runner: Runner) -> ChainCost:
    """Returns the cost of a run together with its stages."""
    own = runner.describe(config)
    costs = [own, *map(runner.describe, runner.earlier(config))]
    flops = [cost.train_flops for cost in costs]
    tokens = [cost.tokens for cost in costs]
    return ChainCost(
        own.parameters,
        None if None in flops else sum(flops),
        None if None in tokens else sum(tokens),
    )
