"""The studies that come with the suite: they resolve, and their published cells stand where they should."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablations.ablation import Ablation
from ablations.catalog import RUNNER, find, load, names, uses_own_models, write_new
from lit_transformers.checks.gates import Gate, check
from lit_transformers.checks.miniature import miniature, probe_length
from lit_transformers.models.model import ModelConfig
from lit_transformers.runner import runner_of

STUDIES = {name: load(find(name)) for name in names()}


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("scale", ["demo", "gpu", "paper"])
def test_a_study_resolves_at_every_scale(name: str, scale: str) -> None:
    study = STUDIES[name]
    resolved = study.resolve(scale)
    assert len(resolved.arms) >= 2
    assert set(resolved.left_out).isdisjoint(arm.name for arm in resolved.arms)
    assert len({config.to_yaml() for config in resolved.configs.values()}) == len(resolved.arms)


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_a_study_names_its_source_and_the_protocol_of_its_cells(study: Ablation) -> None:
    if study.source is None:
        assert study.published is None and study is STUDIES["everything"], "a question of ours has no cells of others"
        return
    assert study.source.arxiv
    assert study.published is not None and study.published.protocol
    assert study.published.cells or study.published.claims


def test_the_runner_that_is_imported_while_a_plan_is_in_the_making_is_that_of_every_study() -> None:
    assert {runner_of(study.baseline) for study in STUDIES.values()} == {RUNNER}


def test_the_demo_asks_at_least_recurrence_by_relative_and_absolute_positions() -> None:
    arms = {
        (arm.levels["recurrence"], arm.levels["positions"]) for arm in STUDIES["xl_recurrence"].resolve("demo").arms
    }
    assert arms == {("on", "xl"), ("on", "sinusoidal"), ("off", "xl"), ("off", "sinusoidal")}


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_every_arm_of_every_study_passes_its_gates(study: Ablation) -> None:
    """Arms are checked at the demo's size, and at the GPU's the first arm and those that the demo leaves out.

    A scale changes sizes and data, no mechanism, and every run passes the gates at its own size before it trains.
    """
    demo, gpu = study.resolve("demo").configs, study.resolve("gpu").configs
    first, *others = gpu
    checked = {f"{name} of demo": config for name, config in demo.items()}
    checked |= {f"{name} of gpu": gpu[name] for name in (first, *(name for name in others if name not in demo))}
    for name, config in checked.items():
        failed = failed_gates(config.model)
        assert not failed, f"{name}: {failed}"


CHECKED: dict[tuple[str, int], list[Gate]] = {}


def failed_gates(model: ModelConfig) -> list[Gate]:
    """The failed gates of a model's miniature, which many arms and scales share: each miniature is checked once."""
    length = probe_length(model)
    checked_key = (miniature(model, length).to_yaml(), length)
    if checked_key not in CHECKED:
        CHECKED[checked_key] = [gate for gate in check(model) if not gate.passed]
    return CHECKED[checked_key]


def test_a_study_of_models_of_this_package_is_known_before_it_is_imported(tmp_path: Path) -> None:
    assert uses_own_models(write_new(str(tmp_path / "from_skeleton.py")))
    (tmp_path / "foreign.py").write_text("from elsewhere import RunConfig\nfrom ablations.ablation import Ablation\n")
    assert not uses_own_models(tmp_path / "foreign.py")
