"""A trained network becomes the start of another one: their common parts are equal, and all others are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from starting import start_from_file
from torch import Tensor

from lit_transformers.__main__ import main
from lit_transformers.batch import RowDescription, Vocabulary
from lit_transformers.config import ConfigError
from lit_transformers.encodings.positions import LearnedConfig
from lit_transformers.exchange.changed_network import convert_weights
from lit_transformers.mixers import AttentionConfig, LSHConfig, WindowConfig
from lit_transformers.models import EncoderConfig, LanguageModelConfig, ModelConfig
from lit_transformers.models.capabilities import RowModelConfig
from lit_transformers.plain_yaml import read_yaml
from lit_transformers.runs import RunConfig, fit
from lit_transformers.runs.starting_weights import StartingWeights, read_weights, write_weights
from lit_transformers.tasks import CausalLMConfig, MaskedLMConfig
from lit_transformers.tasks.masked_lm import MaskedLM
from lit_transformers.training.config import TrainingConfig

SYMBOLS, LENGTH = 31, 12
BERT = EncoderConfig(
    dim=18,
    heads=3,
    depth=2,
    norm="post",
    embedding_norm=True,
    transform="gelu",
    segments=2,
    positions=LearnedConfig(restart="document", max_length=LENGTH),
    mixer=AttentionConfig(bias=True, dropout=0.1),
)


def task_of(model: ModelConfig) -> MaskedLM:
    vocabulary = Vocabulary(size=SYMBOLS, boundary=2, unit="piece", byte_lengths=None)
    task = MaskedLMConfig().build(model, RowDescription.for_probe(vocabulary, 4 * LENGTH), TrainingConfig())
    return task.eval()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small BERT with random weights, biases and gains among them."""
    folder, task = tmp_path_factory.mktemp("source"), task_of(BERT)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in task.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    tensors = {name: tensor.clone() for name, tensor in task.state_dict().items()}
    write_weights(folder / "weights.safetensors", StartingWeights(BERT, "bert", tensors))
    (folder / "vocab.txt").write_text("[PAD]\n")
    return folder


def started(folder: Path) -> MaskedLM:
    task = task_of(read_weights(folder / "weights.safetensors").model)
    start_from_file(task, folder / "weights.safetensors")
    return task.double()


