"""Groups of parameters: the role of each parameter, when and at which rate it learns, and the cost."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from forked import training
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lit_transformers.checks.contract import checks_of, run_check
from lit_transformers.config import ConfigError
from lit_transformers.records.files import CHECKPOINT
from lit_transformers.runs import RunConfig, describe, fit, load
from lit_transformers.runs.train import make_trainer
from lit_transformers.stacks import STACKS
from lit_transformers.tasks import Task
from lit_transformers.tasks.strings import Strings
from lit_transformers.training.config import AdamWConfig, OptimizerConfig, TrainingConfig, decay_groups
from lit_transformers.training.groups import (
    FROZEN_NETWORK,
    ParameterGroupConfig,
    ParameterGroups,
    UnfreezingConfig,
    roles_of,
)
from lit_transformers.training.stopping import Interrupted

Groups = list[dict[str, Any]]
SMALL = {"dim": 16, "heads": 2, "depth": 3}
STRINGS = RunConfig.from_dict(
    {
        "model": {"kind": "language_model", "positions": "learned", **SMALL},
        "task": "strings",
        "data": {"kind": "generated", "max_length": 9, "lengths": "uniform", "batch_size": 4},
        "training": {"steps": 6, "device": "cpu", "log_every": 1, "optimizer": {"kind": "adamw", "weight_decay": 0.1}},
    }
).override({"data.evaluation.examples": 20})
NUMBERS = RunConfig.from_dict(
    {
        "model": {"kind": "encoder", "positions": "learned", **SMALL},
        "task": {"kind": "regression", "pooling": "mean"},
        "data": {"kind": "labelled", "source": {"kind": "masked_sum", "train": 64, "validation": 8}, "batch_size": 4},
        "training": {"steps": 6, "device": "cpu"},
    }
)
PAIRS = RunConfig.from_dict(
    {
        "model": {"kind": "encoder_decoder", "positions": "sinusoidal", **SMALL},
        "task": "seq2seq",
        "data": "pairs",
        "training": {"steps": 6, "device": "cpu"},
    }
)
FROZEN_EMBEDDINGS, FROZEN_LAYER = ({"parameters": [role], "frozen": True} for role in ("embeddings", "layer 1"))
LATE = {"training.groups": [FROZEN_EMBEDDINGS, {"parameters": ["layer 1"], "from_step": 3}]}


def is_late(name: str) -> bool:
    return ".blocks.0." in name


def batches(config: RunConfig) -> Iterator[Any]:
    yield next(iter(config.data.build().train_dataloader()))


def task_of(config: RunConfig, groups: Groups) -> Task:
    torch.manual_seed(0)
    grouped = config.override({"training.groups": groups})
    return grouped.build_task(grouped.data.build())


def rates(task: Task) -> dict[str, float]:
    """The rate of each parameter that learns, by its name."""
    optimizer, _ = task.training_config.learn(task, task.groups)
    names = {id(parameter): name for name, parameter in task.named_parameters()}
    return {names[id(p)]: group["initial_lr"] for group in optimizer.param_groups for p in group["params"]}


def weights(directory: Path) -> dict[str, Tensor]:
    return dict(load(directory / CHECKPOINT)[0].named_parameters())


def test_roles_follow_from_what_a_network_is_made_of() -> None:
    task = task_of(NUMBERS, [])
    roles = roles_of(task)
    names = {name for name, _ in task.named_parameters()}
    layers = [roles[f"layer {number}"] for number in (1, 2, 3)]
    assert roles["network"] == {name for name in names if name.startswith("network.")}
    assert roles["heads"] == names - roles["network"] == {"heads.label.map.1.weight", "heads.label.map.1.bias"}
    assert roles["embeddings"] == {"network.tokens.table.weight", "network.stack.entry.positions.weight"}
    assert roles["softmax"] == {"network.tokens.logits.bias"}
    assert all(layer == {name for name in names if f".blocks.{i}." in name} for i, layer in enumerate(layers))
    assert roles["layers"] == layers[0] | layers[1] | layers[2]
    assert roles["mixers"] == {name for name in names if ".mixer." in name}
    assert roles["feedforwards"] == {name for name in names if ".feedforward." in name}
    assert roles["norms"] == {name for name in names if "norm" in name}
    assert roles["biases"] == {name for name in names if name.endswith("bias")} - roles["norms"]


def test_stacks_of_a_network_are_roles_and_shared_layers_are_of_every_step() -> None:
    roles = roles_of(task_of(PAIRS, []))
    assert roles["encoder"] | roles["decoder"] == roles["layers"] and not roles["encoder"] & roles["decoder"]
    assert roles["encoder"] & roles["layer 2"] and roles["decoder"] & roles["layer 2"]
    assert any(".cross." in name for name in roles["mixers"])
    shared = roles_of(task_of(STRINGS.override({"model.stack": "shared"}), []))
    assert shared["layer 1"] == shared["layer 3"] == shared["layers"]


class Marked(nn.Module):
    """Names a role for its gate, but not for the module that it wraps."""

    role = "gates"

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.gate, self.inner = nn.Parameter(torch.zeros(3, 3)), inner
        inner.role = ""  # type: ignore[assignment]


def test_a_module_names_a_role_and_heads_of_a_dictionary_have_their_names() -> None:
    task = task_of(NUMBERS, [])
    block = task.network.stack.steps()[1]  # type: ignore[union-attr, operator]
    block.mixer.query = Marked(block.mixer.query)
    task.heads = nn.ModuleDict({"relation": nn.Linear(2, 2), "words": nn.Linear(2, 2)})  # type: ignore[assignment]
    roles = roles_of(task)
    assert roles["gates"] == {"network.stack.blocks.1.mixer.query.gate"} < roles["layer 2"]
    assert roles["heads.relation"] == {"heads.relation.weight", "heads.relation.bias"} < roles["heads"]


def test_rates_fall_from_layer_to_layer_and_later_groups_count() -> None:
    decayed = {"parameters": ["network", "heads"], "layer_decay": 0.5, "rate": 2.0}
    by_name = rates(task_of(NUMBERS, [decayed, {"parameters": ["norms"], "rate": 3.0}]))
    base = NUMBERS.training.optimizer.learning_rate
    expected = {
        "heads.label.map.1.weight": 2.0,
        "network.stack.blocks.2.mixer.query.weight": 1.0,
        "network.stack.blocks.0.mixer.query.weight": 0.25,
        "network.tokens.table.weight": 0.125,
        "network.stack.blocks.0.mixer_norm.weight": 3.0,
        "network.norm.weight": 3.0,
    }
    assert {name: by_name[name] / base for name in expected} == pytest.approx(expected)
    uneven = PAIRS.override({"model.decoder_depth": 2})
    pairs = rates(task_of(uneven, [{"parameters": ["network"], "layer_decay": 0.5}]))
    tops = ("network.encoder.blocks.2.mixer.query.weight", "network.decoder.blocks.1.mixer.query.weight")
    assert [pairs[name] / base for name in tops] == [0.5, 0.5], "each stack is counted from its own top"


def test_a_group_has_a_decay_of_its_own_for_matrices_alone() -> None:
    task = task_of(STRINGS, [{"parameters": ["layers 1-2"], "decay": 0.7}])
    optimizer, _ = task.training_config.learn(task, task.groups)
    names = {id(parameter): name for name, parameter in task.named_parameters()}
    decays = {names[id(p)]: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {decays[name] for name in decays if ".blocks.1." in name} == {0.7, 0.0}
    assert {decays[name] for name in decays if ".blocks.2." in name} == {0.1, 0.0}
    assert decays["network.stack.blocks.1.feedforward.narrow.bias"] == 0.0


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            [{"parameters": ["layer 4"], "rate": 2.0}],
            r"training\.groups\.0\.parameters: no trained parameter has the role 'layer 4'; the roles are: biases, "
            r"down, embeddings, feedforwards, heads, heads\.label, key, layers, mixers, network, norms, output, query, "
            r"up, value, layer 1 to layer 3$",
        ),
        ([{"parameters": ["softmax"], "rate": 2.0}], "no trained parameter has the role 'softmax'"),
        ([{"parameters": ["layers 3-1"], "rate": 2.0}], "has the role 'layers 3-1'"),
        ([{"parameters": ["layers 2-9999999999"], "rate": 2.0}], "has the role 'layer 4'"),
        (
            [{"parameters": ["layer 1"], "rate": 2.0}, {"parameters": ["layers"]}],
            r"groups\.0: .* to later groups",
        ),
        (
            [{"parameters": ["network", "heads"], "frozen": True}],
            r"training\.groups: nothing learns from the first step",
        ),
        ([{"parameters": [], "rate": 2.0}], r"set training\.groups\.0\.parameters to roles"),
        ([{"parameters": ["network", "heads"], "from_step": 1}], "nothing learns from the first step"),
        ([{"parameters": ["heads"], "rate": 0.0}], r"rate of 0 nothing learns; set training\.groups\.0\.frozen"),
        (
            [{"parameters": ["heads"], "frozen": True, "from_step": 2}],
            "frozen parameters have no rate, no decay and no first step",
        ),
        ([{"parameters": ["heads"], "mode": "eval"}], "mode eval is for frozen parameters"),
        ([{"parameters": ["heads"], "from_step": 6}], "learns from step 6 on, but there are 6 steps"),
    ],
)
def test_groups_of_nothing_or_without_effect_are_refused(groups: Groups, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        describe(NUMBERS.override({"training.groups": groups}))


def stop_in_step(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Lets SIGTERM come in a training step, counted from 1."""
    step, calls = Strings.training_step, iter(range(1000))  # the first one is the rehearsal's

    def step_and_stop(task: Strings, batch: Any, index: int) -> dict[str, Any]:
        if next(calls) == number:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(task, batch, index)

    monkeypatch.setattr(Strings, "training_step", step_and_stop)


