"""Networks that start from some heads and feed-forward channels of a wider one, against definitions written out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import training
from torch import Tensor, nn

from lit_transformers.compression.importance import units_of
from lit_transformers.compression.narrow import NarrowConfig, Narrowing, scores_of
from lit_transformers.config import ConfigError
from lit_transformers.exchange.transfer import export_weights
from lit_transformers.mixer import Shape
from lit_transformers.runs import RunConfig, fit, load
from lit_transformers.runs.config import RunWeightsConfig
from lit_transformers.runs.keys import run_key
from lit_transformers.runs.narrowed_weights import require_narrower
from lit_transformers.runs.rehearsal import rehearse
from lit_transformers.stacks.feedforward import FeedForward, FeedForwardConfig
from lit_transformers.tasks import Task

WIDE = RunConfig.from_dict(
    {
        "model": {
            "kind": "encoder",
            "dim": 16,
            "heads": 4,
            "depth": 2,
            "norm": "post",
            "norm_epsilon": 1e-12,
            "mixer": {"kind": "attention", "bias": True},
            "feedforward": {"kind": "dense", "width": 24, "activation": "gelu"},
            "positions": {"kind": "learned", "restart": "document"},
            "tokens": {"kind": "full", "scaled": False},
            "segments": 2,
            "embedding_norm": True,
            "transform": "gelu",
            "dropout": 0.1,
        },
        "task": "regression",
        "data": {
            "kind": "labelled",
            "source": {
                "kind": "masked_sum", "length": 16, "ones": 3, "levels": 8, "train": 200, "validation": 32, "test": 8
            },
            "batch_size": 8,
            "window": 16,
        },
        "training": {"steps": 6, "device": "cpu", "log_every": 3},
    }
)  # fmt: skip
NARROW = {"model.heads": 2, "model.mixer.head_dim": 4, "model.feedforward.width": 10}
BLOCK = "network.stack.blocks.{}."


def from_file(path: Path, narrow: Mapping[str, Any] | None = None, **changes: Any) -> RunConfig:
    """A narrower run of no steps that starts from a checkpoint."""
    source = {"kind": "file", "path": str(path)}
    start = {"network": source, "heads": source, "narrow": None if narrow is None else dict(narrow)}
    return WIDE.override({**NARROW, "training.steps": 0, "start": start, **changes})


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of the wide network."""
    folder = tmp_path_factory.mktemp("wide")
    fit(WIDE, folder)
    return folder / "checkpoint.ckpt"


def definitions(task: Task, batches: list[Any], score: str) -> dict[str, Tensor]:
    """The scores of heads and channels of each layer: the derivative of the loss with respect to a factor of each
    unit's output, or the norms of weights written out."""
    scores: dict[str, Tensor] = {}
    for layer in range(2):
        block = task.get_submodule(BLOCK.format(layer)[:-1])
        maps = {"mixer": (block.mixer.merge, 4), "feedforward": (block.feedforward.narrow, 24)}
        for name, (linear, count) in maps.items():
            weights = linear.weight.detach().unflatten(1, (count, -1)).square().sum(dim=(0, 2))
            if name == "feedforward":
                weights = weights + block.feedforward.widen.weight.detach().square().sum(dim=1)
            total = torch.zeros(count)
            for batch in batches if score == "importance" else ():
                factor = torch.ones(len(batch.inputs), 1, count, 1, requires_grad=True)
                hook = linear.register_forward_pre_hook(
                    lambda _, inputs, factor=factor, count=count: (
                        (inputs[0].unflatten(-1, (count, -1)) * factor).flatten(2),
                    )
                )
                (gradient,) = torch.autograd.grad(task.training_step(batch, 0)["loss"], factor)
                hook.remove()
                total += gradient.abs().sum(dim=(0, 1, 3))
            scores[f"{BLOCK.format(layer)}{name}"] = total if score == "importance" else weights.sqrt()
    return scores


