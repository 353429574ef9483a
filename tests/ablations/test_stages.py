"""Runs that start from other runs are planned, done once, and in order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked import prepare
from standin.chains import chain, finishes
from standin.run import RunConfig, fit

from ablations.__main__ import main
from ablations.ablation import Ablation, Match, Metric
from ablations.estimate import TimeEstimate
from ablations.options import out
from ablations.plan import PlannedStudy, Request, make_plan
from ablations.show import plan_view
from ablations.stages import spare_checkpoints
from lit_transformers.config import ConfigError
from lit_transformers.records.plan import load_plan, parse_plan, plan_to_plain
from sweeps.ledger.run_records import write_failure
from sweeps.ledger.ticket import State
from sweeps.live import Row
from sweeps.survey import survey

FACTORS = {
    "pretraining": {
        "short": {},
        "long": {"source.run.training.steps": 15},
        "first": {"source.run.source.run.training.steps": 4},
        "memory": {"model.mixer.memory": 0},
    }
}


def study(**fields: Any) -> Ablation:
    values = {"factors": FACTORS, "design": "one_factor", "seeds": 2} | fields
    return Ablation(
        question="Does more pretraining help?",
        baseline=chain(10, 12, 20),
        metric=Metric("val/bpb", goal="minimize"),
        **values,
    )


def planned(**fields: Any) -> PlannedStudy:
    return make_plan("chains", study(**fields), Request())


def test_a_run_that_several_arms_start_from_is_planned_once_and_before_them() -> None:
    """A factor varies any field of any stage by its path."""
    plan = planned().plan
    keys = {arm.name: [{stage.key for stage in plan.chain(run.sources)} for run in arm.runs] for arm in plan.arms}
    baseline, longer, first = (keys[name] for name in ("baseline", "pretraining=long", "pretraining=first"))
    assert keys["pretraining=memory"] == baseline and all(len(stages) == 2 for stages in baseline)
    assert [len(a & b) for a, b in zip(baseline, longer, strict=True)] == [1, 1]
    assert [len(a & b) for a, b in zip(baseline, first, strict=True)] == [0, 0]
    assert baseline[0].isdisjoint(baseline[1]), "the seed of a stage follows that of the run"
    tickets = planned().tickets()
    assert len({ticket.key for ticket in tickets}) == len(tickets) == 2 * (4 + 5)
    places = {ticket.key: place for place, ticket in enumerate(tickets)}
    assert all(places[source] < places[ticket.key] for ticket in tickets for source in ticket.sources)
    assert {ticket.arm for ticket in tickets} >= {"stage 1", "stage 2", "baseline"}


def test_a_plan_with_stages_is_written_and_read_and_one_without_them_is_as_before() -> None:
    plan = planned().plan
    assert parse_plan(json.loads(json.dumps(plan_to_plain(plan)))) == plan
    assert PlannedStudy.from_dict(json.loads(json.dumps(planned().to_dict()))).tickets() == planned().tickets()
    bare = Ablation(
        question="?",
        baseline=RunConfig(),
        design="explicit",
        arms={"one": {}},
        metric=Metric("val/bpb", goal="minimize"),
    )
    text = json.dumps(plan_to_plain(make_plan("bare", bare, Request()).plan))
    assert "stages" not in text and "sources" not in text and "chain" not in text


def test_stages_of_seeds_that_are_left_out_are_left_out() -> None:
    whole = planned()
    fewer = whole.with_seeds({arm.name: 1 for arm in whole.plan.arms}, None)
    assert {stage.seed for stage in fewer.plan.stages} == {0} and len(fewer.tickets()) == len(whole.tickets()) / 2


def test_a_stage_is_not_done_for_runs_that_have_finished() -> None:
    """As runs that were restored from a publication."""
    whole = planned()
    own = whole.plan.by_key()
    rows = [
        Row(ticket, State.FINISHED if ticket.key in whole.plan.by_key() else State.WAITING)
        for ticket in whole.tickets()
    ]
    assert {row.ticket.key for row in whole.needed(rows)} == own.keys()
    rows[-1].state = State.WAITING
    waiting = [row.ticket.key for row in whole.needed(rows) if not row.state.over]
    last = rows[-1].ticket
    assert waiting == [*(stage.key for stage in whole.plan.chain(last.sources)), last.key]


def test_checkpoints_of_stages_are_spare_when_all_have_started_from_them(tmp_path: Path) -> None:
    whole = planned(seeds=1)
    for ticket in whole.tickets():
        if ticket.arm != "pretraining=long":
            ticket.directory(tmp_path).mkdir()
            fit(RunConfig.from_dict(ticket.config), ticket.directory(tmp_path))
    (needed,) = next(arm for arm in whole.plan.arms if arm.name == "pretraining=long").runs[0].sources
    stages = {stage.key for stage in whole.plan.stages}
    assert {path.parent.name for path in spare_checkpoints(whole.plan, tmp_path)} == stages - {needed}


def test_costs_are_of_the_last_stage_and_of_the_whole_chain_and_both_are_printed() -> None:
    plan = planned()
    cost, per_step = plan.costs["pretraining=long"], 4 * 32
    assert (cost["tokens"], cost["chain_tokens"]) == (20 * per_step, (10 + 15 + 20) * per_step)
    assert cost["chain_train_flops"] == pytest.approx(cost["train_flops"] * 45 / 20)
    times = TimeEstimate(dict.fromkeys(plan.configs, 1.0), "a guess")
    with out.capture() as capture:
        out.print(plan_view(plan, times, set(), 1))
    text = " ".join(capture.get().split())
    assert "18 runs left" in text, "those of all stages"
    assert "stage 2: the run in source of baseline" in text and "memory starts from stage 1 and stage 2" in text


def test_budgets_are_matched_of_the_chain_or_of_the_last_stage() -> None:
    longer = {"pretraining": {"short": {}, "long": {"source.run.training.steps": 16}}}
    alone = planned(factors=longer, match=Match("tokens"))
    assert alone.plan.match is not None and not alone.plan.match.chain
    whole = planned(factors=longer, match=Match("tokens", free="training.steps", chain=True))
    assert {whole.configs[arm.runs[0].key]["training"]["steps"] for arm in whole.plan.arms} == {20, 16}
    with pytest.raises(ConfigError, match=r"has .* tokens, the baseline .* name a field"):
        planned(factors=longer, match=Match("tokens", chain=True))
    with pytest.raises(ConfigError, match=r"chain: the parameters of a chain are those of its last run"):
        Match("parameters", chain=True)


def test_the_seed_of_a_stage_is_planned_and_the_device_is_that_of_all_stages() -> None:
    with pytest.raises(ConfigError, match=r"source\.run\.seed: follows the seed .* set source\.seed to a number"):
        study(factors={"seed": {"zero": {}, "one": {"source.run.seed": 1}}})
    configs = study().resolve("demo", {"training.devices": 2}).configs
    assert {config.get("source.run.training.devices") for config in configs.values()} == {1}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    prepare()
    yield tmp_path


def run(path: Path, runs: Path, *words: str) -> int:
    return main(["run", str(path), "--runs", str(runs), "--workers", "2", "--threads", "1", *words])


STUDY = """
from ablations.ablation import Ablation, Metric
from standin.chains import chain

