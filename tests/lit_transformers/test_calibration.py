"""A temperature that calibrates a trained classifier, the examples that it is measured on, and predict's output."""

from __future__ import annotations

import csv
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torchmetrics.functional.classification import multiclass_calibration_error

from lit_transformers.__main__ import main
from lit_transformers.config import ConfigError
from lit_transformers.inference import calibration
from lit_transformers.inference.calibration import (
    Outputs,
    calibrate,
    calibration_error,
    fitted_temperature,
    temperature_of,
)
from lit_transformers.inference.lines import LineOptions
from lit_transformers.inference.predict import predictor_of
from lit_transformers.inference.predictor import CALIBRATED
from lit_transformers.runs import RunConfig
from lit_transformers.runs.train import contents

ENCODER = {"kind": "encoder", "dim": 8, "heads": 2, "depth": 1, "initial_std": 0.5}


def write_texts(folder: Path, split: str, labels: list[str]) -> list[str]:
    """Writes texts of combinations of words with these labels, and returns the texts."""
    texts = [" ".join(words) for words in product(["good", "dull", "film"], repeat=4)][: len(labels)]
    folder.mkdir(exist_ok=True)
    with (folder / f"{split}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *zip(texts, labels, strict=True)])
    return texts


def saved(folder: Path, task: str = "classification", seed: int = 0) -> Path:
    """The checkpoint of a network that is right about three texts in four, and far too sure of each."""
    labels: dict[str, Any] = {"labels": ["a", "b"]} | ({"divided_by": "|"} if task == "multi_label" else {})
    source = {"kind": "labelled_texts", "path": f"{folder}/texts", "tokenizer": "words", "length": 10} | labels
    data = {"kind": "labelled", "source": source, "batch_size": 16, "evaluation": {"examples": 5}}
    config = RunConfig.from_dict({"model": ENCODER, "task": task, "data": data, "training": {"steps": 1}})
    texts = [write_texts(folder / "texts", split, ["a", "b"] * 40) for split in ("train", "dev")][1]
    torch.manual_seed(seed)
    opened = config.build_data()
    built = config.build_task(opened)
    with torch.no_grad():
        next(iter(built.heads["label"].parameters())).mul_(20.0)
    written = {"lit_transformers": contents(config, opened, "its own"), "state_dict": built.state_dict()}
    torch.save(written, folder / "checkpoint.ckpt")
    lines = predictor_of(folder / "checkpoint.ckpt", LineOptions()).write(text.encode() for text in texts)
    sure = [json.loads(line).get("probabilities") or {} for line in lines] if task != "regression" else []
    draw = np.random.default_rng(0)
    if sure:
        wrong = draw.random((80, 2)) < 0.25
        wrong[:, 1] = wrong[:, 0] if task == "classification" else wrong[:, 1]
        rights = [[(p[name] >= 0.5) != wrong[row, at] for at, name in enumerate("ab")] for row, p in enumerate(sure)]
        write_texts(folder / "texts", "dev", ["|".join(np.array(["a", "b"])[right]) for right in rights])
    return folder / "checkpoint.ckpt"


def test_the_temperature_has_the_least_loss_of_all_on_a_grid() -> None:
    outputs = 5 * torch.randn(300, 4, generator=torch.manual_seed(0), dtype=torch.float64)
    labels = torch.where(torch.rand(300) < 0.6, outputs.argmax(dim=1), torch.randint(4, (300,)))
    grid = np.exp(np.linspace(-3, 5, 4001))
    for truth in (labels, F.one_hot(labels, 4)):
        fitted = Outputs(outputs, truth)
        best = min(grid, key=lambda temperature: float(fitted.nats(temperature)))
        assert fitted_temperature(fitted) == pytest.approx(best, rel=2e-3)
        assert fitted_temperature(Outputs(outputs * 3, truth)) == pytest.approx(3 * best, rel=2e-3)


def test_the_expected_calibration_error_is_that_of_torchmetrics() -> None:
    probabilities = torch.rand(500, 3, generator=torch.manual_seed(1)).softmax(dim=1)
    labels = torch.randint(3, (500,))
    confidence, predicted = probabilities.max(dim=1)
    expected = multiclass_calibration_error(probabilities, labels, num_classes=3, n_bins=15, norm="l1")
    assert calibration_error(confidence, predicted == labels) == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("task", ["classification", "multi_label"])
def test_probabilities_are_calibrated_after_the_command_and_measured_on_other_examples(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, fitted = saved(tmp_path, task), list[Outputs]()

    def recorded(outputs: Outputs) -> float:
        fitted.append(outputs)
        return fitted_temperature(outputs)

    def predicted() -> tuple[list[Any], str]:
        predictor = predictor_of(checkpoint, LineOptions())
        return [json.loads(line) for line in predictor.write([b"good dull", b"film film"])], [*predictor.messages()][-1]

    before, _ = predicted()
    monkeypatch.setattr(calibration, "fitted_temperature", recorded)
    assert main(["calibrate", str(checkpoint)]) == 0
    shown = capsys.readouterr().out
    stated = json.loads((tmp_path / "calibration.json").read_text())
    assert (stated["fitted"], stated["measured"]) == (40, 40), "all of validation, also where a run evaluates less"
    assert (
        stated["temperature"] > 2 and stated["nats"][1] < stated["nats"][0] and stated["error"][1] < stated["error"][0]
    )
    assert f"temperature: {stated['temperature']:.4g}, fitted on 40 examples of validation" in shown
    assert f"{stated['error'][0]:.2%} before, {stated['error'][1]:.2%} after (15 bins)" in shown
    on_fitted = float(fitted[0].nats(stated["temperature"]))
    assert stated["nats"][1] != pytest.approx(on_fitted), "measured on the examples that it was fitted on"
    after, message = predicted()
    assert message == CALIBRATED.format(stated["temperature"])
    for one, other in zip(before, after, strict=True):
        logits = [torch.logit(torch.tensor([*result["probabilities"].values()]).double()) for result in (one, other)]
        if task == "multi_label":
            assert logits[1].tolist() == pytest.approx((logits[0] / stated["temperature"]).tolist(), rel=1e-2)
        assert one.get("label") == other.get("label") and one.get("labels") == other.get("labels")


def test_a_temperature_of_other_weights_and_checkpoints_without_probabilities_are_refused(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path)
    assert temperature_of(checkpoint) is None
    temperature = calibrate(checkpoint).temperature
    assert temperature_of(checkpoint) == temperature
    kept = (tmp_path / "calibration.json").read_text()
    (tmp_path / "calibration.json").unlink()
    saved(tmp_path, seed=1)
    (tmp_path / "calibration.json").write_text(kept)
    with pytest.raises(
        ConfigError, match=r"calibration.json: is of other weights than checkpoint.ckpt; calibrate again"
    ):
        predictor_of(checkpoint, LineOptions())
    (tmp_path / "calibration.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"calibration.json: holds no calibration \(KeyError\); calibrate again"):
        predictor_of(checkpoint, LineOptions())
    (tmp_path / "calibration.json").unlink()
    saved(tmp_path, "regression")
    with pytest.raises(ConfigError, match="predicts no probabilities, for its task is regression"):
        calibrate(checkpoint)
