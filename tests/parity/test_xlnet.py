"""Two streams with memory, segments and a drawn order equal XLNetLMHeadModel of transformers, gradients too."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from copying import close, randomise
from starting import start_from_file
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.batch import RowDescription, Vocabulary
from lit_transformers.config import ConfigError
from lit_transformers.encodings import XLConfig
from lit_transformers.exchange.transfer import export_weights, import_weights
from lit_transformers.mixers import AttentionConfig
from lit_transformers.models import EncoderConfig
from lit_transformers.models.capabilities import OrderedRows
from lit_transformers.models.encoder import Encoder
from lit_transformers.models.tokens import FullTokenEmbeddingConfig
from lit_transformers.runs.starting_weights import read_weights
from lit_transformers.stacks.feedforward import FeedForwardConfig
from lit_transformers.tasks import PermutationLMConfig
from lit_transformers.tasks.permutation_lm import each
from lit_transformers.training.config import TrainingConfig

transformers = pytest.importorskip("transformers", reason="compares with transformers, a test dependency")

SYMBOLS, LENGTH, MEMORY, REUSED, DEPTH = 31, 9, 7, 5, 3
TOLERANCE = 1e-6
"""The reference computes its sinusoids in single precision."""


class Pair(NamedTuple):
    theirs: Any
    ours: Encoder


def configured(memory: int, both: bool = False) -> Any:
    """A model of transformers of odd sizes, in single precision, with weights that show a difference."""
    config = transformers.XLNetConfig(
        vocab_size=SYMBOLS,
        d_model=18,
        n_layer=DEPTH,
        n_head=3,
        d_inner=25,
        dropout=0.0,
        mem_len=memory,
        reuse_len=REUSED,
        use_mems_train=bool(memory),
        attn_type="bi",
        bi_data=both,
    )
    theirs = transformers.XLNetLMHeadModel(config)
    randomise(theirs)
    return theirs


def networks(memory: int = MEMORY, both: bool = False) -> Pair:
    theirs = configured(memory, both)
    weights = {name: tensor.double() for name, tensor in theirs.state_dict().items()}
    model = EncoderConfig(
        dim=18,
        heads=3,
        depth=DEPTH,
        norm="post",
        norm_epsilon=1e-12,
        mixer=AttentionConfig(encoding=XLConfig(biases="per_layer", segments=3), memory=memory),
        feedforward=FeedForwardConfig(width=25, activation="gelu"),
        tokens=FullTokenEmbeddingConfig(scaled=False),
        query_stream="learned",
    )
    vocabulary = Vocabulary(size=SYMBOLS, boundary=2, unit="piece", byte_lengths=None)
    ours = model.build(RowDescription.for_probe(vocabulary, LENGTH)).double()
    ours.load_state_dict(ours_of(weights))
    in_single_precision = theirs.transformer.relative_positional_encoding
    theirs.transformer.relative_positional_encoding = lambda *sizes, **where: in_single_precision(
        *sizes, **where
    ).double()
    return Pair(theirs.double().train(), ours.train())


def ours_of(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors, by the names of this suite."""
    body = "transformer."
    tensors = {
        "tokens.table.weight": weights[f"{body}word_embedding.weight"],
        "tokens.logits.weight": weights["lm_loss.weight"],
        "tokens.logits.bias": weights["lm_loss.bias"],
        "query.weight": weights[f"{body}mask_emb"].flatten(),
    }
    for layer in range(DEPTH):
        there, here = f"{body}layer.{layer}.", f"stack.blocks.{layer}."
        for theirs, ours in (("q", "query"), ("k", "key"), ("v", "value"), ("r", "relative.project")):
            tensors[f"{here}mixer.{ours}.weight"] = weights[f"{there}rel_attn.{theirs}"].flatten(1).T
        tensors[f"{here}mixer.merge.weight"] = weights[f"{there}rel_attn.o"].flatten(1)
        for theirs, ours in (("w", "content"), ("r", "position"), ("s", "segments.bias")):
            tensors[f"{here}mixer.relative.{ours}.weight"] = weights[f"{there}rel_attn.r_{theirs}_bias"][:, None]
        tensors[f"{here}mixer.relative.segments.weight"] = weights[f"{there}rel_attn.seg_embed"]
        pairs = (
            ("rel_attn.layer_norm", "mixer_norm"),
            ("ff.layer_norm", "feedforward_norm"),
            ("ff.layer_1", "feedforward.widen"),
            ("ff.layer_2", "feedforward.narrow"),
        )
        for theirs, ours in pairs:
            tensors |= {f"{here}{ours}.{part}": weights[f"{there}{theirs}.{part}"] for part in ("weight", "bias")}
    return tensors


