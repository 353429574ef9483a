"""The data that the metrics of a record were measured on, their units and their goals, as the record states them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ablations.ablation import Ablation, Margin, Metric
from ablations.plan import Request, make_plan
from datamodules import DATA
from datamodules.text.hub import HubConfig
from lit_transformers.checks.objective_parts import measures_name_its_metrics
from lit_transformers.config import ConfigError
from lit_transformers.lightning_runs import LightningRunConfig
from lit_transformers.lightning_runs.fit import fit as fit_module
from lit_transformers.lightning_runs.measured_batches import examples_of
from lit_transformers.records.files import CHECKPOINT, CURVES
from lit_transformers.records.measurement import SPLIT, Measurement
from lit_transformers.records.record import load_record, parse_record, record_to_plain
from lit_transformers.runs import RunConfig, evaluate, fit
from lit_transformers.runs.fit import measurement
from lit_transformers.runs.run_floors import floors
from lit_transformers.runs.runner import RUNNER
from lit_transformers.tasks import TaskConfig

ROWS: dict[str, Any] = {
    "kind": "rows",
    "source": {"kind": "topics", "documents": 41, "sentences": 6, "validation": 0.3, "test": 0.1},
    "tokenizer": "words",
    "length": 24,
}


def of(config: RunConfig, **changes: Any) -> Measurement:
    changed = config.override(changes)
    return measurement(changed, changed.data.build())


@pytest.mark.parametrize(
    ("changes", "text", "symbol"),
    [
        ({"data.evaluation.segment_length": 4, "data.segment_length": 16, "data.seed": 3}, True, True),
        ({"model.dim": 32, "task.evaluation": {"mixer.memory": 4}}, True, True),
        ({"data.tokenizer": "characters"}, True, False),
        ({"data.tokenizer": "words"}, True, False),
        ({"data.evaluation.split": "test"}, False, True),
        ({"data.evaluation.documents": 2}, False, True),
        ({"data.evaluation.bytes": 300}, False, True),
    ],
)
def test_the_text_and_the_symbols_of_two_runs_are_known_apart(
    small_run: RunConfig, changes: dict[str, Any], text: bool, symbol: bool
) -> None:
    whole, other = of(small_run), of(small_run, **changes)
    assert (other.documents == whole.documents) == text
    assert (other.definitions["symbol"] == whole.definitions["symbol"]) == symbol
    assert other.split == small_run.override(changes).get("data.evaluation.split")
    assert ("bpb" in other.units) == (changes.get("data.tokenizer") != "words")


@pytest.mark.parametrize(
    ("unit", "changes"),
    [
        ("hidden symbol", {"data.noise.rate": 0.4}),
        ("hidden symbol", {"data.packing": "segment_pair"}),
        ("relation", {"data.evaluation.relation": "none"}),
        ("minimal pair", {"data.evaluation.pairs": 8}),
    ],
)
def test_what_is_hidden_or_asked_is_another_unit_and_the_same_text(unit: str, changes: dict[str, Any]) -> None:
    pairs = {"relation": "next_sentence", "packing": "segment_pair"} if unit == "relation" else {}
    run = RunConfig.from_dict({"model": "encoder", "task": "masked_lm", "data": {**ROWS, **pairs}})
    whole, other = of(run), of(run, **changes)
    assert whole.documents == other.documents
    differing = {name for name, value in whole.definitions.items() if other.definitions[name] != value}
    assert unit in differing and "symbol" not in differing
    alike = of(
        run,
        **changes,
        **{"data.evaluation.noise": run.data.get("noise"), "data.evaluation.packing": run.data.get("packing")},
    )
    assert unit != "hidden symbol" or alike.definitions[unit] == whole.definitions[unit]


def test_documents_of_the_hub_are_those_of_a_subset_and_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datamodules.text.hub.commit", lambda name, revision: "c0ffee")
    whole, *others = (
        HubConfig(name="corpus", **changes).build().fingerprint
        for changes in ({}, {"window": 9}, {"revision": "main"}, {"subset": "b"}, {"column": "c"}, {"held_out": 0.2})
    )
    assert whole == "hub-c0ffee" and others[:2] == [whole] * 2 and len({whole, *others}) == 4


@pytest.mark.parametrize(
    "task",
    [
        {"kind": "masked_lm", "span_boundary": {"longest": 3, "width": 4}},
        {"kind": "permutation_lm", "measured": "none"},
        {"kind": "replaced_tokens", "generator": {"draws": "uniform"}},
        {"kind": "replaced_tokens", "predicts": "symbols_at_masks", "weight": 1.0},
        {"kind": "seq2seq", "metrics": ["accuracy", "rouge"]},
        {"kind": "contrastive", "masked_weight": 0.0},
    ],
)
def test_the_measures_of_an_objective_are_those_of_the_metrics_that_it_measures(task: dict[str, Any]) -> None:
    """Those with their defaults are checked with our own parts."""
    measures_name_its_metrics(TaskConfig.from_dict(task))


def test_a_record_holds_it_and_one_from_before_is_read_and_written_as_it_is(
    small_run: RunConfig, tmp_path: Path
) -> None:
    fit(small_run.override({"training.steps": 1}), tmp_path)
    record = load_record(tmp_path / "record.json")
    assert record.measurement == of(small_run, **{"training.steps": 1})
    assert {f"val/{name}" for name in record.measurement.units} == record.metrics.keys()
    assert record.measurement.goals.keys() == record.measurement.units.keys()
    old = replace(record, measurement=None)
    plain = record_to_plain(old)
    assert "measurement" not in plain and parse_record(plain) == old


STUDY: dict[str, Any] = {"question": "?", "seeds": 1}
MEMORY: dict[str, Any] = {"factors": {"memory": {"8": {}, "4": {"model.mixer.memory": 4}}}}


def test_a_run_validates_on_validation_and_measures_the_split_of_its_config(
    small_run: RunConfig, tmp_path: Path
) -> None:
    source = small_run.data.get("source").to_dict() | {"test": 0.2}
    config = small_run.override({"data.source": source, "training.validate_every": 15, "data.evaluation.split": "test"})
    other = config.override({"data.evaluation.split": "validation"})
    record, of_validation = (fit(one, tmp_path / one.data.get("evaluation.split")) for one in (config, other))
    assert record["metrics"].keys() == {name.replace("val/", "test/") for name in of_validation["metrics"]}
    assert (tmp_path / "test" / CURVES).read_bytes() == (tmp_path / "validation" / CURVES).read_bytes()
    assert (record["measurement"]["split"], record["protocol"]["split"]) == ("test", "test")
    assert evaluate(tmp_path / "test" / CHECKPOINT) == pytest.approx(record["metrics"])
    changed = evaluate(tmp_path / "test" / CHECKPOINT, {"data.evaluation.split": "validation"})
    assert changed == pytest.approx(of_validation["metrics"])
    assert floors(config, "test/bpb") != floors(other, "val/bpb")
    with pytest.raises(ConfigError, match="val/bpb is no score of predictions on the test split"):
        floors(config, "val/bpb")


def test_the_command_line_and_a_search_rename_the_metrics_of_a_study(small_run: RunConfig) -> None:
    study = Ablation(
        **STUDY, baseline=small_run, factors={"factor": {"one": {}, "other": {"model.mixer.memory": 4}}},
        metric=Metric("val/bpb", margin=Margin(0.02, "small")), also=[Metric("val/nats"), Metric("measured/seconds")],
    )  # type: ignore[arg-type]  # fmt: skip
    plan = make_plan("study", study, Request(assignments=("data.evaluation.split=test",))).plan
    assert [metric.name for metric in (plan.metric, *plan.also)] == ["test/bpb", "test/nats", "measured/seconds"]
    assert make_plan("study", study, Request(), {"factor=one": {SPLIT: "test"}, "factor=other": {SPLIT: "test"}}
    ).plan.metric == plan.metric  # fmt: skip


@pytest.mark.parametrize(
    ("metric", "factor", "message"),
    [
        ("val/bbp", {}, "metric: no 'val/bbp' would be in the record of its runs; did you mean val/bpb"),
        ("bpb", {}, "no 'bpb' would be in the record of its runs; did you mean val/bpb"),
        ("test/bpb", {}, "is measured on the validation split, .*; name val/bpb, or set data.evaluation.split"),
        ("val/bpb@20", {}, "no 'val/bpb@20' would be in the record of its runs; did you mean val/bpb"),
        (
            "measured/second",
            {},
            "no 'measured/second' would be in the record of its runs; did you mean measured/seconds",
        ),
        (
            "val/bpb",
            {"data.tokenizer": "words"},
            "in arm factor=other: a word of these data stands for no known number",
        ),
    ],
)
def test_a_metric_that_an_arm_will_not_have_is_refused_before_anything_trains(
    small_run: RunConfig, metric: str, factor: dict[str, Any], message: str
) -> None:
    levels = {"one": {}, "other": factor or {"model.mixer.memory": 4}}
    goal = "maximize" if metric == "measured/second" else "minimize"
    study = Ablation(**STUDY, baseline=small_run, factors={"factor": levels}, metric=Metric(metric, goal=goal))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        make_plan("factor", study, Request())
    if factor:
        make_plan("factor", replace(study, metric=Metric("val/nats")), Request())


def test_nats_are_shown_next_to_an_accuracy_and_the_other_way_round_unless_a_study_names_others() -> None:
    data = {"kind": "generated", "max_length": 6, "evaluation": {"lengths": [4, 8]}}
    run = RunConfig.from_dict({"task": "strings", "data": data})
    study = Ablation(**STUDY, baseline=run, design="explicit", arms={"all": {}}, metric=Metric("val/accuracy"))

    def shown(**changes: Any) -> list[tuple[str, str | None]]:
        plan = make_plan("study", replace(study, **changes), Request()).plan
        return [(metric.name, metric.goal) for metric in plan.also]

    assert shown() == [("val/nats", "minimize")]
    assert shown(metric=Metric("val/sequence_accuracy@8")) == [("val/nats@8", "minimize")]
    assert shown(metric=Metric("val/nats")) == [("val/accuracy", "maximize")]
    assert shown(metric=Metric("measured/seconds")) == [] == shown(also=[])
    assert shown(also=[Metric("val/sequence_accuracy")]) == [("val/sequence_accuracy", "maximize")]
    for also, message in (
        ([Metric("val/bpb")], r"also\.0: in arm all: .* there is no val/bpb"),
        ([Metric("val/nats", goal="maximize")], r"also\.0: in arm all: less of val/nats is better"),
        ([Metric("val/accuracy")], r"also\.0: val/accuracy is shown already; name each metric once"),
    ):
        with pytest.raises(ConfigError, match=message):
            shown(also=also)


def test_lengths_that_are_measured_are_metrics_and_others_are_not() -> None:
    data = {"kind": "generated", "max_length": 6, "evaluation": {"lengths": [4, 8]}}
    run = RunConfig.from_dict({"task": "strings", "data": data})
    RUNNER.measure_of(run, "val/nats@8")
    with pytest.raises(ConfigError, match=r"no 'val/nats@6' would be .* did you mean val/nats@. or val/nats@.\?"):
        RUNNER.measure_of(run, "val/nats@6")


@pytest.mark.parametrize(
    ("metric", "goal"),
    [("val/bpb", "minimize"), ("measured/tokens_per_second", "maximize"), ("measured/peak_memory_bytes", "minimize")],
)
def test_the_goal_of_a_study_is_that_which_its_objective_states(small_run: RunConfig, metric: str, goal: Any) -> None:
    other = {"minimize": "maximize", "maximize": "minimize"}[goal]
    study = Ablation(**STUDY, **MEMORY, baseline=small_run, metric=Metric(metric))
    assert make_plan("study", study, Request()).plan.goal == goal
    with pytest.raises(ConfigError, match=f"metric.goal: (less|more) of {metric} is better; set goal='{goal}'"):
        make_plan("study", replace(study, metric=Metric(metric, goal=other)), Request())


def test_a_metric_of_which_nothing_states_the_goal_needs_one_from_the_study(tmp_path: Path) -> None:
    study = Ablation(**STUDY, baseline=NET, design="explicit", arms=WIDTHS, metric=Metric("val/acc"))
    with pytest.raises(
        ConfigError, match=r"metric\.goal: it is unknown whether less or more of val/acc is better; set"
    ):
        make_plan("study", study, Request())
    stated = replace(study, metric=Metric("val/acc", goal="minimize"))  # nothing is guessed from the name
    assert make_plan("study", stated, Request()).plan.goal == "minimize"
    own = replace(study, baseline=NET.override({"model.class_path": "foreign_module.StatedNet"}))
    assert make_plan("study", own, Request()).plan.goal == "maximize"
    record = fit_module(NET.override({"model.class_path": "foreign_module.StatedNet"}), tmp_path)
    assert record["measurement"]["goals"] == {"acc": "maximize"}  # type: ignore[index]
    assert record["measurement"]["units"] == {"acc": "example"}  # type: ignore[index]


NET = LightningRunConfig.from_dict(
    {
        "model": {"class_path": "foreign_module.Net"},
        "data": {"class_path": "foreign_module.Elsewhere"},
        "training": {"steps": 1, "device": "cpu"},
    }
)


WIDTHS: dict[str, dict[str, Any]] = {"narrow": {}, "wide": {"model.init_args.width": 16}}


def test_what_a_module_is_measured_on_is_known_by_its_examples_whatever_batches_they_stand_in(tmp_path: Path) -> None:
    def measured(**arguments: Any) -> Measurement:
        folder = tmp_path / "-".join(map(str, arguments.values()))
        fit_module(NET.override({f"data.init_args.{name}": value for name, value in arguments.items()}), folder)
        stated = load_record(folder / "record.json").measurement
        assert stated is not None
        return stated

    whole = measured(seed=1)
    assert (whole.split, whole.examples, whole.units) == ("validation", 50, {})
    assert measured(batch=7) == whole
    assert measured(seed=2) != whole and measured(seed=2).examples == 50
    assert measured(count=49).examples == 49
    assert measured(seed=1, name="points").documents == measured(seed=2, name="points").documents


def test_examples_of_batches_of_any_kind_are_told_apart() -> None:
    import numpy as np
    import torch

    x = torch.arange(6).view(3, 2)
    contents = [
        list(examples_of(batch))
        for batch in (
            (x, ["a", "b", "c"]),
            {"x": x, "texts": ["a", "b", "d"]},
            [x.to(torch.bfloat16)],
            [np.arange(6).reshape(3, 2)],
            (x, torch.zeros(2)),
            (x, 3),
        )
    ]
    assert [len(content) for content in contents] == [3, 3, 3, 3, 1, 1]
    assert len({content[0] for content in contents[:3]}) == 2 and contents[0][2] != contents[1][2]


def test_data_from_outside_are_measured_on_what_their_evaluation_says() -> None:
    """The kinds of this suite name the fields that matter; of any other all count but the size of batches."""
    for kind in DATA.values():
        assert "split" in kind().measured() and "batch_size" not in kind().measured()
