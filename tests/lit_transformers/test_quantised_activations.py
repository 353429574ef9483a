"""Quantised inputs of linear maps against numpy, through checkpoints, and executed by the int8 product of torch."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden.runs import RUNS
from torch import Tensor, nn

from lit_transformers.compression import CompressionConfig, quantise_activations
from lit_transformers.compression.callback import CompressionCallback, compressions_of
from lit_transformers.compression.quantise_activations import QuantiseActivations
from lit_transformers.config import ConfigError
from lit_transformers.maps import LinearMap
from lit_transformers.quantisation import InputQuantiser, dequantised, has_int8_product, levels_of
from lit_transformers.runs import RunConfig, describe, fit
from lit_transformers.runs.evaluate import evaluate, load
from lit_transformers.runs.quantised_starts import require_kept_levels
from lit_transformers.tasks import Task

BASE = RunConfig.from_dict({**RUNS["deformer"], "training": {"steps": 4, "device": "cpu", "log_every": 2}})
WEIGHTS = {"kind": "quantise_weights", "bits": 8}
DYNAMIC = {"kind": "quantise_activations"}
STATIC = {"kind": "quantise_activations", "scales": "static", "by": "tensor", "batches": 2}
INT8 = {**DYNAMIC, "execution": "int8"}
needs_vnni = pytest.mark.skipif(not has_int8_product(), reason="this processor has no AVX-512 VNNI")


def compressed(*parts: Mapping[str, Any], **changes: Any) -> RunConfig:
    return BASE.override({"compression": tuple(CompressionConfig.from_dict(part) for part in parts), **changes})


def built(*parts: Mapping[str, Any]) -> tuple[Task, CompressionCallback]:
    config = compressed(*parts)
    data = config.build_data()
    torch.manual_seed(0)
    task = config.build_task(data)
    return task, CompressionCallback(config.compression, task, data.train_dataloader)


def maps_of(task: nn.Module) -> dict[str, LinearMap]:
    return {name: module for name, module in task.named_modules() if isinstance(module, LinearMap)}


def after(checkpoint: Path, **changes: Any) -> dict[str, Any]:
    """The overrides of a run of no steps that starts from a checkpoint."""
    start = {part: {"kind": "file", "path": str(checkpoint)} for part in ("network", "heads")}
    return {"training.steps": 0, "start": start, **changes}


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a trained run."""
    folder = tmp_path_factory.mktemp("dense")
    fit(BASE, folder)
    return folder / "checkpoint.ckpt"


