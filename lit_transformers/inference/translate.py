"""Translates or summarizes lines of text with a trained encoder-decoder, one output line for every input line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from datamodules import PairsConfig, tokenizers_of
from datamodules.core.tokenizers import Symbols
from lit_transformers.checked_files import Precision
from lit_transformers.config import ConfigError, Memory, Plain
from lit_transformers.decoding.decode import BeamConfig, DecodingConfig, GreedyConfig
from lit_transformers.decoding.speculative import Acceptance, decode_with_drafts, sampling_of
from lit_transformers.inference.lines import LineOptions, LineWriter, Overlong
from lit_transformers.inference.precision import computed_in, prepare
from lit_transformers.inference.predictor import load_for_lines
from lit_transformers.models.model import ModelConfig
from lit_transformers.runs.evaluate import require_numbers
from lit_transformers.tasks.seq2seq import Seq2Seq

__all__ = ["LINE_ENDS", "TranslationOptions", "Translator"]

LINE_ENDS = re.compile(r"\r\n|[\r\n]")
"""The end of a line within a text, which one line of output cannot hold."""
Purpose = Literal["translate", "summarize"]


class TranslationOptions(NamedTuple):
    """The options of a translation.

    beams, length_penalty: None for those that the run was measured with; 1 beam takes the likeliest symbol each time.
    batch_tokens, window, overlong: those of ``LineOptions``. source, target: the requested languages; purpose: the
    requested task, where a checkpoint for the other one is to be refused. precision: of the passes of both networks.
    draft: the checkpoint of a smaller run that drafts symbols; draft_symbols: the most that it adds at once.
    """

    beams: int | None = None
    length_penalty: float | None = None
    batch_tokens: int = 4096
    window: int = 1000
    overlong: Overlong = "cut"
    source: str | None = None
    target: str | None = None
    purpose: Purpose | None = None
    precision: Precision = "float32"
    draft: Path | None = None
    draft_symbols: int = 4


class Translator(LineWriter):
    """Writes translations or summaries of lines with a trained network. ``acceptance`` counts drafted symbols."""

    def __init__(self, checkpoint: Path, wanted: TranslationOptions) -> None:
        """Raises ConfigError or DataError where the checkpoint does not write texts, or not in these languages, or the
        draft cannot serve it."""
        task, config, extra = load_for_lines(checkpoint)
        if not isinstance(task, Seq2Seq):
            raise ConfigError(
                f"only a seq2seq makes a text of another, and this is a run of {config.task.kind}", "task"
            )
        require_numbers(task, checkpoint)
        require_purpose(wanted.purpose, config.data.get("source"), extra["languages"])
        require_languages(wanted, extra["languages"])
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.task: Seq2Seq = task.to(device)
        prepare(task, wanted.precision, device)
        self.task.config = task.config.override({"decoding": decoding(task.config.decoding, wanted)})
        tokenizer, _ = tokenizers_of(extra)
        options = LineOptions(wanted.batch_tokens, wanted.window, wanted.overlong, wanted.precision)
        super().__init__(options, tokenizer, task.data.source_length - 1)
        self.empty, self.ability = "", "summarize" if config.data.get("source").summaries else "translate"
        self.tokenizers, self.acceptance, self.draft_symbols = tokenizers_of(extra), Acceptance(), wanted.draft_symbols
        self.draft: Translator | None = None
        if wanted.draft is not None:
            require_memory(config.model)
            self.draft = Translator(wanted.draft, TranslationOptions(precision=wanted.precision))
            self.require_draft(self.draft)

    def require_draft(self, draft: Translator) -> None:
        """Raises ConfigError if a run cannot draft symbols for this one."""
        sampling_of(self.task.config.decoding)
        own, other = ([side.to_dict() for side in each.tokenizers] for each in (self, draft))
        if own != other:
            reason = "this run has other symbols; take one with the same tokenizers, trained on the same texts"
            raise ConfigError(reason, "--draft")
        if draft.longest < self.longest:
            reason = f"this run reads sources of {draft.longest} symbols, and the other one of {self.longest}"
            raise ConfigError(f"{reason}; take a run with data.longest_source of both alike", "--draft")
        for each in (self, draft):
            if unreadable := each.task.network.unreadable:
                reason = f"{' and '.join(unreadable)} cannot be read symbol by symbol; omit the draft"
                raise ConfigError(reason, "--draft")

    def row(self, symbols: Sequence[Symbols]) -> Symbols:
        return np.append(symbols[0][: self.longest], self.task.data.source.boundary)

    def outputs(
        self,
        rows: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"],
        padded: bool,
        texts: Sequence[tuple[str, ...]],
    ) -> Sequence[str]:
        device = self.task.device
        with computed_in(self.options.precision, self.task.training_config, device):
            written = self.write_sources(rows.to(device), padding_mask.to(device) if padded else None)
        return [LINE_ENDS.sub(" ", text.rstrip("\r\n")) for text in written]  # a model may generate several lines

    def write_sources(self, source: Int[Tensor, "b s"], padding_mask: Bool[Tensor, "b s"] | None) -> Sequence[str]:
        """Returns the texts for sources, drafted by the smaller run if there is one."""
        if self.draft is None:
            return self.task.write(source, padding_mask)
        outputs = decode_with_drafts(
            self.task.evaluator(),
            self.draft.task.evaluator(),
            source,
            padding_mask,
            self.task.config.decoding,
            self.task.data.vocabulary.boundary,
            self.draft_symbols,
            self.acceptance,
        )
        return [self.task.data.detokenize(symbols) for symbols in outputs]

    def messages(self) -> Iterator[str]:
        yield from super().messages()
        if self.draft is not None:
            yield self.acceptance.message()


def require_memory(model: ModelConfig) -> None:
    """Raises ConfigError where the decoder forgets symbols, so that it would see more of several that are read at once
    than of one after another."""
    for path, length in model.leaves_with(Memory):
        if path.startswith("decoder_mixer") and length and not model.get("decoder_mixer").promises().constant_reach:
            reason = f"drafts need a decoder that remembers all symbols, and model.{path} is {length}; omit the draft"
            raise ConfigError(reason, "--draft")


def decoding(trained: DecodingConfig, wanted: TranslationOptions) -> DecodingConfig:
    """Returns the requested decoding, by default that of the run. Raises ConfigError for a penalty without beams."""
    limits = {name: getattr(trained, name) for name in ("ratio", "extra", "cache")}
    if wanted.beams == 1:
        trained = GreedyConfig(**limits)
    elif wanted.beams is not None:
        beam_config = trained if isinstance(trained, BeamConfig) else BeamConfig(**limits)
        trained = beam_config.override({"beams": wanted.beams})
    if wanted.length_penalty is None:
        return trained
    if not isinstance(trained, BeamConfig):
        raise ConfigError(f"{trained.kind} decoding compares no lengths; give more --beams", "--length-penalty")
    return trained.override({"length_penalty": wanted.length_penalty})


def require_purpose(purpose: Purpose | None, source: PairsConfig, languages: Plain) -> None:
    """Raises ConfigError where a translator is to summarize, or a summarizer is to translate.

    Pairs of two languages are translations. Where the languages of files are not named, both purposes are allowed.
    """
    if purpose == "summarize" and languages and languages[0] != languages[1]:
        reason = f"this checkpoint translates from {languages[0]} to {languages[1]}; use: translate"
        raise ConfigError(reason, purpose)
    if purpose == "translate" and source.summaries:
        raise ConfigError(f"this checkpoint was trained on summaries, {source.kind}; use: summarize", purpose)


def require_languages(wanted: TranslationOptions, trained: Plain) -> None:
    """Raises ConfigError where the requested languages are not those that the network was trained on."""
    for option, requested, available in zip(
        ("--from", "--to"), (wanted.source, wanted.target), trained or (None, None), strict=True
    ):
        if requested is not None and requested != available:
            trained_on = (
                f"from {trained[0]} to {trained[1]}" if trained else "on texts whose languages its data do not name"
            )
            raise ConfigError(f"{requested} was requested, and this checkpoint was trained {trained_on}", option)
