"""Networks that start from the mean of layers, or from factors of embeddings: exact where nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from datamodules import ListOpsConfig
from lit_transformers.batch import LabelledBatch
from lit_transformers.config import ConfigError
from lit_transformers.records.files import CHECKPOINT
from lit_transformers.runs import RunConfig, fit
from lit_transformers.runs.keys import run_key
from lit_transformers.runs.rehearsal import rehearse
from lit_transformers.runs.shared_weights import smaller_weights
from lit_transformers.runs.sources import StartConfig
from lit_transformers.runs.starting_weights import StartingWeights, start_from
from lit_transformers.tasks.labelled import LabelledTask

LAYER = "network.stack.blocks.{}.{}"
TABLE = "network.tokens.table.weight"
QUERY, FEEDFORWARD = "mixer.query.weight", "feedforward.widen.weight"
BASE = RunConfig.from_dict(
    {
        "model": {
            "kind": "encoder",
            "dim": 12,
            "heads": 2,
            "depth": 4,
            "norm": "post",
            "positions": {"kind": "learned", "restart": "document", "max_length": 32},
            "embedding_norm": True,
            "segments": 2,
            "transform": "gelu",
        },
        "task": {"kind": "classification", "pooling": "mean"},
        "data": {
            "kind": "labelled",
            "source": ListOpsConfig(shortest=4, longest=24, train=64, validation=23, test=9).to_dict(),
            "batch_size": 8,
        },
        "training": {"steps": 3, "device": "cpu", "schedule": "constant"},
    }
)


DATA = BASE.build_data()


def task_of(config: RunConfig) -> LabelledTask:
    """The task of a run, with large random weights."""
    torch.manual_seed(0)
    task = config.build_task(DATA)
    assert isinstance(task, LabelledTask)
    for parameter in task.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return task.eval()


def smaller(source: str, **changes: Any) -> RunConfig:
    """A run of no steps that starts from a file. changes: fields of ``start``, and below ``model``."""
    start = {f"start.{name}": changes.pop(name) for name in ("share", "factorise", "layers") if name in changes}
    of_model = {f"model.{name}": value for name, value in changes.items()}
    file = {"kind": "file", "path": source}
    return BASE.override({"training.steps": 0, "start.network": file, "start.heads": file, **of_model, **start})


def started(dense: LabelledTask, **changes: Any) -> LabelledTask:
    """The task of a run that starts from the weights of another task."""
    config, weights = smaller("a.ckpt", **changes), StartingWeights(dense.model_config, "", dense.state_dict())
    task = config.build_task(DATA)
    assert isinstance(task, LabelledTask)
    lines = start_from(task, {"network": smaller_weights(weights, config.start, task), "heads": weights})
    assert not [line for line in lines if "transform" not in line and "logits" not in line], lines
    return task.eval()


@pytest.fixture(scope="module")
def dense() -> LabelledTask:
    """A network that shares nothing."""
    return task_of(BASE)


@pytest.mark.parametrize("share", ["mean", "first", "last"])
@pytest.mark.parametrize("stack", [{"kind": "shared", "groups": 2}, {"kind": "universal", "timestep": False}])
def test_layers_that_share_weights_start_from_the_layers_of_their_group(
    stack: dict[str, Any], share: str, dense: LabelledTask
) -> None:
    before, after = dense.state_dict(), started(dense, stack=stack, share=share).state_dict()
    starts = {"network.stack.block.{}": range(4)}
    if stack["kind"] == "shared":
        starts = {"network.stack.blocks.0.{}": range(2), "network.stack.blocks.2.{}": range(2, 4)}
    for name, group in starts.items():
        for part in (QUERY, "mixer.merge.weight", "mixer_norm.weight", FEEDFORWARD):
            layers = [before[LAYER.format(number, part)].numpy() for number in group]
            expected = {"mean": np.mean(layers, axis=0, dtype=np.float64), "first": layers[0], "last": layers[-1]}
            np.testing.assert_allclose(after[name.format(part)].numpy(), expected[share], rtol=0, atol=1e-6)
    assert torch.equal(after["network.tokens.table.weight"], before["network.tokens.table.weight"])
    assert torch.equal(after["heads.label.map.1.weight"], before["heads.label.map.1.weight"])


def test_only_the_shared_part_of_a_layer_is_a_mean_and_chosen_layers_come_first(dense: LabelledTask) -> None:
    stack, before = {"kind": "shared", "share": "feedforward"}, dense.state_dict()
    after = started(dense, stack=stack, share="mean", layers=(4, 2), depth=2).state_dict()
    mean = (before[LAYER.format(3, FEEDFORWARD)] + before[LAYER.format(1, FEEDFORWARD)]) / 2
    for place, layer in enumerate((3, 1)):
        assert torch.equal(after[LAYER.format(place, QUERY)], before[LAYER.format(layer, QUERY)])
        torch.testing.assert_close(after[LAYER.format(place, FEEDFORWARD)], mean, rtol=0, atol=1e-6)


def test_equal_layers_compute_the_same_when_they_are_shared() -> None:
    task = task_of(BASE)
    for block in task.network.layers()["stack"][1:]:
        block.load_state_dict(task.network.layers()["stack"][0].state_dict())
    batch = task.config.random_batch(task.data)
    own = started(task, stack={"kind": "shared"}, share="mean")
    torch.testing.assert_close(hidden(own, batch), hidden(task, batch), rtol=1e-5, atol=1e-5)


def hidden(task: LabelledTask, batch: LabelledBatch) -> Tensor:
    with torch.no_grad():
        return task.read(task.network, batch).hidden


@pytest.mark.parametrize("embedding_norm", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_embeddings_of_full_rank_compute_what_the_dense_ones_do(scaled: bool, embedding_norm: bool) -> None:
    fields: dict[str, Any] = {"embedding_norm": embedding_norm, "tokens.scaled": scaled}
    dense = task_of(BASE.override({f"model.{name}": value for name, value in fields.items()}))
    after = started(dense, embedding_dim=12, factorise="svd", **fields)
    batch = dense.config.random_batch(dense.data)
    batch = batch._replace(segments=(torch.arange(batch.inputs.size(1)) > 3).long().expand_as(batch.inputs))
    torch.testing.assert_close(hidden(after, batch), hidden(dense, batch), rtol=1e-5, atol=1e-5)
    if not embedding_norm:
        table, widen = (after.state_dict()[name] for name in (TABLE, "network.stack.entry.widen.weight"))
        torch.testing.assert_close(table @ widen.mT, dense.state_dict()[TABLE], rtol=1e-5, atol=1e-5)


def test_fewer_channels_are_the_nearest_of_their_rank() -> None:
    """By Eckart and Young, the distance is the root of the sum of the squares of the omitted singular values."""
    fields: dict[str, Any] = {"embedding_norm": False, "segments": 0, "tokens.scaled": False, "positions": None}
    fields["mixer.encoding"] = "rotary"
    dense = task_of(BASE.override({f"model.{name}": value for name, value in fields.items()}))
    after = started(dense, embedding_dim=5, factorise="svd", **fields).state_dict()
    table = dense.state_dict()[TABLE].numpy()
    product = (after[TABLE] @ after["network.stack.entry.widen.weight"].mT).numpy()
    omitted = np.linalg.svd(table.astype(np.float64), compute_uv=False)[5:]
    assert np.linalg.norm(table - product) == pytest.approx(np.sqrt((omitted**2).sum()), rel=1e-5)


def test_a_narrow_norm_has_vectors_of_mean_zero(dense: LabelledTask) -> None:
    """It then divides them by the same numbers as the wide norm, as far as the wide vectors have the rank."""
    after = started(dense, embedding_dim=6, factorise="svd").state_dict()
    table, norm = after[TABLE], after["network.stack.entry.norm.weight"]
    torch.testing.assert_close(table.mean(dim=1), torch.zeros(len(table)), rtol=0, atol=1e-6)
    assert torch.equal(norm, torch.ones(6)) and not after["network.stack.entry.norm.bias"].any()


def test_a_stage_is_shared_and_factorised_and_then_trained(tmp_path: Path) -> None:
    """ALBERT of BERT: both at once, with keys that name them."""
    fields = {"stack": {"kind": "shared", "groups": 2}, "share": "mean", "embedding_dim": 6, "factorise": "svd"}
    fit(BASE, tmp_path / "dense")
    source = str(tmp_path / "dense" / CHECKPOINT)
    configs = [smaller(source, **fields | changes) for changes in ({}, {"share": "first"})]
    assert len({run_key(config) for config in configs}) == 2
    trained = configs[0].override({"training.steps": 2})
    rehearse(trained.override({"start.network": {"run": BASE.to_dict()}, "start.heads": "network"}))
    record = fit(trained, tmp_path / "small")
    assert record["outcome"] == "finished", record["reason"]
    assert record["cost"]["parameters"] < fit(BASE, tmp_path / "dense")["cost"]["parameters"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"share": "mean"}, "start.share computes weights that layers share, and model.stack is sequential; set model.st"),
    ({"factorise": "svd"}, "start.factorise computes embeddings that are narrower than the layers, and model has none"),
    ({"factorise": "svd", "embedding_dim": 6, "positions": "sinusoidal"}, "sinusoidal positions have no table to fact"),
    ({"factorise": "svd", "embedding_dim": 6, "tokens": "adaptive"}, "adaptive token embeddings are no single table"),
    ({"factorise": "svd", "embedding_dim": 13}, "model.embedding_dim: 13 channels are more than the 12 of the source"),
    ({"share": "mean", "stack": {"kind": "shared"}, "depth": 3}, "model.depth is 4 there and 3 here"),
    ({"stack": {"kind": "shared"}}, "model.stack.kind is 'sequential' there and 'shared' here"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED)
def test_what_has_no_place_is_refused_in_a_line(changes: dict[str, Any], reason: str, dense: LabelledTask) -> None:
    with pytest.raises(ConfigError) as refusal:
        started(dense, **changes)
    assert reason in str(refusal.value) and "\n" not in str(refusal.value)


def test_what_is_shared_already_is_refused() -> None:
    fields: dict[str, Any] = {"stack": {"kind": "shared"}, "embedding_dim": 6}
    small = task_of(BASE.override({f"model.{name}": value for name, value in fields.items()}))
    with pytest.raises(ConfigError, match=r"start\.share: the layers of the source are a shared stack already"):
        started(small, share="mean", **fields)
    with pytest.raises(ConfigError, match=r"start\.factorise: the source has no embeddings as wide as its layers"):
        started(small, factorise="svd", **fields)
    with pytest.raises(ConfigError, match="share and factorise change the weights of network, which has no source"):
        BASE.override({"model.stack": "shared", "start.share": "mean"})
    with pytest.raises(ConfigError, match="narrow combines with neither share nor factorise"):
        StartConfig.from_dict({"network": "file.safetensors", "narrow": {"score": "random"}, "share": "mean"})
