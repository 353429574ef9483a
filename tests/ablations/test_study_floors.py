"""Floors are measured once before the runs, the context that is used once after them, and neither stops anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from standin.chains import chain
from standin.run import RUNNER, RunConfig, TrainingConfig, fit

import ablations.estimate
import ablations.plan
import ablations.study_context
import ablations.study_floors
from ablations.ablation import Ablation, Margin, Metric
from ablations.launchers import RemoteLauncher
from ablations.plan import PlannedStudy, Request, make_plan
from ablations.study_context import keep_context
from ablations.study_floors import floors_of_published, missing_floors
from ablations.training import LaunchSettings, train_study
from datamodules.core.errors import DataError
from lit_transformers.config import ConfigError
from lit_transformers.records.context_losses import ContextLoss, load_context
from lit_transformers.records.files import RESULTS
from lit_transformers.records.floors import StageFloor, floors_path, load_floors
from lit_transformers.records.plan import parse_plan, plan_path, plan_to_plain
from lit_transformers.records.reference import Reference
from reports.publish import publish, publish_floors
from reports.read.results import read_results
from reports.read.study import ReportError, load_study
from sweeps.launchers import slurm
from sweeps.launchers.ray_cluster import launch_on_ray, require_answer
from sweeps.ledger.storage import LedgerError

STUDY = Ablation(
    question="Does it help?",
    baseline=RunConfig(),
    factors={"memory": {"on": {}, "off": {"model.mixer.memory": 0}}},
    seeds=2,
    metric=Metric("val/bpb", goal="minimize", label="bits per byte"),
)
OTHER_TEXT = {"long": {"data.segment": 65}}


@pytest.fixture
def planned() -> PlannedStudy:
    return make_plan("memory_helps", STUDY, Request())


class Predictors:
    """A runner's floors that count how often they are measured, and fail where there is an error."""

    content = "0"
    depend_on_memory = False
    unknown = "val/accuracy"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Any, str]] = []
        self.error: Exception | None = None
        runner = replace(
            RUNNER,
            floors=self.measure,
            data_content=lambda config: self.content,
            visible_context=lambda config: config.model.mixer.memory if self.depend_on_memory else None,
            learning_metrics=lambda config: {self.unknown: "maximize", "val/bpb": "minimize"},
            document_floors=lambda config, metric: [Reference("whole", 1.0)] if self.depend_on_memory else (),
        )
        monkeypatch.setattr(ablations.study_floors, "load_runner", lambda name: runner)
        monkeypatch.setattr(
            ablations.study_floors, "call_forked", lambda runner, function, *arguments: function(*arguments)
        )

    def measure(self, config: Any, metric: str) -> Sequence[Reference]:
        self.calls.append((config, metric))
        if metric == self.unknown:
            raise DataError(f"no predictor has {metric}")
        if self.error:
            raise self.error
        return [Reference("pairs", 3.5951), Reference("triples", 2.1)]


def printed(runs: Path, planned: PlannedStudy, todo: int) -> str:
    output = StringIO()
    if (floors := missing_floors(runs, planned, todo, Console(file=output, width=80))) is not None:
        planned.write(runs, floors)
    return output.getvalue()


