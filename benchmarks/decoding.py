"""Measures the cost of a generated symbol on one thread, in the ways of this suite and of transformers, in one run.

    python -m benchmarks.decoding [CHECKPOINT --draft OTHER] [--translator CHECKPOINT --translator-draft OTHER
                                   --sources FILE] [--seconds 90] [--rounds 3] [--quick] [--json NAME]

The ways of a table take turns, and time is that of the CPU. Each row has the median time of a symbol, how many times
less it is than that of the first way, and the share of symbols that equal those of the first way.

- A language model, greedily: with its state; without it, where the whole prefix is read again for every symbol; with
  symbols drafted by a smaller model; and by the GPT-2 of transformers with the same weights. Without checkpoints both
  models are trained here, on bytes of WikiText-2 below LIT_DATA, for --seconds of CPU each. Checkpoints are those of
  causal_lm runs that GPT-2 can hold.
- A symbol after a prefix, by attention with its keys and by linear attention, whose state does not grow.
- A translator with random weights and transformers' Marian with the same ones: greedy, and 4 beams; ours also without a
  state, and one hypothesis after another.
- With --translator, a trained translator that writes lines of a file greedily: one after another, with symbols drafted
  by a smaller one, and all lines together.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.console import Console
from torch import Tensor, nn

from benchmarks.hardware import JSON_HELP, describe, save
from benchmarks.marian import BOUNDARY, Sizes
from benchmarks.reading import shown, wikitext_lines
from benchmarks.text_networks import write_checkpoint
from benchmarks.translation import BEAMS, TINY, TranslationBatch, batch_of, speakers_of, without_ends
from benchmarks.translation import SIZES as TRANSLATORS
from lit_transformers.decoding.decode import BeamConfig, BeamSearch, DecodingConfig, GreedyConfig, Reader, decode
from lit_transformers.decoding.generate import sample
from lit_transformers.decoding.sampling import SamplingConfig
from lit_transformers.decoding.speculative import Acceptance, decode_with_drafts, speculate
from lit_transformers.exchange.transfer import export_weights
from lit_transformers.gates.miniature import probe_data
from lit_transformers.inference.lines import padded
from lit_transformers.inference.translate import TranslationOptions, Translator
from lit_transformers.inference.write import TextWriter
from lit_transformers.models import LanguageModelConfig
from lit_transformers.models.capabilities import CausalNetwork, PairNetwork
from lit_transformers.runs import RunConfig

GREEDY = SamplingConfig(temperature=0.0)
PROMPT = b"The town lies on the left bank of the river , and has a station of the railway to the north ."
Way = Callable[[], list[list[int]]]
"""Returns the symbols of each row."""
Row = dict[str, Any]


class Workload(NamedTuple):
    """The sizes of a measurement. model, draft: sizes of language models. row: symbols of a row of training. prompt,
    length: of a text. drafts: numbers of drafted symbols. prefixes: their lengths. translator: its sizes; rows,
    longest: of its batch."""

    model: Mapping[str, int]
    draft: Mapping[str, int]
    row: int
    prompt: int
    length: int
    drafts: Sequence[int]
    prefixes: Sequence[int]
    translator: Sizes
    rows: int
    longest: int


WHOLE = Workload(
    {"dim": 384, "heads": 6, "depth": 6},
    {"dim": 128, "heads": 4, "depth": 2},
    row=256,
    prompt=64,
    length=192,
    drafts=(2, 4, 8),
    prefixes=(64, 512, 2048),
    translator=TRANSLATORS["small"],
    rows=8,
    longest=24,
)
QUICK = Workload(
    {"dim": 32, "heads": 2, "depth": 2},
    {"dim": 16, "heads": 2, "depth": 1},
    row=32,
    prompt=8,
    length=16,
    drafts=(2,),
    prefixes=(8, 16),
    translator=TINY,
    rows=2,
    longest=6,
)


def gpt2(sizes: Mapping[str, int], length: int) -> dict[str, Any]:
    """Returns the plain config of a language model that GPT-2 can hold, for rows of ``length`` symbols; loading it
    reads two after another."""
    return {
        "kind": "language_model",
        **sizes,
        "norm": "pre",
        "positions": {"kind": "learned", "restart": "document", "max_length": 2 * length},
        "tokens": {"kind": "full", "scaled": False, "bias": False},
        "feedforward": {"width": 4 * sizes["dim"], "activation": "gelu_tanh"},
        "mixer": {"kind": "attention", "bias": True},
        "initial_std": 0.02,
    }


def trained(sizes: Mapping[str, int], texts: Path, length: int, seconds: float, file: Path) -> Path:
    """Trains a language model on random rows of the texts for ``seconds`` of CPU, and returns its checkpoint."""
    plain = {
        "model": gpt2(sizes, length),
        "task": {"kind": "causal_lm"},
        "data": {"source": {"kind": "files", "path": str(texts)}, "segment_length": length, "batch_size": 8},
        "training": {"steps": 1, "device": "cpu"},
    }
    config = RunConfig.from_dict(plain)
    torch.manual_seed(0)
    data = config.build_data()
    task = config.build_task(data)
    text = torch.frombuffer(
        bytearray(b"".join(path.read_bytes() for path in sorted(texts.iterdir()))), dtype=torch.uint8
    )
    network: Any = task.network
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.01)
    begin = time.process_time()
    while time.process_time() < begin + seconds:
        starts = torch.randint(len(text) - length - 1, (8, 1))
        rows = text[starts + torch.arange(length + 1)].long()
        loss = network.tokens.nll(network(rows[:, :-1]).hidden, rows[:, 1:]).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    return write_checkpoint(config, data, task.eval(), file)


def texts_in(folder: Path, quick: bool) -> Path:
    """Writes texts into a folder: lines of WikiText-2, or a few words where it is quick."""
    folder.mkdir()
    words = ["a river rises in the north", "nobody will see it twice", "she asked where it had come from"]
    lines = list(islice(wikitext_lines(), 9600)) if not quick else words * 80
    for number in range(24):
        (folder / f"{number}.txt").write_text("\n".join(lines[number::24]), encoding="utf-8")
    return folder


def measured(ways: Mapping[str, Way], rounds: int) -> list[Row]:
    """Returns a row for each way, the first of which is the one that others are compared with."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    outputs: dict[str, list[int]] = {}
    for number in range(rounds + 1):
        for name, way in ways.items():
            begin = time.process_time()
            symbols = [*chain.from_iterable(way())]
            if number:  # the first of each warms up
                seconds[name].append(time.process_time() - begin)
            outputs[name] = symbols
    base = next(iter(ways))
    rows = []
    for name, symbols in outputs.items():
        equal = sum(own == other for own, other in zip(symbols, outputs[base], strict=True))
        ratio = median(seconds[base]) / median(seconds[name])
        cost = 1000 * median(seconds[name]) / len(symbols)
        rows.append({"way": name, "ms_a_symbol": cost, "ratio": ratio, "equal_symbols": 100 * equal / len(symbols)})
    return rows


