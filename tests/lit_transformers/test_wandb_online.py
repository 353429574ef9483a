"""The data that are sent to W&B online, as its stand-in (``tests/services/wandb_api.py``) records them."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from services.wandb_api import KEY, Recorded

from lit_transformers.config import ConfigError
from lit_transformers.runs import RunConfig, fit
from lit_transformers.runs.wandb_logging import WandbConfig, private_settings
from lit_transformers.wandb_target import WandbTarget, wandb_target

pytestmark = pytest.mark.slow

ONLINE = WandbConfig(WandbTarget("online"), study="xl_memory", arm="memory 8", levels={"memory": "8"})
SCRIPT = Path(__file__).parent.parent / "services" / "wandb_api.py"


def test_the_stand_in_is_started_by_a_command_and_shows_what_was_sent(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, SCRIPT, tmp_path], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split("WANDB_BASE_URL=")[1].split()[0]
            query = {"query": "query Viewer { viewer { id } }"}
            request = urllib.request.Request(f"{address}/graphql", json.dumps(query).encode())
            request.add_header("Authorization", f"Bearer {KEY}")
            assert json.load(urllib.request.urlopen(request))["data"]["viewer"]["entity"] == "team"
            assert json.load(urllib.request.urlopen(address))["runs"] == []
            request.add_header("Authorization", "Bearer wrong")
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(request)
        finally:
            server.terminate()


@pytest.fixture
def config(small_run: RunConfig) -> RunConfig:
    """A few updates, with two points of each curve."""
    return small_run.override({"training.steps": 6, "training.validate_every": 3, "training.log_every": 3})


def test_a_run_is_sent_online_once_with_its_curve_and_its_summary(
    config: RunConfig, tmp_path: Path, wandb_server: Recorded
) -> None:
    record = fit(config, tmp_path / "run", wandb_config=ONLINE)
    (run,) = wandb_server.runs.values()
    assert (run.name, run.group, run.job_type, run.exit_code) == (record["key"], "xl_memory", "memory 8", 0)
    assert run.config["factors"]["value"] == {"memory": "8"}
    assert {3, 6} <= {row["_step"] for row in run.rows() if "train/loss" in row}
    assert run.summary["val/bpb"] == record["metrics"]["val/bpb"] and run.summary["outcome"] == "finished"
    assert any(name.startswith("media/table/documents") for name in run.files)
    assert not run.used_artifacts and {one.type for one in wandb_server.artifacts.values()} == {"run_table"}


def test_w_and_b_shows_the_best_value_by_the_goal_and_in_the_end_that_of_the_record(
    config: RunConfig, tmp_path: Path, wandb_server: Recorded
) -> None:
    metric = ONLINE._replace(target=WandbTarget("online", metric="val/bpb", goal="minimize"))
    record = fit(config, tmp_path / "run", wandb_config=metric)
    (run,) = wandb_server.runs.values()
    defined = {entry["1"]: entry for entry in run.metrics if "1" in entry}
    assert defined["val/bpb"]["7"] == [1], "no minimum: wandb writes it as 1, and a maximum as 2"
    assert "5" in defined["val/bpb"] and run.summary["val/bpb"] == record["metrics"]["val/bpb"]


def test_artifacts_have_the_lineage_from_the_study_file_over_the_run_to_its_files(
    config: RunConfig, tmp_path: Path, wandb_server: Recorded
) -> None:
    study = tmp_path / "my study.py"
    study.write_text("ABLATION = 1\n")
    with_artifacts = ONLINE._replace(target=WandbTarget("online", artifacts=study))
    for seed in (0, 1):
        fit(config.override({"seed": seed}), tmp_path / str(seed), wandb_config=with_artifacts)
    for run in wandb_server.runs.values():
        (used,) = (wandb_server.artifacts[name] for name in run.used_artifacts)
        assert (used.type, used.name, used.files) == ("study", "study-my_study", ["my study.py"])
        made = {one.type: one for one in wandb_server.artifacts.values() if one.run == run.name}
        assert made["model"].files == ["checkpoint.ckpt"] and made["model"].metadata["run_key"] == run.name
        assert {"record.json", "run.yaml", "metrics.csv"} <= {*made["outputs"].files}
        sent = wandb_server.file("artifact", made["outputs"].id, "record.json")
        assert json.loads(sent)["key"] == run.name
    assert sum(one.type == "study" for one in wandb_server.artifacts.values()) == 1


def test_system_metrics_are_sent_where_they_are_wanted(wandb_server: Recorded, tmp_path: Path) -> None:
    assert private_settings().x_disable_stats and not private_settings(system_metrics=True).x_disable_stats
    assert wandb_target("online", system_metrics=True).system_metrics
    with pytest.raises(ConfigError, match="--system-metrics"):
        wandb_target("disabled", system_metrics=True)
