"""Exported programs equal their networks, at any number and length of rows, or are refused."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from lit_transformers.__main__ import main
from lit_transformers.adapters import BottleneckConfig
from lit_transformers.batch import DataDescription, LabelledDescription, SpanLabels, Vocabulary, WordTagLabels
from lit_transformers.config import ConfigError
from lit_transformers.decoding.decode import GreedyConfig, decode
from lit_transformers.encodings.positions import LearnedConfig
from lit_transformers.exchange import programs
from lit_transformers.exchange.fine_tuned import head_of_import
from lit_transformers.exchange.programs import check, export_program, reader, trace, write_program
from lit_transformers.exchange.standalone import Standalone, modules_of, require_readable, standalones_of
from lit_transformers.exchange.transfer import export_start, weights_of
from lit_transformers.mixers import (
    AttentionConfig,
    BigBirdConfig,
    BiLSTMConfig,
    ConvolutionConfig,
    EntmaxConfig,
    LinearConfig,
    LinformerConfig,
    LocalConfig,
    LSHConfig,
    LSRAConfig,
    MixerConfig,
    SynthesizerConfig,
    TopKConfig,
    WindowConfig,
)
from lit_transformers.models import EncoderConfig, EncoderDecoderConfig, LanguageModelConfig, ModelConfig
from lit_transformers.runs import RunConfig, fit, load
from lit_transformers.runs.starting_weights import read_weights
from lit_transformers.tasks import Task, TaskConfig
from lit_transformers.tasks.causal_lm import CausalLMConfig
from lit_transformers.tasks.masked_lm import MaskedLM, MaskedLMConfig
from lit_transformers.tasks.question_answering import QuestionAnsweringConfig
from lit_transformers.tasks.seq2seq import Seq2SeqConfig
from lit_transformers.tasks.tagging import TaggingConfig
from lit_transformers.training.config import TrainingConfig

LONGEST = 70
DATA = LabelledDescription(
    vocabulary=Vocabulary(size=37, boundary=0, unit="piece", byte_lengths=None),
    length=LONGEST,
    labels=WordTagLabels(names=("O", "B", "I")),
)
SMALL: dict[str, Any] = {"dim": 8, "heads": 2, "depth": 1}
ENCODER = EncoderConfig(**SMALL, positions=LearnedConfig(), segments=2)
SHAPES = ((1, 2), (5, 9), (2, LONGEST))


def require_onnx() -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="writes and runs ONNX files, for which there is an extra: onnx")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier after one update, whose layers read rows without padding."""
    folder = tmp_path_factory.mktemp("run")
    with (folder / "texts.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *((f"text {n} of {n % 2}", "ab"[n % 2]) for n in range(60))])
    source = {
        "kind": "labelled_texts",
        "path": str(folder / "texts.csv"),
        "labels": ["a", "b"],
        "splits": "hash",
        "tokenizer": {"kind": "wordpiece", "size": 60},
        "length": LONGEST,
        "licence": "CC0",
    }
    config = {
        "model": {"kind": "encoder", **SMALL, "positions": "learned", "unpadded": True},
        "task": {"kind": "classification", "pooling": "mean"},
        "data": {"kind": "labelled", "source": source, "batch_size": 4},
        "training": {"steps": 1, "device": "cpu"},
    }
    assert fit(RunConfig.from_dict(config), folder / "run")["outcome"] == "finished"
    return folder / "run" / "checkpoint.ckpt"


def random_task(config: TaskConfig, model: ModelConfig, data: DataDescription) -> Task:
    task = config.build(model, data, TrainingConfig()).eval()
    torch.manual_seed(0)
    for parameter in task.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return task


def standalone(config: TaskConfig, model: EncoderConfig = ENCODER, data: LabelledDescription = DATA) -> Standalone:
    return Standalone(random_task(config, model, data), LONGEST)


def require_equal(network: Standalone, run: Callable[..., tuple[Tensor, ...]]) -> None:
    """The outputs of a program are those of its network, at real symbols."""
    for shape in SHAPES:
        rows = network.random_inputs(*shape)
        expected, outputs = network(*rows), run(*rows)
        assert len(outputs) == len(network.outputs)
        for one, other in zip(network.compared(expected, rows), network.compared(outputs, rows), strict=True):
            torch.testing.assert_close(other, one, atol=1e-5, rtol=1e-5)


def test_a_classifier_gives_its_logits_in_onnx_runtime_at_any_shape(checkpoint: Path, tmp_path: Path) -> None:
    require_onnx()
    import onnxruntime

    folder = tmp_path / "exported"
    notes = export_program(checkpoint, folder, "onnx").notes
    assert "check: at (1, 2), (1, 40), (7, 33), (2, 70), (32, 64) outputs differ by at most" in "\n".join(notes)
    assert {"model.onnx", "config.json", "README.md", "tokenizer.json"} <= {file.name for file in folder.iterdir()}
    assert json.loads((folder / "config.json").read_text())["id2label"] == {"0": "a", "1": "b"}
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    assert [(own.name, own.shape) for own in session.get_inputs()] == [
        ("input_ids", ["batch", "length"]),
        ("attention_mask", ["batch", "length"]),
    ]
    assert [(own.name, own.shape) for own in session.get_outputs()] == [("logits", ["batch", 2])]
    assert str(Path(programs.__file__).parents[1]).encode() not in (folder / "model.onnx").read_bytes()
    task, _, _ = load(checkpoint)
    network = Standalone(task, LONGEST)
    require_equal(network, reader(folder / "model.onnx", "onnx"))


ROWS_OF_TWO = LabelledDescription(vocabulary=DATA.vocabulary, length=LONGEST, labels=SpanLabels(), segments=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "data", "outputs"),
    [
        (TaggingConfig(), DATA, ("logits",)),
        (QuestionAnsweringConfig(scores="product"), ROWS_OF_TWO, ("start_logits", "end_logits")),
    ],
    ids=["tags", "answers"],
)
def test_heads_of_tokens_give_their_logits_in_onnx_runtime(
    task: TaskConfig, data: LabelledDescription, outputs: tuple[str, ...], tmp_path: Path
) -> None:
    require_onnx()
    network = standalone(task, data=data)
    assert (tuple(network.inputs), network.outputs) == (("input_ids", "attention_mask", "token_type_ids"), outputs)
    write_program(trace(network), network, tmp_path / "model.onnx", "onnx")
    require_equal(network, reader(tmp_path / "model.onnx", "onnx"))


