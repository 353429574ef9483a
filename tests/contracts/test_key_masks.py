"""Attention gets a mask of its keys only where the batch, on the host, does not rule out that a query sees padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from datamodules.core.documents import Document, DocumentStream
from datamodules.core.loading import in_order
from datamodules.core.tokenizers import Bytes
from datamodules.text.lanes import Lanes, LaneShape
from lit_transformers.attention import executors
from lit_transformers.batch import IGNORED, DataDescription, LanguageDescription, TextBatch, Vocabulary
from lit_transformers.decoding.generate import beam_search, sample
from lit_transformers.decoding.sampling import SamplingConfig
from lit_transformers.encodings import XLConfig
from lit_transformers.mixer import Context, MixerConfig, Shape, detach
from lit_transformers.mixers import AttentionConfig, CompressiveConfig, LSRAConfig, WindowConfig
from lit_transformers.models import EncoderConfig, EncoderDecoderConfig, LanguageModelConfig, ModelConfig
from lit_transformers.tasks import (
    BiLMConfig,
    CausalLMConfig,
    ClassificationConfig,
    MaskedLMConfig,
    PermutationLMConfig,
    ReplacedTokensConfig,
    Seq2SeqConfig,
    StringsConfig,
)
from lit_transformers.tasks.causal_lm import CausalLM
from lit_transformers.tasks.task import TaskConfig
from lit_transformers.training.config import TrainingConfig

DEPTH, SEGMENT = 2, 4
VOCABULARY = Vocabulary(size=11, boundary=0, unit="character", byte_lengths=None)
NETWORK: dict[str, Any] = {"dim": 16, "heads": 2, "depth": DEPTH}
XL = XLConfig()
TRAINED: dict[str, tuple[TaskConfig, ModelConfig]] = {
    "causal_lm": (CausalLMConfig(), LanguageModelConfig(**NETWORK)),
    "strings": (StringsConfig(), LanguageModelConfig(**NETWORK)),
    "seq2seq": (Seq2SeqConfig(metrics=("accuracy",)), EncoderDecoderConfig(**NETWORK)),
    "masked_lm": (MaskedLMConfig(), EncoderConfig(**NETWORK)),
    "replaced_tokens": (ReplacedTokensConfig(), EncoderConfig(**NETWORK)),
    "permutation_lm": (
        PermutationLMConfig(segment_length=4, directions="both"),
        EncoderConfig(**NETWORK | {"mixer": AttentionConfig(memory=6)}, query_stream="learned"),
    ),
    "bilm": (BiLMConfig(), EncoderConfig(**NETWORK, causal=True)),
    "classification": (ClassificationConfig(), EncoderConfig(**NETWORK)),
}
REMEMBERING: dict[str, MixerConfig] = {
    "attention": AttentionConfig(memory=6),
    "xl": AttentionConfig(memory=6, encoding=XL),
    "window": WindowConfig(window=3, memory=6),
    "lsra": LSRAConfig(memory=6),
    "compressive": CompressiveConfig(memory=4, compressed_memory=3, rate=2),
    "most used": CompressiveConfig(memory=4, compressed_memory=3, rate=2, function="most_used", auxiliary="none"),
    "through time": CompressiveConfig(memory=4, compressed_memory=3, rate=2, auxiliary="none"),
}


class Passes(list[tuple[str, bool]]):
    """The passes of attention in order: whether SDPA's causal kernel computed one ("causal"), SDPA otherwise ("full"),
    or blocks ("blocks"); and whether it had a mask of keys."""

    @property
    def masked(self) -> list[bool]:
        return [is_masked for _, is_masked in self]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    recorded, run, fused = Passes(), executors.run, F.scaled_dot_product_attention

    def in_blocks(scoring: Any, inputs: executors.Inputs, size: int) -> tuple[Tensor, ...]:
        recorded.append(("blocks", inputs.key_mask is not None))
        with monkeypatch.context() as within:
            within.setattr(F, "scaled_dot_product_attention", fused)
            return run(scoring, inputs, size)

    def at_once(
        q: Tensor, k: Tensor, v: Tensor, mask: Any = None, dropout: float = 0, causal: bool = False, **scale: Any
    ):
        recorded.append(("causal" if causal else "full", mask is not None))
        return fused(q, k, v, mask, dropout, causal, **scale)

    monkeypatch.setattr(executors, "run", in_blocks)
    monkeypatch.setattr(F, "scaled_dot_product_attention", at_once)
    return recorded


def task_of(config: TaskConfig, model: ModelConfig, length: int = 12) -> Any:
    data: DataDescription = config.probe_data(VOCABULARY, length)
    torch.manual_seed(0)
    return config.build(model, data, TrainingConfig())


def without_padding(batch: Any) -> Any:
    if "source_padded" not in batch._fields:
        return batch
    return batch._replace(source_padded=False, source_padding_mask=torch.ones_like(batch.source, dtype=torch.bool))


@pytest.mark.parametrize("kind", TRAINED)
def test_no_pass_over_a_batch_without_padding_has_a_mask(kind: str, passes: Passes) -> None:
    config, model = TRAINED[kind]
    task = task_of(config, model)
    batch = without_padding(config.random_batch(task.data))
    task.training_step(batch, 0)["loss"].backward()
    task.eval()
    with torch.no_grad():
        task.validation_step(batch, 0)
    assert len(passes) >= 2 * DEPTH and not any(passes.masked)
    if kind in ("causal_lm", "strings", "bilm"):
        assert {kernel for kernel, _ in passes} == {"causal"}
    if kind == "seq2seq":  # encoder, decoder, and between them
        assert [kernel for kernel, _ in passes[: 3 * DEPTH]] == ["full"] * DEPTH + ["causal", "full"] * DEPTH


@pytest.mark.parametrize("kind", ["strings", "seq2seq", "bilm", "masked_lm"])
def test_padding_is_masked_but_where_no_real_query_sees_it(kind: str, passes: Passes) -> None:
    config, model = TRAINED[kind]
    task = task_of(config, model).eval()
    batch = config.random_batch(task.data)
    padding = torch.zeros_like(batch.padding_mask)
    padding[1, -5:] = True
    batch = batch._replace(padding_mask=~padding, targets=batch.targets.masked_fill(padding, IGNORED), padded=True)
    with torch.no_grad():
        task.validation_step(batch, 0)
    causal = [is_masked for kernel, is_masked in passes if kernel == "causal"]
    assert not any(causal) and len(causal) == (0 if kind == "masked_lm" else len(passes) // {"seq2seq": 3}.get(kind, 1))
    assert all(is_masked for kernel, is_masked in passes if kernel != "causal")


class Texts(DocumentStream):
    """A stream of texts in their order, once."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.texts, self.taken = texts, 0

    def take(self) -> tuple[int, Document] | None:
        if self.taken == len(self.texts):
            return None
        self.taken += 1
        return self.taken - 1, Document(str(self.taken), self.texts[self.taken - 1])

    def state(self) -> int:
        return self.taken

    def go_to(self, state: Any) -> None:
        self.taken = state


