"""Runs are judged as the trackers keep them: each store is written by the tracker itself."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from reports import judge_table
from reports.__main__ import main
from reports.judge.findings import Findings
from reports.read.study import ReportError
from reports.read.trackers.factors import config_roles
from reports.read.trackers.selection import TrackerQuestion
from reports.read.trackers.tracked_run import RunsAddress, of_folder
from reports.read.trackers.trainer_state import TRAINER_STATE
from reports.read.trackers.wandb_project import _curve

METRIC = "val_loss"


class Run(NamedTuple):
    rate: float
    seed: int

    @property
    def config(self) -> dict[str, Any]:
        return {"lr": self.rate, "seed": self.seed, "model": {"depth": 4}, "out": f"/runs/{self.seed}"}

    @property
    def curve(self) -> list[float]:
        end = 3.0 + self.rate + 0.01 * math.sin(7 * self.seed + self.rate)
        return [end + 1.0, end + 0.5, end]


RUNS = [Run(rate, seed) for rate in (0.1, 0.5) for seed in range(3)]
EXPECTED = [{"lr": run.rate, "seed": run.seed, METRIC: run.curve[-1]} for run in RUNS]


def needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


def write_lightning(folder: Path) -> str:
    from lightning.pytorch.loggers import CSVLogger

    for run in RUNS:
        logger = CSVLogger(folder, name="logs")
        logger.log_hyperparams(run.config)
        for step, value in enumerate(run.curve):
            logger.log_metrics({"train_loss": 1.0}, step)
            logger.log_metrics({METRIC: value}, step)
        logger.finalize("success")
    return str(folder)


def write_tensorboard(folder: Path) -> str:
    needs("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for run in RUNS:
        with SummaryWriter(str(folder / f"lr={run.rate}" / f"seed_{run.seed}")) as writer:
            for step, value in enumerate(run.curve):
                writer.add_scalar(METRIC, value, step)
    return str(folder)


def write_hyperparameters_of_tensorboard(folder: Path) -> str:
    needs("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for number, run in enumerate(RUNS):
        with SummaryWriter(str(folder / f"run-{number}")) as writer:
            for step, value in enumerate(run.curve):
                writer.add_scalar(METRIC, value, step)
            writer.add_hparams({"lr": run.rate, "seed": run.seed}, {"hparam/loss": 1.0})
    return str(folder)


def write_transformers(folder: Path) -> str:
    needs("transformers")
    from transformers import TrainerState

    for run in RUNS:
        history = [{METRIC: value, "epoch": 1.0, "step": step} for step, value in enumerate(run.curve)]
        for step in (1, 2):
            place = folder / f"lr={run.rate},seed={run.seed}" / f"checkpoint-{step}"
            place.mkdir(parents=True)
            state = TrainerState(global_step=step, max_steps=2, log_history=history[: step + 1])
            state.save_to_json(str(place / "trainer_state.json"))
    return str(folder)


def write_optuna(folder: Path, storage: Any = None) -> str:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    url = f"sqlite:///{folder / 'optuna.db'}"
    study = optuna.create_study(storage=storage or url, study_name="rates")
    study.set_metric_names([METRIC])
    for run in RUNS:
        study.enqueue_trial({"lr": run.rate, "seed": run.seed})

    def objective(trial: optuna.Trial) -> float:
        return Run(trial.suggest_float("lr", 0, 1), trial.suggest_int("seed", 0, 9)).curve[-1]

    study.optimize(objective, n_trials=len(RUNS))
    return url


def write_journal_of_optuna(folder: Path) -> str:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    path = folder / "journal.log"
    write_optuna(folder, JournalStorage(JournalFileBackend(str(path))))
    return str(path)


def write_mlflow(store: str) -> None:
    needs("mlflow")
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow import MlflowClient

    client = MlflowClient(store)
    experiment = client.create_experiment("rates")
    for run in RUNS:
        key = client.create_run(experiment).info.run_id
        for name in ("lr", "seed"):
            client.log_param(key, name, run.config[name])
        for step, value in enumerate(run.curve):
            client.log_metric(key, METRIC, value, step=step)
        client.set_terminated(key)


def write_folder_of_mlflow(folder: Path) -> str:
    write_mlflow((folder / "mlruns").as_uri())
    return str(folder / "mlruns")


def write_database_of_mlflow(folder: Path) -> str:
    write_mlflow(f"sqlite:///{folder / 'mlflow.db'}")
    return f"sqlite:///{folder / 'mlflow.db'}"


def in_another_process(code: str, **variables: str) -> None:
    """Runs code of a tracker that keeps its folder for the life of a process."""
    runs = [(run.config, run.curve) for run in RUNS]
    environment = {**os.environ, **variables, "RUNS": json.dumps(runs)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)


def write_trackio(folder: Path) -> str:
    needs("trackio")
    code = (
        "import json, os, trackio\n"
        "for config, curve in json.loads(os.environ['RUNS']):\n"
        "    trackio.init(project='rates', config=config)\n"
        f"    for value in curve: trackio.log({{'{METRIC}': value}})\n"
        "    trackio.finish()\n"
    )
    in_another_process(code, TRACKIO_DIR=str(folder))
    return str(folder)


def write_wandb(folder: Path) -> str:
    code = (
        "import json, os, wandb\n"
        "for config, curve in json.loads(os.environ['RUNS']):\n"
        "    run = wandb.init(project='rates', mode='offline', config=config, settings=wandb.Settings(silent=True))\n"
        f"    for value in curve: run.log({{'{METRIC}': value, 'other': 1}})\n"
        "    run.finish()\n"
    )
    in_another_process(code, WANDB_DIR=str(folder))
    return str(folder)


def write_hydra(folder: Path) -> str:
    needs("hydra")
    program = folder / "program.py"
    program.write_text(
        "import json, hydra\n"
        "from hydra.core.hydra_config import HydraConfig\n"
        f"curves = {{(run[0], run[1]): run[2] for run in {[(*run, run.curve) for run in RUNS]}}}\n"
        "@hydra.main(version_base=None, config_path=None)\n"
        "def main(config):\n"
        f"    result = {{'{METRIC}': curves[config['lr'], config['seed']][-1]}}\n"
        "    with open(HydraConfig.get().runtime.output_dir + '/result.json', 'w') as file:\n"
        "        json.dump(result, file, indent=1)\n"
        "main()\n"
    )
    rates, seeds = sorted({run.rate for run in RUNS}), sorted({run.seed for run in RUNS})
    axes = [f"+lr={','.join(map(str, rates))}", f"+seed={','.join(map(str, seeds))}"]
    sweep = f"hydra.sweep.dir={folder / 'sweep'}"
    subprocess.run([sys.executable, program, "-m", *axes, sweep], check=True, capture_output=True)
    return str(folder / "sweep")


WRITERS: dict[str, Callable[[Path], str]] = {
    "Lightning's CSVLogger": write_lightning,
    "TensorBoard": write_tensorboard,
    "TensorBoard by its hyperparameters": write_hyperparameters_of_tensorboard,
    "the Trainer of transformers": write_transformers,
    "Optuna": write_optuna,
    "Optuna by its journal": write_journal_of_optuna,
    "MLflow": write_folder_of_mlflow,
    "MLflow by its database": write_database_of_mlflow,
    "Trackio": write_trackio,
    "W&B, from their files": write_wandb,
    "Hydra's multirun": write_hydra,
}
SLOW = ("MLflow by its database", "Trackio", "W&B, from their files", "Hydra's multirun")


def numbers(findings: Findings) -> list[tuple[object, ...]]:
    """The comparisons, to the precision of TensorBoard's scalars."""
    return [
        (one.name, one.verdict, [round(end, 4) for end in one.estimate.interval or ()], one.estimate.seeds)
        for one in findings.comparisons
        if one.estimate is not None
    ]


