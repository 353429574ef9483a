"""The command with the real library: killed and started again, its records equal those of runs never interrupted."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

STUDY = """
from ablations.ablation import Ablation, Match, Metric
from datamodules import EvaluationConfig, FilesConfig, LanguageDataConfig
from lit_transformers.encodings import XLConfig
from lit_transformers.mixers import AttentionConfig
from lit_transformers.models import LanguageModelConfig
from lit_transformers.run import RunConfig
from lit_transformers.training import TrainingConfig

ABLATION = Ablation(
    question="Does recurrence help?",
    baseline=RunConfig(
        model=LanguageModelConfig(
            dim=16, heads=2, depth=2, dropout=0.1, mixer=AttentionConfig(encoding=XLConfig(), memory=16)
        ),
        data=LanguageDataConfig(
            source=FilesConfig(path=CORPUS), segment_length=16, batch_size=4, evaluation=EvaluationConfig(bytes=2000)
        ),
        training=TrainingConfig(steps=400, log_every=20, device="cpu"),
    ),
    factors={"recurrence": {"on": {}, "off": {"model.mixer.memory": 0}}},
    seeds=1,
    metric=Metric("val/bpb"),
    match=Match("tokens"),
)
"""


def write_corpus(folder: Path) -> None:
    """Forty small documents of words."""
    words = ["the", "model", "reads", "a", "segment", "and", "remembers", "what", "came", "before", "it"]
    chance = random.Random(0)
    folder.mkdir()
    for number in range(40):
        (folder / f"{number}.txt").write_text(" ".join(chance.choice(words) for _ in range(400)))


def results(runs: Path) -> dict[str, Any]:
    """What must not depend on interruptions: metrics, curves and losses per document, by run."""
    return {
        path.parent.name: (
            json.loads(path.read_text())["metrics"],
            (path.parent / "metrics.csv").read_text(),
            (path.parent / "documents.csv").read_text(),
        )
        for path in runs.glob("*/record.json")
    }


def test_runs_killed_at_random_moments_end_as_if_never_interrupted(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus")
    study = tmp_path / "recurrence.py"
    study.write_text(STUDY.replace("CORPUS", repr(str(tmp_path / "corpus"))))
    command = [sys.executable, "-m", "ablations", "run", str(study), "--threads", "1", "--runs"]
    assert subprocess.run([*command, str(tmp_path / "quiet")], timeout=300).returncode == 0
    torn, chance = tmp_path / "torn", random.Random(1)
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
        process = subprocess.Popen([*command, str(torn)])
        wait_for_a_step(torn, process)
        time.sleep(chance.uniform(0, 1))
        process.send_signal(number)
        process.wait(timeout=120)
    assert subprocess.run([*command, str(torn)], timeout=300).returncode == 0
    assert len(results(torn)) == 2
    assert results(torn) == results(tmp_path / "quiet")


def wait_for_a_step(runs: Path, process: subprocess.Popen[bytes]) -> None:
    """Until some run has begun, by its log."""
    deadline = time.monotonic() + 120
    before = sum(path.stat().st_size for path in runs.glob("*/log.txt"))
    while process.poll() is None and sum(path.stat().st_size for path in runs.glob("*/log.txt")) == before:
        assert time.monotonic() < deadline
        time.sleep(0.05)
