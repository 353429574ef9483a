"""Adapters of maps on a BERT of transformers equal the adapters of peft, and an encoder with adapters is trained,
exported and converted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from copying import EAGER, close, randomise
from torch import Tensor

from lit_transformers.adapters import Adapter, LowRankConfig, adapter_names
from lit_transformers.batch import RowDescription, Vocabulary
from lit_transformers.config import ConfigError
from lit_transformers.exchange.changed_network import convert_weights
from lit_transformers.exchange.transfer import export_weights, import_weights
from lit_transformers.models import ModelConfig
from lit_transformers.models.encoder import Encoder
from lit_transformers.runs import RunConfig, fit
from lit_transformers.runs.starting_weights import own_names, read_weights, write_weights

transformers = pytest.importorskip("transformers", reason="compares with transformers, a test dependency")

SYMBOLS, LENGTH, TOLERANCE = 37, 13, 1e-12
SIZES: dict[str, Any] = {
    "vocab_size": SYMBOLS,
    "hidden_size": 21,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 29,
    "max_position_embeddings": 24,
    **EAGER,
}
THEIR_NAMES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "output": "attention.output.dense",
    "up": "intermediate.dense",
    "down": "output.dense",
}
OUR_NAMES = {
    "query": "mixer.query",
    "key": "mixer.key",
    "value": "mixer.value",
    "output": "mixer.merge",
    "up": "feedforward.widen",
    "down": "feedforward.narrow",
}
BOTTLENECK = {"kind": "bottleneck", "width": 4}
LOW_RANK = {"kind": "low_rank", "rank": 3, "alpha": 5.0, "maps": ["query", "output", "down"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of transformers with random weights."""
    folder = tmp_path_factory.mktemp("theirs")
    theirs = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES))
    randomise(theirs)
    theirs.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def imported(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("imports") / "weights"
    import_weights(str(folder), place)
    return place


def network_of(model: ModelConfig, tensors: dict[str, Tensor]) -> Encoder:
    """The network with these weights, in double precision; missing weights keep their initial values."""
    vocabulary = Vocabulary(size=SYMBOLS, boundary=2, unit="piece", byte_lengths=None)
    network = model.build(RowDescription.for_probe(vocabulary, 24))
    assert isinstance(network, Encoder)
    own = {name.removeprefix("network."): tensor for name, tensor in tensors.items()}
    missing, _ = network.load_state_dict(own, strict=False)
    tied = {name for name in missing if name == "tokens.logits.weight"}
    absent, first = {*missing} - tied, own_names(network)
    assert absent == adapter_names(network) or all(first[name] != name and first[name] in own for name in absent)
    return network.double().eval()


def rows() -> tuple[Tensor, Tensor]:
    padding_mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [7], [LENGTH - 2]])
    return torch.randint(2, SYMBOLS, padding_mask.shape, generator=torch.Generator().manual_seed(1)), padding_mask


def hidden(network: Encoder) -> Tensor:
    vectors: Tensor = network(*rows()).hidden
    return vectors[rows()[1]]


@pytest.mark.parametrize("roles", [("query", "value"), tuple(THEIR_NAMES)], ids=["default", "all"])
def test_outputs_and_gradients_are_those_of_peft(roles: tuple[str, ...], folder: Path, imported: Path) -> None:
    peft = pytest.importorskip("peft", reason="compares with peft, a test dependency")
    rank, alpha = 3, 5.0
    layers = [f"encoder.layer.{layer}.{THEIR_NAMES[role]}" for layer in range(2) for role in roles]
    lora = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=layers, bias="none")
    theirs = peft.get_peft_model(transformers.BertModel.from_pretrained(folder, **EAGER), lora).double().eval()
    weights = read_weights(imported / "weights.safetensors")
    adapter = LowRankConfig.from_dict({"kind": "low_rank", "rank": rank, "alpha": alpha, "maps": roles})
    ours = network_of(weights.model.override({"adapter": adapter}), weights.tensors).requires_grad_(False)
    symbols, padding_mask = rows()
    pairs: list[tuple[Tensor, Tensor]] = []
    torch.manual_seed(0)
    for layer in range(2):
        for role in roles:
            module = ours.get_submodule(f"stack.blocks.{layer}.{OUR_NAMES[role]}.adapter")
            their_module = theirs.base_model.model.get_submodule(f"encoder.layer.{layer}.{THEIR_NAMES[role]}")
            for own, matrices in (("down", their_module.lora_A), ("up", their_module.lora_B)):
                parameter = module.get_parameter(own).requires_grad_(True)
                torch.nn.init.normal_(parameter, std=0.3)
                matrices["default"].weight.data.copy_(parameter.detach())
                pairs.append((parameter, matrices["default"].weight))
    assert len(pairs) == len(adapter_names(ours)) == 4 * len(roles)
    expected = theirs(input_ids=symbols, attention_mask=padding_mask.long()).last_hidden_state[padding_mask]
    output = hidden(ours)
    close(output, expected, TOLERANCE)
    direction = torch.randn_like(expected)
    gradients = torch.autograd.grad((output * direction).sum(), [own for own, _ in pairs])
    their_gradients = torch.autograd.grad((expected * direction).sum(), [theirs for _, theirs in pairs])
    for gradient, their_gradient in zip(gradients, their_gradients, strict=True):
        assert gradient.any()
        close(gradient, their_gradient, TOLERANCE)


