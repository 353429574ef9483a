"""The earlier abilities of networks are measured once for each start and after each run, and this changes nothing of
the runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forked import prepare
from standin.chains import chain, finishes
from standin.run import RunConfig, fit

from ablations import catalog
from ablations.__main__ import main
from ablations.ablation import Ablation, Looks, Margin, Metric, Retention
from ablations.plan import PlannedStudy, Request, make_plan
from ablations.stages import spare_checkpoints
from lit_transformers.config import ConfigError
from lit_transformers.records.plan import Plan, load_plan, parse_plan, plan_to_plain
from sweeps.ledger.ticket import State
from sweeps.live import Row

METRIC = Metric("val/bpb", goal="minimize")
RETRIEVAL = Retention(run=RunConfig().override({"training.steps": 2, "data.segment": 8}), metric=METRIC)
LANGUAGE = replace(RETRIEVAL, run=RETRIEVAL.run.override({"data.segment": 16}))
ARMS: dict[str, dict[str, Any]] = {
    "slow": {},
    "fast": {"training.batch": 8},
    "long": {"source.run.training.steps": 7},
    "alone": {"source": None},
}


def study(**fields: Any) -> Ablation:
    values: dict[str, Any] = {"seeds": 2, "retention": {"retrieval": RETRIEVAL, "language": LANGUAGE}} | fields
    return Ablation(
        question="What is forgotten?",
        baseline=chain(6, 4),
        design="explicit",
        arms=ARMS,
        metric=METRIC,
        **values,
    )


def planned(**fields: Any) -> PlannedStudy:
    return make_plan("forgetting", study(**fields), Request())


def pairs(plan: Plan, name: str = "retrieval") -> dict[str, list[tuple[str, str]]]:
    one = next(one for one in plan.retention if one.name == name)
    return {arm: [(pair.before.key, pair.after.key) for pair in of_arm] for arm, of_arm in one.arms.items()}


def test_it_is_measured_before_once_for_each_start_and_after_each_run_and_no_key_of_a_run_depends_on_it() -> None:
    whole, bare = planned(), planned(retention={})
    plan, tickets = whole.plan, {ticket.key: ticket for ticket in whole.tickets()}
    assert plan.by_key() == bare.plan.by_key() and plan.stages == bare.plan.stages
    of_arms = pairs(plan)
    assert of_arms.keys() == {"slow", "fast", "long"}, "one that starts fresh has nothing to forget"
    before = {arm: [first for first, _ in of_arm] for arm, of_arm in of_arms.items()}
    assert before["slow"] == before["fast"] != before["long"]
    after = [last for of_arm in of_arms.values() for _, last in of_arm]
    assert len({*after}) == len(after) == 6
    runs = {arm.name: [run.key for run in arm.runs] for arm in plan.arms}
    for arm, of_arm in of_arms.items():
        assert [tickets[last].sources for _, last in of_arm] == [(key,) for key in runs[arm]]
        assert all(tickets[first].sources[0] in {stage.key for stage in plan.stages} for first, _ in of_arm)
    measured = {key for name in ("retrieval", "language") for of_arm in pairs(plan, name).values() for key in of_arm}
    keys = {key for pair in measured for key in pair}
    assert tickets.keys() == {*plan.by_key(), *(stage.key for stage in plan.stages), *keys} == {*whole.configs}
    names = whole.keys_by_name()
    assert [*names["retrieval before"]] == [
        *dict.fromkeys(key for pair in zip(*before.values(), strict=True) for key in pair)
    ]
    assert whole.costs.keys() == names.keys()


def test_a_plan_with_it_is_written_and_read_and_follows_the_seeds_of_its_arms() -> None:
    whole = planned(seeds=Looks(2, 4))
    assert parse_plan(json.loads(json.dumps(plan_to_plain(whole.plan)))) == whole.plan
    fewer = whole.with_seeds({"slow": 1, "fast": 2, "long": 1, "alone": 1}, None)
    assert {arm: len(of_arm) for arm, of_arm in pairs(fewer.plan).items()} == {"slow": 1, "fast": 2, "long": 1}
    assert "retention" not in json.dumps(plan_to_plain(planned(retention={}).plan))


def test_finished_runs_are_measured_and_stages_only_done_again_for_what_is_missing() -> None:
    whole = planned(seeds=1)
    done = {*whole.plan.by_key()}
    rows = [Row(one, State.FINISHED if one.key in done else State.WAITING) for one in whole.tickets()]
    left = {row.ticket.key for row in whole.needed(rows) if not row.state.over}
    stages = {stage.key for stage in whole.plan.stages}
    assert left == {*whole.plan.retention_runs()} | stages
    done |= {*whole.plan.retention_runs()}
    rows = [Row(one, State.FINISHED if one.key in done else State.WAITING) for one in whole.tickets()]
    assert {row.ticket.key for row in whole.needed(rows)} == done


def test_checkpoints_are_spare_of_what_has_measured_and_of_stages_only_once_they_are_measured(tmp_path: Path) -> None:
    whole = planned(seeds=1, retention={"retrieval": RETRIEVAL})
    last = pairs(whole.plan)["long"][0][0]
    for ticket in whole.tickets():
        if ticket.key != last:
            ticket.directory(tmp_path).mkdir()
            fit(RunConfig.from_dict(ticket.config), ticket.directory(tmp_path))
    (needed,) = whole.plan.retention_runs()[last].sources
    stages, measured = {stage.key for stage in whole.plan.stages}, {*whole.plan.retention_runs()}
    assert {path.parent.name for path in spare_checkpoints(whole.plan, tmp_path)} == (stages - {needed}) | (
        measured - {last}
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"retention": {"x": replace(RETRIEVAL, metric=Metric("val/bpb"))}},
            r"study forgetting: retention\.x\.metric\.goal: it is unknown whether less or more of val/bpb is better",
        ),
        (
            {"arms": {"alone": {}, "other": {"training.batch": 8}}, "baseline": RunConfig()},
            r"retention\.retrieval: no arm starts from weights, so there is nothing to forget",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_line(fields: dict[str, Any], message: str) -> None:
    values: dict[str, Any] = {
        "question": "?",
        "design": "explicit",
        "arms": ARMS,
        "baseline": chain(6, 4),
        "metric": METRIC,
    }
    ablation = Ablation(**values | {"retention": {"retrieval": RETRIEVAL}} | fields)
    with pytest.raises(ConfigError, match=message):
        make_plan("forgetting", ablation, Request())


def test_a_limit_is_a_number_with_a_reason_and_a_metric_is_compared_by_its_difference() -> None:
    with pytest.raises(ConfigError, match=r"margin\.reason: a margin says in a line"):
        replace(RETRIEVAL, limit=Margin(0.05))
    for metric in (replace(METRIC, margin=Margin(0.1, "why")), replace(METRIC, compare="ratio")):
        with pytest.raises(ConfigError, match=r"metric: is compared by its difference, .* set limit"):
            replace(RETRIEVAL, metric=metric)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    prepare()
    yield tmp_path


STUDY = """
from dataclasses import replace