@pytest.mark.parametrize(
    "tracker", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in WRITERS]
)
def test_runs_of_a_tracker_are_judged_as_their_table_is(tracker: str, tmp_path: Path) -> None:
    source = WRITERS[tracker](tmp_path)
    findings = judge_table(
        source, METRIC, of_tracker=TrackerQuestion(values="result.json" if "Hydra" in tracker else None)
    )
    expected = judge_table(EXPECTED, METRIC, arm="lr")
    assert findings.notes[0] == f"read 6 runs of {tracker.partition(' by ')[0]}: 6 finished"
    assert "arm: the config key lr, which differs between runs" in findings.notes
    assert "seed: the config key seed" in findings.notes
    assert [run.seed for run in findings.study.runs] == [run.seed for run in RUNS]
    assert numbers(findings) == numbers(expected)
    assert numbers(expected)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of Lightning's CSVLogger, which its readers leave as it is."""
    folder = tmp_path_factory.mktemp("logs")
    write_lightning(folder)
    return folder / "logs"


def copied(logs: Path, to: Path) -> Path:
    for file in sorted(logs.rglob("*.*")):
        target = to / file.relative_to(logs)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    return to


def test_runs_that_did_not_finish_are_counted(logs: Path, tmp_path: Path) -> None:
    folder = copied(logs, tmp_path)
    cut, diverged, early, binary = (folder / f"version_{number}" / "metrics.csv" for number in (3, 4, 1, 5))
    binary.write_bytes(b"\xff\xfe\x88")
    cut.write_text(cut.read_text()[:-3])
    diverged.write_text(re.sub(r"\d\.\d\d+", "nan", diverged.read_text()))
    early.write_text("".join(early.read_text().splitlines(keepends=True)[:-2]))
    findings = judge_table(folder, METRIC)
    assert findings.notes[0] == "read 6 runs of Lightning's CSVLogger: 3 finished, 1 cut off, 1 diverged, 1 unreadable"
    assert any("1 of 3 runs end before step 2 and count as finished: version_1" in note for note in findings.notes)
    runs = {(run.arm, run.seed): run for run in findings.study.runs}
    assert runs["0.5", 1].diverged
    assert findings.study.missing() == 3
    assert findings.comparisons[0].verdict is None


