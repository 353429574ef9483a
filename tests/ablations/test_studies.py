"""The studies that come with the suite: they resolve, and their published cells stand where they should."""

from __future__ import annotations

import re
from functools import cache
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from short_models import short

from ablations.ablation import Ablation
from ablations.catalog import RUNNER, find, load, names, uses_own_models, write_new
from ablations.plan import Request, make_plan
from ablations.show import study_view
from ablations.training import LaunchSettings
from lit_transformers.config import ConfigError
from lit_transformers.gates.gates import check
from lit_transformers.gates.miniature import miniature, probe_length
from lit_transformers.models.model import ModelConfig
from lit_transformers.records.measurement import SPLIT, named_on
from lit_transformers.runner import load_runner, runner_of

OWN_QUESTIONS = (
    "everything",
    "everything_text",
    "mixers_pretrained",
    "convert_long",
    "few_labels",
    "question_to_answer",
)


WITHOUT_TEST = ("sentences", "questions")
"""The kinds of sources of studies that have no test split here, or whose folds are measured."""


@cache
def study(name: str) -> Ablation:
    return load(find(name))


@pytest.mark.parametrize("name", names())
def test_a_study_resolves_at_every_scale(name: str) -> None:
    """Its constructor refuses scales in which two arms are the same run."""
    assert {"demo", "gpu", "paper"} <= set(study(name).scales)
    for scale in study(name).scales:
        resolved = study(name).resolve(scale)
        assert len(resolved.arms) >= 2
        assert set(resolved.left_out).isdisjoint(arm.name for arm in resolved.arms)
        configs = [*resolved.configs.values()]
        has_test = {dict(config.leaves()).get("data.source.kind") for config in configs}.isdisjoint(WITHOUT_TEST)
        split = "test" if has_test and configs[0].get("data").kind != "mixed" else "validation"
        assert {config.get(SPLIT) for config in configs} == {split}
        assert all(named_on(one.name, split) == one.name for one in (resolved.metric, *(study(name).also or ())))


def test_a_study_shows_of_a_part_its_kind_and_what_is_not_its_default() -> None:
    console = Console(file=StringIO(), width=80)
    console.print(study_view("mixers_pretrained", study("mixers_pretrained")))
    assert isinstance(console.file, StringIO)
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["mixer", "attention", "the", "baseline's"] in rows
    assert ["window", "model.mixer=window(window=8)"] in rows and ["linear", "model.mixer=linear"] in rows


@pytest.mark.parametrize("name", names())
def test_the_runs_of_a_study_measure_the_times_and_sizes_that_it_shows(name: str) -> None:
    metrics = (study(name).metric, *(study(name).also or ()))
    shown = [metric for metric in metrics if metric.name.startswith("measured/")]
    for config in study(name).resolve("demo").configs.values() if shown else ():
        for metric in shown:
            assert load_runner(runner_of(config)).measure_of(config, metric.name) is not None


@pytest.mark.parametrize("name", names())
def test_a_study_names_its_source_and_the_protocol_of_its_cells(name: str) -> None:
    source, published = study(name).source, study(name).published
    if source is None:
        assert published is None and name in OWN_QUESTIONS, "a question of ours has no others' cells"
        return
    assert source.arxiv
    assert published is not None and published.protocol
    assert published.cells or published.claims


def test_the_runner_that_is_imported_while_a_plan_is_in_the_making_is_that_of_every_study() -> None:
    assert {runner_of(study(name).baseline) for name in names()} == {RUNNER}


def test_the_demo_asks_at_least_recurrence_by_relative_and_absolute_positions() -> None:
    arms = {(arm.levels["recurrence"], arm.levels["positions"]) for arm in study("xl_recurrence").resolve("demo").arms}
    assert arms == {("on", "xl"), ("on", "sinusoidal"), ("off", "xl"), ("off", "sinusoidal")}