def test_they_are_measured_once_for_a_baseline(
    tmp_path: Path, planned: PlannedStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictors = Predictors(monkeypatch)
    assert printed(tmp_path, planned, 4) == "memory_helps: best floor 2.1 bits per byte, by triples (0 s)\n"
    assert predictors.calls == [(RunConfig(), "val/bpb")]
    floors = load_floors(tmp_path, planned.folder)
    assert floors and floors.are_of(planned.plan) and [floor.value for floor in floors.values] == [3.5951, 2.1]
    assert printed(tmp_path, planned, 4) == printed(tmp_path, planned, 0) == "" and len(predictors.calls) == 1
    assert printed(tmp_path, make_plan("memory_helps", STUDY, Request(assignments=("training.steps=3",))), 0)


def test_before_they_are_measured_a_launcher_or_a_storage_that_is_not_there_is_refused(
    tmp_path: Path, planned: PlannedStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictors = Predictors(monkeypatch)
    monkeypatch.setattr(ablations.estimate, "matrix_product_rate", lambda device: 1e10)
    monkeypatch.setenv("PATH", str(tmp_path))  # where no SLURM is
    monkeypatch.setattr(slurm, "_queue", dict)
    ray = RemoteLauncher(launch_on_ray, partial(require_answer, "127.0.0.1:1"))
    unavailable = {
        "--ray address=127.0.0.1:1: no Ray cluster answers": LaunchSettings(remote=ray),
        "--launcher: there is no SLURM here": LaunchSettings(remote=RemoteLauncher(launch_on_ray, slurm.require_slurm)),
        "ledger nonsense": LaunchSettings(storage="nonsense://"),
        "training.devices: asks for 99": LaunchSettings(),
    }
    for line, settings in unavailable.items():
        many = {key: config | {"training": {"devices": 99}} for key, config in planned.configs.items()}
        refused = replace(planned, configs=many) if "99" in line else planned
        with pytest.raises((ConfigError, LedgerError), match=f"^{line}"):
            train_study(refused, tmp_path, settings, Console(file=StringIO()))
    assert not predictors.calls and not plan_path(tmp_path, planned.folder).exists()


def test_of_other_data_that_arms_read_they_are_measured_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predictors = Predictors(monkeypatch)
    texts = {"short": {}, "long": {"data.segment": 64}}
    study = replace(STUDY, factors={"text": texts, **STUDY.factors})
    planned = make_plan("memory_helps", study, Request())
    assert printed(tmp_path, planned, 8).splitlines() == [
        "memory_helps: best floor 2.1 bits per byte, by triples (0 s)",
        "memory_helps: best floor of text=long memory=on 2.1 bits per byte, by triples (0 s)",
    ]
    assert [config.data.segment for config, _ in predictors.calls] == [32, 64]
    floors = load_floors(tmp_path, planned.folder)
    assert floors and floors.arms == ("text=short memory=on", "text=short memory=off")
    assert [other.arms for other in floors.others] == [("text=long memory=on", "text=long memory=off")]
    assert floors.are_of(planned.plan) and printed(tmp_path, planned, 8) == ""
    changed = make_plan("memory_helps", replace(study, factors=study.factors | {"text": texts | OTHER_TEXT}), Request())
    assert changed.plan.arms[0].runs == planned.plan.arms[0].runs and not floors.are_of(changed.plan)


def test_stages_have_floors_of_the_first_of_their_metrics_that_predictors_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictors = Predictors(monkeypatch)
    study = replace(STUDY, baseline=chain(3, 4))
    planned = make_plan("memory_helps", study, Request())
    assert printed(tmp_path, planned, 4).splitlines() == [
        "memory_helps: best floor 2.1 bits per byte, by triples (0 s)",
        "memory_helps: best floor of stage 1 2.1 val/bpb, by triples (0 s)",
    ]
    assert [metric for config, metric in predictors.calls if config == chain(3)] == ["val/accuracy", "val/bpb"]
    floors = load_floors(tmp_path, planned.folder)
    first = next(stage.key for stage in planned.plan.stages if stage.seed == 0)
    assert floors and floors.stages == (StageFloor("stage 1", first, "val/bpb", "minimize", Reference("triples", 2.1)),)
    assert printed(tmp_path, planned, 4) == ""
    planned.write(tmp_path, replace(floors, stages=()))
    assert "floor of stage 1" in printed(tmp_path, planned, 0), "as of a study that was done before there were any"
    predictors.error = RuntimeError("the text is gone")
    other = make_plan("memory_helps", replace(STUDY, baseline=chain(2, 4)), Request())
    assert printed(tmp_path, other, 4).splitlines()[1] == "memory_helps: best floor of stage 1 none: the text is gone"


def test_arms_that_see_more_or_less_of_the_same_data_have_floors_of_their_own(
    tmp_path: Path, planned: PlannedStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictors = Predictors(monkeypatch)
    predictors.depend_on_memory = True
    assert printed(tmp_path, planned, 4).splitlines() == [
        "memory_helps: best floor 2.1 bits per byte, by triples (0 s); 1 by whole",
        "memory_helps: best floor of memory=off 2.1 bits per byte, by triples (0 s); 1 by whole",
    ]
    assert [config.model.mixer.memory for config, _ in predictors.calls] == [8, 0]
    floors = load_floors(tmp_path, planned.folder)
    assert floors and floors.are_of(planned.plan) and floors.arms == ("memory=on",)
    assert [other.arms for other in floors.others] == [("memory=off",)]
    best = floors.best(planned.plan.metric)
    assert best and best.name == "triples" and floors.document == (Reference("whole", 1.0),)


def test_floors_of_an_older_version_can_be_read_and_are_measured_again(
    tmp_path: Path, planned: PlannedStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictors = Predictors(monkeypatch)
    planned.write(tmp_path, None)
    key, path = planned.plan.arms[0].runs[0].key, floors_path(tmp_path, planned.folder)
    path.write_text(json.dumps({"key": key, "values": [{"name": "pairs", "value": 3}], "reason": ""}))
    old = load_floors(tmp_path, planned.folder)
    assert old and old.are_of(planned.plan) and old.document == () and old.version == 1
    assert "by triples" in printed(tmp_path, planned, 0) and len(predictors.calls) == 1
    assert printed(tmp_path, planned, 0) == ""


def test_of_what_is_published_they_are_measured_from_its_results(
    tmp_path: Path, planned: PlannedStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictors = Predictors(monkeypatch)
    planned.write(tmp_path, None)
    keys = [run.key for arm in planned.plan.arms for run in arm.runs]
    measure = partial(floors_of_published, runner=planned.runner, console=Console(file=StringIO()))
    for key in keys[1:]:
        fit(RunConfig.from_dict(planned.configs[key]), directory_of(tmp_path / key))
    with pytest.raises(ConfigError, match="the first run of memory=on has no result"):
        measure(load_study(tmp_path, planned.folder))
    fit(RunConfig.from_dict(planned.configs[keys[0]]), directory_of(tmp_path / keys[0]))
    publish(tmp_path, planned.folder, tmp_path / "published")
    directory = tmp_path / "published" / planned.folder
    predictors.content = "other text"
    with pytest.raises(ConfigError, match=f"run {keys[0]} has read other data"):
        publish_floors(directory, measure)
    predictors.content = "0"
    before = (directory / RESULTS).read_text().splitlines()
    assert not predictors.calls
    publish_floors(directory, measure)
    assert (
        predictors.calls == [(RunConfig(), "val/bpb")]
        and (directory / RESULTS).read_text().splitlines()[1:] == before[1:]
    )
    floors = read_results(directory / RESULTS).floors
    assert floors and floors.key == keys[0] and [floor.value for floor in floors.values] == [3.5951, 2.1]
    assert "triples" in (directory / "report.md").read_text()
    with pytest.raises(ReportError, match="it has floors"):
        publish_floors(directory, measure)


def test_a_plan_holds_how_far_back_the_arm_sees_that_sees_least(monkeypatch: pytest.MonkeyPatch) -> None:
    def smallest(configs: Sequence[Any]) -> int:
        return min(8 + config.get("model.mixer.memory") for config in configs)

    monkeypatch.setattr(ablations.plan, "load_runner", lambda name: replace(RUNNER, smallest_reach=smallest))
    assert make_plan("memory_helps", STUDY, Request()).plan.reach == 8


def known_of(monkeypatch: pytest.MonkeyPatch, known: Callable[[Any], float]) -> None:
    """Lets a loss be known of who knows nothing of a run's data; the best one is 1."""

    def references(config: Any, metric: str) -> Sequence[Reference]:
        return [Reference("nothing", known(config)), Reference("all", 1.0)]

    monkeypatch.setattr(ablations.plan, "load_runner", lambda name: replace(RUNNER, references=references))


def test_a_plan_holds_what_is_known_of_each_arms_own_data(monkeypatch: pytest.MonkeyPatch) -> None:
    known_of(monkeypatch, lambda config: 3.0)
    plan = make_plan("memory_helps", STUDY, Request()).plan
    assert plan.references == (Reference("nothing", 3.0), Reference("all", 1.0))
    assert [arm.references for arm in plan.arms] == [(), ()]
    known_of(monkeypatch, lambda config: 3.0 + config.get("model.mixer.memory"))
    plan = parse_plan(plan_to_plain(make_plan("memory_helps", STUDY, Request()).plan))
    assert plan.references == () and [arm.references[0].value for arm in plan.arms] == [11.0, 3.0]
    assert {level: known[0].value for level, known in plan.references_by_data.items()} == {"on": 11.0, "off": 3.0}


def test_a_margin_of_all_that_can_be_known_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    known_of(monkeypatch, lambda config: 3.0 + config.get("model.mixer.memory"))
    smaller, larger = (
        replace(STUDY, metric=Metric("val/bpb", goal="minimize", margin=Margin(size, "small"))) for size in (1.9, 2.0)
    )
    assert make_plan("memory_helps", smaller, Request()).plan.metric.margin
    with pytest.raises(ConfigError) as refused:
        make_plan("memory_helps", larger, Request())
    assert str(refused.value) == (
        "study memory_helps: metric.margin: 2 is all that can be known of off (2), or more; state a smaller margin"
    )


def test_a_fault_is_one_line_and_is_tried_again_while_there_are_runs_to_do(
    tmp_path: Path, planned: PlannedStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictors = Predictors(monkeypatch)
    predictors.error = RuntimeError("the text is gone\nfor good")
    assert printed(tmp_path, planned, 4) == "memory_helps: best floor none: the text is gone\n"
    assert printed(tmp_path, planned, 0) == ""
    predictors.error = None
    assert "by triples" in printed(tmp_path, planned, 1)
    floors_path(tmp_path, planned.folder).write_text("[")
    assert "by triples" in printed(tmp_path, planned, 0)


def test_a_runner_without_predictors_says_so(tmp_path: Path, planned: PlannedStudy) -> None:
    assert "none: the runner of its runs has no simple predictors" in printed(tmp_path, planned, 4)


def test_context_is_measured_once_on_the_first_finished_run_of_the_baseline(
    tmp_path: Path, planned: PlannedStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Path] = []

    def measure(checkpoint: Path) -> Sequence[ContextLoss]:
        measured.append(checkpoint)
        if len(measured) > 1:
            raise ConfigError("reads no text")
        return [ContextLoss(1, 3.5, 0.0, 0.0)]

    monkeypatch.setattr(ablations.study_context, "load_runner", lambda name: replace(RUNNER, context_losses=measure))
    monkeypatch.setattr(
        ablations.study_context, "call_forked", lambda runner, function, *arguments: function(*arguments)
    )
    first, second = (tmp_path / run.key for run in planned.plan.arms[0].runs)
    keep_context(tmp_path, planned, Console(file=StringIO()))
    assert load_context(tmp_path, planned.folder) is None and not measured
    fit(RunConfig(training=TrainingConfig(fault="nan")), directory_of(first))
    for directory in (second, first):
        fit(RunConfig(), directory_of(directory))
        for _ in range(2):
            keep_context(tmp_path, planned, Console(file=StringIO()))
        context = load_context(tmp_path, planned.folder)
        assert context and context.key == directory.name
    (first / "checkpoint.ckpt").unlink()
    keep_context(tmp_path, planned, Console(file=StringIO()))
    assert load_context(tmp_path, planned.folder) == context
    assert measured == [second / "checkpoint.ckpt", first / "checkpoint.ckpt"]
    assert context.losses == () and context.reason == "reads no text"


def test_the_context_of_all_arms_is_measured_where_it_is_known_what_can_be_known(
    tmp_path: Path, planned: PlannedStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = (ContextLoss(1, 3.5, 0.0, 0.0),)
    monkeypatch.setattr(
        ablations.study_context, "load_runner", lambda name: replace(RUNNER, context_losses=lambda _: losses)
    )
    monkeypatch.setattr(
        ablations.study_context, "call_forked", lambda runner, function, *arguments: function(*arguments)
    )
    references = (Reference("no context", 3.0), Reference("16 symbols back", 1.0))
    planned = replace(planned, plan=replace(planned.plan, references=references))
    first, *others = (tmp_path / arm.runs[0].key for arm in planned.plan.arms)
    finished = []
    for directory in (first, *others):
        fit(RunConfig(), directory_of(directory))
        finished.append(directory.name)
        keep_context(tmp_path, planned, Console(file=StringIO()))
        context = load_context(tmp_path, planned.folder)
        assert context and [arm.key for arm in context.arms] == finished


def directory_of(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    return path
