"""Weights of transformers' ModernBERT give the same numbers here, and those written here give the same numbers there.

In single precision, for its softmax and its rotary positions are. Rows are longer than its windows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from copying import EAGER, close, randomise
from safetensors.torch import load_file
from starting import start_from_file
from torch import Tensor

from lit_transformers.batch import RowDescription, Vocabulary
from lit_transformers.config import ConfigError
from lit_transformers.encodings import RotaryConfig
from lit_transformers.exchange.transfer import export_weights, import_weights
from lit_transformers.mixers import WindowConfig
from lit_transformers.models import EncoderConfig
from lit_transformers.models.tokens import FullTokenEmbeddingConfig
from lit_transformers.runs.starting_weights import StartingWeights, read_weights, write_weights
from lit_transformers.stacks.feedforward import FeedForwardConfig
from lit_transformers.tasks import MaskedLMConfig
from lit_transformers.tasks.masked_lm import MaskedLM
from lit_transformers.training.config import TrainingConfig

transformers = pytest.importorskip("transformers", reason="compares with transformers, a test dependency")

SYMBOLS, LENGTH, TOLERANCE = 37, 19, 1e-5
SIZES: dict[str, Any] = {
    "vocab_size": SYMBOLS,
    "hidden_size": 18,
    "num_hidden_layers": 5,
    "num_attention_heads": 3,
    "intermediate_size": 29,
    "local_attention": 6,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0),
    **EAGER,
}
DATA = RowDescription(
    vocabulary=Vocabulary(size=SYMBOLS, boundary=2, unit="piece", byte_lengths=None),
    length=LENGTH,
    mask=3,
    separator=4,
    segments=1,
    predictions=4,
)
CASES: dict[str, dict[str, Any]] = {
    "as released": {},
    "with biases, untied, of other sizes": {
        **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), True),
        "decoder_bias": False,
        "tie_word_embeddings": False,
        "hidden_activation": "silu",
        "classifier_activation": "relu",
        "norm_eps": 1e-3,
        "layer_types": [*["full_attention", "sliding_attention"] * 2, "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 300.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
        },
    },
}


def saved(folder: Path, **changes: Any) -> Any:
    """A ModernBERT with random weights, and its folder."""
    model = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**SIZES | changes))
    randomise(model, std=0.3)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight.add_(1.0)
    model.save_pretrained(folder)
    return model.eval()


def our_task(imported: Path) -> MaskedLM:
    weights = imported / "weights.safetensors"
    task = MaskedLMConfig().build(read_weights(weights).model, DATA, TrainingConfig())
    assert start_from_file(task, weights) == []
    return task.eval()


def batch() -> tuple[Tensor, Tensor]:
    """Symbols of rows of several lengths, and where they are real."""
    padding_mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [7], [LENGTH - 2]])
    symbols = torch.randint(1, SYMBOLS, padding_mask.shape, generator=torch.Generator().manual_seed(1))
    return symbols.masked_fill(~padding_mask, 0), padding_mask


def their_outputs(model: Any) -> tuple[Tensor, Tensor]:
    symbols, real = batch()
    hidden = model.model(symbols, attention_mask=real.long()).last_hidden_state[real]
    return hidden, model.decoder(model.head(hidden)).log_softmax(dim=-1)


def our_outputs(task: MaskedLM) -> tuple[Tensor, Tensor]:
    symbols, real = batch()
    hidden = task.network.read_row(symbols, real, torch.zeros_like(real)).hidden[real]
    return hidden, task.network.tokens.log_probabilities(task.network.predict(hidden))


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_hidden_states_and_logits_are_those_of_transformers_and_of_what_is_exported(name: str, tmp_path: Path) -> None:
    theirs = saved(tmp_path / "theirs", **CASES[name])
    notes = import_weights(str(tmp_path / "theirs"), tmp_path / "in").notes
    assert [note.partition(":")[0] for note in notes] == ["pooler", "relation head", "tokenizer"]
    ours, expected = our_outputs(our_task(tmp_path / "in")), their_outputs(theirs)
    symbols, real = batch()
    close(theirs(symbols, attention_mask=real.long()).logits[real].log_softmax(dim=-1), expected[1], 1e-6)
    for our_output, their_output in zip(ours, expected, strict=True):
        close(our_output, their_output, TOLERANCE)
    exported = export_weights(tmp_path / "in", tmp_path / "out")
    assert exported.architecture == "modernbert (ModernBertForMaskedLM)"
    again, report = transformers.AutoModelForMaskedLM.from_pretrained(
        tmp_path / "out", output_loading_info=True, **EAGER
    )
    assert not any(report[key] for key in ("missing_keys", "mismatched_keys", "unexpected_keys"))
    for their_output, expected_output in zip(their_outputs(again.eval()), expected, strict=True):
        assert torch.equal(their_output, expected_output)
    written, original = (load_file(tmp_path / folder / "model.safetensors") for folder in ("out", "theirs"))
    assert all(torch.equal(written[name], tensor) for name, tensor in original.items())


def change(folder: Path, **fields: Any) -> None:
    """Changes fields of a folder's config.json; those that are None are left out."""
    path = folder / "config.json"
    changed = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in changed.items() if value is not None}))