def rows(seed: int) -> OrderedRows:
    """Three rows, one of them padded, of three segments, in which some symbols are predicted in a drawn order."""
    torch.manual_seed(seed)
    padding_mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [LENGTH - 2], [LENGTH]])
    symbols = torch.randint(SYMBOLS, padding_mask.shape)
    at = torch.stack([torch.randperm(LENGTH - 2)[:3] for _ in range(3)])
    places = torch.zeros_like(symbols).scatter(1, at, torch.stack([1 + torch.randperm(3) for _ in range(3)]))
    segments = torch.tensor([[0] * 3 + [1] * 4 + [2] * 2, [0] * LENGTH, [0] * 6 + [1] * 3])
    return OrderedRows(symbols, places, at, padding_mask, torch.zeros_like(padding_mask), segments, REUSED)


def their_inputs(row: OrderedRows) -> dict[str, Tensor]:
    """The order as ``data_utils.py`` of XLNet has it: a symbol that is not predicted is seen by all."""
    hidden = (row.places[:, :, None] <= row.places[:, None, :]) & (row.places[:, None, :] > 0)
    mapping = F.one_hot(row.at, LENGTH).double()
    assert row.padding_mask is not None and row.segments is not None
    return {
        "input_ids": row.symbols,
        "attention_mask": row.padding_mask.double(),
        "perm_mask": hidden.double(),
        "target_mapping": mapping,
        "token_type_ids": row.segments,
    }


@pytest.mark.parametrize("memory", [MEMORY, 0])
def test_three_segments_in_a_drawn_order_equal_xlnet(memory: int) -> None:
    theirs, ours = networks(memory)
    state, mems, totals = None, None, [torch.zeros((), dtype=torch.float64) for _ in range(2)]
    for segment in range(3):
        row = rows(segment)
        row = row._replace(padding_mask=torch.ones_like(row.symbols, dtype=torch.bool)) if memory else row
        expected = theirs(**their_inputs(row), mems=mems)
        output = ours.read_in_order(row, state)
        logits = ours.tokens.log_probabilities(output.hidden)
        close(logits, expected.logits.log_softmax(dim=-1), TOLERANCE)
        state, mems = (output.state, expected.mems) if memory else (None, None)
        direction = torch.randn_like(logits)
        totals = [
            total + (part * direction).sum()
            for total, part in zip(totals, (logits, expected.logits.log_softmax(dim=-1)), strict=True)
        ]
    parameters = dict(ours.named_parameters())
    totals[0].backward()
    totals[1].backward()
    gradients = {name: tensor.grad for name, tensor in theirs.named_parameters()}
    gradients["lm_loss.weight"] = gradients["transformer.word_embedding.weight"]
    expected_gradients = ours_of(gradients)
    for name, parameter in parameters.items():
        assert parameter.grad is not None, name
        close(parameter.grad, expected_gradients[name], 20 * TOLERANCE)