LONG = 512
LABELS = replace(DATA, length=LONG)
MIXERS: dict[str, MixerConfig] = {
    "attention": AttentionConfig(),
    "linear": LinearConfig(),
    "window": WindowConfig(window=4),
    "local": LocalConfig(),
    "convolution": ConvolutionConfig(),
    "entmax": EntmaxConfig(),
    "linformer": LinformerConfig(),
    "lsra": LSRAConfig(),
    "synthesizer": SynthesizerConfig(),
}


@pytest.mark.parametrize("kind", MIXERS)
def test_mixers_give_their_numbers_in_onnx_runtime_from_the_shortest_to_the_longest_rows(
    kind: str, tmp_path: Path
) -> None:
    require_onnx()
    model = EncoderConfig(**SMALL, positions=LearnedConfig(), mixer=MIXERS[kind])
    network = Standalone(random_task(TaggingConfig(), model, LABELS), LONG)
    require_equal_norms(network, tmp_path)


def require_equal_norms(network: Standalone, folder: Path) -> None:
    """A file of ONNX gives the outputs of its network at real symbols, within 1e-5 of their norm."""
    write_program(trace(network), network, folder / "model.onnx", "onnx")
    run = reader(folder / "model.onnx", "onnx")
    for shape in ((1, 2), (3, 65), (32, LONG)):
        rows = network.random_inputs(*shape)
        with torch.no_grad():
            expected, outputs = network(*rows), run(*rows)
        for one, other in zip(expected, outputs, strict=True):
            own, written = one[rows[1].bool()], other[rows[1].bool()]
            assert own.norm() > 0 and (own - written).norm() <= 1e-5 * own.norm()


