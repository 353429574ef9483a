"""What is sent to W&B online, as its stand-in (``tests/services/wandb_api.py``) records it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from services.wandb_api import KEY, Recorded

from lit_transformers.runs import RunConfig, fit
from lit_transformers.runs.wandb_logging import WandbConfig

pytestmark = pytest.mark.slow

ONLINE = WandbConfig("online", study="xl_memory", arm="memory 8", levels={"memory": "8"})
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


def test_a_run_is_sent_online_once_with_its_curve_and_its_summary(
    small_run: RunConfig, tmp_path: Path, wandb_server: Recorded
) -> None:
    config = small_run.override({"training.steps": 6, "training.validate_every": 3, "training.log_every": 3})
    record = fit(config, tmp_path / "run", wandb_config=ONLINE)
    (run,) = wandb_server.runs.values()
    assert (run.name, run.group, run.job_type, run.exit_code) == (record["key"], "xl_memory", "memory 8", 0)
    assert run.config["factors"]["value"] == {"memory": "8"}
    assert {3, 6} <= {row["_step"] for row in run.rows() if "train/loss" in row}
    assert run.summary["val/bpb"] == record["metrics"]["val/bpb"] and run.summary["outcome"] == "finished"
    assert any(name.startswith("media/table/documents") for name in run.files)