ABLATION = Ablation(
    question="Does more pretraining help?",
    baseline=chain(6, 5, 4).override({"source.run.source.run.training.pause": 0.1}),
    design="explicit",
    arms={"short": {}, "long": {"source.run.training.steps": 7}, "alone": {"source": None}},
    seeds=1,
    metric=Metric("val/bpb", goal="minimize"),
)
"""


def test_a_study_of_three_stages_runs_each_once_and_again_none(folder: Path) -> None:
    path, runs = folder / "chains.py", folder / "runs"
    path.write_text(STUDY)
    assert run(path, runs) == 0 == run(path, runs)
    counts = {key.name: finishes(key) for key in runs.iterdir() if (key / "record.json").exists()}
    assert len(counts) == 6 and set(counts.values()) == {1}
    plan = load_plan(runs / "studies" / "chains" / "plan.json")
    assert main(["clean", str(path), "--runs", str(runs)]) == 0 == run(path, runs)
    left = {path.parent.name for path in runs.glob("*/checkpoint.ckpt")}
    assert left == plan.by_key().keys() and len(plan.stages) == 3
    short = json.loads((runs / plan.arms[0].runs[0].key / "record.json").read_text())
    alone = json.loads((runs / plan.arms[2].runs[0].key / "record.json").read_text())
    assert short["metrics"] != alone["metrics"], "it has started from its source"


def test_runs_whose_first_stage_fails_fail_with_its_reason_and_are_done_when_it_is_repaired(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The arm that needs it not is done; nothing waits for ever."""
    path, runs = folder / "chains.py", folder / "runs"
    broken = STUDY.replace("chain(6, 5, 4)", "chain(6, 5, 4, fault='raise')")
    path.write_text(broken)
    assert run(path, runs) == 1
    records = {key.parent.name: json.loads(key.read_text()) for key in runs.glob("*/record.json")}
    plan = load_plan(runs / "studies" / "chains" / "plan.json")
    first = next(key for key, record in records.items() if str(record["reason"]).startswith("RuntimeError"))
    stages = [stage.key for stage in plan.chain(plan.arms[0].runs[0].sources)]
    assert stages[0] == first and finishes(runs / plan.arms[2].runs[0].key) == 1
    assert records[stages[1]]["reason"] == f"its source {first} failed: RuntimeError: something broke"
    assert records[plan.arms[0].runs[0].key]["reason"].startswith(f"its source {stages[1]} failed: its source {first}")
    assert run(path, runs) == 1, "runs that cannot be done are not tried for ever"
    assert "something broke" in capsys.readouterr().out
    (runs / first / "record.json").unlink()
    (runs / first / "healed").touch()
    assert run(path, runs) == 0
    assert all(json.loads(path.read_text())["outcome"] == "finished" for path in runs.glob("*/record.json"))


