"""How much of its context a trained language model uses: its loss with all but the last symbols cut off."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int
from torch import Tensor

from datamodules import LanguageData
from datamodules.core.tokenizers import encode_document
from lit_transformers.config import ConfigError
from lit_transformers.records.context_losses import ContextLoss
from lit_transformers.runs.config import describe
from lit_transformers.runs.evaluate import load, open_data
from lit_transformers.tasks.causal_lm import CausalLM
from lit_transformers.training.arithmetic import arithmetic

__all__ = ["context_losses", "sampled_rows"]

MOST_SYMBOLS = 1 << 18
"""The most symbols that are read in total; they take some seconds at the size of the demo."""
MOST_POSITIONS = 2048
SEGMENTS = 4
"""The longest context of a network that carries a state, in segments."""


def context_losses(checkpoint: Path, symbols: int = MOST_SYMBOLS) -> tuple[ContextLoss, ...]:
    """Measures a trained language model with its context cut to the last 1, 2, 4, ... symbols; nothing is trained.

    Each length is measured at the same positions, drawn at random from the documents of the evaluation; ``symbols``
    bounds the symbols that are read in total. The longest context is a segment, or four of a network that carries a
    state.
    Raises ConfigError where the checkpoint is of no language model or the documents are too short.
    """
    task, config, extra = load(checkpoint, is_own=True)
    data = open_data(checkpoint, task, config, extra)
    if not isinstance(task, CausalLM) or not isinstance(data, LanguageData):
        raise ConfigError(f"task {config.task.kind} reads no text symbol by symbol")
    segment = data.config.evaluation.segment_length or data.config.segment_length
    reach = SEGMENTS * segment if describe(config, data).state_bytes else segment
    lengths = [1 << power for power in range(reach.bit_length())]
    longest = lengths[-1]
    rows = sampled_rows(data, longest, min(MOST_POSITIONS, max(symbols // (2 * longest), 2)))
    task.to("cuda" if torch.cuda.is_available() and config.training.device != "cpu" else "cpu")
    with arithmetic(config.training):
        bits = {length: _bits(task, rows[:, -length - 1 :], segment) for length in lengths}
    beyond = {length: values - bits[longest] for length, values in bits.items()}
    return tuple(
        ContextLoss(
            length=length,
            bits=float(bits[length].mean()),
            beyond=float(values.mean()),
            error=float(values.std(ddof=1) / math.sqrt(len(values))),
        )
        for length, values in beyond.items()
    )


def sampled_rows(data: LanguageData, longest: int, count: int) -> Int[Tensor, "p l"]:
    """Returns positions of evaluation documents as rows of ``longest`` symbols and the one that follows them."""
    stream = data.documents(data.measured_split).evaluation(data.config.evaluation.limit)
    windows: list[npt.NDArray[Any]] = []
    while (item := stream.take()) is not None:
        symbols = encode_document(data.tokenizer, item[1])
        if len(symbols) > longest:
            windows.append(np.lib.stride_tricks.sliding_window_view(symbols, longest + 1))
    ends = np.cumsum([len(view) for view in windows])
    if not windows or ends[-1] < 2:
        raise ConfigError(f"no document of the evaluation is long enough for {longest} symbols of context")
    chosen = np.sort(np.random.default_rng(0).permutation(ends[-1])[:count])
    numbers = np.searchsorted(ends, chosen, side="right")
    rows = [
        windows[number][place - ends[number]] for number, place in zip(numbers.tolist(), chosen.tolist(), strict=True)
    ]
    return torch.from_numpy(np.stack(rows).astype(np.int64))


@torch.no_grad()
def _bits(task: CausalLM, rows: Int[Tensor, "p l"], segment: int) -> npt.NDArray[np.float64]:
    """Returns -log2 p of the last symbol of each row, after the others, read from an empty state segment by segment."""
    network = task.evaluator()
    parts = []
    for chunk in rows.split(max(MOST_SYMBOLS // 16 // rows.size(1), 1)):
        inputs, state, read = chunk[:, :-1].to(task.device), None, 0
        first = inputs.size(1) % segment or segment  # of rows that no segments fill, the first one is shorter
        for piece in (inputs[:, :first], *inputs[:, first:].split(segment, dim=1)):
            if piece.size(1):
                output = network(piece, state, unbroken=read)
                state, read = output.state, read + piece.size(1)
        parts.append(network.tokens.nll(output.hidden[:, -1:], chunk[:, -1:].to(task.device)))
    return np.asarray(torch.cat(parts)[:, 0].double().cpu() / math.log(2))