def fit_until(config: RunConfig, directory: Path, step: int) -> None:
    """Does a run up to a step, at which it is stopped."""
    with pytest.MonkeyPatch.context() as patch:
        stop_in_step(patch, step)
        with pytest.raises(Interrupted, match=f"stopped at step {step};"):
            fit(config, directory)


def start_of(config: RunConfig) -> dict[str, Tensor]:
    torch.manual_seed(config.seed)
    return dict(config.build_task(config.data.build()).named_parameters())


def test_what_learns_later_is_as_if_frozen_until_then(tmp_path: Path) -> None:
    """To the bit: gradients are clipped by the norm of learning parameters alone, and the others have no decay and no
    moments."""
    late = STRINGS.override(LATE | {"training.clip": 0.1, "training.schedule": "constant"})
    frozen = late.override({"training.steps": 3, "training.groups": [FROZEN_EMBEDDINGS, FROZEN_LAYER]})
    late_run = tmp_path / "late" / "run"
    fit_until(late, late_run, 3)
    fit(frozen, tmp_path / "frozen" / "run")
    task, frozen_weights, start = load(late_run / CHECKPOINT)[0], weights(tmp_path / "frozen" / "run"), start_of(late)
    late_weights, embeddings = dict(task.named_parameters()), roles_of(task)["embeddings"]
    for name in start:
        assert torch.equal(late_weights[name], frozen_weights[name]), name
        assert torch.equal(late_weights[name], start[name]) == (is_late(name) or name in embeddings), name
    fit_until(late.override({"training.steps": 7}), tmp_path / "later" / "run", 5)
    state = torch.load(tmp_path / "later" / "run" / CHECKPOINT, weights_only=True)["optimizer_states"][0]["state"]
    steps = {name: float(state[number]["step"]) for number, name in enumerate(start) if number in state}
    assert {name: 2.0 if is_late(name) else 5.0 for name in steps} == steps and len(steps) == len(start) - 2


