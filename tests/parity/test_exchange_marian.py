"""Weights of transformers' Marian give the same numbers here, and those written here give the same numbers there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from copying import close
from safetensors.torch import load_file, save_file
from starting import start_from_file
from torch import Tensor, nn

from benchmarks.marian import Sizes, theirs
from lit_transformers.batch import PairDescription, Vocabulary
from lit_transformers.config import ConfigError
from lit_transformers.encodings.positions import sinusoids
from lit_transformers.exchange.transfer import export_weights, import_weights
from lit_transformers.runs.starting_weights import read_weights
from lit_transformers.tasks import Seq2SeqConfig
from lit_transformers.tasks.seq2seq import Seq2Seq
from lit_transformers.training.config import TrainingConfig

transformers = pytest.importorskip("transformers", reason="compares with transformers, a test dependency")

SIZES = Sizes(symbols=37, dim=18, heads=3, width=29, depth=2, decoder_depth=3, longest=64)


def saved(folder: Path, sizes: Sizes = SIZES) -> Any:
    torch.manual_seed(0)
    model = theirs(sizes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                nn.init.normal_(parameter, mean=float("layer_norm.weight" in name), std=0.2)
        nn.init.normal_(model.final_logits_bias)
    model.save_pretrained(folder)
    return model.double()


def our_task(imported: Path) -> Seq2Seq:
    vocabulary = Vocabulary(size=SIZES.symbols, boundary=0, unit="piece", byte_lengths=None)
    data = PairDescription.for_probe(vocabulary, 12)
    weights = imported / "weights.safetensors"
    task = Seq2SeqConfig(metrics=("accuracy",)).build(read_weights(weights).model, data, TrainingConfig())
    assert start_from_file(task, weights) == []
    return task.double().eval()


def pairs() -> tuple[Tensor, Tensor, Tensor]:
    """Sources with padding, and targets."""
    drawn = torch.Generator().manual_seed(1)
    padding_mask = torch.arange(9) < torch.tensor([[9], [3], [6]])
    source = torch.randint(1, SIZES.symbols - 1, padding_mask.shape, generator=drawn)
    return (
        source.masked_fill(~padding_mask, SIZES.symbols - 1),
        padding_mask,
        torch.randint(0, SIZES.symbols - 1, (3, 11), generator=drawn),
    )


def their_logits(model: Any) -> Tensor:
    source, padding_mask, target = pairs()
    output = model(input_ids=source, attention_mask=padding_mask.long(), decoder_input_ids=target)
    logits: Tensor = output.logits
    return logits.log_softmax(dim=-1)


def our_logits(task: Seq2Seq) -> Tensor:
    source, padding_mask, target = pairs()
    return task.network.tokens.log_probabilities(task.network(source, target, padding_mask).hidden)


@pytest.mark.parametrize("sizes", [SIZES, SIZES._replace(activation="silu", scaled=False, decoder_depth=1)])
@torch.no_grad()
def test_logits_are_those_of_transformers_and_of_what_is_exported(sizes: Sizes, tmp_path: Path) -> None:
    """Their sinusoids are in single precision, in a network of any precision."""
    model = saved(tmp_path / "theirs", sizes)
    notes = import_weights(str(tmp_path / "theirs"), tmp_path / "in").notes
    assert [note.partition(":")[0] for note in notes] == ["symbols", "tokenizer"]
    expected = their_logits(model)
    close(our_logits(our_task(tmp_path / "in")), expected, 1e-6)
    assert export_weights(tmp_path / "in", tmp_path / "out").architecture == "marian (MarianMTModel)"
    again, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "mismatched_keys", "unexpected_keys"))
    close(their_logits(again.double().eval()), expected, 1e-6)
    source, padding_mask, _ = pairs()
    written, expected_symbols = (
        m.generate(source, attention_mask=padding_mask.long(), max_new_tokens=8, do_sample=False)
        for m in (again, model)
    )
    assert torch.equal(written, expected_symbols), "the symbols that begin and end a text are those of the release"


def test_an_old_checkpoint_with_copies_and_sinusoids_is_the_same_network(tmp_path: Path) -> None:
    model = saved(tmp_path / "theirs")
    path = tmp_path / "theirs" / "model.safetensors"
    tensors = load_file(path)
    copies = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
    tensors |= {name: tensors["model.shared.weight"].clone() for name in copies}
    table = sinusoids(torch.arange(64), SIZES.dim, torch.float32)
    tensors |= {f"model.{side}.embed_positions.weight": table.clone() for side in ("encoder", "decoder")}
    save_file(tensors, path)
    import_weights(str(tmp_path / "theirs"), tmp_path / "in")
    close(our_logits(our_task(tmp_path / "in")), their_logits(model), 1e-6)
    save_file(tensors | {copies[0]: torch.ones(SIZES.symbols, SIZES.dim)}, path)
    with pytest.raises(ConfigError, match="differs from the tensor that it is tied to"):
        import_weights(str(tmp_path / "theirs"), tmp_path / "other")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "decoder_attention_heads",
            6,
            "decoder_attention_heads: is 6 and encoder_attention_heads 3; both are heads here",
        ),
        ("decoder_vocab_size", 50, "decoder_vocab_size: is 50, and only the vocab_size of the sources, 37"),
        ("normalize_before", True, "normalize_before: is True"),
        ("share_encoder_decoder_embeddings", False, "share_encoder_decoder_embeddings: is False"),
    ],
)
def test_a_marian_that_computes_something_else_is_refused(field: str, value: Any, message: str, tmp_path: Path) -> None:
    saved(tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(ConfigError, match=message):
        import_weights(str(tmp_path / "theirs"), tmp_path / "in")
