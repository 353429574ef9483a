"""Quantised inputs of linear maps against numpy, through checkpoints, and executed by the int8 product of oneDNN."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_runs import BASE, built, compressed
from torch import Tensor, nn

from lit_transformers.compression import quantise_activations
from lit_transformers.compression.callback import compressions_of
from lit_transformers.compression.quantise_activations import QuantiseActivations
from lit_transformers.config import ConfigError
from lit_transformers.maps import LinearMap, products
from lit_transformers.quantisation import InputQuantiser, dequantised, has_int8_product, levels_of
from lit_transformers.runs import describe, fit
from lit_transformers.runs.evaluate import evaluate, load
from lit_transformers.runs.quantised_starts import require_kept_levels
from lit_transformers.tasks import Task

WEIGHTS = {"kind": "quantise_weights", "bits": 8}
DYNAMIC = {"kind": "quantise_activations"}
STATIC = {"kind": "quantise_activations", "scales": "static", "by": "tensor", "batches": 2}
INT8 = {**DYNAMIC, "execution": "int8"}
SHIFTED = {"symmetric": False}
needs_int8_product = pytest.mark.skipif(
    not has_int8_product(), reason="this processor has no AVX-512 VNNI, without which sums of int8 may saturate"
)


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


@pytest.fixture
def without_vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds int8 products on a processor that has none."""
    monkeypatch.setattr(quantise_activations, "has_int8_product", lambda: True)


def slowly(x: np.ndarray[Any, Any], form: Sequence[float]) -> np.ndarray[Any, Any]:
    """Quantises and dequantises number by number."""
    bits, scale, by_row, *zero = form
    rows = x.reshape(-1, x.shape[-1])
    out = np.zeros_like(rows)
    for number, row in enumerate(rows):
        shared = row if by_row else rows
        if zero:
            low, high = min(0.0, float(shared.min())), max(0.0, float(shared.max()))
            lowest, highest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
            step = scale or (high - low) / (2**bits - 1) or 1.0
            at_zero = zero[0] if scale else lowest - round(low / step)
        else:
            lowest, highest, at_zero = 1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1, 0
            step = scale or float(np.abs(shared).max()) / highest or 1.0
        codes = [max(lowest, min(highest, round(float(value) / step) + at_zero)) for value in row]
        out[number] = [step * (code - at_zero) for code in codes]
    return out.reshape(x.shape)