@torch.no_grad()
def without_state(model: CausalNetwork, prompt: Tensor, length: int, forbidden: int) -> list[int]:
    """Returns the likeliest symbols after a prompt, for each of which the whole prefix is read again."""
    text = prompt
    for _ in range(length):
        logits = model.tokens.log_probabilities(model(text[None]).hidden[:, -1])
        logits[:, forbidden] = float("-inf")
        text = torch.cat([text, logits.argmax(dim=-1)])
    return text[len(prompt) :].tolist()


def language_model(checkpoint: Path, draft: Path, work: Workload, rounds: int, folder: Path) -> list[Row]:
    """Compares ways to write the likeliest text of a language model."""
    from transformers import GPT2LMHeadModel

    total = work.prompt + work.length
    writer, drafter = TextWriter(checkpoint, total), TextWriter(draft, total)
    model, small, boundary = writer.task.evaluator(), drafter.task.evaluator(), writer.task.data.vocabulary.boundary
    start = writer.tokenizer.encode(PROMPT)[: work.prompt - 1]
    prompt, acceptances = torch.tensor([boundary, *start.tolist()]), dict[str, Acceptance]()
    export_weights(checkpoint, folder, "gpt2")
    peer: Any = GPT2LMHeadModel.from_pretrained(folder).eval()

    def by_peer() -> list[list[int]]:
        written = peer.generate(
            prompt[None],
            attention_mask=torch.ones_like(prompt)[None],
            max_new_tokens=work.length,
            min_new_tokens=work.length,
            do_sample=False,
            use_cache=True,
            suppress_tokens=[boundary],
            pad_token_id=boundary,
        )
        return [written[0, len(prompt) :].tolist()]

    def by_draft(count: int) -> Way:
        def way() -> list[list[int]]:
            acceptances[f"drafts of {count}"] = own = Acceptance()
            return [[*speculate(model, small, prompt, work.length, GREEDY, count, boundary, own)]]

        return way

    ways: dict[str, Way] = {
        "with its state": lambda: [[*sample(model, prompt, work.length, GREEDY, boundary)]],
        "whole prefix": lambda: [without_state(model, prompt, work.length, boundary)],
        **{f"drafts of {count}": by_draft(count) for count in work.drafts},
        "transformers' GPT-2": by_peer,
        "the draft alone": lambda: [[*sample(small, prompt, work.length, GREEDY, boundary)]],
    }
    rows = measured(ways, rounds)
    for row in rows:
        if own := acceptances.get(row["way"]):
            row |= {"accepted": 100 * own.accepted / own.drafted, "symbols_a_pass": work.length / own.passes}
    return rows