class Method(NamedTuple):
    """An adapter of ours, the config of peft for the same maps, and the pairs of weights that a map has."""

    ours: dict[str, Any]
    theirs: Callable[[Any, list[str]], Any]
    pairs: Callable[[Any, Any], list[tuple[Tensor, Tensor, Tensor]]]


def dora_pairs(own: Any, theirs: Any) -> list[tuple[Tensor, Tensor, Tensor]]:
    """A magnitude is the gain of ours multiplied by the norm of each row."""
    norms = theirs.base_layer.weight.norm(dim=1)
    ones = torch.ones(())
    return [
        (own.down, theirs.lora_A["default"].weight, ones),
        (own.up, theirs.lora_B["default"].weight, ones),
        (own.gain, theirs.lora_magnitude_vector["default"].weight, norms),
    ]


def ia3_pairs(own: Any, theirs: Any) -> list[tuple[Tensor, Tensor, Tensor]]:
    return [(own.inputs if own.outputs is None else own.outputs, theirs.ia3_l["default"], torch.ones(()))]


def vera_pairs(own: Any, theirs: Any) -> list[tuple[Tensor, Tensor, Tensor]]:
    """peft shares one pair of matrices among maps of all sizes, which read the first columns and rows of it."""
    own.projections.down.copy_(theirs.vera_A["default"][:, : theirs.in_features])
    own.projections.up.copy_(theirs.vera_B["default"][: theirs.out_features])
    ones = torch.ones(())
    return [(own.ranks, theirs.vera_lambda_d["default"], ones), (own.outputs, theirs.vera_lambda_b["default"], ones)]