from ablations.ablation import Ablation, Margin, Metric, Retention
from standin.chains import chain
from standin.run import RunConfig

METRIC = Metric("val/bpb", goal="minimize")
MEASURED = RunConfig().override({"training.steps": 5, "data.segment": 8})
ABLATION = Ablation(
    question="What is forgotten?",
    baseline=chain(6, 4),
    design="explicit",
    arms={"slow": {}, "fast": {"training.batch": 8}},
    seeds=2,
    metric=METRIC,
    retention={"retrieval": Retention(run=MEASURED, metric=METRIC, limit=Margin(1e-9, "nothing is lost"))},
)
"""


def run(path: Path, runs: Path) -> int:
    return main(["run", str(path), "--runs", str(runs), "--workers", "2", "--threads", "1"])


def test_a_study_measures_it_and_measures_again_what_has_changed_alone(folder: Path) -> None:
    """Another measurement does not train the arms again; a run whose measurement was lost is measured, not trained."""
    path, runs = folder / "forgetting.py", folder / "runs"
    path.write_text(STUDY)
    assert run(path, runs) == 0
    plan = load_plan(runs / "studies" / "forgetting" / "plan.json")
    first = [*plan.by_key(), *(stage.key for stage in plan.stages)]
    measured = plan.retention_runs()
    assert {finishes(runs / key) for key in [*first, *measured]} == {1}
    report = (runs / "studies" / "forgetting" / "report" / "report.md").read_text()
    assert "## Forgetting" in report and "forget too much: retrieval after" in report
    after = next(pair.after for pair in plan.retention[0].arms["slow"])
    (runs / after.key / "record.json").unlink()
    (runs / after.key / "checkpoint.ckpt").unlink()
    path.write_text(STUDY.replace('"data.segment": 8', '"data.segment": 16'))
    assert run(path, runs) == 0
    changed = load_plan(runs / "studies" / "forgetting" / "plan.json")
    assert not changed.retention_runs().keys() & measured.keys()
    path.write_text(STUDY)
    assert run(path, runs) == 0
    assert {finishes(runs / key) for key in [*first, *changed.retention_runs()]} == {1}
    assert {key: finishes(runs / key) for key in measured} == {key: 1 + (key == after.key) for key in measured}


def test_an_agent_of_a_sweep_measures_it_as_launchers_do(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each measuring run is done once, under the key that the plan gives it."""
    path, runs = folder / "swept.py", folder / "swept"
    path.write_text(STUDY)
    command = ["agent", str(path), "--runs", str(runs), "--wandb", "disabled", "--arm=slow"]
    plan = make_plan("swept", catalog.load(path), Request()).plan
    for _ in range(2):
        assert main([*command, "--seed=0"]) == 0
    (pair,) = (pair for pair in plan.retention[0].arms["slow"] if pair.seed == 0)
    assert [finishes(runs / key) for key in (pair.before.key, pair.after.key)] == [1, 1]
    assert f"{pair.after.key} (retention): finished" in capsys.readouterr().out


def test_a_run_that_failed_is_not_measured_and_the_reason_stands_in_the_report(folder: Path) -> None:
    path, runs = folder / "forgetting.py", folder / "runs"
    path.write_text(STUDY.replace('{"training.batch": 8}', '{"training.fault": "raise"}'))
    assert run(path, runs) == 1
    plan = load_plan(runs / "studies" / "forgetting" / "plan.json")
    record = json.loads((runs / plan.retention[0].arms["fast"][0].after.key / "record.json").read_text())
    assert record["outcome"] == "failed" and record["resumable"] is True
    assert record["reason"] == f"its source {plan.arms[1].runs[0].key} failed: RuntimeError: something broke"
    assert (
        f"its source {plan.arms[1].runs[0].key} failed"
        in (runs / "studies" / "forgetting" / "report" / "report.md").read_text()
    )