class Updates(L.Callback):
    """Holds the weights before and after each update, and all gradients as they were computed."""

    def __init__(self) -> None:
        self.updates: list[tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]] = []

    def on_after_backward(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        named = dict(task.named_parameters())
        self.before = {name: parameter.detach().clone() for name, parameter in named.items()}
        self.gradients = {name: p.grad.clone() for name, p in named.items() if p.grad is not None}

    def on_train_batch_end(self, trainer: L.Trainer, task: L.LightningModule, *_: Any) -> None:
        after = {name: parameter.detach().clone() for name, parameter in task.named_parameters()}
        self.updates.append((self.before, self.gradients, after))


def depth_below_heads(name: str) -> int:
    """Counted by hand: 0 above the layers, 3 in the lowest of three, 4 in embeddings."""
    if found := re.search(r"blocks\.(\d)", name):
        return 3 - int(found[1])
    return 4 if "tokens.table" in name or "positions" in name else 0


def test_layers_thaw_from_the_top_and_each_moves_at_its_rate(tmp_path: Path) -> None:
    """By the equations: slanted triangular rates, times 0.5 for every layer above, from the update on at which a layer
    thaws (arXiv:1801.06146, equations 2 and 3, section 3.3)."""
    config = NUMBERS.override(
        {
            "training.steps": 10,
            "training.clip": None,
            "training.optimizer": {"kind": "sgd", "momentum": 0.0, "learning_rate": 0.1},
            "training.schedule": {"kind": "slanted_triangular", "rise": 0.4, "ratio": 8.0},
            "training.unfreezing": {"every": 2},
            "training.groups": [
                {"parameters": ["network"], "layer_decay": 0.5},
                {"parameters": ["layer 3"], "layer_decay": 0.5, "from_step": 5},
            ],
        }
    )
    task, updates = task_of(config, [group.to_dict() for group in config.training.groups]), Updates()
    make_trainer(config.training, tmp_path, [updates]).fit(task, config.data.build())
    assert len(updates.updates) == 10
    for step, (before, gradients, after) in enumerate(updates.updates):
        rise = step / 4 if step < 4 else 1 - (step - 4) / 6
        for name, weight in before.items():
            depth = depth_below_heads(name)
            begins = 5 if ".blocks.2." in name else 2 * depth
            rate = 0.1 * (1 + 7 * rise) / 8 * 0.5**depth if step >= begins else 0.0
            expected = weight - rate * gradients[name] if name in gradients else weight
            torch.testing.assert_close(after[name], expected, rtol=1e-6, atol=1e-7)
            assert torch.equal(after[name], weight) or step >= begins, (name, step)


def test_unfreezing_that_would_never_reach_the_lowest_layer_is_refused_with_the_longest_interval() -> None:
    late = (
        r"unfreezing\.every: the lowest part would learn from step 8 on, but there are 6 steps; set it to at most 1, "
        "or freeze"
    )
    with pytest.raises(ConfigError, match=late):
        describe(NUMBERS.override({"training.unfreezing": {"every": 2}}))
    frozen = [{"parameters": ["embeddings", "layer 1", "layer 2"], "frozen": True}]
    describe(NUMBERS.override({"training.unfreezing": {"every": 2}, "training.groups": frozen}))


AVERAGE = {"training.average": {"last": 3, "every": 1}}
ADAPTED = {"model.adapter": {"kind": "vera", "rank": 4}}
UNFREEZING = {"training.unfreezing": {"every": 1}, "training.schedule": "slanted_triangular"}
BEST = {"training.validate_every": 2, "training.stop": {"patience": None}, "training.keep": "best"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "step"),
    [(AVERAGE, 2), (AVERAGE, 3), (AVERAGE, 4), (BEST, 4), (UNFREEZING, 3), (ADAPTED, 3)],
    ids=["average-2", "average-3", "average-4", "best-4", "unfreezing-3", "adapters-3"],
)
def test_a_run_with_groups_goes_on_as_if_never_stopped_and_leaves_what_is_frozen(
    changes: dict[str, Any], step: int, tmp_path: Path
) -> None:
    groups = [*LATE["training.groups"], {"parameters": ["layer 3"], "rate": 0.5, "decay": 0.3}]
    config = STRINGS.override(changes | {"training.groups": groups, "model.dropout": 0.2})
    fit(config, tmp_path / "whole" / "run")
    fit_until(config, tmp_path / "stopped" / "run", step)
    fit(config, tmp_path / "stopped" / "run")
    whole, stopped, start = weights(tmp_path / "whole" / "run"), weights(tmp_path / "stopped" / "run"), start_of(config)
    assert all(torch.equal(whole[name], stopped[name]) for name in start)
    assert {name for name in start if torch.equal(whole[name], start[name])} == {
        "network.tokens.table.weight",
        "network.stack.entry.positions.weight",
    }


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_begin_with_a_part_later_as_one_process_does_and_go_on_before_and_after(
    strategy: str, tmp_path: Path
) -> None:
    late, slow = {"parameters": ["layer 1"], "from_step": 20}, {"parameters": ["layer 3"], "rate": 0.5}
    alone = STRINGS.override(
        {"training.steps": 40, "training.groups": [FROZEN_EMBEDDINGS, late, slow], "data.batch_size": 8}
    )
    together = alone.override({"training.devices": 2, "training.strategy": strategy})
    expected = fit(alone, tmp_path / "alone")
    ranks = training(together, tmp_path / "together", 0.0)
    ranks.until((tmp_path / "together" / CHECKPOINT).exists)
    ranks.send(signal.SIGTERM)
    assert ranks.wait() == [143, 143], ranks.log.read_text()
    assert torch.load(tmp_path / "together" / CHECKPOINT, weights_only=True)["global_step"] < 20
    training(together, tmp_path / "together").finish()
    for name, weight in weights(tmp_path / "together").items():
        torch.testing.assert_close(weight, weights(tmp_path / "alone")[name], rtol=1e-3, atol=1e-5)
    assert expected["outcome"] == "finished"