def test_rows_that_are_read_backward_equal_those_of_bidirectional_data() -> None:
    """The second half of its batch, in two segments, of which the first follows in the text."""
    theirs, ours = networks(both=True)
    mems: Any = None
    states: list[Any] = [None, None]
    for segment in range(2):
        row = each(rows(segment), lambda part: part[::2])._replace(at=rows(segment).at[::2])
        expected = theirs(**their_inputs(row), mems=mems)
        mems = expected.mems
        for half in range(2):
            mine = each(row, lambda part, half=half: part[half : half + 1])  # type: ignore[misc]
            mine = mine._replace(at=row.at[half : half + 1], backward=half == 1)
            output = ours.read_in_order(mine, states[half])
            states[half] = output.state
            logits = expected.logits[half : half + 1].log_softmax(dim=-1)
            close(ours.tokens.log_probabilities(output.hidden), logits, TOLERANCE)


def test_the_content_of_a_row_without_an_order_equals_xlnet() -> None:
    """As in fine-tuning, which drops the second stream."""
    theirs, ours = networks()
    row = rows(0)
    inputs = {name: part for name, part in their_inputs(row).items() if name not in ("perm_mask", "target_mapping")}
    expected = theirs.eval()(**inputs).logits.log_softmax(dim=-1)
    hidden = ours.eval().read_row(row.symbols, row.padding_mask, row.marked, row.segments).hidden
    real = row.padding_mask
    close(ours.tokens.log_probabilities(hidden)[real], expected[real], TOLERANCE)


def test_weights_come_in_and_go_out_with_the_same_numbers(tmp_path: Path) -> None:
    """In single precision, of an odd batch with padding and segments, with a drawn order and without one."""
    theirs, row = configured(MEMORY).eval(), rows(0)
    theirs.save_pretrained(tmp_path / "theirs")
    notes = import_weights(str(tmp_path / "theirs"), tmp_path / "ours").notes
    assert [note.partition(":")[0] for note in notes] == ["pooler", "relation head", "tokenizer"]
    weights = read_weights(tmp_path / "ours" / "weights.safetensors")
    vocabulary = Vocabulary(size=SYMBOLS, boundary=2, unit="piece", byte_lengths=None)
    data = RowDescription.for_probe(vocabulary, LENGTH)
    task = PermutationLMConfig().build(weights.model, data, TrainingConfig(device="cpu"))
    start_from_file(task, tmp_path / "ours" / "weights.safetensors")
    export_weights(tmp_path / "ours", tmp_path / "out")
    again, report = transformers.AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"] and again.config.mem_len == MEMORY
    again = transformers.XLNetLMHeadModel.from_pretrained(tmp_path / "out").eval()
    whole = {name: part.float() if part.is_floating_point() else part for name, part in their_inputs(row).items()}
    inputs = [whole, {name: whole[name] for name in ("input_ids", "attention_mask", "token_type_ids")}]
    network, real = task.eval().network, row.padding_mask
    hidden = network.read_in_order(row).hidden, network.read_row(*row[:1], real, row.marked, row.segments).hidden
    for ours, given, kept in zip(hidden, inputs, (slice(None), real), strict=True):
        for model in (theirs, again):
            expected = model(**given).logits.log_softmax(dim=-1)
            close(task.network.tokens.log_probabilities(ours)[kept], expected[kept], 1e-5)


def test_what_xlnet_does_not_have_is_refused(tmp_path: Path) -> None:
    theirs = configured(MEMORY)
    theirs.config.same_length = True
    theirs.save_pretrained(tmp_path / "theirs")
    with pytest.raises(ConfigError, match=r"config.json: same_length: is True, and only False can be mapped"):
        import_weights(str(tmp_path / "theirs"), tmp_path / "ours")
    theirs.config.same_length = False
    theirs.save_pretrained(tmp_path / "theirs")
    import_weights(str(tmp_path / "theirs"), tmp_path / "ours")
    with pytest.raises(ConfigError, match=r"model.positions: has no learned positions, and a bert has"):
        export_weights(tmp_path / "ours", tmp_path / "out", "bert")