def after_prefixes(work: Workload, rounds: int) -> list[Row]:
    """Compares the costs of a symbol after prefixes, by attention that stores keys and by linear attention, of networks
    with random weights. difference: the largest one of log-probabilities to those of one pass over all symbols."""
    torch.manual_seed(0)
    rows = []
    for length in work.prefixes:
        text, seconds, differences = torch.randint(1, 250, (1, length + work.row)), dict[str, list[float]](), []
        for kind in ("attention", "linear"):
            memory = {"memory": 2 * text.size(1)} if kind == "attention" else {}
            model = {"kind": "language_model", **work.model, "positions": None, "mixer": {"kind": kind} | memory}
            network = LanguageModelConfig.from_dict(model).build(probe_data(257, text.size(1))).eval()
            with torch.no_grad():
                expected, state = (
                    network.tokens.log_probabilities(network(text).hidden),
                    network(text[:, :length]).state,
                )
                for _ in range(rounds):
                    begin, own, read = time.process_time(), state, list[Tensor]()
                    for place in range(length, text.size(1)):
                        output = network(text[:, place : place + 1], own, unbroken=place)
                        own = output.state
                        read.append(network.tokens.log_probabilities(output.hidden))
                    seconds.setdefault(kind, []).append(time.process_time() - begin)
            differences.append(float((torch.cat(read, dim=1) - expected[:, length:]).abs().max()))
        attention, linear = (1000 * median(seconds[kind]) / work.row for kind in ("attention", "linear"))
        row = {"prefix": length, "attention_ms": attention, "linear_ms": linear, "ratio": attention / linear}
        rows.append(row | {"difference": max(differences)})
    return rows


class EachHypothesis(Reader):
    """Runs a decoder on one hypothesis after another, each with its own state."""

    def __init__(self, network: PairNetwork, batch: TranslationBatch, beams: int) -> None:
        self.network, self.boundary, self.dtype = network, BOUNDARY, torch.float32
        hidden, padding_mask = network.encode(batch.source, batch.source_padding_mask).hidden, batch.source_padding_mask
        rows = [row for row in range(len(hidden)) for _ in range(beams)]
        self.sources = [(hidden[row : row + 1], padding_mask[row : row + 1]) for row in rows]
        self.states: list[Any] = [None] * len(rows)

    def read(self, prefixes: Tensor) -> Tensor:
        outputs = [
            self.network.decode(prefix[None, -1:], *source, state, unbroken=len(prefix) - 1)
            for prefix, source, state in zip(prefixes, self.sources, self.states, strict=True)
        ]
        self.states = [output.state for output in outputs]
        return self.network.tokens.log_probabilities(torch.cat([output.hidden[:, -1] for output in outputs]))

    def take(self, hypotheses: Tensor, rows: Tensor | None = None) -> None:
        kept = hypotheses.tolist()
        self.sources, self.states = ([part[number] for number in kept] for part in (self.sources, self.states))


def translator(work: Workload, rounds: int) -> dict[str, list[Row]]:
    """Compares ways to decode a batch of sources, greedily and by beams."""
    torch.manual_seed(0)
    model, network = without_ends(work.translator, torch.device("cpu"))
    batch = batch_of(work.rows, work.translator, torch.device("cpu"))

    @torch.no_grad()
    def one_by_one() -> list[list[int]]:
        config = BeamConfig(beams=BEAMS)
        limits = torch.full((work.rows,), work.longest)
        return BeamSearch(config, EachHypothesis(network, batch, BEAMS), limits).run().symbols

    tables = {}
    configs: dict[str, DecodingConfig] = {"greedy": GreedyConfig(), f"{BEAMS} beams": BeamConfig(beams=BEAMS)}
    for name, config in configs.items():
        own, peer = speakers_of(model, network, batch, config, work.longest)
        again, _ = speakers_of(model, network, batch, config.override({"cache": False}), work.longest)
        ways = {"with its state": own, "whole prefix": again, "transformers' Marian": peer}
        tables[name] = measured(ways | ({} if name == "greedy" else {"one hypothesis at a time": one_by_one}), rounds)
    return tables


