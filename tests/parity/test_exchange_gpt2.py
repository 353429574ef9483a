"""Weights of transformers' GPT-2 give the same numbers here, and those written here give the same numbers there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from copying import EAGER, close, randomise
from safetensors.torch import load_file, save_file
from starting import start_from_file
from torch import Tensor

from lit_transformers.batch import LanguageDescription, Vocabulary
from lit_transformers.config import ConfigError
from lit_transformers.exchange.transfer import export_weights, import_weights
from lit_transformers.plain_yaml import read_yaml
from lit_transformers.runs import RunConfig, fit
from lit_transformers.runs.starting_weights import read_weights
from lit_transformers.tasks import CausalLMConfig
from lit_transformers.tasks.causal_lm import CausalLM
from lit_transformers.training.config import TrainingConfig

transformers = pytest.importorskip("transformers", reason="compares with transformers, a test dependency")

SYMBOLS, LENGTH, TOLERANCE = 37, 13, 1e-12
SIZES: dict[str, Any] = {"vocab_size": SYMBOLS, "n_embd": 21, "n_layer": 3, "n_head": 3, "n_positions": 24, **EAGER}
CASES: dict[str, dict[str, Any]] = {
    "as released": {},
    "untied, of other sizes": {
        "n_inner": 29,
        "activation_function": "relu",
        "tie_word_embeddings": False,
        "scale_attn_weights": False,
        "layer_norm_epsilon": 1e-3,
    },
}


def saved(folder: Path, **changes: Any) -> Any:
    """A GPT-2 with random weights, in double precision, and its folder in single."""
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES | changes))
    randomise(model, std=0.2)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight.add_(1.0)
    model.save_pretrained(folder)
    return model.double().eval()


def our_task(imported: Path) -> CausalLM:
    vocabulary = Vocabulary(size=SYMBOLS, boundary=0, unit="piece", byte_lengths=None)
    data = LanguageDescription(vocabulary=vocabulary, length=LENGTH)
    weights = imported / "weights.safetensors"
    task = CausalLMConfig().build(read_weights(weights).model, data, TrainingConfig())
    assert start_from_file(task, weights) == []
    return task.double().eval()


def batch() -> tuple[Tensor, Tensor]:
    """Symbols of rows of several lengths, and where they are real."""
    padding_mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [7], [LENGTH - 2]])
    return torch.randint(0, SYMBOLS, padding_mask.shape, generator=torch.Generator().manual_seed(1)), padding_mask


def their_logits(model: Any) -> Tensor:
    symbols, padding_mask = batch()
    logits: Tensor = model(input_ids=symbols, attention_mask=padding_mask.long()).logits
    return logits[padding_mask].log_softmax(dim=-1)


def our_logits(task: CausalLM) -> Tensor:
    symbols, padding_mask = batch()
    hidden = task.network(symbols, None, padding_mask).hidden
    return task.network.tokens.log_probabilities(hidden)[padding_mask]


@pytest.mark.parametrize("name", CASES)
def test_logits_and_gradients_are_those_of_transformers_and_of_what_is_exported(name: str, tmp_path: Path) -> None:
    theirs = saved(tmp_path / "theirs", **CASES[name])
    assert import_weights(str(tmp_path / "theirs"), tmp_path / "in").notes == ["tokenizer: the folder has none"]
    ours, expected = our_task(tmp_path / "in"), their_logits(theirs)
    close(our_logits(ours), expected, TOLERANCE)
    exported = export_weights(tmp_path / "in", tmp_path / "out")
    assert exported.architecture == "gpt2 (GPT2LMHeadModel)"
    again, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True, **EAGER
    )
    assert not any(report[key] for key in ("missing_keys", "mismatched_keys", "unexpected_keys"))
    close(their_logits(again.double().eval()), expected, TOLERANCE)
    direction = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    [their_gradient] = torch.autograd.grad((expected * direction).sum(), [theirs.transformer.h[1].attn.c_attn.weight])
    mixer = ours.network.get_submodule("stack.blocks.1.mixer")
    gradients = torch.autograd.grad(
        (our_logits(ours) * direction).sum(), [getattr(mixer, part).weight for part in ("query", "key", "value")]
    )
    close(torch.cat(gradients), their_gradient.T, 1e-10)


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    path = folder / "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in change(load_file(path)).items()}, path)


def test_an_old_checkpoint_without_prefix_and_with_masks_is_the_same_network(tmp_path: Path) -> None:
    theirs = saved(tmp_path / "theirs")
    masks = {f"h.{layer}.attn.bias": torch.ones(24, 24).tril()[None, None] for layer in range(3)}
    masks |= {f"h.{layer}.attn.masked_bias": torch.tensor(-1e4) for layer in range(3)}
    rewrite(tmp_path / "theirs", lambda old: masks | {n.removeprefix("transformer."): t for n, t in old.items()})
    import_weights(str(tmp_path / "theirs"), tmp_path / "in")
    close(our_logits(our_task(tmp_path / "in")), their_logits(theirs), TOLERANCE)
    rewrite(tmp_path / "theirs", lambda old: old | {"h.1.attn.bias": torch.ones(24, 24)[None, None]})
    with pytest.raises(ConfigError, match=r"holds transformer\.h\.1\.attn\.bias, and a gpt2 here has no place"):
        import_weights(str(tmp_path / "theirs"), tmp_path / "another")


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "scores by layer": ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: is True"),
    "a decoder of an encoder": ({"add_cross_attention": True}, "add_cross_attention: is True"),
    "two rates for one": (
        {"resid_pdrop": 0.2},
        "resid_pdrop: is 0.2 and embd_pdrop 0.1; both are dropout here, so make them equal",
    ),
    "another width": ({"n_inner": 30}, r"mlp\.c_fc\.weight: is \(21, 84\), and config.json describes \(21, 30\)"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_gpt2_that_computes_something_else_is_refused(name: str, tmp_path: Path) -> None:
    saved(tmp_path / "theirs")
    changes, message = REFUSALS[name]
    path = tmp_path / "theirs" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ConfigError, match=message):
        import_weights(str(tmp_path / "theirs"), tmp_path / "in")
    assert not (tmp_path / "in").exists()


def test_projections_that_are_not_three_in_one_are_refused(tmp_path: Path) -> None:
    saved(tmp_path / "theirs")
    name = "transformer.h.2.attn.c_attn.weight"
    rewrite(tmp_path / "theirs", lambda old: old | {name: old[name][:, :-1]})
    with pytest.raises(ConfigError, match=rf"{name}: is \(21, 62\), which is not 3 tensors in one"):
        import_weights(str(tmp_path / "theirs"), tmp_path / "in")


def test_a_run_goes_on_from_a_gpt2_and_is_exported(tmp_path: Path) -> None:
    """config.yaml of the import names network, objective and weights; with bytes, the boundary is the last symbol."""
    saved(tmp_path / "theirs", vocab_size=257)
    import_weights(str(tmp_path / "theirs"), tmp_path / "in")
    lines = (json.dumps({"text": f"To be {number} or not."}) for number in range(60))
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    source = {"kind": "files", "path": str(tmp_path / "text.jsonl"), "validation": 0.2, "test": 0.2}
    data = {"kind": "language", "source": source, "batch_size": 2, "segment_length": 12}
    plain = read_yaml((tmp_path / "in" / "config.yaml").read_text())
    config = RunConfig.from_dict(plain | {"data": data, "training": {"steps": 2, "device": "cpu"}})
    assert fit(config, tmp_path / "run")["outcome"] == "finished"
    exported = export_weights(tmp_path / "run" / "checkpoint.ckpt", tmp_path / "out", "gpt2")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    trained = read_weights(tmp_path / "run" / "checkpoint.ckpt").tensors["network.stack.blocks.0.mixer.query.weight"]
    assert torch.equal(again.transformer.h[0].attn.c_attn.weight[:, :21], trained.T)
    assert exported.notes[-1].startswith("tokenizer")
