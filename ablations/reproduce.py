"""Repeats runs of a published study with today's code, so that its numbers can be compared with those of today."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ablations.plan import PlannedStudy
from ablations.stages import Stages
from lit_transformers.config import ConfigError, Plain
from lit_transformers.records.plan import PlannedRun, PlannedStage
from lit_transformers.records.record import Record
from lit_transformers.records.reproduction import Reproduction
from lit_transformers.runner import load_runner
from reports.read.study import Run, Study
from sweeps.ledger.run_records import read_record
from sweeps.process.call import call_forked

__all__ = ["RepeatedRuns", "prepare_repetition"]


@dataclass(frozen=True)
class RepeatedRuns:
    """Published runs that are to be repeated. planned: the same arms and seeds, with the keys of today's code.
    threads: the number of threads that each of them had, None where they differ: sums are rounded by it."""

    planned: PlannedStudy
    published: Mapping[str, Run]
    threads: int | None

    def reproductions(self, runs: Path) -> list[Reproduction]:
        """Returns the values of all runs that have finished in the folder ``runs``, next to the published ones."""
        reproductions = []
        for key, run in self.published.items():
            record = read_record(runs / key).record
            if record is not None and record.outcome == "finished":
                value = record.value(self.planned.metric)
                assert value is not None  # a run that has finished has the metric, as the published one had
                reproductions.append(Reproduction(run.arm, run.seed, run.value, value, record.environment))
        return reproductions


def prepare_repetition(study: Study, runner: str, arms: Sequence[str], seeds: int) -> RepeatedRuns:
    """Prepares the repetition of the first finished runs of some arms, by their published configs.

    study: as it is published. runner: the name of the runner of its runs. arms: by their names or labels; without any,
    the baseline. seeds: how many runs of each arm. Raises ConfigError for an unknown arm, one without a finished run,
    and a run whose config today's code refuses, or whose data are others on this machine.
    """
    published: dict[str, Run] = {}
    configs: dict[str, dict[str, Plain]] = {}
    stages: dict[str, PlannedStage] = {}
    planned_arms = []
    labels = study.plan.labels
    for name in [labels.find(arm) for arm in arms] or [study.plan.baseline]:
        selected = _finished(study, name)[:seeds]
        repeated = [_repeat(run, runner, configs, stages) for run in selected]
        published |= {one.key: run for one, run in zip(repeated, selected, strict=True)}
        arm = next(arm for arm in study.plan.arms if arm.name == name)
        planned_arms.append(replace(arm, runs=tuple(repeated)))
    first, earlier = planned_arms[0].name, tuple(stages.values())
    plan = replace(study.plan, arms=tuple(planned_arms), stages=earlier, retention=(), baseline=first, looks=None)
    records = {run.arm: _record(run) for run in published.values()}
    costs = {
        arm: {**record.cost, "tokens": record.planned_tokens, "train_flops": record.planned_flops}
        for arm, record in records.items()
    }
    costs |= {stage.name: dict(records[stage.place.partition(":")[0]].cost) for stage in stages.values()}
    threads = {record.environment.get("threads") for record in records.values()}
    whole = PlannedStudy(plan, configs, costs, runner)
    return RepeatedRuns(whole, published, threads.pop() if len(threads) == 1 else None)


def _finished(study: Study, arm: str) -> tuple[Run, ...]:
    """Returns the finished runs of an arm. Raises ConfigError where none has finished."""
    if not study.finished(arm):
        raise ConfigError(f"no published run of {arm!r} has finished, so that there is nothing to repeat", "--arm")
    return study.finished(arm)


def _repeat(run: Run, runner: str, configs: dict[str, dict[str, Plain]], stages: dict[str, PlannedStage]) -> PlannedRun:
    """Enters the configs of a published run, and of the runs that it starts from, by the keys that they have today.
    Returns the run as it is planned today."""
    record = _record(run)
    try:
        planned, of_run, earlier, content = call_forked(runner, resolve, runner, record.config, run.seed, run.arm)
    except ConfigError as error:
        commit = record.environment.get("commit")
        raise ConfigError(f"today's code refuses its config ({error}); check out commit {commit}", run.key) from None
    if content != record.data.get("fingerprint"):
        raise ConfigError("it has read other data than its config stands for on this machine", run.key)
    configs |= of_run
    for stage in earlier:
        stages.setdefault(stage.key, replace(stage, name=stage.place))
    return planned


def resolve(
    runner: str, plain: Mapping[str, Plain], seed: int, arm: str
) -> tuple[PlannedRun, dict[str, dict[str, Plain]], list[PlannedStage], str | None]:
    """Returns a run as it is planned today, the configs of it and of the runs that it starts from by their keys, these
    runs, and the fingerprint of its data, for a process that has imported the runner."""
    loaded = load_runner(runner)
    config, stages = loaded.config.from_dict(plain), Stages(loaded)
    planned = stages.planned(config, seed, arm)
    return planned, stages.configs, [*stages.stages.values()], loaded.data_content(config)


def _record(run: Run) -> Record:
    """Returns the record of a run that has finished."""
    assert run.record is not None
    return run.record