def trained_translator(
    checkpoint: Path, draft: Path, sources: Path, drafts: Sequence[int], rounds: int, count: int = 40
) -> list[Row]:
    """Compares ways to translate the first lines of a file, greedily."""
    lines = [line.strip() for line in sources.read_text(encoding="utf-8").splitlines()[:count]]
    model, small = (Translator(own, TranslationOptions(beams=1)) for own in (checkpoint, draft))
    encoded = [torch.from_numpy(model.row([model.encode(line)])).long() for line in lines]
    boundary, acceptances = model.task.data.vocabulary.boundary, dict[str, Acceptance]()
    config = model.task.config.decoding

    def by(own: Translator) -> Way:
        network = own.task.evaluator()
        return lambda: [decode(network, row[None], None, config, boundary).symbols[0] for row in encoded]

    def together() -> list[list[int]]:
        rows, mask = padded(encoded)
        return decode(model.task.evaluator(), rows, mask, config, boundary).symbols

    def by_draft(number: int) -> Way:
        def way() -> list[list[int]]:
            acceptances[f"drafts of {number}"] = own = Acceptance()
            networks = model.task.evaluator(), small.task.evaluator()
            options = config, boundary, number, own
            return [decode_with_drafts(*networks, row[None], None, *options)[0] for row in encoded]

        return way

    ways: dict[str, Way] = {
        "one line at a time": by(model),
        **{f"drafts of {number}": by_draft(number) for number in drafts},
        "all lines together": together,
    }
    rows = measured(ways, rounds)
    for row in rows:
        if own := acceptances.get(row["way"]):
            row |= {"accepted": 100 * own.accepted / own.drafted, "symbols_a_pass": 1 + own.accepted / own.passes}
    return rows


def main(
    checkpoint: Annotated[Path | None, typer.Argument(help="The checkpoint.ckpt of a language model.")] = None,
    draft: Annotated[Path | None, typer.Option(help="Draft with the checkpoint.ckpt of a smaller run.")] = None,
    translator_run: Annotated[
        Path | None, typer.Option("--translator", help="The checkpoint.ckpt of a trained translator.")
    ] = None,
    translator_draft: Annotated[Path | None, typer.Option(help="Draft its symbols with this checkpoint.ckpt.")] = None,
    sources: Annotated[Path | None, typer.Option(help="Translate lines of this file.")] = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="Train each model for n seconds of CPU time.")] = 90,
    rounds: Annotated[int, typer.Option(min=1, help="Measure each way this many times.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Take small networks, to check this script.")] = False,
    json_name: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """Measure the cost of a generated symbol in several ways."""
    if (checkpoint is None) != (draft is None):
        raise typer.BadParameter("name both a checkpoint and --draft, or none")
    if len({translator_run is None, translator_draft is None, sources is None}) > 1:
        raise typer.BadParameter("name --translator, --translator-draft and --sources together, or none of them")
    torch.set_num_threads(1)
    console, work = Console(), QUICK if quick else WHOLE
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if checkpoint is None or draft is None:
            texts, length = texts_in(folder / "texts", quick), work.prompt + work.length
            spent = min(seconds, 2.0) if quick else seconds
            checkpoint = trained(work.model, texts, length, spent, folder / "checkpoint.ckpt")
            draft = trained(work.draft, texts, length, spent, folder / "draft.ckpt")
        tables = {"A language model": language_model(checkpoint, draft, work, rounds, folder / "transformers")}
    tables["A symbol after a prefix"] = after_prefixes(work, rounds)
    tables |= {f"A translator, {name}": rows for name, rows in translator(work, rounds).items()}
    if translator_run is not None and translator_draft is not None and sources is not None:
        tables["A trained translator"] = trained_translator(
            translator_run, translator_draft, sources, work.drafts, rounds
        )
    for title, rows in tables.items():
        console.print(shown(title, rows))
    if json_name is not None:
        results = {"machine": describe(("transformers",)), "quick": quick, "rounds": rounds, "tables": tables}
        console.print(f"wrote {save(json_name, results)}")


if __name__ == "__main__":
    typer.run(main)