def test_a_source_that_may_be_repeated_is_repeated_and_its_runs_with_it(tmp_path: Path) -> None:
    tickets = planned(seeds=1).tickets()
    first = tickets[0]
    write_failure(tmp_path, first, "the disk is full", resumable=True)
    for ticket in tickets[1:]:
        write_failure(tmp_path, ticket, f"its source {first.key} failed: the disk is full", resumable=True)
    rows, _ = survey(tmp_path, tickets, "val/bpb", retry_failed=False)
    assert {row.state for row in rows} == {State.WAITING}


REAL = """
from ablations.ablation import Ablation, Metric
from datamodules import FilesConfig
from lit_transformers.runs import RunConfig

TEXT = {"kind": "files", "path": CORPUS, "validation": 0.3, "test": 0.2}
ENCODER = {"kind": "encoder", "dim": 8, "heads": 2, "depth": 1}
DATA = {"kind": "rows", "source": TEXT, "tokenizer": "words", "length": 12, "batch_size": 2}
TRAINING = {"steps": 2, "device": "cpu"}


def run(steps, **start):
    training = TRAINING | {"steps": steps}
    return {"model": ENCODER, "task": "masked_lm", "data": DATA, "training": training, "start": start}


first = run(3)
second = run(2, network={"run": first}, heads="network")
ABLATION = Ablation(
    question="Does more pretraining help?",
    baseline=RunConfig.from_dict(run(2, network={"run": second})),
    factors={"pretraining": {"short": {}, "long": {"start.network.run.start.network.run.training.steps": 5}}},
    seeds=1,
    metric=Metric("val/nats", goal="minimize"),
)
"""


@pytest.mark.slow
def test_a_study_of_this_library_pretrains_goes_on_and_fine_tunes(folder: Path) -> None:
    words = ["able", "best", "clear", "deep", "eager", "fair", "good", "high"]
    lines = [json.dumps({"text": " ".join(words[n % 5 :][:3]) + f" {n}."}) for n in range(40)]
    (folder / "text.jsonl").write_text("\n".join(lines))
    path, runs = folder / "chains.py", folder / "runs"
    path.write_text(REAL.replace("CORPUS", repr(str(folder / "text.jsonl"))))
    assert run(path, runs) == 0
    report = " ".join((runs / "studies" / "chains" / "report" / "report.md").read_text().split())
    assert "Stages: short (baseline) after stage 1 and stage 2; long after stage 3 and stage 4; stage 1 is" in report
    assert "Tokens of all stages" in report
    plan = load_plan(runs / "studies" / "chains" / "plan.json")
    assert len(plan.stages) == 4
    record = json.loads((runs / plan.arms[1].runs[0].key / "record.json").read_text())
    stages = [stage.key for stage in plan.chain(plan.arms[1].runs[0].sources)]
    assert [*record["measured"]["chain"]] == stages and record["measured"]["start"]["network"]["run"] == stages[-1]
    cost, earlier = record["cost"], record["measured"]["chain"].values()
    assert (cost["planned_tokens"], cost["chain_planned_tokens"]) == (2 * 24, (5 + 2 + 2) * 24)
    assert (
        cost["chain_tokens"]
        == cost["tokens"] + sum(stage["tokens"] for stage in earlier)
        < cost["chain_planned_tokens"]
    )
    assert record["measured"]["started_from"] == []