def log_probabilities(task: MaskedLM, length: int = LENGTH) -> Tensor:
    """Predictions of the real tokens of rows of several lengths, whose first tokens are marked."""
    padding_mask = torch.arange(length) < torch.tensor([[length], [length // 2]])
    symbols = torch.randint(5, SYMBOLS, padding_mask.shape, generator=torch.Generator().manual_seed(1))
    marked = torch.zeros_like(padding_mask).index_fill(1, torch.tensor(0), True)
    hidden = task.network.read_row(symbols, padding_mask, marked).hidden[padding_mask]
    return task.network.tokens.log_probabilities(task.network.predict(hidden))


WIDE: dict[str, Any] = {
    "a window": {"model.mixer": {"kind": "window", "window": LENGTH}},
    "a window with global tokens": {
        "model.mixer": "window",
        "model.mixer.global_tokens": "marked",
        "model.mixer.global_projections": "separate",
    },
    "blocks": {"model.mixer": {"kind": "big_bird", "block": 2, "random": 2}},
    "no other mixer": {},
}


@pytest.mark.parametrize("name", WIDE)
@torch.no_grad()
def test_where_nothing_is_hidden_the_converted_network_says_what_the_original_says(
    name: str, source: Path, tmp_path: Path
) -> None:
    """The row is no longer than the window, or than the blocks that every block sees."""
    convert_weights(source, tmp_path / "out", WIDE[name], length=4 * LENGTH)
    torch.testing.assert_close(
        log_probabilities(started(tmp_path / "out")), log_probabilities(started(source)), atol=1e-6, rtol=0
    )


@torch.no_grad()
def test_longer_rows_are_read_and_their_positions_repeat(source: Path, tmp_path: Path) -> None:
    converted = convert_weights(source, tmp_path / "out", {"model.mixer": "window"}, length=30)
    table = read_weights(tmp_path / "out" / "weights.safetensors").tensors["network.stack.entry.positions.weight"]
    first = read_weights(source / "weights.safetensors").tensors["network.stack.entry.positions.weight"]
    assert torch.equal(table, torch.cat([first, first, first[:, :6]], dim=1))
    assert converted.notes == ["network.stack.entry.positions: 12 rows, repeated up to 30"]
    assert log_probabilities(started(tmp_path / "out"), 30).isfinite().all()
    convert_weights(tmp_path / "out", tmp_path / "back", {"model.mixer": "attention"}, length=LENGTH)
    again = read_weights(tmp_path / "back" / "weights.safetensors")
    assert again.model == BERT.override({"mixer.memory": 0})
    original = read_weights(source / "weights.safetensors").tensors
    assert all(torch.equal(tensor, original[name]) for name, tensor in again.tensors.items())


def test_of_another_kind_of_mixer_stays_what_both_have(source: Path, tmp_path: Path) -> None:
    """How weights were trained is no default of the new kind: biases, and scores that are divided."""
    convert_weights(source, tmp_path / "out", {"model.mixer": {"kind": "lsh", "dropout": 0.3}})
    mixer = read_weights(tmp_path / "out" / "weights.safetensors").model.mixer
    assert mixer == LSHConfig(bias=True, scaled=True, dropout=0.3)


def test_each_new_part_and_each_that_is_left_out_is_told(source: Path, tmp_path: Path) -> None:
    def notes(name: str, changes: dict[str, Any], length: int | None = None) -> list[str]:
        return convert_weights(source, tmp_path / name, changes, length).notes

    mixer = "network.stack.blocks.*.mixer"
    assert notes("lsh", {"model.mixer": "lsh"}) == [f"{mixer}.key: left out, for the new network has no place for it"]
    window = WindowConfig(global_tokens="marked", global_projections="separate", bias=True)
    assert notes("window", {"model.mixer": window}) == [
        f"{mixer}.global_maps.{number}: starts as mixer.{name}" for number, name in enumerate(("query", "key", "value"))
    ]
    lines = notes("linformer", {"model.mixer": {"kind": "linformer", "rank": 3}}, LENGTH)
    assert lines and all(line.endswith("starts anew") for line in lines)
    positions, *lines = notes("shallow", {"model.depth": 1}, 5)
    assert positions == "network.stack.entry.positions: the first 5 of 12 rows"
    assert len(lines) == 8 and all(line.startswith("network.stack.blocks.1.") for line in lines)
    assert f"{mixer}.query.bias: left out, for the new network has no place for it" in notes(
        "no biases", {"model.mixer.bias": False}
    )
    assert (tmp_path / "lsh" / "vocab.txt").read_text() == "[PAD]\n"


def test_weights_that_start_anew_are_those_of_their_seed(source: Path, tmp_path: Path) -> None:
    drawn = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.manual_seed(seed + 100)
        convert_weights(source, tmp_path / name, {"model.mixer": {"kind": "linformer", "rank": 3}}, seed=seed)
        tensors = read_weights(tmp_path / name / "weights.safetensors").tensors
        old = read_weights(source / "weights.safetensors").tensors
        drawn.append([tensor for key, tensor in tensors.items() if key not in old])
    same = [[torch.equal(*pair) for pair in zip(drawn[0], other, strict=True)] for other in drawn[1:]]
    assert drawn[0] and all(same[0]) and not any(same[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task.kind": "masked_lm"}, "task.kind: is no part of the network"),
        ({"model.mixers": "window"}, "did you mean mixer"),
        ({"model.mixer": "windows"}, "no kind 'windows'"),
        ({"model.dim": 24}, r"is \(31, 18\) in the weights and \(31, 24\) in the new network"),
        ({"model.mixer": "lstm"}, "cannot be bidirectional"),
    ],
)
def test_what_cannot_be_converted_is_refused_and_nothing_is_written(
    changes: dict[str, Any], message: str, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        convert_weights(source, tmp_path / "out", changes)
    assert "\n" not in str(error.value) and str(source) in str(error.value) and not list(tmp_path.iterdir())


def test_a_network_without_a_table_of_positions_needs_a_length(tmp_path: Path) -> None:
    model = LanguageModelConfig(dim=8, heads=2, depth=1)
    vocabulary = Vocabulary(size=SYMBOLS, boundary=2, unit="piece", byte_lengths=None)
    description = CausalLMConfig.reads.for_probe(vocabulary, 4)
    task = CausalLMConfig().build(model, description, TrainingConfig())
    tensors = {name: tensor.clone() for name, tensor in task.state_dict().items()}
    write_weights(tmp_path / "weights.safetensors", StartingWeights(model, "", tensors))
    with pytest.raises(ConfigError, match="say --length"):
        convert_weights(tmp_path, tmp_path / "out", {"model.mixer": "window"})
    assert convert_weights(tmp_path, tmp_path / "out", {"model.mixer": "window"}, 64).architecture == "language_model"
    assert read_yaml((tmp_path / "out" / "config.yaml").read_text())["task"] == {"kind": "causal_lm"}
    assert issubclass(type(model), RowModelConfig)


def masked_words(length: int, steps: int, learning_rate: float, **fields: Any) -> RunConfig:
    """A run over rows of generated documents."""
    model = BERT.override({"depth": 1, "positions.max_length": 16, "segments": 0})
    plain = {
        "model": model.to_dict(),
        "task": "masked_lm",
        "data": {
            "kind": "rows", "source": "topics", "tokenizer": "words", "length": length, "batch_size": 16,
            "packing": "doc_sentences", "evaluation": {"examples": 64},
        },
        "training": {"steps": steps, "device": "cpu", "optimizer": {"kind": "adamw", "learning_rate": learning_rate}},
    }  # fmt: skip
    return RunConfig.from_dict(plain | fields)


def test_a_run_goes_on_in_longer_rows_from_the_checkpoint_of_another_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It starts, without any training, with the abilities that were learned in short rows."""
    learned = fit(masked_words(16, 60, 1e-2), tmp_path / "short")["metrics"]["val/nats"]
    arguments = ["convert", str(tmp_path / "short" / "checkpoint.ckpt"), str(tmp_path / "long"), "--length", "48"]
    assert main([*arguments, "--set", "model.mixer={kind: window, window: 8}"]) == 0
    assert "network.stack.entry.positions: 16 rows, repeated up to 48" in capsys.readouterr().out
    written = read_yaml((tmp_path / "long" / "config.yaml").read_text())
    converted = masked_words(48, 1, 1e-30, model=written["model"], start=written["start"])
    started_with = fit(converted, tmp_path / "on")["metrics"]["val/nats"]
    afresh = fit(converted.override({"start": None}), tmp_path / "afresh")["metrics"]["val/nats"]
    assert started_with < learned + 0.3 < afresh - 0.3