FORMS = [(0.0, 1.0), (0.0, 0.0), (0.01, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 0.0), (0.01, 0.0, -1.0)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_inputs_become_the_nearest_of_their_levels(bits: int, form: tuple[float, ...]) -> None:
    x = torch.randn(3, 5, 24, generator=torch.Generator().manual_seed(bits)) + 0.5
    x[1, 2] = 0
    x[1, 3].abs_()
    own = torch.tensor([bits, *form])
    quantised = InputQuantiser(own)(x)
    step = form[0] or float(x.max() - x.min()) / (2 ** (bits - 1) - 1)
    difference = (quantised - torch.from_numpy(slowly(x.numpy(), own.tolist()))).abs()
    assert (difference > 1e-6).sum() <= 1 and difference.max() <= step * 1.01, "but for a number between two levels"
    assert len(quantised[0, 0].unique()) <= 2**bits and (quantised[x == 0] == 0).all()
    if form[1]:
        assert torch.equal(InputQuantiser(own)(x[2:, 3:4]), quantised[2:, 3:4])


PARTS = [DYNAMIC, {**DYNAMIC, "by": "tensor", "bits": 4}, STATIC, {**DYNAMIC, **SHIFTED}, {**STATIC, **SHIFTED}]


@pytest.mark.parametrize("part", PARTS)
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
        bits, scale, by_row, *zero = linear.quantiser.form.tolist()
        assert (bits, bool(scale), bool(by_row), not zero) == (
            part.get("bits", 8),
            part.get("scales") == "static",
            part.get("by", "row") == "row",
            part.get("symmetric", True),
        )
        inputs = slowly(x.numpy(), linear.quantiser.form.tolist()).astype(np.float64)
        bias = 0.0 if linear.bias is None else linear.bias.detach().double().numpy()
        expected = inputs @ linear.weight.detach().double().numpy().T + bias
        assert np.quantile(np.abs(y.numpy() - expected), 0.99) < 1e-5


@pytest.mark.parametrize("form", [(4.0, 0.0, 1.0), (4.0, 0.0, 0.0, 0.0)])
def test_gradients_of_quantised_inputs_pass_straight_through(form: tuple[float, ...]) -> None:
    torch.manual_seed(0)
    linear, x = LinearMap(24, 7, "up").double(), torch.randn(3, 5, 24, dtype=torch.float64, requires_grad=True)
    linear.quantiser = InputQuantiser(torch.tensor(form))
    slope = torch.randn(3, 5, 7, dtype=torch.float64)
    (linear(x) * slope).sum().backward()
    quantised = torch.from_numpy(slowly(x.detach().numpy(), form)).flatten(end_dim=1)
    torch.testing.assert_close(linear.weight.grad, slope.flatten(end_dim=1).mT @ quantised)
    torch.testing.assert_close(x.grad, slope @ linear.weight.detach())


def test_training_reads_quantised_inputs_from_its_share_on_and_a_checkpoint_amid_it_has_none() -> None:
    part = {**STATIC, "bits": 4, "when": "during", "begin": 0.5}
    task, callback = built(WEIGHTS, part)
    batch = next(iter(callback.batches()))
    task.eval()
    losses: dict[float, Tensor] = {}
    for done in (0.25, 0.5):
        callback.compressions[1].after_step(done)
        callback.on_train_batch_start(None, task, batch, 0)  # type: ignore[arg-type]
        losses[done] = task.training_step(batch, 0)["loss"].detach()
        callback.on_after_backward(None, task)  # type: ignore[arg-type]
        assert not any("quantiser" in name for name in task.state_dict())
    task, other = built({**DYNAMIC, "bits": 4, "by": "tensor"})
    plain = task.eval().training_step(batch, 0)["loss"].detach()
    other.finish()
    assert torch.equal(losses[0.25], plain) and not torch.equal(losses[0.5], plain)
    assert torch.equal(losses[0.5], task.training_step(batch, 0)["loss"].detach())


@pytest.mark.parametrize("symmetric", [True, False])
def test_static_scales_are_of_the_largest_inputs_in_batches_of_training(
    monkeypatch: pytest.MonkeyPatch, symmetric: bool
) -> None:
    read: list[Any] = []
    calibrate = QuantiseActivations.calibrate

    def noting(activations: QuantiseActivations, task: Task, batches: Iterable[Any]) -> None:
        read.extend(batches)
        calibrate(activations, task, read)

    monkeypatch.setattr(QuantiseActivations, "calibrate", noting)
    task, compressor = built(WEIGHTS, {**STATIC, "symmetric": symmetric})
    compressor.finish()
    first = [batch.inputs for batch, _ in zip(BASE.build_data().train_dataloader(), range(2), strict=False)]
    assert len(read) == 2 and all(torch.equal(batch.inputs, own) for batch, own in zip(read, first, strict=True))
    forms = {name: linear.quantiser.form.tolist() for name, linear in maps_of(task).items() if linear.quantiser}
    for linear in maps_of(task).values():
        linear.quantiser = None
    inputs: dict[str, list[Tensor]] = {name: [torch.zeros(1)] for name in forms}
    for name, linear in maps_of(task).items():
        linear.register_forward_pre_hook(lambda _, given, name=name: inputs[name].append(given[0].flatten()))
    task.eval()
    with torch.no_grad():
        for batch in read:
            task.training_step(batch, 0)
    for name, form in forms.items():
        own = torch.cat(inputs[name])
        if symmetric:
            assert form[1] == pytest.approx(float(own.abs().max()) / 127, rel=1e-6) and len(form) == 3
        else:
            assert form[1] == pytest.approx(float(own.max() - own.min()) / 255, rel=1e-6)
            assert form[3] == -128 - round(float(own.min()) / form[1])


@needs_int8_product
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("vectors", "inputs", "outputs"), [(1, 384, 96), (37, 7, 5), (64, 96, 384)])
def test_the_int8_product_is_that_of_quantised_numbers(
    vectors: int, inputs: int, outputs: int, symmetric: bool
) -> None:
    torch.manual_seed(0)
    linear, x = LinearMap(inputs, outputs, "up"), torch.randn(2, vectors, inputs) * torch.tensor([[[0.1]], [[30.0]]])
    x = x if symmetric else x + x.abs().amax(dim=-1, keepdim=True) / 2
    linear.weight.data = dequantised(levels_of(torch.randn(outputs, inputs) * torch.rand(outputs, 1), 8, True))
    linear.quantiser = InputQuantiser(torch.tensor([8.0, 0.0, 1.0] if symmetric else [8.0, 0.0, 1.0, 0.0]))
    simulated = linear(x)
    linear.quantiser.execution = "int8"
    scale = simulated.abs().amax(dim=(1, 2), keepdim=True)
    assert ((linear(x) - simulated).abs() / scale).max() < 1e-6
    low, high = x.amin(dim=-1, keepdim=True).clamp(max=0), x.amax(dim=-1, keepdim=True).clamp(min=0)
    steps = x.abs().amax(dim=-1, keepdim=True) / 127 if symmetric else (high - low) / 255
    codes = (x / steps).round().long()
    weights = levels_of(linear.weight.detach(), 8, True)
    expected = (codes @ weights.codes.long().T).double() * steps.double() * weights.scales.flatten().double()
    torch.testing.assert_close(linear(x).double(), expected + linear.bias.double(), rtol=1e-5, atol=1e-5)
    linear.weight.data.mul_(2)
    with torch.no_grad():
        linear.weight.add_(0)  # as training and loading of weights do, it counts as a change
    torch.testing.assert_close(linear(x).double(), 2 * expected + linear.bias.double(), rtol=1e-5, atol=1e-5)
    assert torch.equal(copy.deepcopy(linear)(x), linear(x)), "weights that oneDNN has packed are packed again"