def test_the_battery_has_every_kind_of_mixer_on_every_task_and_its_metric_is_the_one_that_is_known() -> None:
    battery = study("everything")
    levels = [arm.levels for arm in battery.resolve("demo").arms]
    tasks, mixers = ({level[factor] for level in levels} for factor in ("task", "mixer"))
    assert tasks == set(battery.factors["task"]) and len(levels) == len(tasks) * len(mixers)
    configs = battery.resolve("demo").configs.values()
    whole = {config.model.mixer.kind for config in battery.resolve("gpu").configs.values()}
    assert {config.model.mixer.kind for config in configs} == whole
    assert {config.data.known_values().metric for config in configs} == {battery.metric.name.partition("/")[2]}


def test_the_parts_of_xlnet_are_measured_alike() -> None:
    """The same symbols are hidden, each is predicted from the visible ones, and in the same segments."""
    configs = study("xlnet_components").resolve("demo").configs
    measured = {
        (c.task.measured_order, c.task.segment_length, c.data.length, c.data.measured_noise) for c in configs.values()
    }
    assert len(measured) == 1 and {order for order, *_ in measured} == {"none"}
    assert [arm for arm, config in configs.items() if not config.model.mixer.memory] == ["component=no_memory"]


def test_a_study_whose_weights_are_missing_names_the_command_that_fetches_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LIT_WEIGHTS", str(tmp_path))
    command = study("convert_long").preparation
    assert Path(__file__).parents[2].joinpath(command.split()[1]).is_file()
    message = rf"^study convert_long: start.network: gt_all_.*/model: no such folder .*{re.escape(command)}$"
    with pytest.raises(ConfigError, match=message):
        make_plan("convert_long", study("convert_long"), Request(), runs=tmp_path)


@pytest.mark.slow
def test_every_value_in_a_config_of_every_study_is_in_an_arm_that_passes_its_gates() -> None:
    """Arms that combine values of arms that were checked are not checked again, nor are sizes: the arms are those of
    the demo and those that the demo leaves out, and every run passes the gates at its own size before it trains."""
    checked, models = set[tuple[str, str, str]](), set[ModelConfig]()
    for name in names():
        demo, gpu = (study(name).resolve(scale).configs for scale in ("demo", "gpu"))
        for arm, config in (gpu | demo).items():
            model = short(config.model).override({"dim": 32, "heads": 4})
            if model in models:
                continue
            models.add(model)
            leaves = miniature(model, probe_length(model)).leaves()
            values = {(model.kind, path, repr(value)) for path, value in leaves}
            if not values <= checked:
                checked |= values
                failed = [gate for gate in check(model) if not gate.passed]
                assert not failed, f"{arm} of {name}: {failed}"


def test_a_study_of_models_of_this_package_is_known_before_it_is_imported(tmp_path: Path) -> None:
    assert uses_own_models(write_new(str(tmp_path / "from_skeleton.py")))
    (tmp_path / "foreign.py").write_text("from elsewhere import RunConfig\nfrom ablations.ablation import Ablation\n")
    assert not uses_own_models(tmp_path / "foreign.py")


def test_another_scale_or_another_change_is_another_group_where_runs_are_shown() -> None:
    requests = (Request(seeds=1), Request(seeds=1, assignments=("training.steps=20",)), Request(seeds=1, scale="hour"))
    plans = [make_plan("xl_recurrence", study("xl_recurrence"), request) for request in requests]
    groups = [LaunchSettings(workers=1).options(planned, 1).group for planned in plans]
    assert groups == ["xl_recurrence", "xl_recurrence--training.steps=20", "xl_recurrence--hour"]


def test_what_several_arms_share_is_trained_before_they_are_measured() -> None:
    tickets = make_plan("xl_memory", study("xl_memory"), Request(seeds=1)).tickets()
    memories = [ticket.arm.rpartition("memory=")[2] for ticket in tickets]
    assert memories == ["x1"] * 4 + ["x2", "x4", "x8"] * 4