@pytest.mark.parametrize("stack", [*STACKS, {"kind": "reversible", "recompute": False}], ids=str)
def test_gradients_of_the_rest_are_those_without_anything_frozen(stack: str | dict[str, Any]) -> None:
    """Also where a stack computes its backward pass itself."""
    config = STRINGS.override({"model.stack": stack, "model.depth": 4})
    (batch,) = batches(config)
    gradients = []
    for groups in ([], [{"parameters": ["embeddings", "mixers"], "frozen": True}]):
        task = task_of(config, groups).train()
        torch.manual_seed(0)
        task.training_step(batch, 0)["loss"].backward()
        gradients.append({name: p.grad for name, p in task.named_parameters() if p.grad is not None})
    whole, part = gradients
    assert {name for name in whole if name not in part} == roles_of(task)["mixers"] | roles_of(task)["embeddings"]
    assert all(torch.equal(whole[name], part[name]) for name in part)


ONLY_ADAPTERS: Groups = [{"parameters": ["network"], "frozen": True}, {"parameters": ["adapters"]}]
MAPS = ["query", "key", "value", "output", "up", "down"]
ADAPTERS = {
    "bottleneck": {"kind": "bottleneck", "width": 4},
    "parallel": {"kind": "parallel", "width": 4, "sublayers": "both"},
    "low_rank": {"kind": "low_rank", "rank": 2, "maps": MAPS},
    "dora": {"kind": "dora", "rank": 1, "maps": MAPS},
    "vera": {"kind": "vera", "rank": 8, "maps": MAPS},
    "ia3": {"kind": "ia3", "maps": MAPS},
}
COUNTED: dict[str, tuple[RunConfig, Groups]] = {
    "nothing": (NUMBERS, []),
    "a network": (NUMBERS, [{"parameters": ["network"], "frozen": True}]),
    "lower layers": (NUMBERS, [{"parameters": ["embeddings", "layers 1-2"], "frozen": True}]),
    "upper layers": (NUMBERS, [{"parameters": ["layers 2-3"], "frozen": True}]),
    "lower layers with norms behind": (
        NUMBERS.override({"model.norm": "post"}),
        [{"parameters": ["embeddings", "layers 1-2"], "frozen": True}],
    ),
    "all but biases": (NUMBERS, [{"parameters": ["network"], "frozen": True}, {"parameters": ["biases"]}]),
    "layers below a softmax": (STRINGS, [{"parameters": ["layers"], "frozen": True}]),
    "the softmax with embeddings": (
        STRINGS.override({"data.generator": {"kind": "copy", "alphabet": 60}}),
        [{"parameters": ["embeddings"], "frozen": True}],
    ),
    "a shared layer": (
        STRINGS.override({"model.stack": "shared"}),
        [{"parameters": ["mixers"], "frozen": True}],
    ),
    "an encoder": (PAIRS, [{"parameters": ["encoder", "embeddings"], "frozen": True}]),
    "a decoder": (PAIRS, [{"parameters": ["decoder"], "frozen": True}]),
    **{
        f"all but {kind}": (NUMBERS.override({"model.adapter": adapter}), ONLY_ADAPTERS)
        for kind, adapter in ADAPTERS.items()
    },
    "the matrices of vera": (NUMBERS.override({"model.adapter": ADAPTERS["vera"]}), []),
    "dora and its layers": (
        NUMBERS.override({"model.adapter": ADAPTERS["dora"]}),
        [{"parameters": ["layers"], "frozen": True}],
    ),
}


