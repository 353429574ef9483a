"""Sequence-to-sequence tasks: translation, summarization, strings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lit_transformers.batch import DataDescription, PairBatch, PairDescription, needed_mask, needed_source_mask
from lit_transformers.config import ConfigError, Fraction, Plain, Positive
from lit_transformers.decoding.decode import BeamConfig, DecodingConfig, decode
from lit_transformers.heads.answer_symbols import AnswerSymbolsConfig
from lit_transformers.heads.head import HeadConfig, Representation
from lit_transformers.models.capabilities import PairModelConfig, PairNetwork, require
from lit_transformers.models.cost import ModelCost
from lit_transformers.models.model import ModelConfig, ModelOutput
from lit_transformers.records.measure import PERCENT, Measure, maximized
from lit_transformers.scores import ROUGES, ScoreWords, WordTokenizer, bleu_tokenizer, metric_of, rouge_tokenizer
from lit_transformers.tasks.task import Task, TaskConfig
from lit_transformers.tasks.text_metric import OF_SYMBOLS, Scores, TextMetric, Written, signatures
from lit_transformers.training.config import TrainingConfig

WRITTEN: frozenset[Scores] = frozenset({"bleu", "chrf", "rouge"})
"""Scores of decoded texts; the others are computed from predictions after the correct symbols."""
OF_SUMMARIES: tuple[Scores, ...] = ("rouge",)
OF_OTHER_TEXTS: tuple[Scores, ...] = ("bleu", "chrf")
WITHOUT_SPACES = re.compile("[\u0e00-\u0eff\u0f00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]")
"""Characters of scripts that have no spaces between words: Thai to Burmese, Khmer, Japanese and Chinese."""
DOCUMENT_SYMBOLS, SHORTENED = 100, 4
"""Symbols of a document, and how many times as long as its summary it is at least, where it is not known which texts
are summaries. Translations are about as long as their sources."""


class Seq2SeqConfig(TaskConfig, kind="seq2seq"):
    """Every symbol of a target is predicted from its source and the correct symbols before it (arXiv:1706.03762).

    label_smoothing: the share of the loss that is spread over the vocabulary (section 5.4); no reported number has it.
    metrics: bleu, chrf and rouge score decoded texts, from 0 to 100; accuracy, from 0 to 1, is that of symbols
    predicted after the correct ones, and sequence_accuracy the share of targets whose every symbol is correct, which
    are those that greedy decoding gets right; None for rouge where the data of a run are known to be summaries, and
    else for bleu and chrf. decoding: how texts are decoded for these metrics. bleu_tokenizer: sacreBLEU's tokenizer;
    None for the one that sacreBLEU chooses for the target language of the data (zh, ja-mecab, ko-mecab), and else for
    13a. rouge_tokenizer: that of ROUGE; None for zh, char or intl where the target language is not written in Latin
    letters, and else for that of rouge-score, which knows Latin letters and digits alone. counted: lengths of a source
    and a target for which FLOPs are reported; None for the usual ones where the data know them, and else for the
    longest of training.
    """

    reads: ClassVar[type[DataDescription]] = PairDescription

    label_smoothing: Fraction = 0.1
    metrics: tuple[Scores, ...] | None = None
    decoding: DecodingConfig = BeamConfig()
    bleu_tokenizer: WordTokenizer | None = None
    rouge_tokenizer: WordTokenizer | None = None
    counted: tuple[Positive, Positive] | None = None

    @property
    def scores(self) -> tuple[Scores, ...]:
        """The metrics, where none are named those of texts of which nothing is known."""
        return OF_OTHER_TEXTS if self.metrics is None else self.metrics

    @property
    def words(self) -> ScoreWords:
        """The tokenizers of the scores, where none are named those of texts of which nothing is known."""
        return ScoreWords(self.bleu_tokenizer or "13a", self.rouge_tokenizer)

    def of_data(self, summaries: bool) -> Self:
        default = OF_SUMMARIES if summaries else OF_OTHER_TEXTS
        return self.override({"metrics": default}) if self.metrics is None else self

    def of_language(self, language: str | None) -> Self:
        words = {
            "bleu_tokenizer": self.bleu_tokenizer or bleu_tokenizer(language),
            "rouge_tokenizer": self.rouge_tokenizer or rouge_tokenizer(language),
        }
        return self.override(words)

    def require_packages(self) -> None:
        if "bleu" in self.scores:
            metric_of("bleu", self.words.bleu)
        if "rouge" in self.scores and self.words.rouge is not None:
            metric_of("bleu", self.words.rouge)

    def measured_as(self, metric: str) -> str:
        tokenizer = self.words.bleu if metric == "bleu" else self.words.rouge if metric in ROUGES else None
        return metric if tokenizer in (None, "13a") else f"{metric} tok:{tokenizer}"

    def text_advice(self, targets: Sequence[str]) -> str | None:
        latin = [text for text in targets if re.search("[A-Za-z0-9]", text)]
        if "rouge" in self.scores and self.words.rouge is None and 2 * len(latin) < len(targets):
            return (
                f"task.rouge_tokenizer: {len(targets) - len(latin)} of {len(targets)} targets have no Latin letter or "
                "digit, and ROUGE counts no others, so that equal texts have 0; name data.source.languages, or set "
                "task.rouge_tokenizer=intl, or char where there are no spaces between words"
            )
        unspaced = [text for text in targets if 2 * len(WITHOUT_SPACES.findall(text)) > len("".join(text.split()))]
        if "bleu" in self.scores and self.words.bleu == "13a" and 2 * len(unspaced) > len(targets):
            return (
                f"task.bleu_tokenizer: {len(unspaced)} of {len(targets)} targets are written without spaces between "
                "words, and 13a takes the text between spaces for words; name data.source.languages, or set "
                "task.bleu_tokenizer=zh, ja-mecab or char"
            )
        return None

    def advice(self, source_symbols: float, target_symbols: float) -> str | None:
        shortened = source_symbols / max(target_symbols, 1.0)
        are_documents = source_symbols >= DOCUMENT_SYMBOLS and shortened >= SHORTENED
        if not are_documents or "rouge" in self.scores or not WRITTEN & {*self.scores}:
            return None
        return (
            f"task.metrics: sources are {shortened:.0f} times as long as targets, as documents are of summaries; set "
            f"task.metrics=[rouge] if these are such, for {' and '.join(self.scores)} tell little of them"
        )

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> Seq2Seq:
        return Seq2Seq(self, model, data, training)

    def own_heads(self, data: DataDescription) -> Mapping[str, HeadConfig]:
        return {"targets": AnswerSymbolsConfig(label_smoothing=self.label_smoothing)}

    def cost(self, model: ModelConfig, data: DataDescription) -> ModelCost:
        """Returns the cost for each token that a run counts: of a target, or of the text that both are made of."""
        (_, length), pairs_cost = self.counted_lengths(data), super().cost(model, data)
        usual = PairDescription.of(data, self.kind).usual
        if usual is None:
            return pairs_cost
        return pairs_cost._replace(flops_per_token=pairs_cost.flops_per_token * length / usual[2])

    def counted_lengths(self, data: DataDescription) -> tuple[int, int]:
        pairs = PairDescription.of(data, self.kind)
        usual = None if pairs.usual is None else pairs.usual[:2]
        return self.counted or usual or (pairs.source_length, pairs.length)

    def random_batch(self, data: DataDescription) -> PairBatch:
        """Returns two pairs of random symbols, in which one source is shorter, with empty references."""
        pairs = PairDescription.of(data, self.kind)
        source = torch.randint(1, pairs.source.size, (2, pairs.source_length))
        lengths = torch.tensor([[pairs.source_length], [pairs.source_length // 2 + 1]])
        source_mask = torch.arange(pairs.source_length) < lengths
        target = torch.randint(1, data.vocabulary.size, (2, data.length))
        inputs = torch.cat([torch.full((2, 1), data.vocabulary.boundary), target[:, :-1]], dim=1)
        target_mask, rows = torch.ones(2, data.length, dtype=torch.bool), torch.arange(2)
        references = (("",), ("",))
        tensors = (source * source_mask, source_mask, inputs, target, target_mask, rows, 0 * rows)
        return PairBatch(*tensors, references, None, padded=False)

    def measures(self, data: DataDescription) -> dict[str, Measure]:
        texts = [name for name in ("bleu", "chrf") if name in self.scores] + [*ROUGES] * ("rouge" in self.scores)
        left_out = set() if "accuracy" in self.scores else OF_SYMBOLS
        own = {name: measure for name, measure in super().measures(data).items() if name not in left_out}
        return own | maximized(*texts, per="text", full=PERCENT)

    def protocol(self) -> dict[str, Plain]:
        """Returns the decoding and the signatures of the scores; nothing if no score needs decoding."""
        if not WRITTEN & {*self.scores}:
            return {}
        return {"decoding": self.decoding.to_dict(), "scores": signatures(self.scores, self.words)}


def pairs_model(model: ModelConfig) -> PairModelConfig:
    """Returns the model. Raises ConfigError if it does not read pairs."""
    return require(model, PairModelConfig, "seq2seq trains")


class Seq2Seq(Task):
    """Trains and measures a network that maps a source to a target."""

    config: Seq2SeqConfig
    data: PairDescription
    network: PairNetwork
    metric: TextMetric

    def __init__(
        self, config: Seq2SeqConfig, model: ModelConfig, data: DataDescription, training: TrainingConfig | None = None
    ) -> None:
        """Raises ConfigError where the model cannot be built, or the data are of another kind."""
        super().__init__(config, model, data, training)
        self.network = pairs_model(model).build(data)
        self.writes = bool(WRITTEN & {*config.scores})
        if self.writes and self.data.placed:
            raise ConfigError(
                "bleu, chrf and rouge are of texts that are decoded, and these targets begin at positions that are not "
                "known before; set task.metrics to accuracy",
                "task.metrics",
            )
        self.add_heads(lambda heads: TextMetric(heads, config.scores, config.words))

    def read(self, network: PairNetwork, batch: PairBatch) -> Representation:
        output: ModelOutput = network(
            batch.source, batch.inputs, needed_source_mask(batch), needed_mask(batch), batch.start
        )
        return Representation(network, output.hidden, aux=output.aux, source_aux=output.source_aux)

    def evaluation_output(self, batch: PairBatch) -> Float[Tensor, "b t v"]:
        reading = self.evaluation_reading(batch)
        return reading.network.tokens.log_probabilities(reading.hidden)

    def validation_step(self, batch: PairBatch, batch_index: int) -> None:
        if not self.writes:
            super().validation_step(batch, batch_index)
            self.metric.add_texts(batch, None)  # all ranks must gather states of the same type
            return
        real = real_rows(batch)
        if not len(real.source):
            self.metric.update(real.example, {})
            self.metric.add_texts(real, [])
            return
        hypotheses = self.write(real.source, needed_source_mask(real))
        super().validation_step(real, batch_index)
        self.metric.add_texts(real, hypotheses)

    def predict_step(self, batch: PairBatch, batch_index: int) -> Sequence[Any]:
        """Returns the text written for every source, with its references (``Written``); where targets begin at
        positions that are not known before, the losses of every target."""
        if self.data.placed:
            return super().predict_step(batch, batch_index)
        real = real_rows(batch)
        if not len(real.source):
            return []
        texts = self.write(real.source, needed_source_mask(real))
        return [Written(*row) for row in zip(real.example.tolist(), texts, real.references, strict=True)]

    def write(self, source: Int[Tensor, "b s"], padding_mask: Bool[Tensor, "b s"] | None) -> Sequence[str]:
        """Decodes every source and returns the texts."""
        decoded = decode(self.evaluator(), source, padding_mask, self.config.decoding, self.data.vocabulary.boundary)
        return [self.data.detokenize(symbols) for symbols in decoded.symbols]


def real_rows(batch: PairBatch) -> PairBatch:
    """Returns the batch without rows of padding, which a rank gets that has finished while others have not."""
    row_mask = batch.padding_mask.any(dim=1)
    if bool(row_mask.all()):
        return batch
    indices = [index for index, is_real in enumerate(row_mask.tolist()) if is_real]
    tensors: dict[str, Any] = {
        name: part[indices] for name, part in batch._asdict().items() if isinstance(part, Tensor)
    }
    return batch._replace(**tensors | {"references": tuple(batch.references[index] for index in indices)})
