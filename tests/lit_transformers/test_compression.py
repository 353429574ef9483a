"""Compressions of weights against definitions written out, in the order of their list, and through stops of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pretended_device
import pytest
import torch
from compressed_runs import BASE, built, compressed
from lightning.pytorch.strategies import SingleDeviceStrategy
from stopped_runs import stop_run
from torch import Tensor, nn

from lit_transformers.compression import COMPRESSIONS
from lit_transformers.compression.callback import CompressionCallback, compressions_of
from lit_transformers.compression.compression import matrices_of
from lit_transformers.compression.gate_heads import GateHeads, chance_to_be_open, drawn_gates, fixed_gates
from lit_transformers.compression.prune_heads import PruneHeads
from lit_transformers.compression.quantise_weights import rows_of
from lit_transformers.compression.share_values import shared_values
from lit_transformers.config import ConfigError
from lit_transformers.quantisation import dequantised, levels_of
from lit_transformers.runs import fit, train
from lit_transformers.tasks import Task
from lit_transformers.tasks.question_answering import QuestionAnswering
from lit_transformers.training.checkpoints import read

MERGE = "network.stack.blocks.{}.mixer.merge.weight"


def finished(*parts: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The matrices of the network before and after compressions that act after training."""
    task, compressor = built(*parts)
    before = {name: matrix.detach().clone() for name, matrix in matrices_of(task, ["network"]).items()}
    compressor.finish()
    return before, {name: matrix.detach() for name, matrix in matrices_of(task, ["network"]).items()}