def test_a_config_may_hold_objects_of_python(logs: Path, tmp_path: Path) -> None:
    folder = copied(logs, tmp_path)
    for number, file in enumerate(sorted(folder.rglob("hparams.yaml"))):
        objects = "shape: !!python/tuple [1, 2]\ncall: !!python/name:numpy.sin ''\nday: 2026-01-01\n"
        file.write_text(f"{objects}kind: !!python/name:optim.{'AB'[number // 3]} ''\nseed: {number % 3}\n")
    findings = judge_table(folder, METRIC)
    assert "arm: the config key kind, which differs between runs" in findings.notes
    assert numbers(findings)[0][1:] == numbers(judge_table(logs, METRIC))[0][1:]


def test_a_trainer_that_was_stopped_has_not_finished(tmp_path: Path) -> None:
    def status(**state: Any) -> str | None:
        (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": [], "max_steps": 9, **state}))
        (run,) = TRAINER_STATE.runs(RunsAddress(str(tmp_path)), METRIC)
        return run.status

    stopped_early = {"TrainerControl": {"args": {"should_training_stop": True}}}
    assert status(global_step=9) == "finished"
    assert status(global_step=3) == "unfinished"
    assert status(global_step=3, stateful_callbacks=stopped_early) == "finished"
    (tmp_path / "trainer_state.json").write_text('{"log_history": [')
    (run,) = TRAINER_STATE.runs(RunsAddress(str(tmp_path)), METRIC)
    assert run.status == "cut off"


def test_trials_that_were_pruned_or_failed_are_counted_and_the_goal_is_that_of_the_study(tmp_path: Path) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    url = f"sqlite:///{tmp_path / 'optuna.db'}"
    study = optuna.create_study(storage=url, direction="maximize")
    for kind in ("a", "b"):
        for _ in range(3):
            study.enqueue_trial({"kind": kind})

    def objective(trial: optuna.Trial) -> float:
        trial.set_user_attr("random_seed", trial.number % 3)
        kind = trial.suggest_categorical("kind", ["a", "b"])
        if trial.number == 4:
            raise optuna.TrialPruned
        if trial.number == 5:
            raise ValueError
        return trial.number + (kind == "b")

    study.optimize(objective, n_trials=6, catch=ValueError)
    findings = judge_table(url, "value")
    assert findings.notes[0] == "read 6 runs of Optuna: 4 finished, 1 pruned, 1 failed"
    assert findings.study.plan.metric.goal == "maximize"
    assert "seed: the config key random_seed" in findings.notes


def test_the_best_value_of_a_run_may_be_judged(logs: Path, tmp_path: Path) -> None:
    folder = copied(logs, tmp_path)
    for file in folder.rglob("metrics.csv"):
        header = file.read_text().splitlines()[0].split(",")
        rest = {"step": "3", METRIC: "9.0"}
        file.write_text(file.read_text() + ",".join(rest.get(name, "") for name in header) + "\n")
    assert numbers(judge_table(folder, METRIC, of_tracker=TrackerQuestion(pick="best"))) == numbers(
        judge_table(EXPECTED, METRIC, arm="lr")
    )
    assert numbers(judge_table(folder, METRIC)) != numbers(judge_table(EXPECTED, METRIC, arm="lr"))


def test_the_time_to_a_target_counts_every_step_of_a_run(tmp_path: Path) -> None:
    for rate in (0.1, 0.5):
        for seed in range(3):
            folder = tmp_path / f"lr={rate}" / f"seed_{seed}"
            folder.mkdir(parents=True)
            falls_at = int(700 + 300 * rate + seed)
            rows = [f"{step},{3.0 if step >= falls_at else 4.0}\n" for step in range(1000)]
            (folder / "metrics.csv").write_text(f"step,{METRIC}\n{''.join(rows)}")
    findings = judge_table(tmp_path, METRIC, to_target=3.5)
    assert sorted(run.value for run in findings.study.runs) == [730, 731, 732, 850, 851, 852]


def test_a_run_that_was_done_again_is_judged_by_the_one_that_finished(logs: Path, tmp_path: Path) -> None:
    folder = copied(logs, tmp_path)
    again = copied(logs / "version_5", folder / "version_6") / "metrics.csv"
    with pytest.raises(ReportError, match=r"version_5 and version_6 are both of arm .* and seed 2; select one"):
        judge_table(folder, METRIC)
    again.write_text(again.read_text()[:-3])
    findings = judge_table(folder, METRIC)
    assert "done again, and counted by the later run: version_6" in findings.notes
    assert numbers(findings) == numbers(judge_table(logs, METRIC))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--metric", "val_los"],
            "no run logged 'val_los'; did you mean val_loss or train_loss? There are: train_loss",
        ),
        (["--metric", METRIC, "--from", "wandb"], "holds nothing of wandb; it holds files of Lightning's CSVLogger"),
        (["--metric", METRIC, "--from", "tensorbord"], "no such tracker; did you mean tensorboard or transformers?"),
        (["--metric", METRIC, "--arm", "lrr"], "no run has the config key 'lrr'; did you mean lr?"),
        (["--metric", METRIC, "--where", "lr=7"], "--where lr=7: no run has it; there are 0.1, 0.5"),
        (["--metric", METRIC, "--where", "lr"], "--where lr: no value; write NAME=VALUE"),
        (["--metric", METRIC, "--where", "lr=0.1"], "give a second one, or --target VALUE"),
        (["--metric", METRIC, "--step", "epoch"], "--step: is for tables"),
        (["--metric", METRIC, "--values", "a.json"], "Lightning's CSVLogger keeps the values itself"),
        (["--metric", METRIC, "--pick", "first"], "--pick first: no such value; give last or best"),
    ],
)
def test_a_question_that_the_runs_cannot_answer_is_one_line(
    options: list[str], message: str, logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["judge", str(logs), *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_an_address_without_runs_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import sqlite3

    database = tmp_path / "other.db"
    sqlite3.connect(database).execute("CREATE TABLE planets (name)")
    (tmp_path / "empty").mkdir()
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "run-1.wandb").write_bytes(b"")
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(database.read_bytes()[:200])
    for source, message in (
        (str(tmp_path / "empty"), "no tracker's files are there; known are wandb-project, hydra, mlflow"),
        (f"sqlite:///{database}", "no tracker's files are there"),
        (f"sqlite:///{tmp_path / 'nowhere.db'}", "there is no such file or folder"),
        (str(tmp_path / "nowhere"), "No such file"),
        (str(damaged), "is a damaged database"),
        (str(cut), "is no file of W&B, or an empty one"),
        ("wandb:project", "no project; write wandb:ENTITY/PROJECT"),
    ):
        assert main(["judge", source, "--metric", METRIC]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_a_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "events.out.tfevents.1").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.plugin_event_accumulator", None)
    with pytest.raises(ReportError, match="install it: pip install tensorboard"):
        judge_table(tmp_path, METRIC)


def roles(*configs: dict[str, Any], labels: tuple[dict[str, str], ...] = ()) -> tuple[tuple[str, ...], str | None]:
    found = config_roles(configs, labels or tuple({} for _ in configs))
    return found.arm, found.seed


def test_keys_that_differ_between_runs_are_arms_without_seeds_names_paths_and_times() -> None:
    grid = [(kind, rate, seed) for kind in ("a", "b") for rate in (1, 2) for seed in (5, 6)]
    configs = [
        {
            "kind": kind,
            "width": {"a": 8, "b": 16}[kind],
            "rate": rate,
            "train.random_seed": seed,
            "data_seed": seed + 100,
            "shuffle": seed * 2,
            "out_dir": f"runs/{kind}{rate}{seed}",
            "weights": f"/data/{rate}",
            "started": f"2026-01-0{place + 1} 10:00",
            "run_name": f"brave-fox-{place}",
            "layers": 2,
        }
        for place, (kind, rate, seed) in enumerate(grid)
    ]
    assert roles(*configs) == (("kind", "rate"), "data_seed")
    (note,) = [one for one in config_roles(configs, [{}] * 8).notes if one.startswith("ignored")]
    for part in (
        "1 that is the same",
        "width (changes with kind)",
        "shuffle (changes with the seed)",
        "out_dir (a path)",
    ):
        assert part in note or "more" in note


def test_seeds_that_differ_from_each_other_have_to_be_named() -> None:
    with pytest.raises(ReportError, match="name the one of the runs: --seed KEY"):
        roles(*({"kind": 1, "seed": one, "data_seed": other} for one in (0, 1) for other in (0, 1)))


def test_a_key_that_some_runs_lack_is_a_level() -> None:
    assert roles({"seed": 0}, {"seed": 0, "dropout": 0.1}) == (("dropout",), "seed")


def test_labels_tell_arms_apart_where_configs_do_not() -> None:
    labels = tuple({"group": group, "name": f"{group}-{seed}"} for group in "ab" for seed in (0, 1))
    assert roles(*({"seed": seed} for _ in "ab" for seed in (0, 1)), labels=labels) == (("group",), "seed")


@pytest.mark.parametrize(
    ("folder", "config", "label"),
    [
        ("lr=0.1,depth=4/seed_3", {"lr": "0.1", "depth": "4", "seed": 3}, ""),
        ("adam_seed12/version_0", {"seed": 12}, "adam"),
        ("adam/s1", {"seed": 1}, "adam"),
        ("loss1/Nov29_10-44-15_host", {}, "loss1"),
        ("", {}, ""),
    ],
)
def test_a_folder_may_name_config_and_seed(folder: str, config: dict[str, Any], label: str) -> None:
    assert of_folder(folder) == (config, {"folder": label} if label else {})


class WandbApi(BaseHTTPRequestHandler):
    """Answers the requests of W&B's public API that list runs."""

    def do_POST(self) -> None:
        if self.path != "/graphql":  # wandb's telemetry
            self.send_error(404)
            return
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        query, variables = asked["query"], asked.get("variables") or {}
        if "query Runs" in query:
            answer = self.runs(variables)
        elif "sampledHistory" in query:
            run = RUNS[int(variables["name"])]
            rows = [{"_step": step, METRIC: value} for step, value in enumerate(run.curve)]
            answer = {"project": {"run": {"sampledHistory": [rows]}}}
        else:
            answer = {"viewer": {"id": "1", "entity": "team", "username": "one", "flags": "{}"}, "serverInfo": {}}
        content = json.dumps({"data": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def runs(self, variables: dict[str, Any]) -> dict[str, Any]:
        if variables["project"] != "rates":
            return {"project": None}
        nodes = []
        for place, run in enumerate(RUNS):
            summary = {METRIC: run.curve[-1], "_step": 2, "_runtime": 5.0}
            crashed = place == 5
            nodes.append(
                {
                    "id": str(place),
                    "name": str(place),
                    "displayName": f"run-{place}",
                    "sweepName": None,
                    "state": "crashed" if crashed else "finished",
                    "config": json.dumps({key: {"value": value} for key, value in run.config.items()}),
                    "group": f"rate-{run.rate}",
                    "tags": [],
                    "createdAt": "2026-01-01T00:00:00",
                    "systemMetrics": "{}",
                    "summaryMetrics": json.dumps(summary),
                    "historyLineCount": 3,
                    "user": {"name": "one", "username": "one"},
                    "historyKeys": None,
                }
            )
        wanted = json.loads(variables["filters"] or "{}").get("group")
        nodes = [node for node in nodes if wanted in (None, node["group"])]
        edges = [{"node": {"projectId": "1", **node}, "cursor": str(place)} for place, node in enumerate(nodes)]
        page = {"edges": edges, "pageInfo": {"endCursor": None, "hasNextPage": False}}
        return {"project": {"internalId": "1", "runCount": len(nodes), "readOnly": False, "runs": page}}

    def log_message(self, format: str, *arguments: Any) -> None:
        """Prints nothing."""


@pytest.fixture
def wandb_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = HTTPServer(("127.0.0.1", 0), WandbApi)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    yield
    server.shutdown()


@pytest.mark.slow
def test_runs_of_a_project_at_wandb_are_judged(wandb_api: None) -> None:
    findings = judge_table("wandb:team/rates", METRIC)
    assert findings.notes[0] == "read 6 runs of W&B: 5 finished, 1 crashed"
    assert findings.notes[1] == "arm: the config key lr, which differs between runs"
    values = {(run.arm, run.seed): run.value for arm in ("0.1", "0.5") for run in findings.study.finished(arm)}
    assert values == {(str(run.rate), run.seed): run.curve[-1] for run in RUNS[:5]}
    assert findings.study.missing() == 1
    of_group = judge_table("wandb:team/rates/rate-0.1", METRIC, target=3.0, of_tracker=TrackerQuestion(pick="best"))
    assert of_group.notes[0] == "read 3 runs of W&B: 3 finished"
    with pytest.raises(ReportError, match=r"W&B gives no runs .*Could not find project"):
        judge_table("wandb:team/other", METRIC)


def test_the_last_value_of_a_run_of_wandb_is_that_of_its_summary_where_its_curve_is_drawn_or_missing() -> None:
    class Drawn:
        """A run of W&B with ``count`` points, which it sends without the last one."""

        def __init__(self, count: int) -> None:
            self.count = count

        def history(self, samples: int, keys: list[str], pandas: bool) -> list[dict[str, float]]:
            return [{"_step": step, keys[0]: 2.0} for step in range(min(samples, self.count))]

    last = ((99_999.0, 1.0),)
    assert [_curve(Drawn(count), METRIC, last)[-1] for count in (0, 3, 20_000)] == [*last, (2.0, 2.0), *last]
