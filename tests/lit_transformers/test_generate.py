"""Text from a model: the choice of symbols, a memory that forgets and repeats nothing, and the command."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from datamodules import tokenizer_from_dict
from lit_transformers.__main__ import main
from lit_transformers.config import ConfigError
from lit_transformers.decoding.generate import beam_search, sample
from lit_transformers.decoding.sampling import SamplingConfig, choose
from lit_transformers.gates.miniature import probe_data
from lit_transformers.inference.write import write
from lit_transformers.models.language_model import LanguageModel, LanguageModelConfig
from lit_transformers.records.files import CHECKPOINT
from lit_transformers.runs import RunConfig, fit, load

GREEDY = SamplingConfig(temperature=0.0)


def build(vocabulary: int = 11, mixer: object = None, seed: int = 0, **changes: object) -> LanguageModel:
    """A model that has learned nothing but has strong opinions; with tied weights it would repeat one symbol."""
    torch.manual_seed(seed)
    mixer_fields = {"kind": "attention", "memory": 64, "encoding": "xl"} if mixer is None else mixer
    tokens = {"kind": "full", "tied": False}
    sizes = {"dim": 16, "heads": 2, "depth": 2, "initial_std": 0.4}
    fields = {"kind": "language_model", **sizes, "tokens": tokens, "mixer": mixer_fields, **changes}
    return LanguageModelConfig.from_dict(fields).build(probe_data(vocabulary, 64)).eval()


def prompt(length: int = 5, vocabulary: int = 11) -> Tensor:
    return torch.randint(0, vocabulary, (length,), generator=torch.Generator().manual_seed(1))


def log_probabilities(model: LanguageModel, symbols: Tensor) -> Tensor:
    """Of the next symbol after every one of (b, t), with the whole prefix read anew."""
    with torch.no_grad():
        return model.tokens.log_probabilities(model(symbols).hidden)


def greedy_without_state(model: LanguageModel, start: Tensor, length: int) -> list[int]:
    text = start
    for _ in range(length):
        text = torch.cat([text, log_probabilities(model, text[None])[0, -1].argmax()[None]])
    return text[len(start) :].tolist()


@pytest.mark.parametrize("encoding", [None, "xl", "shaw", "rotary"])
def test_with_state_it_says_what_it_says_when_it_reads_all_again(encoding: str | None) -> None:
    model = build(mixer={"kind": "attention", "memory": 64, "encoding": encoding}).double()
    symbols = list(sample(model, prompt(), 40, GREEDY))
    assert symbols == greedy_without_state(model, prompt(), 40)
    assert len(set(symbols)) > 1


def test_positions_go_on_through_the_text() -> None:
    mixer = {"kind": "attention", "memory": 64}
    model = build(seed=2, mixer=mixer, positions={"kind": "sinusoidal", "restart": "document"}).double()
    symbols = list(sample(model, prompt(), 40, GREEDY))
    assert symbols == greedy_without_state(model, prompt(), 40)
    assert len(set(symbols)) > 3, "a text that repeats itself says nothing of positions"


def test_one_candidate_is_the_likeliest() -> None:
    model, top_one = build(), SamplingConfig(temperature=1.0, top_k=1)
    assert list(sample(model, prompt(), 30, top_one)) == list(sample(model, prompt(), 30, GREEDY))
    smallest_nucleus = SamplingConfig(temperature=1.0, top_p=1e-6)
    assert list(sample(model, prompt(), 30, smallest_nucleus)) == list(sample(model, prompt(), 30, GREEDY))


@pytest.mark.slow
def test_a_seed_repeats_and_another_does_not() -> None:
    model, first, second = build(), SamplingConfig(temperature=1.5), SamplingConfig(temperature=1.5, seed=1)
    assert list(sample(model, prompt(), 30, first)) == list(sample(model, prompt(), 30, first))
    assert list(sample(model, prompt(), 30, first)) != list(sample(model, prompt(), 30, second))


def sample_frequencies(model: LanguageModel, count: int, forbidden: int | None = None, **settings: float) -> Tensor:
    """How often each symbol comes first, over ``count`` seeds."""
    samples = [
        next(sample(model, prompt(), 1, SamplingConfig.from_dict({"seed": seed, **settings}), forbidden))
        for seed in range(count)
    ]
    return torch.bincount(torch.tensor(samples), minlength=11) / count


@pytest.mark.slow
def test_symbols_come_as_often_as_they_are_likely() -> None:
    model, count = build(), 200
    log_probs = log_probabilities(model, prompt()[None])[0, -1]
    for temperature in (1.0, 2.0):
        expected = (log_probs / temperature).softmax(dim=0)
        difference = (sample_frequencies(model, count, temperature=temperature) - expected).abs()
        assert (difference < 4.5 * (expected * (1 - expected) / count).sqrt() + 1e-3).all()


@pytest.mark.slow
def test_candidates_are_the_most_likely_ones() -> None:
    model = build()
    probabilities = log_probabilities(model, prompt()[None])[0, -1].exp()
    order = probabilities.argsort(descending=True)
    top_three = sample_frequencies(model, 150, temperature=3.0, top_k=3)
    assert set(top_three.nonzero().flatten().tolist()) == set(order[:3].tolist())
    nucleus_size = (probabilities[order].cumsum(0) / probabilities.sum() < 0.7).sum() + 1
    nucleus = sample_frequencies(model, 150, temperature=1.0, top_p=0.7)
    assert 1 < nucleus_size < 11
    assert set(nucleus.nonzero().flatten().tolist()) == set(order[:nucleus_size].tolist())


@pytest.mark.slow
def test_what_is_forbidden_is_never_said() -> None:
    model = build()
    likeliest = int(log_probabilities(model, prompt()[None])[0, -1].argmax())
    hot = SamplingConfig(temperature=5.0)
    assert likeliest in sample(model, prompt(), 200, hot)
    assert likeliest not in sample(model, prompt(), 200, hot, forbidden=likeliest)
    assert likeliest not in sample(model, prompt(), 200, GREEDY, forbidden=likeliest)
    assert likeliest not in beam_search(model, prompt(), 20, 4, forbidden=likeliest)[0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("forbidden", [None, 2])
def test_with_beams_enough_it_finds_the_likeliest_text_of_all(seed: int, forbidden: int | None) -> None:
    size, length = 4, 4
    model, start = build(size, seed=seed).double(), prompt(3, size)
    letters = [symbol for symbol in range(size) if symbol != forbidden]
    texts = torch.tensor(list(itertools.product(letters, repeat=length)))
    sequences = torch.cat([start.expand(len(texts), -1), texts], dim=1)
    log_probs = log_probabilities(model, sequences)
    if forbidden is not None:
        # A beam's score is the probability that the model gives, not one that is shared out anew.
        assert not (texts == forbidden).any()
    text_scores = log_probs[:, len(start) - 1 : -1].gather(2, texts[:, :, None]).squeeze(2).sum(dim=1)
    best_text, score = beam_search(model, start, length, size**length, forbidden)
    assert best_text == texts[text_scores.argmax()].tolist()
    assert score == pytest.approx(text_scores.max().item(), abs=1e-6)


def test_one_beam_is_greedy_and_more_are_no_worse() -> None:
    model = build().double()
    one_beam, one_beam_score = beam_search(model, prompt(), 12, 1)
    assert one_beam == list(sample(model, prompt(), 12, GREEDY))
    assert beam_search(model, prompt(), 12, 8)[1] >= one_beam_score


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few lines with letters of two and three bytes."""
    folder = tmp_path_factory.mktemp("corpus")
    generator = random.Random(0)
    for index in range(24):
        lines = [" ".join(generator.choices(["grün", "blå", "für", "日本", "été"], k=6)) for _ in range(12)]
        (folder / f"{index}.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


def trained(corpus: Path, directory: Path, mixer: Mapping[str, object], **tokenizer: object) -> Path:
    """Returns the checkpoint of a run that has read the corpus."""
    config = RunConfig.from_dict(
        {
            "model": {"kind": "language_model", "dim": 32, "heads": 2, "depth": 1, "mixer": mixer},
            "data": {
                "source": {"kind": "files", "path": str(corpus)},
                "segment_length": 16,
                "batch_size": 8,
                "evaluation": {"documents": 1},
                **tokenizer,
            },
            "training": {"steps": 30, "device": "cpu", "optimizer": {"kind": "adamw", "learning_rate": 0.02}},
        }
    )
    assert fit(config, directory)["outcome"] == "finished"
    return directory / CHECKPOINT


@pytest.fixture(scope="module")
def checkpoint(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(corpus, tmp_path_factory.mktemp("run"), {"kind": "attention", "memory": 16, "encoding": "xl"})


@pytest.fixture(scope="module")
def draft(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(corpus, tmp_path_factory.mktemp("draft"), {"kind": "linear"})


@pytest.mark.slow
def test_characters_of_several_bytes_come_whole(checkpoint: Path) -> None:
    pieces = list(write(checkpoint, "grün", 300, SamplingConfig(temperature=0.7, seed=3)))
    text = "".join(pieces)
    assert pieces[0] == "grün" and len(pieces) > 100
    task, _, saved = load(checkpoint)
    boundary = task.data.vocabulary.boundary
    start = torch.tensor([boundary, *"grün".encode()])
    task.config = task.config.override({"evaluation": {"mixer.memory": 32}})
    symbols = list(sample(task.evaluator(), start, 300, SamplingConfig(temperature=0.7, seed=3), boundary))
    assert text == "grün" + tokenizer_from_dict(saved["tokenizer"]).decode(symbols)
    assert any(len(piece.encode()) > 1 and piece.isalpha() for piece in pieces[1:]), "no such character was written"
    complete_pieces = [piece for piece in pieces if "\N{REPLACEMENT CHARACTER}" not in piece]
    assert all(piece.encode().decode() == piece for piece in complete_pieces)


@pytest.mark.slow
def test_how_much_is_remembered_is_chosen_when_it_writes(checkpoint: Path) -> None:
    sampling = SamplingConfig(temperature=1.0)
    short_memory, long_memory = (
        "".join(write(checkpoint, "blå " * 8, 80, sampling, memory=memory)) for memory in (0, 64)
    )
    assert short_memory != long_memory
    with pytest.raises(ConfigError, match="memory"):
        list(write(checkpoint, "blå", 4, GREEDY, memory=-1))


def command(*arguments: str) -> int:
    """Returns the exit status of the command."""
    return main(["generate", *arguments])


def test_the_command_writes_on_from_a_prompt(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not command(str(checkpoint), "--prompt", "grün ", "--length", "20", "--temperature", "0")
    expected = "".join(write(checkpoint, "grün ", 20, GREEDY))
    output = capsys.readouterr().out
    assert output == expected + "\n" and output.startswith("grün ")


def test_a_draft_changes_no_likeliest_text_and_is_counted(
    checkpoint: Path, draft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--prompt", "grün ", "--length", "40", "--temperature", "0", "--memory", "47")
    assert not command(str(checkpoint), *options)
    expected = capsys.readouterr().out
    assert not command(str(checkpoint), *options, "--draft", str(draft), "--draft-symbols", "3")
    output = capsys.readouterr()
    assert output.out == expected
    numbers = re.fullmatch(r"accepted (\d+) of (\d+) drafted symbols \(\d+ %\), (\d\.\d\d) a pass\n", output.err)
    assert numbers is not None and 0 < int(numbers[1]) <= int(numbers[2]) <= 3 * 39
    assert float(numbers[3]) == pytest.approx(40 / (40 - int(numbers[1])), abs=0.01)


def test_a_draft_that_cannot_serve_is_refused_in_one_line(
    checkpoint: Path, draft: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def line_of(*options: str) -> str:
        assert command(str(checkpoint), "--prompt", "blå", "--draft", *options) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "memory: drafts need a memory of all 45 symbols" in line_of(str(draft), "--length", "40")
    assert "without beams" in line_of(str(draft), "--beams", "2")
    other = trained(corpus, tmp_path, {"kind": "linear"}, tokenizer={"kind": "characters"})
    assert "draft: this run has other symbols" in line_of(str(other))


@pytest.mark.parametrize("options", [[], ["--temperature", "0"], ["--beams", "2"]], ids=" ".join)
def test_weights_that_are_no_numbers_write_nothing(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    contents = torch.load(checkpoint)
    name = next(name for name in contents["state_dict"] if name.endswith("weight"))
    contents["state_dict"][name].fill_(float("nan"))
    torch.save(contents, tmp_path / "diverged.ckpt")
    assert command(str(tmp_path / "diverged.ckpt"), *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path / 'diverged.ckpt'}: {name} holds a number that is not finite" in line


def test_probabilities_that_are_no_numbers_choose_nothing() -> None:
    with pytest.raises(ConfigError, match="probabilities are not numbers"):
        choose(torch.full((1, 3), float("nan")), GREEDY, torch.Generator())


def test_the_command_says_in_one_line_what_is_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.ckpt").write_bytes(b"PK\x03\x04 not a checkpoint")
    assert command(str(tmp_path / "bad.ckpt"), "--length", "4") == 2
    output = capsys.readouterr()
    (line,) = output.err.splitlines()
    assert output.out == "" and line.startswith(f"error: {tmp_path / 'bad.ckpt'}: is no checkpoint of a run")


@pytest.mark.parametrize("content", [None, b"", "half", "other"])
def test_no_bad_file_is_taken_for_a_checkpoint(checkpoint: Path, tmp_path: Path, content: bytes | str | None) -> None:
    path = tmp_path / "bad.ckpt"
    if content == "half":
        checkpoint_bytes = checkpoint.read_bytes()
        path.write_bytes(checkpoint_bytes[: len(checkpoint_bytes) // 2])
    elif content == "other":
        torch.save({"state_dict": {}}, path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"bad\.ckpt: is no checkpoint of a run"):
        list(write(path, "", 4, GREEDY))