def lanes(texts: Sequence[bytes], joined: bool, cursor: str = "") -> Iterator[TextBatch]:
    made = Lanes(Texts(texts), Bytes(), LaneShape(3, SEGMENT, SEGMENT, joined))
    if cursor:
        made.go_to(cursor)
    return in_order(made)


def reader(mixer: MixerConfig, training: TrainingConfig | None = None, **fields: Any) -> CausalLM:
    vocabulary = Bytes().vocabulary
    data = LanguageDescription(vocabulary=vocabulary, length=SEGMENT)
    torch.manual_seed(0)
    return CausalLMConfig().build(LanguageModelConfig(**NETWORK | {"mixer": mixer} | fields), data, training)


@pytest.mark.parametrize("mixer", [name for name in REMEMBERING if name != "most used"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_no_pass_after_a_full_memory_has_a_mask(mixer: str, training: bool, passes: Passes) -> None:
    task = reader(REMEMBERING[mixer]).train(training)
    with torch.set_grad_enabled(training):
        for number, batch in enumerate(islice(lanes([bytes(range(1, 60))] * 6, joined=True), 12)):
            (task.training_step if training else task.validation_step)(batch, number)
    masked = [is_masked for kernel, is_masked in passes if kernel != "full"]  # the loss of a compression is full
    assert len(masked) == 12 * DEPTH
    assert not any(
        masked[4 * DEPTH :] if mixer in ("compressive", "through time") else masked
    )  # slots are empty at first


def test_training_that_is_resumed_has_no_mask_after_a_full_memory(passes: Passes) -> None:
    task, texts = reader(AttentionConfig(memory=6)), [bytes(range(1, 60))] * 6
    [*before, last] = islice(lanes(texts, joined=True), 4)
    for batch in (*before, last):
        task.training_step(batch, 0)
    passes.clear()
    task.training_step(next(lanes(texts, joined=True, cursor=last.cursor or "")), 0)
    assert passes == [("blocks", False)] * DEPTH


@pytest.mark.parametrize("mixer", REMEMBERING)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_lanes_that_begin_and_end_read_each_document_as_if_it_were_alone(
    mixer: str, training: bool, passes: Passes
) -> None:
    texts = [bytes(torch.randint(1, 256, (length,)).tolist()) for length in (9, 30, 3, 22, 12, 41, 8, 1, 17)]
    task = reader(REMEMBERING[mixer]).double().train(training)
    read: dict[int, list[Tensor]] = {number: [] for number in range(len(texts))}
    with torch.set_grad_enabled(training):
        for batch in lanes(texts, joined=False):
            hidden = (task.training_reading if training else task.evaluation_reading)(batch).hidden.detach()
            for row, real in zip(range(3), batch.padding_mask, strict=True):
                if real.any():
                    read[int(batch.document[row, 0])].append(hidden[row, real])
        assert {*passes.masked} == ({True} if mixer == "most used" else {True, False})
        for number, text in enumerate(texts):
            symbols = torch.tensor([[Bytes().vocabulary.boundary, *text[:-1]]])
            state, alone = None, []
            for segment in symbols.split(SEGMENT, dim=1):
                output = task.network(segment, state)
                state = detach(output.state)
                alone.append(output.hidden[0].detach())
            torch.testing.assert_close(torch.cat(read[number]), torch.cat(alone), rtol=0, atol=1e-12)


def test_symbols_that_are_generated_one_by_one_need_no_mask(passes: Passes) -> None:
    network = reader(AttentionConfig(memory=6)).network.eval()
    assert len([*sample(network, torch.tensor([1, 2, 3]), 9, SamplingConfig())]) == 9
    beam_search(network, torch.tensor([1, 2, 3]), 9, beams=2)
    assert len(passes) == 18 * DEPTH and not any(passes.masked)


def test_targets_that_are_decoded_symbol_by_symbol_need_no_mask(passes: Passes) -> None:
    task = task_of(*TRAINED["seq2seq"]).eval()
    task.write(torch.randint(1, 11, (2, 5)), None)
    assert len(passes) > 4 * DEPTH and not any(passes.masked)


@pytest.mark.parametrize(
    "joined", [pytest.param(True, id="stream", marks=pytest.mark.slow), pytest.param(False, id="reset")]
)
def test_lanes_are_compiled_a_few_times_and_not_in_every_step(joined: bool) -> None:
    task, graphs, counts = reader(AttentionConfig(memory=4), TrainingConfig(compile=True), depth=1), 0, []

    def counting(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        return graph.forward

    torch.compiler.reset()
    task.network.compile(backend=counting)
    texts = [bytes(range(1, length)) for length in (34, 58, 21, 47, 30, 17, 66, 38, 25, 49, 73, 13, 29)] * 2
    for batch in islice(lanes(texts, joined), 40):
        task.training_step(batch, 0)
        counts.append(graphs)
    torch.compiler.reset()
    assert counts[15] == counts[-1] == (2 if joined else 3), counts


def test_queries_of_padding_do_not_count_as_readers_of_a_key() -> None:
    mixer = CompressiveConfig(memory=4, function="most_used", auxiliary="none").build(Shape(16, 2, 8)).reader
    x, padding_mask = torch.randn(2, 8, 16), torch.arange(8) < torch.tensor([[8], [5]])
    ctx = Context(torch.arange(8).expand(2, -1), causal=True, padding_mask=padding_mask)
    used, expected = (mixer(x, ctx._replace(padding_last=last)).observed["used"] for last in (True, False))
    torch.testing.assert_close(used, expected)