def test_a_masked_lm_gives_the_logits_by_which_it_fills_and_its_states(tmp_path: Path) -> None:
    require_onnx()
    model = EncoderConfig(**SMALL, positions=LearnedConfig(), transform="gelu")
    config = MaskedLMConfig()
    task = random_task(config, model, config.probe_data(DATA.vocabulary, LONG))
    assert isinstance(task, MaskedLM)
    network = Standalone(task, LONG)
    assert network.outputs == ("logits", "last_hidden_state")
    require_equal_norms(network, tmp_path)
    rows = network.random_inputs(3, 9)
    logits, hidden = reader(tmp_path / "model.onnx", "onnx")(*rows)
    with torch.no_grad():
        states = task.network.read_row(rows[0], rows[1].bool(), torch.zeros(3, 9, dtype=torch.bool)).hidden
        vectors = task.network.predict(states)
        expected = vectors @ task.network.tokens.logits.weight.T + task.network.tokens.logits.bias
    at = rows[1].bool()
    torch.testing.assert_close(hidden[at], states[at], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits[at], expected[at], atol=1e-5, rtol=1e-5)


def test_a_causal_lm_gives_the_logits_of_the_next_symbol(tmp_path: Path) -> None:
    require_onnx()
    config, model = CausalLMConfig(), LanguageModelConfig(**SMALL, mixer=AttentionConfig(encoding="rotary"))
    task = random_task(config, model, config.probe_data(DATA.vocabulary, LONG))
    network = Standalone(task, LONG)
    assert (tuple(network.inputs), network.outputs) == (
        ("input_ids", "attention_mask"),
        ("logits", "last_hidden_state"),
    )
    require_equal_norms(network, tmp_path)
    run, rows = reader(tmp_path / "model.onnx", "onnx"), network.random_inputs(1, 12)
    logits, hidden = run(*rows)
    with torch.no_grad():
        output = task.network(rows[0], None, None).hidden
    torch.testing.assert_close(hidden, output, atol=1e-5, rtol=1e-5)
    expected = output @ task.network.tokens.logits.weight.T + task.network.tokens.logits.bias
    torch.testing.assert_close(logits, expected.detach(), atol=1e-5, rtol=1e-5)
    changed = rows[0].clone()
    changed[0, 7] = (changed[0, 7] + 1) % network.symbols
    others, _ = run(changed, rows[1])
    assert torch.equal(others[0, :7], logits[0, :7]) and not torch.allclose(others[0, 7], logits[0, 7])


def test_an_import_without_the_part_that_predicts_symbols_gives_states_alone(checkpoint: Path) -> None:
    weights = weights_of(checkpoint)
    bare = {
        name: own for name, own in weights.tensors.items() if not name.startswith(("heads.", "network.tokens.logi"))
    }
    for tensors, outputs in ((bare, ("last_hidden_state",)), (weights.tensors, ("logits", "last_hidden_state"))):
        (network,), _ = standalones_of(checkpoint.parent, weights._replace(tensors=tensors, task=None))
        assert network.outputs == outputs


@pytest.mark.parametrize(
    ("mixer", "reason"),
    [
        (BiLSTMConfig(), r"its computation follows from the length of rows"),
        (TopKConfig(), r"its file does not run at the shape \(1, 2\)"),
    ],
)
def test_mixers_that_no_program_computes_at_every_shape_are_refused(
    mixer: MixerConfig, reason: str, tmp_path: Path
) -> None:
    require_onnx()
    network = standalone(TaggingConfig(), EncoderConfig(**SMALL, positions=LearnedConfig(), mixer=mixer))
    with pytest.raises(ConfigError, match=reason):
        write_program(trace(network), network, tmp_path / "model.onnx", "onnx")
        check(network, reader(tmp_path / "model.onnx", "onnx"))


def pair_task(model: EncoderDecoderConfig, longest: int = LONG) -> Task:
    config = Seq2SeqConfig()
    data = replace(config.probe_data(DATA.vocabulary, longest), source_length=longest - 10)  # type: ignore[call-arg]
    return random_task(config, model, data)