METHODS = {
    "dora": Method(
        {"kind": "dora", "rank": 3, "alpha": 5.0, "maps": [*THEIR_NAMES]},
        lambda peft, layers: peft.LoraConfig(r=3, lora_alpha=5.0, use_dora=True, target_modules=layers),
        dora_pairs,
    ),
    "ia3": Method(
        {"kind": "ia3", "maps": [*THEIR_NAMES]},
        lambda peft, layers: peft.IA3Config(
            target_modules=layers,
            feedforward_modules=[layer for layer in layers if layer.endswith("output.dense") and "att" not in layer],
        ),
        ia3_pairs,
    ),
    "vera": Method(
        {"kind": "vera", "rank": 5, "maps": [*THEIR_NAMES]},
        lambda peft, layers: peft.VeraConfig(r=5, target_modules=layers),
        vera_pairs,
    ),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_outputs_and_gradients_of_other_adapters_are_those_of_peft(
    method: Method, folder: Path, imported: Path
) -> None:
    peft = pytest.importorskip("peft", reason="compares with peft, a test dependency")
    roles = method.ours["maps"]
    layers = [f"encoder.layer.{layer}.{THEIR_NAMES[role]}" for layer in range(2) for role in roles]
    bert = transformers.BertModel.from_pretrained(folder, **EAGER)
    theirs = peft.get_peft_model(bert, method.theirs(peft, layers)).double().eval()
    weights = read_weights(imported / "weights.safetensors")
    ours = network_of(weights.model.override({"adapter": method.ours}), weights.tensors).requires_grad_(False)
    symbols, padding_mask = rows()
    torch.manual_seed(0)
    triples: list[tuple[Tensor, Tensor, Tensor]] = []
    for layer in range(2):
        for role in roles:
            own = ours.get_submodule(f"stack.blocks.{layer}.{OUR_NAMES[role]}.adapter")
            their_module = theirs.base_model.model.get_submodule(f"encoder.layer.{layer}.{THEIR_NAMES[role]}")
            triples += method.pairs(own, their_module)
    for parameter, their_parameter, factor in triples:
        torch.nn.init.normal_(parameter.requires_grad_(True), std=0.3)
        their_parameter.data.copy_((parameter.detach() * factor).view_as(their_parameter))
        their_parameter.requires_grad_(True)
    assert len(triples) == sum(parameter.requires_grad for parameter in ours.parameters())
    expected = theirs(input_ids=symbols, attention_mask=padding_mask.long()).last_hidden_state[padding_mask]
    output = hidden(ours)
    close(output, expected, TOLERANCE)
    direction = torch.randn_like(expected)
    gradients = torch.autograd.grad((output * direction).sum(), [own for own, _, _ in triples])
    their_gradients = torch.autograd.grad((expected * direction).sum(), [theirs for _, theirs, _ in triples])
    for gradient, their_gradient, (_, _, factor) in zip(gradients, their_gradients, triples, strict=True):
        assert gradient.any()
        close(gradient, their_gradient.view_as(gradient) * factor, TOLERANCE)


def with_adapter(imported: Path, adapter: dict[str, Any], place: Path) -> Path:
    """The imported weights, with adapters as they start."""
    notes = convert_weights(imported, place, {"model.adapter": adapter}).notes
    assert any("adapter: starts anew" in note for note in notes)
    return place / "weights.safetensors"


OTHERS = [method.ours for method in METHODS.values()]


@pytest.mark.parametrize("adapter", [BOTTLENECK, LOW_RANK, *OTHERS], ids=lambda adapter: adapter["kind"])
def test_an_imported_encoder_with_adapters_starts_as_it_was_to_the_bit(
    adapter: dict[str, Any], imported: Path, tmp_path: Path
) -> None:
    weights = read_weights(imported / "weights.safetensors")
    plain = hidden(network_of(weights.model, weights.tensors))
    loaded = network_of(weights.model.override({"adapter": adapter}), weights.tensors)
    assert torch.equal(hidden(loaded), plain)
    converted = read_weights(with_adapter(imported, adapter, tmp_path / "adapted"))
    assert torch.equal(hidden(network_of(converted.model, converted.tensors)), plain)


def run_of(weights: Path) -> RunConfig:
    source = {"kind": "masked_sum", "train": 20, "validation": 4, "length": 20, "levels": 18}
    return RunConfig.from_dict(
        {
            "model": read_weights(weights).model,
            "task": "regression",
            "data": {"kind": "labelled", "source": source, "batch_size": 2},
            "training": {"steps": 3, "device": "cpu", "optimizer": {"kind": "sgd", "learning_rate": 0.1}},
            "weights": str(weights),
        }
    )


@pytest.fixture(scope="module")
def trained(imported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a run that trained an imported encoder with maps of low rank."""
    place = tmp_path_factory.mktemp("trained")
    record = fit(run_of(with_adapter(imported, LOW_RANK, place / "adapted")), place / "run")
    assert record["outcome"] == "finished", record
    return place / "run" / "checkpoint.ckpt"


def test_what_low_rank_has_learned_is_merged_into_what_is_exported(trained: Path, tmp_path: Path) -> None:
    weights = read_weights(trained)
    network = network_of(weights.model, weights.tensors)
    assert all(module.up.any() for module in network.modules() if isinstance(module, Adapter))
    exported = export_weights(trained, tmp_path / "out")
    assert exported.notes[0] == "adapter: low_rank, merged into the weights"
    theirs = transformers.BertModel.from_pretrained(tmp_path / "out", **EAGER).double().eval()
    symbols, padding_mask = rows()
    expected = theirs(input_ids=symbols, attention_mask=padding_mask.long()).last_hidden_state[padding_mask]
    close(hidden(network), expected, 1e-5)


def test_a_network_without_adapters_is_made_of_one_with_them(trained: Path, tmp_path: Path) -> None:
    notes = convert_weights(trained, tmp_path / "plain", {"model.adapter": None}).notes
    assert notes[0] == "adapter: low_rank, merged into the weights" and not [
        note for note in notes if "network." in note
    ]
    plain, weights = read_weights(tmp_path / "plain" / "weights.safetensors"), read_weights(trained)
    expected = hidden(network_of(weights.model, weights.tensors))
    close(hidden(network_of(plain.model, plain.tensors)), expected, 1e-5)


def test_a_bottleneck_is_not_exported_and_not_left_out(imported: Path, tmp_path: Path) -> None:
    adapted = with_adapter(imported, BOTTLENECK, tmp_path / "adapted")
    with pytest.raises(ConfigError, match=r"model\.adapter: a bottleneck adapter cannot be merged into the weights"):
        export_weights(adapted, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"model\.adapter: a bottleneck adapter cannot be merged into the weights"):
        convert_weights(adapted, tmp_path / "out", {"model.adapter": None})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("adapter", OTHERS, ids=lambda adapter: adapter["kind"])
def test_adapters_in_a_file_of_weights_are_merged_into_what_is_exported(
    adapter: dict[str, Any], imported: Path, tmp_path: Path
) -> None:
    """Of matrices that maps share, the file has one copy."""
    file = with_adapter(imported, adapter, tmp_path / "adapted")
    weights, generator = read_weights(file), torch.Generator().manual_seed(0)
    learned = (".up", ".gain", ".inputs", ".outputs")
    for name in sorted(name for name in weights.tensors if ".adapter." in name and name.endswith(learned)):
        tensor = weights.tensors[name]
        tensor.add_(0.3 * torch.randn(tensor.shape, generator=generator))
    write_weights(file, weights)
    expected = hidden(network_of(weights.model, weights.tensors))
    plain = read_weights(imported / "weights.safetensors")
    assert (hidden(network_of(plain.model, plain.tensors)) - expected).abs().max() > 0.01
    notes = export_weights(file, tmp_path / "out").notes
    assert notes[0] == f"adapter: {adapter['kind']}, merged into the weights"
    theirs = transformers.BertModel.from_pretrained(tmp_path / "out", **EAGER).double().eval()
    symbols, padding_mask = rows()
    exported = theirs(input_ids=symbols, attention_mask=padding_mask.long()).last_hidden_state[padding_mask]
    close(expected, exported, 1e-5)