@pytest.mark.parametrize(("config", "groups"), COUNTED.values(), ids=COUNTED)
def test_flops_of_a_step_are_those_of_the_gradients_that_are_computed(config: RunConfig, groups: Groups) -> None:
    """The tolerance is for the lowest sublayer that learns, whose inputs need no gradient, and for masked attention."""
    task = task_of(config, groups)
    data = config.data.build()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        task.training_step(config.task.random_batch(data.description), 0)["loss"].backward()
    description = describe(config.override({"training.groups": groups}), data)
    counted = counter.get_total_flops() / (2 * config.task.counted_lengths(data.description)[1])
    assert description.train_flops_per_token == pytest.approx(counted, rel=0.03)
    learning = sum(parameter.numel() for parameter in task.parameters() if parameter.requires_grad)
    assert description.parameters - description.frozen_parameters == learning
    assert description.train_flops == description.train_flops_per_token * description.tokens


def test_a_config_from_before_there_were_groups_means_the_same(tmp_path: Path) -> None:
    plain = NUMBERS.to_dict()
    former = {**plain, "task": plain["task"] | {"frozen": True}}
    config = RunConfig.from_dict(former)
    assert config.training.groups == (FROZEN_NETWORK,)
    assert RunConfig.from_dict({**plain, "task": plain["task"] | {"frozen": False}}) == NUMBERS
    fit(config, tmp_path)
    checkpoint = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    hyperparameters = checkpoint[Task.CHECKPOINT_HYPER_PARAMS_KEY]
    hyperparameters["config"]["frozen"], hyperparameters["training"]["groups"] = True, []
    torch.save(checkpoint, tmp_path / "former.ckpt")
    assert Task.load_from_checkpoint(tmp_path / "former.ckpt").training_config.groups == (FROZEN_NETWORK,)
    with pytest.raises(ConfigError, match=r"no field 'frozen'; set training\.groups='\[\{parameters: \[network"):
        NUMBERS.override({"task.frozen": True})