@pytest.mark.parametrize("mixer", ["attention", "synthesizer"])
def test_both_sides_of_an_encoder_decoder_give_their_numbers_in_onnx_runtime(mixer: str, tmp_path: Path) -> None:
    require_onnx()
    model = EncoderDecoderConfig(**SMALL, positions=LearnedConfig(restart="document"))
    task = pair_task(model.override({"decoder_mixer": mixer}))
    sides = modules_of(task, LONG)
    assert [(side.file, side.outputs) for side in sides] == [
        ("encoder_model", ("last_hidden_state",)),
        ("decoder_model", ("logits",)),
    ]
    for side in sides:
        write_program(trace(side), side, tmp_path / "model.onnx", "onnx")
        run = reader(tmp_path / "model.onnx", "onnx")
        for shape in ((1, 2), (3, 65), (2, side.longest)):
            given = side.random_inputs(*shape)
            with torch.no_grad():
                expected, outputs = side(*given), run(*given)
            for one, other in zip(side.compared(expected, given), side.compared(outputs, given), strict=True):
                assert one.norm() > 0 and (one - other).norm() <= 1e-5 * one.norm()


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder-decoder after a few updates."""
    folder = tmp_path_factory.mktemp("pairs")
    lines = [" ".join(["red", "green", "blue", "one"][n % 3 : 2 + n % 3]) for n in range(60)]
    for file in ("train.aa", "train.bb", "val.aa", "val.bb"):
        (folder / file).write_text("\n".join(lines) + "\n")
    config = {
        "model": {"kind": "encoder_decoder", **SMALL, "positions": "sinusoidal", "norm": "pre"},
        "task": {"kind": "seq2seq", "metrics": ["accuracy"], "decoding": {"kind": "greedy", "extra": 6}},
        "data": {
            "kind": "pairs",
            "source": {"kind": "parallel", "path": str(folder), "source": "aa", "target": "bb"},
            "tokenizer": {"kind": "bpe", "size": 280},
            "tokens_per_batch": 2 * LONGEST,
            "longest_source": LONGEST,
            "longest_target": LONGEST,
        },
        "training": {"steps": 3, "device": "cpu"},
    }
    assert fit(RunConfig.from_dict(config), folder / "run")["outcome"] == "finished"
    return folder / "run" / "checkpoint.ckpt"


def test_the_files_of_a_translator_write_what_the_suite_writes(translator: Path, tmp_path: Path) -> None:
    require_onnx()
    folder = tmp_path / "exported"
    notes = export_program(translator, folder, "onnx").notes
    assert sum(note.startswith("check: at (1, 2), ") for note in notes) == 2
    assert {"encoder_model.onnx", "decoder_model.onnx", "tokenizer.json"} <= {file.name for file in folder.iterdir()}
    fields = json.loads((folder / "config.json").read_text())
    boundary = load(translator)[0].data.vocabulary.boundary
    assert fields["decoder_start_token_id"] == fields["eos_token_id"] == boundary
    encode, decode_on = (reader(folder / f"{side}_model.onnx", "onnx") for side in ("encoder", "decoder"))
    source, real = torch.tensor([[5, 7, boundary, 0], [7, 6, 5, boundary]]), torch.tensor([[1, 1, 1, 0], [1] * 4])
    (states,) = encode(source, real)
    written = torch.full((2, 1), boundary)
    for _ in range(4):
        (logits,) = decode_on(written, states, real)
        written = torch.cat([written, logits[:, -1:].argmax(dim=-1)], dim=1)
    task = load(translator)[0]
    config = GreedyConfig(ratio=0.0, extra=4)
    expected = decode(task.evaluator(), source, real.bool(), config, boundary).symbols  # type: ignore[arg-type]
    assert [row[: row.index(boundary)] if boundary in row else row for row in written[:, 1:].tolist()] == expected


def test_what_an_encoder_decoder_cannot_export_is_refused(translator: Path) -> None:
    task, config, _ = load(translator)
    with pytest.raises(ConfigError, match=r"model\.decoder_mixer: a row has other outputs of LSH in each pass"):
        require_readable(task, config.override({"model.decoder_mixer": {"kind": "lsh"}}))
    task.data = replace(task.data, placed=True)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="data: targets begin at positions that other programs do not know"):
        require_readable(task, config)


def test_a_program_of_torch_gives_the_outputs_of_its_network(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "exported"
    export_program(checkpoint, folder, "torch")
    assert {"model.pt2", "config.json", "README.md", "tokenizer.json"} <= {file.name for file in folder.iterdir()}
    require_equal(Standalone(load(checkpoint)[0], LONGEST), reader(folder / "model.pt2", "torch"))


def test_weights_for_a_start_have_the_names_of_a_run_and_nothing_else(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "start"
    export_start(checkpoint, folder)
    written, kept = read_weights(folder / "weights.safetensors"), weights_of(checkpoint)
    assert all(torch.equal(written.tensors[name], kept.tensors[name]) for name in written.tensors)
    assert kept.tensors.keys() - written.tensors.keys() == {"network.tokens.logits.weight"}
    assert (written.model, written.symbols, written.licences) == (kept.model, kept.symbols, {"data texts.csv": "CC0"})
    plain = yaml.safe_load((folder / "config.yaml").read_text())
    assert plain["start"] == str(folder / "weights.safetensors")
    (network,), _ = standalones_of(folder, written)
    require_equal(network, Standalone(load(checkpoint)[0], LONGEST))
    head = head_of_import(written)
    assert head is not None and head.labels == ["a", "b"]


@pytest.mark.parametrize("fault", ["fixed batch", "no mask"])
def test_a_program_with_other_outputs_is_refused(fault: str) -> None:
    network = standalone(TaggingConfig())

    def run(symbols: Tensor, real: Tensor, segments: Tensor) -> tuple[Tensor, ...]:
        if fault == "fixed batch":
            return tuple(output.expand(len(symbols), -1, -1) for output in network(symbols[:1], real[:1], segments[:1]))
        return network(symbols, torch.ones_like(real), segments)

    with pytest.raises(ConfigError, match=r"gives other outputs at the shape \(7, 33\)"):
        check(network, run)


def test_a_refused_program_leaves_no_folder(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "trace", lambda network: None)
    monkeypatch.setattr(programs, "write_program", lambda program, network, file, form: file.touch())
    monkeypatch.setattr(programs, "reader", lambda file, form: lambda *inputs: (torch.zeros(len(inputs[0]), 2),))
    with pytest.raises(ConfigError, match="gives other outputs"):
        export_program(checkpoint, tmp_path / "exported", "torch")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model.mixer": LSHConfig()}, "a row has other outputs of LSH in each pass"),
        ({"model.mixer": AttentionConfig(memory=4)}, "keeps no memory between rows"),
        ({"compression": ["quantise_activations"]}, "quantise_activations rounds the inputs of linear maps"),
    ],
)
def test_what_follows_from_more_than_inputs_is_refused(change: dict[str, Any], reason: str, checkpoint: Path) -> None:
    task, config, _ = load(checkpoint)
    with pytest.raises(ConfigError, match=reason):
        require_readable(task, config.override(change))


def test_an_adapter_that_cannot_be_merged_is_refused(checkpoint: Path) -> None:
    weights = weights_of(checkpoint)
    adapted = weights._replace(model=weights.model.override({"adapter": BottleneckConfig(width=2)}))
    with pytest.raises(ConfigError, match="a bottleneck adapter cannot be merged"):
        standalones_of(checkpoint.parent, adapted)


def test_a_computation_that_follows_from_the_length_of_rows_is_refused() -> None:
    model = EncoderConfig(**SMALL, mixer=BigBirdConfig(block=1, random=2, window=0, global_blocks="none"))
    with pytest.raises(ConfigError, match=r"follows from the length of rows.*choose --to safetensors"):
        trace(standalone(TaggingConfig(), model))


def test_an_architecture_belongs_to_transformers_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["export", str(tmp_path), str(tmp_path / "out"), "--to", "onnx", "--architecture", "bert"]
    assert main(options) == 2
    assert "--to onnx writes no architecture of transformers" in capsys.readouterr().err