@pytest.fixture(scope="module")
def simulated(dense: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """The checkpoint of a run whose weights and inputs are quantised, and its loss in nats."""
    folder = tmp_path_factory.mktemp("simulated")
    record = fit(compressed(WEIGHTS, DYNAMIC, **after(dense)), folder)
    return folder / "checkpoint.ckpt", record["metrics"]["val/nats"]


def slowly(x: np.ndarray[Any, Any], bits: int, by_row: bool, scale: float) -> np.ndarray[Any, Any]:
    """Quantises and dequantises number by number."""
    most = 2 ** (bits - 1) - 1
    rows = x.reshape(-1, x.shape[-1])
    out = np.zeros_like(rows)
    for number, row in enumerate(rows):
        step = scale or float(np.abs(row if by_row else rows).max()) / most
        out[number] = [step * max(-most, min(most, round(float(value) / step))) if step else 0.0 for value in row]
    return out.reshape(x.shape)


@pytest.mark.parametrize(("by_row", "scale"), [(True, 0.0), (False, 0.0), (False, 0.01)])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_inputs_become_the_nearest_of_their_levels(bits: int, by_row: bool, scale: float) -> None:
    x = torch.randn(3, 5, 24, generator=torch.Generator().manual_seed(bits))
    x[1, 2] = 0
    quantised = InputQuantiser(torch.tensor([bits, scale, by_row]))(x)
    step = scale or float(x.abs().max()) / (2 ** (bits - 1) - 1)
    expected = torch.from_numpy(slowly(x.numpy(), bits, by_row, float(torch.tensor(scale))))
    difference = (quantised - expected).abs()
    assert (difference > 1e-6).sum() <= 1 and difference.max() <= step * 1.01, "but for a number between two levels"
    if by_row:
        assert torch.equal(InputQuantiser(torch.tensor([bits, 0.0, 1.0]))(x[2:, 3:4]), quantised[2:, 3:4])


@pytest.mark.parametrize("part", [DYNAMIC, {**DYNAMIC, "by": "tensor", "bits": 4}, STATIC])
def test_every_map_multiplies_quantised_inputs(part: dict[str, Any]) -> None:
    task, compressor = built(WEIGHTS, part)
    compressor.finish()
    task.eval()
    calls: list[tuple[LinearMap, Tensor, Tensor]] = []
    for linear in maps_of(task).values():
        linear.register_forward_hook(lambda own, inputs, output: calls.append((own, inputs[0], output)))
    batch = next(iter(compressor.batches()))
    with torch.no_grad():
        task.training_step(batch, 0)
    assert {id(linear) for linear, _, _ in calls} == {id(linear) for linear in maps_of(task).values()}
    for linear, x, y in calls:
        assert linear.quantiser is not None
        bits, scale, by_row = linear.quantiser.form.tolist()
        assert (bits, bool(scale), bool(by_row)) == (
            part.get("bits", 8),
            part is STATIC,
            part.get("by", "row") == "row",
        )
        inputs = slowly(x.numpy(), int(bits), bool(by_row), scale).astype(np.float64)
        bias = 0.0 if linear.bias is None else linear.bias.detach().double().numpy()
        expected = inputs @ linear.weight.detach().double().numpy().T + bias
        assert np.quantile(np.abs(y.numpy() - expected), 0.99) < 1e-5


def test_static_scales_are_of_the_largest_inputs_in_batches_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    calibrate = QuantiseActivations.calibrate

    def noting(activations: QuantiseActivations, task: Task, batches: Iterable[Any]) -> None:
        read.extend(batches)
        calibrate(activations, task, read)

    monkeypatch.setattr(QuantiseActivations, "calibrate", noting)
    task, compressor = built(WEIGHTS, STATIC)
    compressor.finish()
    first = [batch.inputs for batch, _ in zip(BASE.build_data().train_dataloader(), range(2), strict=False)]
    assert len(read) == 2 and all(torch.equal(batch.inputs, own) for batch, own in zip(read, first, strict=True))
    scales = {name: float(linear.quantiser.form[1]) for name, linear in maps_of(task).items() if linear.quantiser}
    for linear in maps_of(task).values():
        linear.quantiser = None
    largest: dict[str, float] = {}
    for name, linear in maps_of(task).items():
        linear.register_forward_pre_hook(
            lambda _, inputs, name=name: largest.update(
                {name: max(largest.get(name, 0.0), float(inputs[0].abs().max()))}
            )
        )
    task.eval()
    with torch.no_grad():
        for batch in read:
            task.training_step(batch, 0)
    assert scales == pytest.approx({name: value / 127 for name, value in largest.items()}, rel=1e-6)


@needs_vnni
@pytest.mark.parametrize(("vectors", "inputs", "outputs"), [(1, 384, 96), (37, 7, 5), (64, 96, 384)])
def test_the_int8_product_is_that_of_quantised_numbers(vectors: int, inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    linear, x = LinearMap(inputs, outputs, "up"), torch.randn(2, vectors, inputs) * torch.tensor([[[0.1]], [[30.0]]])
    linear.weight.data = dequantised(levels_of(torch.randn(outputs, inputs) * torch.rand(outputs, 1), 8, True))
    linear.quantiser = InputQuantiser(torch.tensor([8.0, 0.0, 1.0]))
    simulated = linear(x)
    linear.quantiser.execution = "int8"
    scale = simulated.abs().amax(dim=(1, 2), keepdim=True)
    assert ((linear(x) - simulated).abs() / scale).max() < 1e-6
    codes = (x / (x.abs().amax(dim=-1, keepdim=True) / 127)).round().long()
    weights = levels_of(linear.weight.detach(), 8, True)
    sums = codes @ weights.codes.long().T
    expected = sums.double() * (x.abs().amax(dim=-1, keepdim=True).double() / 127) * weights.scales.flatten().double()
    torch.testing.assert_close(linear(x).double(), expected + linear.bias.double(), rtol=1e-5, atol=1e-5)
    linear.weight.data.mul_(2)
    with torch.no_grad():
        linear.weight.add_(0)  # as training and loading of weights do, it counts as a change
    torch.testing.assert_close(linear(x).double(), 2 * expected + linear.bias.double(), rtol=1e-5, atol=1e-5)


def test_a_checkpoint_with_quantised_inputs_is_read_everywhere(dense: Path, simulated: tuple[Path, float]) -> None:
    checkpoint, nats = simulated
    assert evaluate(checkpoint)["val/nats"] == pytest.approx(nats, abs=1e-6)
    assert abs(evaluate(dense)["val/nats"] - nats) > 1e-5
    assert all(linear.quantiser is not None for linear in maps_of(Task.load_from_checkpoint(checkpoint)).values())


@needs_vnni
def test_a_run_is_measured_alike_however_it_is_executed(
    dense: Path, simulated: tuple[Path, float], tmp_path: Path
) -> None:
    checkpoint, nats = simulated
    record = fit(compressed(WEIGHTS, INT8, **after(dense)), tmp_path)
    assert record["metrics"]["val/nats"] == pytest.approx(nats, abs=1e-5)
    task, *_ = load(checkpoint, {"compression": [WEIGHTS, INT8]})
    assert {linear.quantiser.execution for linear in maps_of(task).values() if linear.quantiser} == {"int8"}


def test_a_processor_without_the_instructions_is_refused(
    simulated: tuple[Path, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantise_activations, "has_int8_product", lambda: False)
    with pytest.raises(ConfigError, match="int8 needs a processor with AVX-512 VNNI; set it to simulated"):
        describe(compressed(WEIGHTS, INT8))
    with pytest.raises(ConfigError, match="int8 needs a processor with AVX-512 VNNI"):
        load(simulated[0], {"compression": [WEIGHTS, INT8]})
    load(simulated[0])


@needs_vnni
def test_the_int8_product_needs_weights_of_8_bits_by_channel() -> None:
    for parts in ([INT8], [{**WEIGHTS, "bits": 4}, INT8], [{**WEIGHTS, "symmetric": False}, INT8]):
        with pytest.raises(ConfigError, match="the int8 product needs symmetric weights of 8 bits by channel"):
            built(*parts)[1].finish()


@pytest.mark.slow
def test_a_trained_run_that_died_before_it_was_measured_has_its_quantisers(tmp_path: Path) -> None:
    config = compressed(WEIGHTS, STATIC)
    record = fit(config, tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    (tmp_path / "again/record.json").unlink()
    assert fit(config, tmp_path / "again")["metrics"] == record["metrics"]


def test_a_map_that_is_never_called_is_refused() -> None:
    task, compressor = built(DYNAMIC)
    network = task.network.stack.blocks[0]
    network.feedforward.spare = LinearMap(16, 16, "up")
    (activations,) = compressions_of(compressor.configs, task)
    compressor.compressions = [activations]
    with pytest.raises(ConfigError, match=r"spare has no input but zero in 1 batches of training"):
        compressor.finish()


def test_weights_that_would_not_change_are_refused() -> None:
    task, compressor = built(WEIGHTS)
    compressor.finish()
    with pytest.raises(ConfigError, match="has these levels already, and would not change; drop quantise_weights"):
        compressor.finish()
    for matrix in task.parameters():
        matrix.data.zero_()
    compressor.finish()


REFUSED: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "row": ([{**DYNAMIC, "scales": "static"}], {}, "static scales know no row of a later text; set by: tensor"),
    "bits": ([{**INT8, "bits": 4}], {}, "the int8 product reads 8 bits, and bits is 4"),
    "tables": ([{**DYNAMIC, "parameters": ["embeddings"]}], {}, "embeddings has no linear map"),
    "heads": ([{**DYNAMIC, "parameters": ["heads"]}], {}, "is no linear map of a sublayer"),
    "adapter": ([DYNAMIC], {"model.adapter": {"kind": "low_rank"}}, "name other"),
    "last": ([DYNAMIC, WEIGHTS], {}, "compression.1: follows compression.0 on"),
    "twice": ([DYNAMIC, STATIC], {}, "inputs that are quantised twice keep the error of both"),
    "common matrices": (
        [{**WEIGHTS, "parameters": ["layer 1"]}, {**WEIGHTS, "parameters": ["feedforwards"]}],
        {},
        "compression.1: follows compression.0 on network.stack.blocks.0.feedforward",
    ),
    "evaluation": ([DYNAMIC], {"task.evaluation": {"mixer.dropout": 0.0}}, "whose passes compression does not change"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_place_is_refused_in_a_line(case: str) -> None:
    parts, changes, reason = REFUSED[case]
    with pytest.raises(ConfigError) as refusal:
        config = compressed(*parts, **changes)
        compressions_of(config.compression, config.build_task(config.build_data()))
    assert reason in str(refusal.value) and "\n" not in str(refusal.value)


def test_compressions_of_other_matrices_follow_each_other() -> None:
    built({**WEIGHTS, "parameters": ["layer 1"]}, {**WEIGHTS, "bits": 4, "parameters": ["layer 2"]}, DYNAMIC)


FROZEN = [{"parameters": ["network"], "frozen": True}]
STARTS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any], str | None]] = {
    "trained": ([WEIGHTS], [], {}, "has weights of quantise_weights, and training would change them"),
    "quantised after": ([WEIGHTS], [WEIGHTS], {}, "when: during"),
    "shared": ([{"kind": "share_values"}], [], {}, "has weights of share_values"),
    "trained with levels": ([WEIGHTS], [{**WEIGHTS, "when": "during"}], {}, None),
    "frozen": ([WEIGHTS], [], {"training.groups": FROZEN}, None),
    "measured": ([WEIGHTS], [], {"training.steps": 0}, None),
    "pruned": ([{"kind": "prune_weights"}], [{"kind": "hold_zeros"}], {}, None),
    "inputs": ([WEIGHTS, DYNAMIC], [], {"training.steps": 0}, "add its quantise_activations to compression"),
    "inputs again": ([WEIGHTS, DYNAMIC], [DYNAMIC], {"training.steps": 0}, None),
}


@pytest.mark.parametrize("case", STARTS)
def test_a_run_that_would_undo_the_levels_of_its_start_is_refused(case: str) -> None:
    before, own, changes, reason = STARTS[case]
    source = compressed(*before, **{"training.steps": 0})
    between = BASE.override({"training.steps": 0, "start": {"network": {"run": source.to_dict()}}})
    for run in (source, between) if "inputs" not in case else (source,):
        config = compressed(*own, **{"start": {"network": {"run": run.to_dict()}, "heads": "network"}, **changes})
        if reason is None:
            require_kept_levels(config)
            continue
        with pytest.raises(ConfigError, match=r"start\.") as refusal:
            require_kept_levels(config)
        assert reason in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_checkpoint_with_levels_is_not_trained_but_quantised_again_alike(
    simulated: tuple[Path, float], tmp_path: Path
) -> None:
    start = after(simulated[0])
    with pytest.raises(ConfigError, match="has weights of quantise_weights"):
        fit(BASE.override({**start, "training.steps": 4}), tmp_path / "trained")
    assert fit(compressed(DYNAMIC, **start), tmp_path / "again")["metrics"]["val/nats"] == simulated[1]


def test_a_run_of_no_steps_is_measured_in_bfloat16_without_cuda(dense: Path, tmp_path: Path) -> None:
    half = fit(BASE.override(after(dense, **{"training.precision": "bf16"})), tmp_path)["metrics"]["val/nats"]
    whole = evaluate(dense)["val/nats"]
    assert abs(half - whole) > 1e-5 and half == pytest.approx(whole, abs=0.02)
    with pytest.raises(ConfigError, match="training in bf16 needs CUDA"):
        BASE.override({"training.precision": "bf16"})
