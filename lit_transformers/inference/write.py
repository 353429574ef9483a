"""Generates text from the checkpoint of a language model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from datamodules import PromptDataConfig, Tokenizer, tokenizer_from_dict
from datamodules.pairs.prompts import prompt_shape
from lit_transformers.checked_files import Precision
from lit_transformers.config import ConfigError, Memory
from lit_transformers.decoding.generate import beam_search, sample
from lit_transformers.decoding.sampling import SamplingConfig
from lit_transformers.decoding.speculative import Acceptance, speculate
from lit_transformers.inference.precision import computed_in, prepare
from lit_transformers.inference.predictor import load_for_lines
from lit_transformers.models.capabilities import CausalNetwork
from lit_transformers.runs.evaluate import require_numbers
from lit_transformers.tasks.causal_lm import CausalLM
from lit_transformers.tasks.seq2seq import Seq2Seq
from lit_transformers.tasks.strings import Strings


class TextWriter:
    """Continues prompts with a trained language model, or answers them with a decoder that was fine-tuned on prompts.

    ``repeats``: whether a text begins with its prompt; answers do not.
    """

    def __init__(
        self,
        checkpoint: Path,
        memory: int | None = None,
        draft: Path | None = None,
        precision: Precision = "float32",
    ) -> None:
        """memory: the number of tokens that stay visible; None for memory and segment of training together. draft: the
        checkpoint of a smaller run that drafts symbols. Raises ConfigError if a checkpoint belongs to another task, if
        the mixer has no memory to set or cannot read several drafted symbols at once, or if the runs have different
        symbols. precision: of the passes of both networks."""
        task, config, extra = load_for_lines(checkpoint)
        if isinstance(task, Seq2Seq):
            raise ConfigError("a seq2seq writes from a source; give it lines with: translate, or summarize", "task")
        answers = isinstance(task, Strings) and isinstance(config.data, PromptDataConfig) and bool(extra["tokenizer"])
        if not isinstance(task, CausalLM) and not answers:
            this = f"this is a run of the task {config.task.kind} on {config.data.kind}"
            reason = f"only a causal_lm writes text, or strings that learned to answer prompts; {this}"
            raise ConfigError(reason, "task")
        require_numbers(task, checkpoint)
        memories = dict(config.model.leaves_with(Memory))
        self.visible = {
            path: value + task.data.length if memory is None else memory for path, value in memories.items()
        }
        if memories:
            task.config = task.config.override({"evaluation": self.visible})
        elif memory is not None:
            raise ConfigError(f"a {config.model.get('mixer.kind')} mixer has no memory to set", "memory")
        self.task, self.tokenizer = task, tokenizer_from_dict(extra["tokenizer"])
        self.shape = prompt_shape(config.data, extra) if isinstance(config.data, PromptDataConfig) else None
        self.model, self.acceptance, self.precision = config.model, Acceptance(), precision
        prepare(task, precision, task.device)
        self.draft = None if draft is None else TextWriter(draft, precision=precision)
        if self.draft is not None:
            self.require_draft(self.draft)

    def require_draft(self, draft: TextWriter) -> None:
        """Raises ConfigError if a run cannot draft symbols for this one."""
        mixer = self.model.get("mixer")
        if not mixer.promises().streams:
            raise ConfigError(f"{mixer.mixer_name} cannot read several symbols after a state; omit the draft", "draft")
        vocabularies = [writer.task.data.vocabulary for writer in (self, draft)]
        if self.tokenizer.to_dict() != draft.tokenizer.to_dict() or vocabularies[0] != vocabularies[1]:
            raise ConfigError("this run has other symbols; take one with the same tokenizer and corpus", "draft")

    @property
    def repeats(self) -> bool:
        return self.shape is None

    def write(
        self, prompt: str, length: int, sampling: SamplingConfig, beams: int = 1, draft_symbols: int = 4
    ) -> Iterator[str]:
        """Yields the prompt and a text of ``length`` symbols after it, or only an answer of at most ``length`` symbols,
        in pieces as they are generated. draft_symbols: the most that a draft adds at once. Raises ConfigError for a
        prompt that UTF-8 cannot write, for answers and drafts by beams, and for drafts of a text that memory does not
        hold."""
        if self.draft is not None and beams > 1:
            raise ConfigError("a draft serves sampling and greedy decoding, without beams; omit one of both", "beams")
        if not self.repeats and beams > 1:
            reason = "answers are sampled, without beams; omit it, and set temperature to 0 for the likeliest symbols"
            raise ConfigError(reason, "beams")
        try:
            encoded = self.tokenizer.encode(prompt.encode())
        except UnicodeEncodeError as error:
            raise ConfigError(f"UTF-8 cannot write character {error.start + 1}; type another", "prompt") from None
        evaluator, boundary = self.task.evaluator(), self.task.data.vocabulary.boundary
        with computed_in(self.precision, self.task.training_config, self.task.device):
            if self.shape is not None:
                row = torch.from_numpy(self.shape.prompt(encoded, 0))
                symbols = self.symbols(evaluator, row, length, sampling, draft_symbols, None)
                yield from pieces(takewhile(lambda symbol: symbol != boundary, symbols), self.tokenizer)
                return
            prompt_symbols = torch.tensor([boundary, *encoded.tolist()])
            if beams > 1:
                likeliest, _ = beam_search(evaluator, prompt_symbols, length, beams, forbidden=boundary)
                yield prompt + self.tokenizer.decode(likeliest)
                return
            yield prompt
            symbols = self.symbols(evaluator, prompt_symbols, length, sampling, draft_symbols, boundary)
            yield from pieces(symbols, self.tokenizer)

    def symbols(
        self,
        network: CausalNetwork,
        prompt: Int[Tensor, " t"],
        length: int,
        sampling: SamplingConfig,
        draft_symbols: int,
        forbidden: int | None,
    ) -> Iterator[int]:
        """Returns the symbols after a prompt, drafted by the smaller run if there is one."""
        if self.draft is None:
            return sample(network, prompt, length, sampling, forbidden)
        visible = self.visible.values()
        needed = len(prompt) + length
        if visible and min(visible) < needed and not self.model.get("mixer").promises().constant_reach:
            reason = f"drafts need a memory of all {needed} symbols of the prompt and the text, not of {min(visible)}"
            raise ConfigError(f"{reason}; set it to {needed}", "memory")
        draft = self.draft.task.evaluator()
        return speculate(network, draft, prompt, length, sampling, draft_symbols, forbidden, self.acceptance)


def write(
    checkpoint: Path,
    prompt: str,
    length: int,
    sampling: SamplingConfig,
    beams: int = 1,
    memory: int | None = None,
    draft: Path | None = None,
    draft_symbols: int = 4,
    precision: Precision = "float32",
) -> Iterator[str]:
    """Yields a text as ``TextWriter`` writes it."""
    yield from TextWriter(checkpoint, memory, draft, precision).write(prompt, length, sampling, beams, draft_symbols)


def pieces(symbols: Iterable[int], tokenizer: Tokenizer) -> Iterator[str]:
    """Yields the text of symbols as they are generated, in whole characters."""
    read: list[int] = []
    written = ""
    for symbol in symbols:
        read.append(symbol)
        text = tokenizer.decode(read)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # the rest of a character may still come
            yield text[len(written) :]
            written = text
    yield tokenizer.decode(read)[len(written) :]