@pytest.mark.parametrize("score", ["importance", "magnitude"])
def test_a_run_starts_from_the_heads_and_channels_of_the_highest_scores(wide: Path, score: str, tmp_path: Path) -> None:
    """The narrower network equals the wide one with the other heads and channels at zero."""
    config = from_file(wide, {"score": score, "batches": 3})
    record = fit(config, tmp_path / "narrow")
    line = f"each layer keeps 2 of 4 heads and 10 of 24 feed-forward channels ({score})"
    assert line in record["measured"]["started_from"]
    large, small = (load(path)[0].eval() for path in (wide, tmp_path / "narrow/checkpoint.ckpt"))
    data = WIDE.build_data()
    batches = [batch for batch, _ in zip(data.train_dataloader(), range(3), strict=False)]
    with torch.no_grad():
        before = [small.training_step(batch, 0)["loss"] for batch in batches]
    for name, scores in definitions(large, batches, score).items():
        units = units_of(large.get_submodule(name))
        assert units is not None
        lowest = scores.argsort(stable=True)[: units.number - (2 if units.are_heads else 10)]
        units.projection.weight.data.unflatten(1, (units.number, units.size))[:, lowest] = 0
    with torch.no_grad():
        after = [large.training_step(batch, 0)["loss"] for batch in batches]
    torch.testing.assert_close(before, after, rtol=1e-6, atol=1e-6)


def test_random_units_are_others_with_another_seed_and_every_choice_has_a_key(wide: Path) -> None:
    large, small = WIDE, WIDE.override(NARROW)
    networks = [config.model.build(config.build_data().description) for config in (large, small)]
    narrowing = Narrowing(*networks, heads_change=True)
    drawn = [scores_of(NarrowConfig(score="random", seed=seed), narrowing, networks[0], list) for seed in (0, 0, 1)]
    assert len(drawn[0]) == 4
    for name, scores in drawn[0].items():
        assert torch.equal(scores, drawn[1][name]) and not torch.equal(scores, drawn[2][name])
    assert len({run_key(from_file(wide, {"score": score})) for score in ("random", "magnitude", "importance")}) == 3


def test_narrower_stages_follow_each_other_and_recover(wide: Path, tmp_path: Path) -> None:
    """A chain of runs: narrowed and trained, then narrowed again with a layer fewer."""
    first = from_file(wide, {"score": "magnitude"}, **{"training.steps": 6})
    stage = {"kind": "run", "run": first.to_dict()}
    fewer = {"model.heads": 1, "model.feedforward.width": 5, "model.depth": 1}
    start = {"network": stage, "heads": "network", "layers": [2], "narrow": {"batches": 2}}
    second = first.override({**fewer, "training.steps": 0, "start": start})
    rehearse(second)
    assert isinstance(second.start.network, RunWeightsConfig)
    recovered = second.start.network.run
    assert fit(recovered, tmp_path / run_key(recovered))["outcome"] == "finished"
    record = fit(second, tmp_path / "second")
    shapes = {name: tuple(t.shape) for name, t in load(tmp_path / "second/checkpoint.ckpt")[0].state_dict().items()}
    assert shapes[f"{BLOCK.format(0)}feedforward.widen.weight"] == (5, 16)
    assert shapes[f"{BLOCK.format(0)}mixer.merge.weight"] == (16, 4) and not any("blocks.1" in name for name in shapes)
    parameters = sum(math.prod(shape) for shape in shapes.values())
    assert 0 < record["measured"]["packed_bytes"] < 4 * parameters + 4000


def test_narrower_feed_forwards_are_exported_and_fewer_heads_are_refused(wide: Path, tmp_path: Path) -> None:
    kept = {"model.heads": 4, "model.mixer.head_dim": None}
    fit(from_file(wide, {"score": "magnitude"}, **kept), tmp_path / "channels")
    export_weights(tmp_path / "channels/checkpoint.ckpt", tmp_path / "out", "bert")
    assert json.loads((tmp_path / "out/config.json").read_text())["intermediate_size"] == 10
    fit(from_file(wide, {"score": "magnitude"}), tmp_path / "heads")
    with pytest.raises(ConfigError, match=r"cannot be written as bert: mixer\.head_dim is 4 here and None there"):
        export_weights(tmp_path / "heads/checkpoint.ckpt", tmp_path / "none", "bert")