@needs_int8_product
@pytest.mark.parametrize("form", [(8.0, 0.0, 1.0), (8.0, 0.0, 0.0, 0.0)])
@pytest.mark.parametrize("bias", [True, False])
def test_maps_of_the_same_inputs_quantise_them_once(
    form: tuple[float, ...], bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    maps, x = [LinearMap(24, size, "query", bias=bias) for size in (7, 16, 5)], torch.randn(3, 40, 24)
    for linear in maps:
        linear.weight.data = dequantised(levels_of(torch.randn(linear.out_features, 24), 8, True))
        linear.quantiser = InputQuantiser(torch.tensor(form))
        linear.quantiser.execution = "int8"
    quantised: list[Tensor] = []
    levels = InputQuantiser.levels
    monkeypatch.setattr(InputQuantiser, "levels", lambda own, rows: quantised.append(rows) or levels(own, rows))
    alone = [linear(x) for linear in maps]
    assert len(quantised) == 3
    for own, expected in zip(products(x, maps), alone, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-6, atol=1e-6)
    assert len(quantised) == 4
    maps[1].quantiser = InputQuantiser(torch.tensor([8.0, 0.02, 0.0]))  # a fixed scale, of this map alone
    maps[1].quantiser.execution = "int8"
    apart = products(x, maps)
    assert len(quantised) == 7 and torch.equal(apart[0], alone[0]) and not torch.allclose(apart[1], alone[1])


@needs_int8_product
def test_other_rows_change_no_number_of_an_int8_product() -> None:
    torch.manual_seed(0)
    linear, x = LinearMap(96, 33, "up"), torch.randn(300, 96)
    linear.weight.data = dequantised(levels_of(torch.randn(33, 96), 8, True))
    linear.quantiser = InputQuantiser(torch.tensor([8.0, 0.0, 1.0]))
    linear.quantiser.execution = "int8"
    whole = linear(x)
    for count in (0, 1, 16, 17, 129, 257):
        assert torch.equal(linear(x[:count]), whole[:count])


def test_a_checkpoint_with_quantised_inputs_is_read_everywhere(dense: Path, simulated: tuple[Path, float]) -> None:
    checkpoint, nats = simulated
    assert evaluate(checkpoint)["val/nats"] == pytest.approx(nats, abs=1e-6)
    assert abs(evaluate(dense)["val/nats"] - nats) > 1e-5
    assert all(linear.quantiser is not None for linear in maps_of(Task.load_from_checkpoint(checkpoint)).values())


def test_the_network_of_an_evaluation_has_the_quantised_inputs(simulated: tuple[Path, float]) -> None:
    """Also one that was built before compression added them, as in a validation amid training."""
    checkpoint, nats = simulated
    evaluation = {"task.evaluation": {"mixer.dropout": 0.0}}
    assert evaluate(checkpoint, evaluation)["val/nats"] == pytest.approx(nats, abs=1e-6)
    task, *_ = load(checkpoint, evaluation)
    quantisers = {name: linear.quantiser for name, linear in maps_of(task).items()}
    for linear in maps_of(task).values():
        linear.quantiser = None
    assert not any(linear.quantiser for linear in maps_of(task.evaluator()).values())
    for name, linear in maps_of(task).items():
        linear.quantiser = quantisers[name]
    shared = {name.removeprefix("network."): own for name, own in quantisers.items()}
    assert {name: linear.quantiser for name, linear in maps_of(task.evaluator()).items()} == shared and all(
        shared.values()
    )


@needs_int8_product
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


@pytest.mark.usefixtures("without_vnni")
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
    "begin": ([{**DYNAMIC, "begin": 0.5}], {}, "begin is the start of training with quantised numbers"),
    "ranks": (
        [{**DYNAMIC, "by": "tensor", "when": "during"}],
        {"training.devices": 2},
        "compression.0 quantise_activations reads all rows of a batch at once, which ranks divide; set its by: row",
    ),
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
