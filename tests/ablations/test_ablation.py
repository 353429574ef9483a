"""A spec is checked when it is made: each fault is one line that names the place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standin.run import ModelConfig, RunConfig

from ablations.ablation import Ablation, Contrast, Margin, Match, Metric, Published, PublishedValue, Scale, Source
from ablations.plan import Request, make_plan
from lit_transformers.config import ConfigError

FACTORS: dict[str, Any] = {
    "recurrence": {"on": {}, "off": {"model.mixer.memory": 0}},
    "positions": {"relative": {}, "absolute": {"model.mixer.encoding": None}},
}


BASELINE, OFF = "recurrence=on positions=relative", "recurrence=off positions=relative"
CONTRAST = Contrast("a", BASELINE, OFF)


def ablation(**changes: Any) -> Ablation:
    fields: dict[str, Any] = {
        "question": "Does recurrence help?",
        "baseline": RunConfig(),
        "metric": Metric("val/bpb", goal="minimize"),
        "factors": FACTORS,
    }
    return Ablation(**(fields | changes))


def remarked(name: str) -> Published:
    """Numbers of a source with a remark on the comparison of this name."""
    return Published(protocol="p", metric="m", remarks={name: "The scale: nothing beyond a segment is learned."})


def names(study: Ablation, scale: str = "demo") -> list[str]:
    return [arm.name for arm in study.resolve(scale).arms]


def test_a_product_has_every_combination_the_baseline_first() -> None:
    assert names(ablation()) == [
        "recurrence=on positions=relative",
        "recurrence=on positions=absolute",
        "recurrence=off positions=relative",
        "recurrence=off positions=absolute",
    ]
    last = ablation().resolve().configs["recurrence=off positions=absolute"]
    assert (last.get("model.mixer.memory"), last.get("model.mixer.encoding")) == (0, None)


def test_a_remark_is_on_a_contrast_or_without_any_on_an_arm() -> None:
    for study in (ablation(published=remarked(OFF)), ablation(published=remarked("a"), contrasts=[CONTRAST])):
        published = make_plan("study", study, Request()).plan.published
        assert published and study.published and published.remarks == study.published.remarks


def test_an_answer_is_by_contrasts_arms_or_factors_and_goes_into_the_plan() -> None:
    for answer, contrasts in ((["a"], [CONTRAST]), ([OFF, "positions"], [])):
        assert make_plan("study", ablation(answer=answer, contrasts=contrasts), Request()).plan.answer == tuple(answer)


def test_one_factor_changes_one_thing_at_a_time() -> None:
    assert names(ablation(design="one_factor")) == ["baseline", "recurrence=off", "positions=absolute"]


def test_leave_one_out_has_all_and_all_but_one() -> None:
    assert names(ablation(design="leave_one_out")) == ["all", "without recurrence", "without positions"]


def test_explicit_arms_are_taken_as_they_are() -> None:
    study = ablation(design="explicit", factors={}, arms={"large": {}, "small": {"model.width": 8}})
    assert names(study) == ["large", "small"]
    assert study.resolve().configs["small"].get("model.width") == 8


def test_a_scale_overrides_the_baseline_chooses_arms_and_says_what_it_leaves_out() -> None:
    scale = Scale(overrides={"training.steps": 5}, seeds=2, leave_out={"positions=absolute": "no time"})
    resolved = ablation(scales={"demo": scale}).resolve()
    assert [arm.name for arm in resolved.arms] == [
        "recurrence=on positions=relative",
        "recurrence=off positions=relative",
    ]
    assert resolved.seeds == 2
    assert set(resolved.left_out.values()) == {"no time"} and len(resolved.left_out) == 2
    assert all(config.get("training.steps") == 5 for config in resolved.configs.values())


def test_a_scale_may_name_the_arms_it_keeps() -> None:
    study = ablation(scales={"demo": Scale(arms=["recurrence=on"])})
    assert names(study) == ["recurrence=on positions=relative", "recurrence=on positions=absolute"]


def test_the_margin_of_a_scale_takes_the_place_of_the_metrics() -> None:
    margins = [Margin(0.02, "another tokenizer changes more"), Margin(0.1, "a tenth of what is to be known")]
    study = ablation(
        metric=Metric("val/bpb", goal="minimize", margin=margins[0]),
        scales={"demo": Scale(margin=margins[1]), "gpu": Scale()},
    )
    assert make_plan("study", study, Request()).plan.metric.margin == margins[1]
    assert make_plan("study", study, Request("gpu")).plan.metric.margin == margins[0]


def test_what_is_set_on_the_command_line_holds_for_all_arms() -> None:
    for changes in ({"training.steps": 5}, {"training": {"steps": 5}}):
        resolved = ablation().resolve(changes=changes)
        assert {config.get("training.steps") for config in resolved.configs.values()} == {5}


PLANNED: list[tuple[dict[str, Any], str]] = [
    ({"seed": 5}, "seed: cannot be set, for a study plans its seeds: give their number by --seeds N"),
    ({"seed": 0}, "seed: cannot be set, for a study plans its seeds"),
    ({"data": {"seed": 3}}, "data.seed: cannot be set, for a study plans its seeds"),
    ({"model.mixer.memory": 5}, "model.mixer.memory: cannot be set, for the arms of the study differ in it: 'recur"),
    ({"model.mixer": {"memory": 5}}, "model.mixer.memory: cannot be set, for the arms"),
    ({"model.mixer.encoding": "relative"}, "model.mixer.encoding: cannot be set, for the arms"),
    ({"model": {"mixer": {"encoding": None}}}, "model.mixer.encoding: cannot be set, for the arms"),
]


@pytest.mark.parametrize(("changes", "line"), PLANNED)
def test_what_a_study_plans_itself_cannot_be_set(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ablation().resolve(changes=changes)
    assert str(caught.value).startswith(line)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"question": ""}, "question: string should have at least 1 character"),
    ({"seeds": "3"}, "seeds: input should be a valid integer; got '3'"),
    ({"seeds": 0}, "seeds: input should be greater than or equal to 1"),
    ({"design": "factorial"}, "design: input should be 'product', 'one_factor'"),
    ({"metric": "val/bpb"}, "metric: input should be an instance of Metric"),
    ({"baseline": {}}, "baseline: input should be an instance of Config"),
    ({"scales": {"demo": {}}}, "scales.demo: input should be an instance of Scale"),
    ({"factors": {}}, "factors: a product design needs at least one factor"),
    ({"factors": {"a": ["x", "y"]}}, "factors.a: a mapping is expected: {name: value, ...}; got ['x', 'y']"),
    ({"contrasts": 3}, "contrasts: input should be"),
    ({"factors": {"a": {"x": {}}}}, "factors.a: a factor needs two levels or more"),
    ({"factors": {"a b": {"x": {}, "y": {}}}}, "factors.a b: a name has no space"),
    ({"factors": {"a": {"x": {}, "y": {"seed": 1}}}}, "factors.a.y: seed: cannot be set, for a study plans its seeds"),
    ({"scales": {"demo": Scale(overrides={"data": {"seed": 1}})}}, "scales.demo.overrides.data.seed: cannot be set"),
    ({"factors": {"a": {"x": {"seed": 1}, "y": {}}}}, "factors.a.x: the first level is the baseline's"),
    ({"factors": {"a": {"x": {}, "y": {}}}}, "factors.a.y: overrides nothing"),
    ({"factors": {"a": {"x": {}, "y": {"model.mixr.memory": 1}}}}, "factors.a.y: model.mixr: ModelConfig has no field"),
    ({"factors": {"a": {"x": {}, "y": {"model.width": -1}}}}, "factors.a.y: model.width: input should be greater"),
    (
        {"factors": {"a": {"x": {}, "y": {"model.width": "8"}}}},
        "factors.a.y: model.width: input should be a valid integer",
    ),
    ({"factors": {"a": {"x": {}, "y": {"model.heads": 3}}}}, "factors.a.y: model: width 16 does not divide by heads 3"),
    ({"factors": {"a": {"x": {}, "y": {"model.width": 16}}}}, "same run: model.width changes nothing there"),
    (
        {"factors": {"a": {"x": {}, "y": {"training.steps": 9}, "z": {"training.steps": 9}}}},
        "arms 'a=y' and 'a=z' are the same run",
    ),
    (
        {"factors": {"a": {"x": {}, "y": {"seed": 1}}, "b": {"x": {}, "y": {"seed": 2}}}},
        "factors a and b both set seed",
    ),
    ({"arms": {"x": {}}}, 'arms: a product design has factors; arms are for design="explicit"'),
    ({"design": "explicit"}, "factors: an explicit design has arms, no factors"),
    ({"design": "explicit", "factors": {}}, "arms: an explicit design needs arms"),
    ({"design": "explicit", "factors": {}, "arms": {"x": {"seed": 1}}}, "arms.x: the first arm is the baseline"),
    ({"design": "leave_one_out", "factors": {"a": {"x": {}, "y": {"seed": 1}, "z": {"seed": 2}}}}, "two levels"),
    ({"scales": {"demo": Scale(overrides={"model.with": 3})}}, "scales.demo.overrides.model.with: ModelConfig has no"),
    ({"scales": {"demo": Scale(arms=["positions=shaw"])}}, "scales.demo.arms: no arm is called 'positions=shaw'"),
    ({"scales": {"demo": Scale(leave_out={"recurrence=on": "x"})}}, "cannot be left out"),
    (
        {"contrasts": [Contrast("a", "recurrence=of", "x")]},
        "contrasts.0: no arm is called 'recurrence=of'; did you mean",
    ),
    ({"effects": ["recurence"]}, "effects.0: no factor is called 'recurence'; did you mean"),
    ({"design": "one_factor", "effects": ["recurrence"]}, "effects: effects are those of a product of two factors"),
    (
        {"published": Published(protocol="p", metric="m", margin=1.0)},
        "published.margin: is that of the metric in another unit, so that the metric states one",
    ),
    (
        {"published": Published(protocol="p", metric="m", goal="minimize", cells=[PublishedValue("x", 1.0)])},
        "published.cells.0: no arm is called 'x'",
    ),
    (
        {"contrasts": [CONTRAST], "published": remarked(OFF)},
        f"published.remarks: no contrast is called {OFF!r}; there are: a",
    ),
    ({"contrasts": [CONTRAST], "answer": [OFF]}, f"answer.0: no comparison is called {OFF!r}; there are: a"),
    ({"published": remarked(BASELINE)}, f"published.remarks: no arm but the baseline is called {BASELINE!r}"),
]


@pytest.mark.parametrize(("wrong", "line"), WRONG, ids=[line[:40] for _, line in WRONG])
def test_a_wrong_spec_is_one_line_that_names_the_place(wrong: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ablation(**wrong)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Source(""),
        lambda: Metric("val/bpb", goal="smaller"),  # type: ignore[arg-type]
        lambda: Published(protocol="p", metric="EM", cells=[PublishedValue("x", 1.0)]),
        lambda: Published(protocol="p", metric="BLEU", goal="minimize"),
        lambda: Match("time"),  # type: ignore[arg-type]
        lambda: Match("tokens", step=0),
        lambda: PublishedValue("arm", "26.77"),  # type: ignore[arg-type]
        lambda: Scale(seeds=-1),
    ],
)
def test_a_wrong_part_of_a_spec_is_a_config_error(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


def test_a_baseline_that_is_the_config_of_no_run_is_refused_when_it_is_planned() -> None:
    study = ablation(baseline=ModelConfig(), factors={"width": {"16": {}, "8": {"width": 8}}})
    with pytest.raises(ConfigError, match="study own: ModelConfig is not the config of a run"):
        make_plan("own", study, Request())


def test_an_unknown_scale_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match="no scale 'dem'; did you mean demo"):
        ablation(scales={"demo": Scale(), "paper": Scale()}).resolve("dem")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
paths = st.sampled_from(["model", "model.width", "model.mixer", "model.mixer.encoding", "training.steps", "seed"])
overrides = st.dictionaries(paths | st.text(max_size=12), plain, max_size=3)


@pytest.mark.slow
@given(
    st.dictionaries(st.text(max_size=5), st.dictionaries(st.text(max_size=5), overrides, max_size=3), max_size=3)
    | plain
)
def test_malformed_factors_never_raise_anything_but_a_config_error(factors: Any) -> None:
    try:
        ablation(factors=factors)
    except ConfigError as error:
        assert str(error)


@given(
    st.sampled_from(["seeds", "scales", "contrasts", "published", "match", "arms", "metric", "source", "design"]), plain
)
def test_a_malformed_field_never_raises_anything_but_a_config_error(name: str, value: Any) -> None:
    try:
        ablation(**{name: value})
    except ConfigError as error:
        assert str(error)
