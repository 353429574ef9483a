"""A few steps measure the time and memory of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked import Forked
from standin import run as standin

from ablations import probing
from ablations.probing import ProbedConfig, measured_spending
from lit_transformers.runner import load_runner
from lit_transformers.runs import RunConfig


def write_probe(config: RunConfig, path: Path) -> None:
    """Measures a run with the library's runner, in a separate process; for ``Forked``."""
    path.write_text(json.dumps(load_runner(RunConfig.runner).probe(config)._asdict()))


@pytest.mark.slow
def test_a_probe_has_the_seconds_of_a_step_and_a_wider_model_needs_more_memory(
    small_run: RunConfig, tmp_path: Path
) -> None:
    wide = small_run.override({"model.dim": 256, "model.feedforward.width": 4096})
    measured = []
    for number, config in enumerate((small_run, wide)):
        path = tmp_path / f"{number}.json"
        Forked(tmp_path / "output.txt", write_probe, config, path).finish()
        measured.append(ProbedConfig(**json.loads(path.read_text())))
    assert all(measurement.seconds > 0 for measurement in measured)
    assert measured[1].memory > measured[0].memory + 4 * 4096 * 256 * 2


def test_twice_the_steps_take_twice_as_long_by_one_measurement(tmp_path: Path) -> None:
    seconds, config = measured_spending("seconds", standin.RunConfig.runner, tmp_path), standin.RunConfig()
    assert seconds(config.override({"training.steps": 60})) == 2 * seconds(config.override({"training.steps": 30})) > 0
    assert len(list(tmp_path.glob("*.json"))) == 1


@pytest.mark.parametrize("name", ["processor_model", "cuda_models"])
def test_what_was_measured_on_another_model_is_measured_again(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measurements: list[RunConfig] = []
    monkeypatch.setattr(probing, "_measure", lambda config, _: measurements.append(config) or ProbedConfig(1.0, 2.0))
    seconds, config = measured_spending("seconds", standin.RunConfig.runner, tmp_path), standin.RunConfig()
    for models in (("old",), ("new",), ("old",)):
        monkeypatch.setattr(probing, name, lambda models=models: models)
        seconds(config)
    assert len(measurements) == 2