class OneRate(torch.optim.Optimizer):
    """Steps by its own rate, which no group has."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})


def test_an_optimizer_that_builds_for_a_network_alone_is_divided_or_refused_by_name() -> None:
    groups = [ParameterGroupConfig(parameters=("layer 1",), rate=0.5), ParameterGroupConfig(parameters=("biases",))]
    built = {
        "fine": lambda parameters: torch.optim.NAdam(parameters, lr=0.1),
        "single": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1),
        "fixed": OneRate,
    }
    for kind, make in built.items():
        task = task_of(STRINGS, [])
        optimizer, formed = make([*task.parameters()]), ParameterGroups(task, groups)
        if kind == "fine":
            formed.divide(optimizer, task, kind)
            assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.05]
            assert sum(len(group["params"]) for group in optimizer.param_groups) == len([*task.parameters()])
        else:
            with pytest.raises(ConfigError, match=f"training.groups: an optimizer {kind} has "):
                formed.divide(optimizer, task, kind)


class OtherConfig(OptimizerConfig, kind="other"):
    """An optimizer whose moments may begin with anything."""


def test_what_sharded_ranks_cannot_restore_is_refused() -> None:
    late = ParameterGroupConfig(parameters=("layer 1",), from_step=1)
    settings: dict[str, Any] = {"groups": (late,), "strategy": "fsdp", "devices": 2}
    assert TrainingConfig(**settings).optimizer.zero_moments
    message = "but other has none before from_step or unfreezing; set strategy to ddp"
    for later in (settings, settings | {"groups": (), "unfreezing": UnfreezingConfig(every=1)}):
        with pytest.raises(ConfigError, match=message):
            TrainingConfig(optimizer=OtherConfig(), **later)


class LayerwiseConfig(AdamWConfig, kind="layerwise"):
    """AdamW from outside. decay: the factor of the rate from one layer to the one below."""

    decay: float = 0.8

    def build(self, network: nn.Module) -> torch.optim.Optimizer:
        names = {id(parameter): name for name, parameter in network.named_parameters()}
        layers = {key: int(match[1]) for key, name in names.items() if (match := re.search(r"blocks\.(\d+)", name))}
        top, groups = max(layers.values(), default=0), []
        for group in decay_groups(network, self.weight_decay):
            for parameter in group["params"]:
                rate = self.learning_rate * self.decay ** (top - layers.get(id(parameter), top))
                groups.append({**group, "params": [parameter], "lr": rate})
        return torch.optim.AdamW(groups, betas=(self.beta1, self.beta2), eps=self.epsilon)


def test_an_optimizer_whose_rate_falls_from_layer_to_layer_keeps_the_contract() -> None:
    case = LayerwiseConfig()
    gates = [gate for name, check in checks_of(case) for gate in run_check(name, check)]
    assert len(gates) > 6 and [gate for gate in gates if not gate.passed] == []
