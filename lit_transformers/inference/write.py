"""Generates text from the checkpoint of a language model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path

import torch

from datamodules import PromptDataConfig, Tokenizer, tokenizer_from_dict
from datamodules.pairs.prompts import prompt_shape
from lit_transformers.config import ConfigError, Memory
from lit_transformers.decoding.generate import beam_search, sample
from lit_transformers.decoding.sampling import SamplingConfig
from lit_transformers.runs import load
from lit_transformers.runs.evaluate import require_numbers
from lit_transformers.tasks.causal_lm import CausalLM
from lit_transformers.tasks.seq2seq import Seq2Seq
from lit_transformers.tasks.strings import Strings
from lit_transformers.training.arithmetic import arithmetic


class TextWriter:
    """Continues prompts with a trained language model, or answers them with a decoder that was fine-tuned on prompts.

    ``repeats``: whether a text begins with its prompt; answers do not.
    """

    def __init__(self, checkpoint: Path, memory: int | None = None) -> None:
        """memory: the number of tokens that stay visible; None for memory and segment of training together. Raises
        ConfigError if the checkpoint belongs to another task, or if its mixer has no memory to set."""
        task, config, extra = load(checkpoint)
        if isinstance(task, Seq2Seq):
            raise ConfigError("a seq2seq writes from a source; give it lines with: translate, or summarize", "task")
        answers = isinstance(task, Strings) and isinstance(config.data, PromptDataConfig) and bool(extra["tokenizer"])
        if not isinstance(task, CausalLM) and not answers:
            this = f"this is a run of the task {config.task.kind} on {config.data.kind}"
            reason = f"only a causal_lm writes text, or strings that learned to answer prompts; {this}"
            raise ConfigError(reason, "task")
        require_numbers(task, checkpoint)
        memories = dict(config.model.leaves_with(Memory))
        if memories:
            visible_tokens = {path: value + task.data.length for path, value in memories.items()}
            task.config = task.config.override(
                {"evaluation": visible_tokens if memory is None else dict.fromkeys(memories, memory)}
            )
        elif memory is not None:
            raise ConfigError(f"a {config.model.get('mixer.kind')} mixer has no memory to set", "memory")
        self.task, self.tokenizer = task, tokenizer_from_dict(extra["tokenizer"])
        self.shape = prompt_shape(config.data, extra) if isinstance(config.data, PromptDataConfig) else None

    @property
    def repeats(self) -> bool:
        return self.shape is None

    def write(self, prompt: str, length: int, sampling: SamplingConfig, beams: int = 1) -> Iterator[str]:
        """Yields the prompt and a text of ``length`` symbols after it, or only an answer of at most ``length`` symbols,
        in pieces as they are generated. Raises ConfigError for a prompt that UTF-8 cannot write, and for answers by
        beams."""
        if not self.repeats and beams > 1:
            reason = "answers are sampled, without beams; omit it, and set temperature to 0 for the likeliest symbols"
            raise ConfigError(reason, "beams")
        try:
            encoded = self.tokenizer.encode(prompt.encode())
        except UnicodeEncodeError as error:
            raise ConfigError(f"UTF-8 cannot write character {error.start + 1}; type another", "prompt") from None
        evaluator, boundary = self.task.evaluator(), self.task.data.vocabulary.boundary
        with arithmetic(self.task.training_config):
            if self.shape is not None:
                symbols = sample(evaluator, torch.from_numpy(self.shape.prompt(encoded, 0)), length, sampling)
                yield from pieces(takewhile(lambda symbol: symbol != boundary, symbols), self.tokenizer)
                return
            prompt_symbols = torch.tensor([boundary, *encoded.tolist()])
            if beams > 1:
                likeliest, _ = beam_search(evaluator, prompt_symbols, length, beams, forbidden=boundary)
                yield prompt + self.tokenizer.decode(likeliest)
                return
            yield prompt
            yield from pieces(sample(evaluator, prompt_symbols, length, sampling, forbidden=boundary), self.tokenizer)


def write(
    checkpoint: Path,
    prompt: str,
    length: int,
    sampling: SamplingConfig,
    beams: int = 1,
    memory: int | None = None,
) -> Iterator[str]:
    """Yields a text as ``TextWriter`` writes it."""
    yield from TextWriter(checkpoint, memory).write(prompt, length, sampling, beams)


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
