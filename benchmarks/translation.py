"""Training and decoding speed of our encoder-decoder next to transformers' Marian of the same size and weights.

    python -m benchmarks.translation [--size small|base] [--tiny] [--device cuda] [--json NAME]

Both take turns in one process, so that other load on the machine affects both; times are medians, and a ratio is the
median over consecutive turns, above 1 where ours is faster. In training both run the same bare loop (loss of the real
targets, gradient, clipping, Adam), with dropout; only targets are counted. In decoding they have the same weights, use
a state or a cache, and produce outputs of equal length: the boundary is made so unlikely that every row reaches the
longest. Marian's beam search stops, as ours does, when no better output is possible. On CUDA both compute in bfloat16
autocast.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import MarianMTModel

from benchmarks.hardware import JSON_HELP, describe, save
from benchmarks.layer_timing import autocast
from benchmarks.marian import BOUNDARY, Sizes, copied, theirs
from lit_transformers.batch import IGNORED
from lit_transformers.decoding.decode import BeamConfig, DecodingConfig, GreedyConfig, decode
from lit_transformers.models.encoder_decoder import EncoderDecoder
from lit_transformers.models.tokens import FullTokenEmbedding

SIZES = {
    "small": Sizes(symbols=8_000, dim=256, heads=4, width=1_024, depth=3, decoder_depth=3, dropout=0.1),
    "base": Sizes(symbols=32_000, dim=512, heads=8, width=2_048, depth=6, decoder_depth=6, dropout=0.1),
}
"""The sizes by name; base is that of Vaswani et al. (arXiv:1706.03762, table 3)."""
TINY = Sizes(symbols=500, dim=32, heads=4, width=64, depth=1, decoder_depth=1, dropout=0.1)
SHORTEST, LONGEST = 8, 24
"""The fewest and most symbols of a source or a target, drawn uniformly: as many as an image caption has in subwords."""
BEAMS = 4
UNLIKELY = -1e4


class TranslationBatch(NamedTuple):
    """Sources and targets with their padding, which is the last symbol; inputs begin with the boundary."""

    source: Tensor
    source_padding_mask: Tensor
    inputs: Tensor
    targets: Tensor
    padding_mask: Tensor

    @property
    def tokens(self) -> int:
        """The number of targets that are not padding."""
        return int(self.padding_mask.sum())


def batch_of(rows: int, sizes: Sizes, device: torch.device) -> TranslationBatch:
    """A batch of random sources and targets of random lengths."""

    def side() -> tuple[Tensor, Tensor]:
        padding_mask = torch.arange(LONGEST) < torch.randint(SHORTEST, LONGEST + 1, (rows, 1))
        symbols = torch.randint(1, sizes.symbols - 1, padding_mask.shape)
        return symbols.masked_fill(~padding_mask, sizes.symbols - 1), padding_mask

    (source, source_padding_mask), (targets, padding_mask) = side(), side()
    inputs = torch.cat([torch.full((rows, 1), BOUNDARY), targets[:, :-1]], dim=1)
    tensors = (source, source_padding_mask, inputs, targets.masked_fill(~padding_mask, IGNORED), padding_mask)
    return TranslationBatch(*(part.to(device) for part in tensors))


def loss_of(network: nn.Module, batch: TranslationBatch) -> Tensor:
    """The mean loss over the targets that are not padding."""
    if isinstance(network, EncoderDecoder):
        outputs = network(batch.source, batch.inputs, batch.source_padding_mask, batch.padding_mask)
        return network.tokens.nll(outputs.hidden, batch.targets).sum() / batch.padding_mask.sum()
    loss: Tensor = network(
        input_ids=batch.source,
        attention_mask=batch.source_padding_mask.long(),
        decoder_input_ids=batch.inputs,
        labels=batch.targets,
    ).loss
    return loss


def trainer_of(network: nn.Module, batch: TranslationBatch) -> Callable[[], object]:
    """Returns a function that takes one training step of a bare loop."""
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=1e-4)
    network.train()

    def step() -> None:
        optimizer.zero_grad()
        with autocast(batch.source.device):
            loss = loss_of(network, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return step


def without_ends(sizes: Sizes, device: torch.device) -> tuple[MarianMTModel, EncoderDecoder]:
    """A Marian model and our network with its weights, of which neither ends an output."""
    model = theirs(sizes)
    network = copied(model, sizes).to(device)
    model.to(device)
    assert isinstance(network.tokens, FullTokenEmbedding)
    with torch.no_grad():
        model.final_logits_bias[:, BOUNDARY] = UNLIKELY
        network.tokens.logits.bias[BOUNDARY] = UNLIKELY
    return model, network


def speakers_of(
    model: MarianMTModel, network: EncoderDecoder, batch: TranslationBatch, config: DecodingConfig, longest: int
) -> tuple[Callable[[], list[list[int]]], Callable[[], list[list[int]]]]:
    """Returns our function and theirs that decode a batch up to ``longest`` symbols. Raises RuntimeError where a row is
    shorter."""
    config = config.override({"ratio": 0.0, "extra": longest})
    beams = (
        {"num_beams": config.beams, "early_stopping": "never"} if isinstance(config, BeamConfig) else {"num_beams": 1}
    )

    def our_output() -> list[list[int]]:
        with autocast(batch.source.device):
            return decode(network, batch.source, batch.source_padding_mask, config, BOUNDARY).symbols

    def their_output() -> list[list[int]]:
        padding_mask = batch.source_padding_mask.long()
        with autocast(batch.source.device):
            generated = model.generate(
                batch.source, attention_mask=padding_mask, max_new_tokens=longest, do_sample=False, **beams
            )
        assert isinstance(generated, Tensor)
        return [row[1:] for row in generated.tolist()]

    if any({len(row) for row in generate()} != {longest} for generate in (our_output, their_output)):
        raise RuntimeError("a row ended before the longest: the two sides did not write equally much")
    return our_output, their_output


def compare(ours: Callable[[], object], theirs: Callable[[], object], tokens: int, repeats: int) -> dict[str, float]:
    """Tokens per second of both, timed in turns, and the median ratio of their times."""
    ours(), theirs()
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(repeats)]
    our_seconds, their_seconds = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {
        "ours": tokens / our_seconds,
        "theirs": tokens / their_seconds,
        "ratio": statistics.median(their_time / our_time for our_time, their_time in pairs),
    }


def seconds(work: Callable[[], object]) -> float:
    """Seconds that the work takes, with the device idle before and after."""
    synchronise()
    begun = time.perf_counter()
    work()
    synchronise()
    return time.perf_counter() - begun


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure(sizes: Sizes, rows: int, longest: int, repeats: int, device: torch.device) -> dict[str, dict[str, float]]:
    """Compares both networks in training, in greedy decoding and in beam search; returns the speeds by name."""
    torch.manual_seed(0)
    model = theirs(sizes)
    network, batch = copied(model, sizes).to(device), batch_of(rows, sizes, device)
    model.to(device)
    speeds = {}
    training = (trainer_of(network, batch), trainer_of(model, batch))
    speeds["training"] = compare(*training, batch.tokens, repeats)
    model, network = without_ends(sizes, device)
    for name, config in (("greedy", GreedyConfig()), (f"{BEAMS} beams", BeamConfig(beams=BEAMS))):
        speeds[name] = compare(*speakers_of(model, network, batch, config, longest), rows * longest, repeats)
    return speeds


def main(
    tiny: Annotated[bool, typer.Option("--tiny", help="Small networks, to check this script.")] = False,
    size: Annotated[str, typer.Option(help=f"Of both networks: {', '.join(SIZES)}.")] = "small",
    device: Annotated[str, typer.Option(help="cpu or cuda (bf16).")] = "cpu",
    rows: Annotated[int, typer.Option(min=1, help="Pairs of a batch.")] = 64,
    longest: Annotated[int, typer.Option(min=2, help="Symbols that every row says.")] = 24,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of each, of which the median counts.")] = 7,
    json: Annotated[str | None, typer.Option(help=JSON_HELP)] = None,
) -> None:
    """Prints target tokens a second of both, and how many times faster ours is."""
    if size not in SIZES:
        raise typer.BadParameter(f"there is no size {size}, but {', '.join(SIZES)}", param_hint="--size")
    sizes = TINY if tiny else SIZES[size]
    speeds = measure(sizes, rows, longest, repeats, torch.device(device))
    table = Table("target tokens a second", "ours", "Marian", "ratio")
    for name, row in speeds.items():
        table.add_row(name, f"{row['ours']:,.0f}", f"{row['theirs']:,.0f}", f"{row['ratio']:.2f}")
    Console().print(table)
    if tiny:
        typer.echo("Tiny networks: these numbers say that the script runs, and nothing about speed.")
    if json:
        settings = {"rows": rows, "longest": longest, "repeats": repeats, "sizes": sizes._asdict()}
        result: dict[str, Any] = {"hardware": describe(("transformers",)), "tiny": tiny, "size": size, "device": device}
        save(json, result | settings | {"found": speeds})


if __name__ == "__main__":
    typer.run(main)