def test_a_feed_forward_keeps_the_channels_that_torch_pruning_keeps() -> None:
    pruning = pytest.importorskip("torch_pruning", reason="torch-pruning is not installed")

    class Plain(nn.Module):
        """The feed-forward as torch-pruning traces it."""

        def __init__(self, own: FeedForward) -> None:
            super().__init__()
            self.up, self.activation, self.down = nn.Linear(6, 12), own.activation, nn.Linear(12, 6)
            self.up.load_state_dict(own.widen.state_dict())
            self.down.load_state_dict(own.narrow.state_dict())

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.down(self.activation(self.up(x)))
            return y

    torch.manual_seed(0)
    shape = Shape(6, 2, 16)
    own = {width: FeedForwardConfig(width=width, activation="gelu").build(shape) for width in (12, 5)}
    plain = Plain(own[12])
    importance = pruning.importance.GroupMagnitudeImportance(p=2, group_reduction="sum", normalizer=None, bias=False)
    tracer = pruning.pruner.BasePruner(
        plain, torch.randn(1, 6), importance=importance, pruning_ratio=7 / 12, ignored_layers=[plain.down]
    )
    tracer.step()
    wide_network, narrow_network = (nn.ModuleDict({"feedforward": own[width]}) for width in (12, 5))
    narrowing = Narrowing(wide_network, narrow_network, heads_change=False)
    scores = scores_of(NarrowConfig(score="magnitude"), narrowing, wide_network, list)
    narrow_network.load_state_dict(narrowing.narrowed(wide_network.state_dict(), scores))
    assert plain.up.out_features == 5
    torch.testing.assert_close(own[5].widen.weight, plain.up.weight)
    torch.testing.assert_close(own[5].narrow.weight, plain.down.weight)
    torch.testing.assert_close(own[5].widen.bias, plain.up.bias)


@pytest.mark.slow
def test_two_ranks_choose_what_one_process_does(wide: Path, tmp_path: Path) -> None:
    config = from_file(wide, {"batches": 2})
    training(config.override({"training.devices": 2}), tmp_path / "two").finish()
    fit(config, tmp_path / "one")
    two, one = (load(tmp_path / name / "checkpoint.ckpt")[0].state_dict() for name in ("two", "one"))
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())


def test_layers_that_share_weights_of_heads_are_refused() -> None:
    """Each layer would keep other heads, of which the biases of queries are those of all layers."""
    shared = WIDE.override({"model.mixer.encoding": "xl"})
    models = [shared.model, shared.override(NARROW).model]
    with pytest.raises(ConfigError, match=r"model\.heads: layers share relative.content.weight, of which each"):
        require_narrower(*models, WIDE.build_data().description)
    apart = [model.override({"mixer.encoding.biases": "per_layer"}) for model in models]
    require_narrower(*apart, WIDE.build_data().description)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any] | None, str]] = {
    "more heads": ({"model.heads": 5}, {}, "model.heads: is 5, and each layer of start.network has 4 heads; set it"),
    "wider": ({"model.feedforward.width": 25}, {}, "model.feedforward.width: is 25, and each layer of start.network"),
    "channels": ({"model.mixer.head_dim": 8}, {}, "head_dim: heads have 4 channels in start.network and 8 here; set"),
    "nothing": ({"model.heads": 4, "model.feedforward.width": 24}, {}, "start.narrow: keeps all heads and channels"),
    "unsaid": (
        {},
        None,
        "2 here; set these fields to the values there, or name other weights; start.narrow chooses heads and channels",
    ),
    "untrained": ({"start.heads": None}, {}, "needs the loss of trained heads; set start.heads: network"),
    "no source": ({"start.network": None, "start.heads": None}, {"score": "random"}, "or drop start.narrow"),
    "dim": ({"model.dim": 8}, {}, "model.dim is 16 there and 8 here"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_narrowed_is_refused_in_a_line(case: str, wide: Path) -> None:
    changes, narrow, reason = REFUSED[case]
    with pytest.raises(ConfigError) as refusal:
        rehearse(from_file(wide, narrow, **changes))
    assert reason in str(refusal.value) and "\n" not in str(refusal.value)