def weights_of(folder: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = read(folder / "checkpoint.ckpt")["state_dict"]
    return weights


@pytest.mark.parametrize("granularity", ["tensor", "channel", "group"])
@pytest.mark.parametrize(("bits", "symmetric"), [(2, True), (2, False), (3, True), (8, True), (8, False)])
def test_weights_become_the_nearest_of_their_levels(bits: int, symmetric: bool, granularity: Any) -> None:
    matrix = torch.randn(6, 32, generator=torch.Generator().manual_seed(bits))
    matrix[2] = 0
    rows = rows_of(matrix, granularity, 8)
    assert rows.shape == {"tensor": (1, 192), "channel": (6, 32), "group": (24, 8)}[granularity]
    quantised = dequantised(levels_of(rows, bits, symmetric))
    for row, own in zip(rows, quantised, strict=True):
        low, high = (
            (-row.abs().max(), row.abs().max()) if symmetric else (row.min().clamp(max=0), row.max().clamp(min=0))
        )
        step = (high - low) / (2**bits - (2 if symmetric else 1))
        assert (own - row).abs().max() <= step / 2 * (1 + 2**-9), "no level is nearer, but for rounding of the scale"
        assert len(own.unique()) <= 2**bits and (own[row == 0] == 0).all()


def test_quantised_weights_are_quantised_to_themselves() -> None:
    rows = torch.randn(9, 40, generator=torch.Generator().manual_seed(0))
    for bits in (2, 4, 8):
        once = dequantised(levels_of(rows, bits, True))
        assert torch.equal(dequantised(levels_of(once, bits, True)), once)


def test_shared_values_are_a_fixed_point_of_k_means_and_zeros_stay() -> None:
    matrix = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    matrix[matrix.abs() < 0.1] = 0
    shared = shared_values(matrix, bits=3, rounds=200)
    assert len(shared.unique()) == 8 and torch.equal(shared == 0, matrix == 0)
    for value in shared.unique():
        if value:
            torch.testing.assert_close(matrix[shared == value].mean(), value)
    values = shared.unique()[shared.unique() != 0]
    kept = matrix[matrix != 0]
    torch.testing.assert_close(values[(kept[:, None] - values).abs().argmin(dim=1)], shared[shared != 0])
    assert torch.equal(shared_values(shared, bits=3, rounds=1), shared)


def test_the_smallest_weights_of_each_matrix_are_pruned_or_of_all() -> None:
    before, after = finished({"kind": "prune_weights", "sparsity": 0.6})
    for name, matrix in before.items():
        left = after[name] != 0
        assert (~left).sum() == round(0.6 * matrix.numel()) and torch.equal(after[name][left], matrix[left])
        assert matrix[left].abs().min() >= matrix[~left].abs().max()
    before, after = finished({"kind": "prune_weights", "sparsity": 0.6, "scope": "all"})
    weights, left = (torch.cat([part.flatten() for part in parts.values()]) for parts in (before, after))
    assert (left == 0).sum() == round(0.6 * len(weights))
    assert weights[left != 0].abs().min() >= weights[left == 0].abs().max()
    shares = [(matrix == 0).double().mean() for matrix in after.values()]
    assert max(shares) > min(shares)


def test_two_of_each_four_weights_are_left_and_random_ones_are_others_with_another_seed() -> None:
    before, after = finished({"kind": "prune_weights", "pattern": "2:4", "parameters": ["feedforwards"]})
    pruned = [name for name in before if not torch.equal(before[name], after[name])]
    assert pruned and all("feedforward" in name for name in pruned)
    for name in pruned:
        groups, left = before[name].abs().view(-1, 4), (after[name] != 0).view(-1, 4)
        assert (left.sum(dim=1) == 2).all()
        assert (groups.masked_fill(~left, 9).amin(dim=1) >= groups.masked_fill(left, 0).amax(dim=1)).all()
    masks = [
        torch.cat(
            [(m != 0).flatten() for m in finished({"kind": "prune_weights", "score": "random", "seed": s})[1].values()]
        )
        for s in (0, 0, 1)
    ]
    assert torch.equal(masks[0], masks[1]) and not torch.equal(masks[0], masks[2])


def test_heads_are_pruned_by_what_the_loss_would_change_to_first_order() -> None:
    """|y dL/dy| is the derivative of the loss with respect to a factor of the head's output."""
    task, compressor = built({"kind": "prune_heads", "heads": 2, "batches": 2})
    (pruning,) = compressor.compressions
    batches = [batch for batch, _ in zip(compressor.batches(), range(2), strict=False)]
    task.eval()
    expected = []
    for layer in range(2):
        merge = task.get_submodule(MERGE.format(layer).removesuffix(".weight"))
        sums = torch.zeros(2)
        for batch in batches:
            rows = len(batch.inputs)
            factor = torch.ones(rows, 1, 2, 1, requires_grad=True)
            hook = merge.register_forward_pre_hook(
                lambda _, inputs, factor=factor: (
                    (inputs[0].unflatten(-1, (2, -1)) * factor[: len(inputs[0])]).flatten(2),
                )
            )
            (gradient,) = torch.autograd.grad(task.training_step(batch, 0)["loss"], factor)
            hook.remove()
            sums += gradient.abs().sum(dim=(0, 1, 3))
        expected.append(sums / sums.norm())
    compressor.finish()
    if layer_scores := [pruning.scores(number, mixer) for number, mixer in enumerate(pruning.mixers.values())]:
        torch.testing.assert_close(layer_scores[1], expected[1], rtol=1e-4, atol=1e-5)
    pruned = torch.cat([pruning.scores(n, m) for n, m in enumerate(pruning.mixers.values())]).argsort()[:2].tolist()
    for place in range(4):
        merge = dict(task.named_parameters())[MERGE.format(place // 2)]
        half = slice((place % 2) * 8, (place % 2 + 1) * 8)
        assert (merge[:, half] == 0).all() == (place in pruned)


def test_compressions_act_in_the_order_of_their_list() -> None:
    parts = ({"kind": "prune_weights", "sparsity": 0.5}, {"kind": "quantise_weights", "bits": 3})
    before, after = finished(*parts)
    _, pruned = finished(parts[0])
    for name in before:
        assert torch.equal(
            after[name], dequantised(levels_of(rows_of(pruned[name], "channel", 1), 3, True)).view_as(after[name])
        )


def test_gradual_pruning_follows_its_cubic_and_holds_what_it_pruned(tmp_path: Path) -> None:
    config = COMPRESSIONS["prune_weights"].from_dict(
        {"kind": "prune_weights", "sparsity": 0.8, "begin": 0.2, "end": 0.6}
    )
    assert [config.sparsity_at(done) for done in (0.1, 0.2, 0.4, 0.6, 1.0)] == pytest.approx([0, 0, 0.7, 0.8, 0.8])
    fit(compressed({"kind": "prune_weights", "sparsity": 0.8, "begin": 0.0, "end": 0.5}), tmp_path / "run")
    weights = weights_of(tmp_path / "run")
    for name in (MERGE.format(0), MERGE.format(1)):
        assert (weights[name] == 0).sum() == round(0.8 * weights[name].numel())


def test_pruned_weights_are_set_to_zero_after_every_update() -> None:
    task, callback = built({"kind": "prune_weights", "begin": 0.0, "end": 0.0})
    callback.on_train_start(None, task)  # type: ignore[arg-type]
    (pruning,) = callback.compressions
    zeros = {name: matrix == 0 for name, matrix in matrices_of(task, ["network"]).items()}
    for matrix in matrices_of(task, ["network"]).values():
        matrix.data.add_(1.0)
    pruning.after_step(0.5)
    for name, matrix in matrices_of(task, ["network"]).items():
        assert zeros[name].any() and torch.equal(matrix == 0, zeros[name])


def test_weights_that_move_to_zero_are_pruned() -> None:
    task, callback = built({"kind": "prune_weights", "score": "movement", "begin": 0.6, "end": 0.6})
    (pruning,) = callback.compressions
    matrices, moved = matrices_of(task, ["network"]), dict[str, Tensor]()
    for done in (0.2, 0.4, 0.6):
        for name, matrix in matrices.items():
            matrix.grad = torch.randn_like(matrix)
            moved[name] = moved.get(name, 0) - matrix.detach() * matrix.grad
        pruning.before_step()
        pruning.after_step(done)
        assert all((matrix != 0).all() for matrix in matrices.values()) == (done < 0.6)
    for name, matrix in matrices.items():
        left = matrix != 0
        assert left.sum() == matrix.numel() - round(matrix.numel() / 2)
        assert moved[name][left].min() >= moved[name][~left].max()


def test_gradients_are_taken_at_quantised_weights_and_change_the_weights_behind_them() -> None:
    part = {"kind": "quantise_weights", "bits": 3, "when": "during"}
    task, callback = built(part)
    matrices = matrices_of(task, ["network"])
    weights = {name: matrix.detach().clone() for name, matrix in matrices.items()}
    batch = next(iter(callback.batches()))
    task.eval()
    callback.on_train_batch_start(None, task, batch, 0)  # type: ignore[arg-type]
    for name, matrix in matrices.items():
        rows = rows_of(weights[name], "channel", 1)
        assert torch.equal(matrix.detach(), dequantised(levels_of(rows, 3, True)).view_as(matrix))
    task.training_step(batch, 0)["loss"].backward()
    at_quantised = {name: matrix.grad for name, matrix in matrices.items()}
    callback.on_after_backward(None, task)  # type: ignore[arg-type]
    assert all(torch.equal(matrix.detach(), weights[name]) for name, matrix in matrices.items())
    task, other = built({**part, "when": "after"})
    other.finish()
    task.eval()
    task.training_step(batch, 0)["loss"].backward()
    for name, matrix in matrices_of(task, ["network"]).items():
        torch.testing.assert_close(at_quantised[name], matrix.grad, rtol=0, atol=0)


STOPPED = {
    "gradual": [{"kind": "prune_weights", "begin": 0.1, "end": 0.7, "score": "movement"}],
    "gates": [{"kind": "gate_heads", "penalty": 0.2}],
    "during": [
        {"kind": "quantise_weights", "bits": 3, "when": "during", "begin": 0.3, "symmetric": False},
        {"kind": "quantise_activations", "bits": 4, "when": "during", "begin": 0.6},
    ],
}


@pytest.mark.parametrize("name", STOPPED)
def test_a_stopped_run_resumes_to_the_same_weights(tmp_path: Path, name: str) -> None:
    config = compressed(*STOPPED[name], **{"training.validate_every": 4})
    fit(config, tmp_path / "whole")
    stop_run(config, tmp_path / "parts", QuestionAnswering, steps=6)
    fit(config, tmp_path / "parts")
    whole, parts = weights_of(tmp_path / "whole"), weights_of(tmp_path / "parts")
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())


def test_a_run_of_no_steps_compresses_another_run_and_the_next_one_recovers(tmp_path: Path) -> None:
    fit(BASE, tmp_path / "dense")
    start = {part: {"kind": "file", "path": str(tmp_path / "dense/checkpoint.ckpt")} for part in ("network", "heads")}
    part = {"kind": "prune_weights", "sparsity": 0.5, "parameters": ["mixers"]}
    pruned = compressed(part, **{"training.steps": 0, "start": start, "timed": True})
    record = fit(pruned, tmp_path / "pruned")
    assert all(record["measured"][name] > 0 for name in ("packed_bytes", "time_ratio", "latency_ratio"))
    start = {part: {"kind": "file", "path": str(tmp_path / "pruned/checkpoint.ckpt")} for part in ("network", "heads")}
    fit(compressed({"kind": "hold_zeros"}, start=start), tmp_path / "recovered")
    dense, zeros, recovered = (weights_of(tmp_path / name) for name in ("dense", "pruned", "recovered"))
    changed = [name for name in dense if not torch.equal(dense[name], zeros[name])]
    assert {name.split(".")[4] for name in changed} == {"mixer"}
    for name in changed:
        assert torch.equal(recovered[name] == 0, zeros[name] == 0) and not torch.equal(recovered[name], zeros[name])


def test_a_run_of_no_steps_is_compressed_on_its_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, devices = compressed({"kind": "prune_weights"}, **{"training.steps": 0}), list[torch.device]()
    monkeypatch.setattr(SingleDeviceStrategy, "root_device", torch.device("meta"))
    monkeypatch.setattr(CompressionCallback, "finish", lambda callback: devices.append(callback.task.device))
    fit(config, tmp_path)
    assert devices == [torch.device("meta")]


ON_A_DEVICE = [
    {"kind": "prune_weights"},
    {"kind": "prune_heads", "heads": 1},
    {"kind": "quantise_weights", "symmetric": False},
    {"kind": "quantise_activations", "scales": "static", "by": "tensor", "symmetric": False},
    {"kind": "share_values", "bits": 3},
]


@pytest.mark.parametrize("part", ON_A_DEVICE, ids=lambda part: part["kind"])
def test_a_compression_acts_on_another_device_as_on_the_cpu(part: dict[str, Any]) -> None:
    task, callback = built(part)
    callback.finish()
    with pretended_device.pretended():
        other, callback = built(part)
        other.to(pretended_device.DEVICE)
        callback.finish()
        assert {tensor.device for tensor in other.state_dict().values()} == {pretended_device.DEVICE}
        tensors = {name: tensor.to("cpu") for name, tensor in other.state_dict().items()}
    for name, tensor in task.state_dict().items():
        torch.testing.assert_close(tensors[name], tensor)


def test_heads_are_judged_on_batches_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = compressed({"kind": "prune_heads", "heads": 1, "batches": 2}, **{"training.steps": 2})
    first = [batch.inputs for batch, _ in zip(config.build_data().train_dataloader(), range(4), strict=False)]
    read: list[Tensor] = []
    calibrate = PruneHeads.calibrate

    def noting(pruning: PruneHeads, task: Task, batches: Iterable[Any]) -> None:
        batches = [*batches]
        read.extend(batch.inputs for batch in batches)
        calibrate(pruning, task, batches)

    monkeypatch.setattr(PruneHeads, "calibrate", noting)
    assert fit(config, tmp_path / "run")["outcome"] == "finished"
    assert len(read) == 2 and all(any(torch.equal(inputs, other) for other in first) for inputs in read)


def test_a_network_starts_from_chosen_layers_and_is_timed_next_to_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[tuple[int, dict[str, Tensor]]] = []

    def time_ratios(task: Task, other: Task, batches: Any) -> dict[str, float]:
        timed.extend((own.model_config.get("depth"), own.state_dict()) for own in (task, other))
        return {"time_ratio": 1.5}

    monkeypatch.setattr(train, "time_ratios", time_ratios)
    fit(BASE, tmp_path / "dense")
    start = {part: {"kind": "file", "path": str(tmp_path / "dense/checkpoint.ckpt")} for part in ("network", "heads")}
    changes = {"training.steps": 0, "model.apart": 0, "start": start}
    config = BASE.override({**changes, "model.depth": 3, "start.layers": (2, 1, 2), "timed": True})
    assert fit(config, tmp_path / "other")["measured"]["time_ratio"] == 1.5
    dense, other = weights_of(tmp_path / "dense"), weights_of(tmp_path / "other")
    assert [depth for depth, _ in timed] == [3, 2]
    assert all(torch.equal(tensor, timed[1][1][name]) for name, tensor in dense.items() if "stack" in name)
    for place, layer in enumerate((1, 0, 1)):
        assert torch.equal(other[MERGE.format(place)], dense[MERGE.format(layer)])
    with pytest.raises(ConfigError, match=r"start\.layers: .* has 2 layers, and no layer 3"):
        fit(BASE.override({**changes, "start.layers": (1, 3)}), tmp_path / "beyond")


def test_gates_are_hard_concrete_and_their_penalty_is_the_chance_to_be_open() -> None:
    locations = torch.tensor([-3.0, -0.5, 0.0, 2.0], dtype=torch.float64)
    noise = torch.rand(20_000, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits = (torch.logit(noise) + locations) / 0.33
    expected = (1.2 / (1 + (-logits).exp()) - 0.1).clamp(min=0, max=1)
    gates = drawn_gates(locations, noise)
    torch.testing.assert_close(gates, expected)
    shares = (gates > 0).double().mean(dim=0)
    assert (shares - chance_to_be_open(locations)).abs().max() < 3 * 0.5 / 20_000**0.5
    values = fixed_gates(locations)
    assert values[0] == 0 and values.diff().min() > 0
    torch.testing.assert_close(values[2], torch.tensor(0.5, dtype=torch.float64))


def test_gates_learn_by_the_loss_and_by_their_penalty() -> None:
    """The gradient of a location is the slope of the loss for output maps that are multiplied by the gates."""
    task, callback = built({"kind": "gate_heads", "penalty": 0.3, "initial": 0.0})
    (gating,) = callback.compressions
    assert isinstance(gating, GateHeads)
    task.double()
    for module in task.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    batch, parameters = next(iter(callback.batches())), dict(task.named_parameters())
    merges = {layer: parameters[MERGE.format(layer)] for layer in range(2)}
    weights = {layer: merge.detach().clone() for layer, merge in merges.items()}
    seeds = (seed for seed in range(10_000) if noise_of(seed).logit().abs().max() < 0.6)
    noise = noise_of(next(seeds))

    def loss_of(locations: Tensor) -> Tensor:
        gates = drawn_gates(locations, noise).view(2, 2, 1).expand(2, 2, 8).flatten(1)
        with torch.no_grad():
            for layer, merge in merges.items():
                merge.copy_(weights[layer] * gates[layer])
            loss: Tensor = task.training_step(batch, 0)["loss"]
            for layer, merge in merges.items():
                merge.copy_(weights[layer])
        return loss

    at, steps = torch.zeros(4, dtype=torch.float64), 1e-4 * torch.eye(4, dtype=torch.float64)
    slopes = torch.stack([(loss_of(at + step) - loss_of(at - step)) / 2e-4 for step in steps])
    torch.manual_seed(next(seed for seed in range(10_000) if torch.equal(noise_of(seed), noise)))
    callback.on_train_batch_start(None, task, batch, 0)  # type: ignore[arg-type]
    task.training_step(batch, 0)["loss"].backward()
    assert gating.locations.grad is not None and slopes.abs().min() > 0
    torch.testing.assert_close(gating.locations.grad.double(), slopes, rtol=1e-3, atol=1e-7)
    gating.locations.grad = None
    gating.before_step()
    assert (gating.locations < 0).all(), "without a loss the penalty closes gates"


def noise_of(seed: int) -> Tensor:
    """The noise of four gates after a seed."""
    torch.manual_seed(seed)
    return torch.rand(4)


def test_closed_gates_prune_their_heads_and_open_ones_stay_in_the_output_map() -> None:
    task, callback = built({"kind": "gate_heads"})
    (gating,) = callback.compressions
    assert isinstance(gating, GateHeads)
    gating.locations.data = torch.tensor([3.0, -4.0, 0.3, -5.0])
    batch = next(iter(callback.batches()))
    task.eval()
    random = torch.get_rng_state()
    callback.on_validation_start(None, task)  # type: ignore[arg-type]
    assert torch.equal(random, torch.get_rng_state()), "a validation draws nothing"
    gated = task.training_step(batch, 0)["loss"].detach()
    callback.finish()
    torch.testing.assert_close(task.training_step(batch, 0)["loss"].detach(), gated)
    for layer, value in enumerate(fixed_gates(torch.tensor([3.0, 0.3]))):
        merge = dict(task.named_parameters())[MERGE.format(layer)]
        assert (merge[:, 8:] == 0).all() and (merge[:, :8] != 0).all() and value > 0


REFUSED: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "bits": ([{"kind": "quantise_weights", "bits": 9}], {}, "bits"),
    "group": ([{"kind": "quantise_weights", "granularity": "group", "group": 7}], {}, "which 7 does not divide"),
    "heads": ([{"kind": "prune_heads", "heads": 4}], {}, "there are 4 heads, and at least one is kept"),
    "role": ([{"kind": "prune_weights", "parameters": ["layer 3"]}], {}, "the network has no layer 3"),
    "vectors": ([{"kind": "prune_weights", "parameters": ["norms"]}], {}, "norms has no matrix"),
    "nothing": ([{"kind": "prune_weights", "parameters": []}], {}, "changes nothing"),
    "twice": ([{"kind": "quantise_weights"}, {"kind": "quantise_weights"}], {}, "compression.1: follows compression.0"),
    "order": ([{"kind": "share_values"}, {"kind": "prune_weights"}], {}, "put prune_weights first"),
    "backwards": ([{"kind": "prune_weights", "begin": 0.5, "end": 0.2}], {}, "before it begins"),
    "pattern": ([{"kind": "prune_weights", "pattern": "2:4", "sparsity": 0.7}], {}, "half of each matrix at once"),
    "movement": ([{"kind": "prune_weights", "score": "movement", "begin": 0, "end": 0}], {}, "needs updates"),
    "stop": ([{"kind": "prune_weights"}], {"training.stop": {}, "training.validate_every": 2}, "training.stop"),
    "gates": ([{"kind": "gate_heads"}], {"training.steps": 0}, "set training.steps to more than 0"),
    "layers": ([], {"start.layers": (1,), "start.network": "a.ckpt"}, "start.layers keeps 1 layers"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_place_is_refused_in_a_line(case: str) -> None:
    parts, changes, reason = REFUSED[case]
    with pytest.raises(ConfigError) as refusal:
        config = compressed(*parts, **changes)
        compressions_of(config.compression, config.build_task(config.build_data()))
    assert reason in str(refusal.value) and "\n" not in str(refusal.value)