def test_a_config_as_on_the_hub_is_the_same_network(tmp_path: Path) -> None:
    """Releases name a cycle of layers and two bases; transformers 5 lists the layers, and bases by their kind."""
    saved(tmp_path / "theirs")
    import_weights(str(tmp_path / "theirs"), tmp_path / "new")
    older = {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    change(tmp_path / "theirs", layer_types=None, rope_parameters=None, position_embedding_type="absolute", **older)
    import_weights(str(tmp_path / "theirs"), tmp_path / "old")
    new, old = (read_weights(tmp_path / folder / "weights.safetensors").model for folder in ("new", "old"))
    assert new == old
    assert (new.get("mixer.full_every"), new.get("mixer.window"), new.get("mixer.encoding.long_every")) == (3, 3, 3)


@torch.no_grad()
def test_a_network_of_this_suite_with_its_parts_is_written_as_modernbert(tmp_path: Path) -> None:
    """Nothing names the architecture, the gated width follows from the channels, and no second layer is full."""
    mixer = WindowConfig(window=2, full_every=7, encoding=RotaryConfig(long_every=7, base=50.0))
    model = EncoderConfig(
        dim=18, heads=3, depth=4, mixer=mixer, norm_bias=False, first_norm=False, embedding_norm=True, initial_std=0.3,
        feedforward=FeedForwardConfig(gated=True, activation="gelu", bias=False), transform="gelu",
        transform_bias=False, tokens=FullTokenEmbeddingConfig(scaled=False),
    )  # fmt: skip
    task = MaskedLMConfig().build(model, DATA, TrainingConfig()).eval()
    weights = StartingWeights(model, "", {name: tensor.clone() for name, tensor in task.state_dict().items()})
    write_weights(tmp_path / "weights.safetensors", weights)
    exported = export_weights(tmp_path / "weights.safetensors", tmp_path / "out")
    assert exported.architecture == "modernbert (ModernBertForMaskedLM)"
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out", **EAGER).eval()
    for ours, theirs in zip(our_outputs(task), their_outputs(again), strict=True):
        close(ours, theirs, TOLERANCE)


def test_an_encoder_alone_has_no_prediction_head(tmp_path: Path) -> None:
    theirs = saved(tmp_path / "theirs").model
    theirs.save_pretrained(tmp_path / "encoder")
    notes = import_weights(str(tmp_path / "encoder"), tmp_path / "in").notes
    assert [note.partition(":")[0] for note in notes] == ["prediction head", "pooler", "relation head", "tokenizer"]
    assert export_weights(tmp_path / "in", tmp_path / "out").architecture == "modernbert (ModernBertModel)"
    again = transformers.AutoModel.from_pretrained(tmp_path / "out", **EAGER).eval()
    symbols, real = batch()
    outputs = (model(symbols, attention_mask=real.long()).last_hidden_state[real] for model in (again, theirs))
    assert torch.equal(*outputs)


ROTARY = {"rope_type": "default", "rope_theta": 10.0}
REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "layers in no cycle": (
        {"layer_types": ["full_attention", "full_attention", *["sliding_attention"] * 3]},
        r"layer_types: is \['full_attention', .*only lists can be mapped in which every n-th layer",
    ),
    "windows alone": ({"layer_types": ["sliding_attention"] * 5}, "layer_types: is"),
    "full attention alone": ({"layer_types": None, "global_attn_every_n_layers": 1}, "full_every: 1 leaves no layer"),
    "scaled positions": (
        {"rope_parameters": {"full_attention": ROTARY | {"rope_type": "yarn"}, "sliding_attention": ROTARY}},
        "global_rope_theta: rope_parameters: rope_type is 'yarn', and only 'default' can be mapped",
    ),
    "an activation": ({"hidden_activation": "mish"}, "hidden_activation: no activation 'mish'"),
    "a window of nothing": ({"local_attention": 1}, "local_attention: .*greater than or equal to 1"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_modernbert_that_computes_something_else_is_refused(name: str, tmp_path: Path) -> None:
    saved(tmp_path / "theirs")
    changes, message = REFUSALS[name]
    change(tmp_path / "theirs", **changes)
    with pytest.raises(ConfigError, match=message):
        import_weights(str(tmp_path / "theirs"), tmp_path / "in")
    assert not (tmp_path / "in").exists()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("first_norm", True, "first_norm is True here and False there"),
        ("mixer.encoding.long_every", 2, "mixer.encoding.long_every is 2 here and 3 there"),
        ("mixer.full_every", None, "mixer.full_every is None here and 3 there"),
        ("mixer.window", [3, 3, 3, 3, 4], "mixer.window is "),
    ],
)
def test_a_network_of_other_parts_is_not_written_as_modernbert(
    path: str, value: Any, message: str, tmp_path: Path
) -> None:
    saved(tmp_path / "theirs")
    import_weights(str(tmp_path / "theirs"), tmp_path / "in")
    weights = read_weights(tmp_path / "in" / "weights.safetensors")
    model = weights.model.override({path: value})
    write_weights(tmp_path / "in" / "weights.safetensors", StartingWeights(model, "modernbert", weights.tensors))
    with pytest.raises(ConfigError, match=message):
        export_weights(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()
