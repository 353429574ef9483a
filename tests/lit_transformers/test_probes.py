"""Probes and fine-tuning: a probe reads its layer, frozen weights do not change, and a run starts from another run."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from datamodules import LabelledDataConfig, RowDataConfig, SentencesConfig, TopicsConfig, WordsConfig
from datamodules.core.documents import SPLITS
from datamodules.core.errors import DataError
from datamodules.core.preparing import TextCount
from datamodules.core.tokenizers import Bytes
from datamodules.core.windows import Once
from datamodules.labelled import texts
from lit_transformers import probe_layers
from lit_transformers.batch import LabelledBatch
from lit_transformers.config import ConfigError, MissingFileError
from lit_transformers.encodings.positions import LearnedConfig
from lit_transformers.gates.inert_fields import changes_nothing
from lit_transformers.heads.combined_layers import LayerCombination
from lit_transformers.models import EncoderConfig
from lit_transformers.models.capabilities import depth_of, lowest_layers
from lit_transformers.models.encoder import Encoder
from lit_transformers.runs import RunConfig, StartConfig, describe, fit, layer_probes, load
from lit_transformers.runs.feature_pass import feature_pass
from lit_transformers.runs.features import cached_features
from lit_transformers.runs.keys import run_key
from lit_transformers.runs.layer_probes import classifier, log_softmax, pooled_layers
from lit_transformers.runs.train import starting_task
from lit_transformers.tasks import ClassificationConfig, MaskedLMConfig
from lit_transformers.tasks.features import FeatureTable
from lit_transformers.tasks.labelled import LabelledTask
from lit_transformers.tasks.pooled import PooledTask
from lit_transformers.training.config import TrainingConfig
from lit_transformers.training.groups import FROZEN_NETWORK, roles_of

TOPICS = TopicsConfig(documents=30, sentences=6, content=2, validation=0.3, test=0.2)
MODEL = EncoderConfig(dim=16, heads=2, depth=3, norm="pre", positions=LearnedConfig())
PROBE: dict[str, Any] = {"training.groups": [FROZEN_NETWORK]}
PRETRAINING = RunConfig(
    model=MODEL,
    task=MaskedLMConfig(),
    data=RowDataConfig(source=TOPICS, tokenizer=WordsConfig(), length=24, batch_size=4),
    training=TrainingConfig(steps=3, device="cpu"),
)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pretrained")
    fit(PRETRAINING, directory)
    return directory / "checkpoint.ckpt"


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Sentences with labels, as SST-2 has them."""
    folder = tmp_path_factory.mktemp("questions")
    words = [line.decode().split() for number in range(12) for line in TOPICS.document(number).splitlines()]
    for name, part in (("train", words[:48]), ("dev", words[48:])):
        lines = [f"{' '.join(sentence)}\t{number % 2}" for number, sentence in enumerate(part)]
        with lzma.open(folder / f"{name}.tsv.xz", "wt") as file:
            file.write("\n".join(["sentence\tlabel", *lines]) + "\n")
    return str(folder)


def downstream(path: str, weights: Path | None = None, **task: Any) -> RunConfig:
    source = SentencesConfig(corpus="sst2", path=path, tokenizer=WordsConfig(), learned_from=TOPICS, length=24)
    return RunConfig(
        model=MODEL,
        task=ClassificationConfig(pooling="mean", **task),
        data=LabelledDataConfig(source=source, batch_size=4),
        training=TrainingConfig(steps=4, device="cpu"),
        start=StartConfig.from_dict(None if weights is None else str(weights)),
    )


def a_batch(config: RunConfig) -> LabelledBatch:
    batch: LabelledBatch = next(iter(config.data.build().train_dataloader()))
    return batch


def test_a_sentence_is_a_row_of_the_symbols_of_pretraining(questions: str) -> None:
    data, rows = downstream(questions).data.build(), PRETRAINING.data.build()
    assert data.description.vocabulary == rows.description.vocabulary and data.description.length == 24
    batch = next(iter(data.val_dataloader()))
    separator = rows.description.separator
    for symbols, real in zip(batch.inputs, batch.padding_mask, strict=True):
        row = symbols[real].tolist()
        assert row[0] == rows.description.vocabulary.boundary and row[-1] == separator and row.count(separator) == 1
    ordinal = int(batch.example[0])
    assert int(batch.labels[0]) == ordinal % 2 and data.example_name(ordinal) == f"dev.tsv.xz:{ordinal + 2}"
    tested = downstream(questions).override({"data.evaluation.split": "test"}).data.build()
    assert tested.measured_split == "validation", "sst2 has no test, so no number is named after one"
    short = SentencesConfig(corpus="sst2", path=questions, length=8).build().example("train", 0)
    assert len(short.symbols) == 7 and short.symbols[-1] == 257


def test_a_source_reads_texts_that_are_long_enough_and_as_many_of_training_as_are_wanted(
    questions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = downstream(questions).data.source
    whole = source.build()
    words = {split: [len(whole.example(split, i).symbols) - 1 for i in range(whole.count(split))] for split in SPLITS}
    least = sorted(words["train"])[len(words["train"]) // 2]
    long = source.override({"shortest": least}).build()
    counted = [long.count(split) for split in SPLITS]
    with monkeypatch.context() as patch:
        patch.setattr(texts.StoredTexts, "_stored", lambda *_: pytest.fail("words are counted once"))
        assert [source.override({"shortest": least}).build().count(split) for split in SPLITS] == counted
    for split in SPLITS:
        assert long.count(split) == sum(number >= least for number in words[split]) > 0
        for ordinal in range(long.count(split)):
            place = int(long.name(split, ordinal).rpartition(":")[2]) - 2
            assert len(long.example(split, ordinal).symbols) - 1 == words[split][place] >= least
    few = source.override({"examples": 5}).build()
    assert few.count("train") == 5 and few.count("validation") == whole.count("validation")
    assert {few.name("train", i) for i in range(5)} < {whole.name("train", i) for i in range(whole.count("train"))}
    assert len({part.fingerprint for part in (whole, long, few)}) == 3
    with pytest.raises(DataError, match=r"no text of train has 1000 words; correct data\.source\.shortest"):
        source.override({"shortest": 1000}).build().count("train")


def test_an_example_is_encoded_once_until_its_symbols_or_its_choice_change(
    questions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[bytes] = []
    encode = Bytes.encode
    monkeypatch.setattr(Bytes, "encode", lambda self, text: encoded.append(text) or encode(self, text))
    source = SentencesConfig(corpus="sst2", path=questions, length=24, examples=20, subset="by_seed")
    examples = source.build()

    def symbols(ordinals: tuple[int, ...] = (0, 1)) -> list[list[int]]:
        return [examples.example("train", ordinal).symbols.tolist() for ordinal in ordinals]

    first = symbols()
    assert symbols() == first and len(encoded) == 2
    assert examples.example("validation", 0).symbols.tolist() not in first and len(encoded) == 3
    examples.read_as(downstream(questions).data.source.build().trained_symbols())  # type: ignore[attr-defined]
    assert symbols() != first and len(encoded) == 3
    examples = source.build()
    symbols()
    examples.draw(1)
    examples.places.clear()
    assert symbols() != first
    monkeypatch.setattr(texts, "KEPT_SYMBOLS", 24 + texts.OVERHEAD)
    examples, encoded[:] = source.build(), []
    assert symbols((0, 1, 0, 1)) == 2 * first and len(encoded) == 3, "room for the first example alone"


def test_weights_are_looked_for_below_the_folder_of_weights(
    pretrained: Path, questions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = downstream(questions, Path(pretrained.name))
    monkeypatch.setenv("LIT_WEIGHTS", str(pretrained.parent))
    assert run_key(config) == run_key(downstream(questions, pretrained))
    monkeypatch.delenv("LIT_WEIGHTS")
    with pytest.raises(
        MissingFileError, match=r"^start\.network: checkpoint\.ckpt: no such file \(LIT_WEIGHTS, .* is not set"
    ):
        run_key(config)


def test_a_layer_is_read_as_it_is_within_the_whole_network(questions: str) -> None:
    config = downstream(questions)
    torch.manual_seed(0)
    whole = config.build_task(config.data.build()).eval()
    batch, outputs = a_batch(config), list[Tensor]()
    assert isinstance(whole, PooledTask)
    for block in whole.network.stack.steps():  # type: ignore[union-attr, operator]
        block.register_forward_hook(lambda block, inputs, output: outputs.append(output.y))
    whole.evaluation_output(batch)
    for layers in (1, 2):
        part = downstream(questions, layers=layers)
        task = part.build_task(part.data.build()).eval()
        missing, unexpected = task.load_state_dict(whole.state_dict(), strict=False)
        assert not missing and unexpected
        assert isinstance(task, PooledTask)
        hidden = task.network.read_row(batch.inputs, batch.padding_mask, torch.zeros_like(batch.padding_mask)).hidden
        torch.testing.assert_close(hidden, outputs[layers - 1])
        counted = sum(p.numel() for p in task.parameters() if p.requires_grad)
        assert describe(part).parameters == counted < describe(config).parameters
    assert describe(downstream(questions, layers=3)) == describe(config)


def test_a_frozen_network_keeps_the_weights_that_it_starts_from_and_its_head_learns(
    pretrained: Path, questions: str, tmp_path: Path
) -> None:
    config = downstream(questions, pretrained, layers=2).override(PROBE | {"model.dropout": 0.5})
    assert fit(config, tmp_path)["outcome"] == "finished"
    probe, start = load(tmp_path / "checkpoint.ckpt")[0], load(pretrained)[0]
    for name, weight in probe.network.state_dict().items():
        assert torch.equal(weight, start.network.state_dict()[name]), name
    torch.manual_seed(0)
    fresh = config.build_task(config.data.build())
    assert not torch.equal(*(task.get_parameter("heads.label.map.1.weight") for task in (probe, fresh)))
    batch = a_batch(config)
    losses = [fresh.train().training_step(batch, 0)["loss"] for _ in range(2)]
    assert torch.equal(*losses), "a frozen network has no dropout"


def test_fine_tuning_starts_from_a_checkpoint_and_changes_it(pretrained: Path, questions: str, tmp_path: Path) -> None:
    fit(downstream(questions, pretrained), tmp_path)
    tuned, start = (load(path)[0].network.state_dict() for path in (tmp_path / "checkpoint.ckpt", pretrained))
    moved = {name for name in tuned if not torch.equal(tuned[name], start[name])}
    assert moved == {*tuned} - {"tokens.logits.bias"}, "all but the weight that the softmax alone reads"
    assert all((tuned[name] - start[name]).abs().max() < 0.05 for name in moved), "four small steps from its start"


def test_what_cannot_be_read_at_a_layer_is_refused(questions: str, tmp_path: Path) -> None:
    deep = downstream(questions, layers=4)
    with pytest.raises(ConfigError, match="3 layers cannot be divided after 4"):
        deep.build_task(deep.data.build())
    with pytest.raises(ConfigError, match="empty evaluation, or drop layers"):
        downstream(questions, layers=1, evaluation={"dropout": 0.1})
    causal = downstream(questions, layers=1).override({"model": {"kind": "language_model", "dim": 16, "heads": 2}})
    with pytest.raises(ConfigError, match="a LanguageModel cannot be read at a layer"):
        causal.build_task(causal.data.build())
    with pytest.raises(ConfigError, match="a words tokenizer learns its symbols; set learned_from"):
        SentencesConfig(tokenizer=WordsConfig())


def slow_combination(kind: str, layers: list[Tensor], shares: Tensor, scale: float) -> Tensor:
    rows, tokens, width = layers[0].shape
    if kind == "concatenation":
        combined = torch.zeros(rows, tokens, width * len(layers), dtype=torch.float64)
        for number, layer in enumerate(layers):
            combined[:, :, number * width : (number + 1) * width] = layer
        return combined
    combined = torch.zeros(rows, tokens, width, dtype=torch.float64)
    for place in torch.cartesian_prod(torch.arange(rows), torch.arange(tokens), torch.arange(width)).tolist():
        values = [float(layer[tuple(place)]) for layer in layers]
        match kind:
            case "mean":
                combined[tuple(place)] = sum(values) / len(values)
            case "max":
                combined[tuple(place)] = max(values)
            case "scalar_mix":
                weights = [float(share.exp() / shares.exp().sum()) for share in shares]
                combined[tuple(place)] = scale * sum(w * v for w, v in zip(weights, values, strict=True))
    return combined


COMBINED = [
    ("concatenation", (1,), 1),
    *((kind, layers, left) for kind in get_args(LayerCombination) for layers, left in (((0, 2), 2), ((-1, -3, -4), 3))),
]
"""A combination, layers of three, and how many of these are left."""


@pytest.mark.parametrize(("kind", "numbers", "left"), COMBINED, ids=str)
def test_layers_are_combined_as_they_are_within_the_whole_network(
    questions: str, kind: LayerCombination, numbers: tuple[int, ...], left: int
) -> None:
    whole_config = downstream(questions)
    torch.manual_seed(0)
    whole = whole_config.build_task(whole_config.data.build()).eval()
    config = downstream(questions, combined_layers=numbers, layer_combination=kind)
    task = config.build_task(config.data.build()).eval().double()
    assert isinstance(task, PooledTask) and isinstance(whole, PooledTask)
    assert len(task.network.stack.steps()) == left  # type: ignore[union-attr, operator]
    task.network.load_state_dict(whole.network.state_dict(), strict=False)
    shares = torch.linspace(-1.0, 2.0, len(numbers), dtype=torch.float64)
    if kind == "scalar_mix":
        assert task.combination.mixed is not None and task.combination.scale is not None
        assert task.combination.mixed.tolist() == [0.0] * len(numbers) and task.combination.scale.tolist() == [1.0]
        task.combination.mixed.data, task.combination.scale.data = shares, torch.tensor([1.7]).double()
    batch, outputs = a_batch(config), list[Tensor]()
    whole.double().network.stack.steps()[0].register_forward_pre_hook(  # type: ignore[union-attr, operator]
        lambda block, inputs: outputs.append(inputs[0])
    )
    for block in whole.network.stack.steps():  # type: ignore[union-attr, operator]
        block.register_forward_hook(lambda block, inputs, output: outputs.append(output.y))
    outputs[3:] = [whole.evaluation_reading(batch).hidden]
    outputs[:] = [output.detach() for output in outputs]
    chosen = [outputs[number if number >= 0 else 4 + number] for number in numbers]
    torch.testing.assert_close(task.evaluation_reading(batch).hidden, slow_combination(kind, chosen, shares, 1.7))
    counted = sum(p.numel() for p in task.parameters() if p.requires_grad)
    assert describe(config).parameters == counted
    for parameter in task.parameters():
        parameter.grad = None
    task.train().training_step(batch, 0)["loss"].backward()
    assert not [name for name, p in task.named_parameters() if p.requires_grad and p.grad is None], "ranks would wait"


def test_embeddings_alone_are_a_network_without_layers(questions: str) -> None:
    config = downstream(questions, combined_layers=(0,))
    task = config.build_task(config.data.build()).eval()
    batch = a_batch(config)
    places = task.network.stack.entry.positions.vectors(0, torch.arange(batch.inputs.size(1))[None], torch.float32)
    embedded = task.network.tokens.embed(batch.inputs) + places
    torch.testing.assert_close(task.evaluation_reading(batch).hidden, embedded)
    assert "layers" not in roles_of(task)
    assert describe(config).flops_per_token < describe(downstream(questions, layers=1)).flops_per_token / 10


def test_padding_changes_nothing_of_combined_layers(questions: str) -> None:
    config = downstream(questions, combined_layers=(0, 1, -1), layer_combination="max")
    task, batch = config.build_task(config.data.build()).eval().double(), a_batch(config)
    wider = batch._replace(
        inputs=F.pad(batch.inputs, (0, 4), value=3), padding_mask=F.pad(batch.padding_mask, (0, 4)), padded=True
    )
    torch.testing.assert_close(task.evaluation_output(wider), task.evaluation_output(batch))


def test_combined_layers_that_there_are_not_are_refused(questions: str) -> None:
    for numbers, message in (
        ((0, 4), "there is no layer 4; there are 0 to 3"),
        ((-5, 1), "there is no layer -5; there are 0 to 3"),
        ((3, -1), "layer 3 occurs twice; drop one"),
    ):
        config = downstream(questions, combined_layers=numbers)
        with pytest.raises(ConfigError, match=rf"task\.combined_layers: {message}"):
            config.build_task(config.data.build())
    with pytest.raises(ConfigError, match="combined_layers keeps only a part of it"):
        downstream(questions, combined_layers=(0, 1), evaluation={"dropout": 0.1})
    with pytest.raises(ConfigError, match="max combines two layers or more"):
        downstream(questions, combined_layers=(1,), layer_combination="max")


@pytest.mark.slow
def test_no_field_of_combined_layers_is_ignored(questions: str) -> None:
    arms = [
        downstream(questions, combined_layers=layers, layer_combination=kind)
        for layers, kind in (((-1, -2), "mean"), ((-1, -2), "max"), ((-1, -3), "mean"), ((-1, -2), "scalar_mix"))
    ]
    assert changes_nothing(arms[0], arms[0])
    assert not any(changes_nothing(arm, arms[0]) for arm in arms[1:])


CACHED: dict[str, Any] = PROBE | {"training.cache_features": True}


def heads_of(path: Path) -> dict[str, Tensor]:
    task = load(path / "checkpoint.ckpt")[0]
    return {name: weight for name, weight in task.state_dict().items() if not name.startswith("network.")}


@pytest.mark.parametrize(
    "task",
    [{}, {"combined_layers": (0, 2, -1), "layer_combination": "scalar_mix"}, {"pooling": "attention"}],
    ids=["last", "mix", "attention"],
)
def test_a_probe_of_cached_features_is_the_probe_and_reads_the_network_once(
    pretrained: Path, questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: dict[str, Any]
) -> None:
    monkeypatch.setenv("LIT_CACHE", str(tmp_path / "cache"))
    changes = {f"task.{name}": value for name, value in task.items()} | {"training.steps": 15}
    config = downstream(questions, pretrained).override(changes)
    plain, cached = (config.override(mode | {"training.validate_every": 7}) for mode in (PROBE, CACHED))
    rows: list[int] = []
    reads = Encoder.forward
    monkeypatch.setattr(Encoder, "forward", lambda *args, **named: rows.append(len(args[1])) or reads(*args, **named))
    expected = fit(plain, tmp_path / "plain")["metrics"]
    uncached, held_out = sum(rows), config.build_data().examples.count("validation")  # type: ignore[attr-defined]
    for name in ("cold", "warm"):
        rows.clear()
        record = fit(cached, tmp_path / name)
        assert record["metrics"] == pytest.approx(expected, rel=1e-6)
        assert ("feature_seconds" in record["measured"]) == (name == "cold")
        torch.testing.assert_close(heads_of(tmp_path / name), heads_of(tmp_path / "plain"), rtol=1e-5, atol=1e-6)
        if name == "cold":
            computed = sum(rows)
    assert computed - sum(rows) >= 48, "each row of training once"
    assert uncached - sum(rows) == 15 * 4 + 3 * held_out, "none of steps, and none of three validations"
    torch.testing.assert_close(heads_of(tmp_path / "cold"), heads_of(tmp_path / "warm"), rtol=0, atol=0)
    (table,) = (tmp_path / "cache" / "features").iterdir()
    with pytest.raises(ConfigError, match="is a cache of other weights; remove the folder"):
        FeatureTable(table, "others")
    (table / "values.f32").write_bytes(b"")
    with pytest.raises(ConfigError, match="is a damaged cache"):
        FeatureTable(table, json.loads((table / "meta.json").read_text())["weights"])


def test_other_weights_layers_and_texts_have_features_of_their_own(
    pretrained: Path, questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIT_CACHE", str(tmp_path))
    config = downstream(questions, pretrained).override(CACHED)

    def folders(config: RunConfig, change: float = 0.0, unused: float = 0.0) -> set[str]:
        data = config.build_data()
        starts = dict.fromkeys(config.start.sources(), pretrained)
        task, _ = starting_task(config, data, starts)
        with torch.no_grad():
            next(task.network.parameters()).add_(change)
            predicting = task.network.prediction_only()  # type: ignore[attr-defined]
            assert predicting
            for weight in predicting:
                weight.add_(unused)
        before = {path.name for path in (tmp_path / "features").glob("*")}
        with cached_features(config, task, data):
            batch = next(iter(data.train_dataloader()))
            read = task.evaluation_reading(batch).hidden
            task.features, table = None, task.features  # type: ignore[attr-defined]
            torch.testing.assert_close(read, task.evaluation_reading(batch).hidden * batch.padding_mask[..., None])
            task.features = table  # type: ignore[attr-defined]
        assert task.features is None  # type: ignore[attr-defined]
        return {path.name for path in (tmp_path / "features").glob("*")} - before

    assert len(folders(config)) == 1
    assert not folders(config.override({"task.pooling": "max", "seed": 3}))
    assert not folders(config, unused=0.5), (
        "weights that predict symbols change no features, and each seed draws its own"
    )
    assert len(folders(config, 0.5)) == 1
    assert len(folders(config.override({"task.layers": 2}))) == 1
    assert len(folders(config.override({"task.combined_layers": (0, -1)}))) == 1
    assert len(folders(config.override({"data.source.length": 9}))) == 1


def test_runs_of_the_same_rows_and_layers_share_a_pass(pretrained: Path, questions: str) -> None:
    config = downstream(questions, pretrained).override(CACHED)
    own = feature_pass(config)
    assert own is not None and own.tokens == 24 * sum(config.build_data().examples.count(split) for split in SPLITS[:2])  # type: ignore[attr-defined]
    limited = feature_pass(config.override({"data.evaluation.examples": 3}))
    assert limited is not None and limited.tokens == 24 * (48 + 3) and limited.name != own.name
    for change in ({"seed": 3, "data.seed": 3}, {"training.optimizer.learning_rate": 0.1}, {"task.pooling": "max"}):
        assert feature_pass(config.override(change)) == own
    drawn = {"data.source.examples": 40, "data.source.subset": "by_seed"}
    for change in ({"task.layers": 2}, {"data.source.keep": "tail"}, drawn, drawn | {"data.seed": 1}, {"start": {}}):
        other = feature_pass(config.override(change))
        assert other is not None and other.name != own.name
    assert feature_pass(config.override({"training.cache_features": False})) is None


def test_a_pass_counts_the_layers_that_it_computes(pretrained: Path, questions: str) -> None:
    """Next to the products that torch counts of the same passes."""
    config = downstream(questions, pretrained).override(CACHED)
    task = config.measured_task.build(config.model, config.build_data().description, config.training)
    assert isinstance(task, LabelledTask)
    rows, counted = torch.ones(1, 24, dtype=torch.long), list[int]()
    for lowest in (0, 1):
        own = feature_pass(config.override({"training.cache_features": not lowest, "training.cached_layers": lowest}))
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            (lowest_layers(task.network, lowest) if lowest else task.network).read_row(rows, None, rows > 1)
        counted.append(counter.get_total_flops())
        assert own is not None and own.flops_per_token == pytest.approx(counted[-1] / 24, rel=0.001)
        assert own.flops == own.tokens * own.flops_per_token
    assert depth_of(task.network) == 3 and counted[1] == pytest.approx(counted[0] / 3)


def test_features_of_what_is_not_frozen_are_refused(pretrained: Path, questions: str, tmp_path: Path) -> None:
    config = downstream(questions, pretrained)
    for changes, message in (
        ({}, "the network learns, which changes"),
        ({"training.groups": [{"parameters": ["layer 1"], "frozen": True}]}, "the network learns, which changes"),
        ({"training.groups": [{"parameters": ["network"], "frozen": True}], "model.dropout": 0.1}, "in training mode"),
    ):
        with pytest.raises(ConfigError, match=message):
            fit(config.override(changes | {"training.cache_features": True}), tmp_path / str(len(changes)))
    with pytest.raises(ConfigError, match=r"holds outputs in float32; set training\.precision to 32"):
        config.override(CACHED | {"training.precision": "bf16"})


def test_a_step_on_cached_features_costs_its_head_alone(questions: str) -> None:
    plain, cached = (describe(downstream(questions).override(mode)) for mode in (PROBE, CACHED))
    head = 2 * 16 * 2 / 24
    assert plain.flops_per_token == cached.flops_per_token
    assert cached.train_flops_per_token == pytest.approx(2 * head)
    assert plain.train_flops_per_token > 100 * cached.train_flops_per_token


def test_every_layer_and_pooling_is_probed_on_features_that_are_computed_once(
    pretrained: Path, questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIT_CACHE", str(tmp_path))
    config = downstream(questions, pretrained, layers=1)
    table = probe_layers(config)
    assert len(table) == 4 * 4 and {*table.columns} == {"layer", "pooling", "accuracy", "nats"}
    reads = Encoder.forward
    monkeypatch.setattr(Encoder, "forward", None)
    assert probe_layers(config.to_dict()).equals(table)
    features = pooled_layers(config)
    monkeypatch.setattr(Encoder, "forward", reads)
    network, examples = load(pretrained)[0].network.eval(), config.build_data().examples
    for split in ("train", "validation"):
        assert len(features[split].labels) == examples.count(split)
        for ordinal in (0, examples.count(split) - 1):
            example = examples.example(split, ordinal)
            row = torch.tensor([[config.build_data().description.vocabulary.boundary, *example.symbols]])
            layers = torch.stack(network.read_layers(row, None, torch.zeros_like(row, dtype=torch.bool)).layers)[:, 0]
            expected = {"first": layers[:, 0], "last": layers[:, -1], "mean": layers.mean(1), "max": layers.amax(1)}
            for number, pooling in enumerate(features[split].poolings):
                found = torch.tensor(features[split].vectors[ordinal, :, number])
                torch.testing.assert_close(found, expected[pooling], rtol=1e-4, atol=1e-5)
            assert features[split].labels[ordinal] == example.label
    progress: list[TextCount] = []
    monkeypatch.setattr(layer_probes, "TextCount", lambda total: progress.append(TextCount(total)) or progress[0])
    few = config.override({"data.evaluation.examples": 5, "data.evaluation.batch_size": 2})
    limited, chosen = pooled_layers(few)["validation"], Once(examples.count("validation"), 5).ordinals
    assert str(progress[0]) == f"{examples.count('train') + 5} of {examples.count('train') + 5} texts"
    np.testing.assert_allclose(limited.vectors, features["validation"].vectors[chosen], rtol=1e-4, atol=1e-5)
    assert limited.labels.tolist() == features["validation"].labels[chosen].tolist()
    assert isinstance(limited.vectors, np.memmap)
    numbers = config.override({"task": "regression", "data.source": "masked_sum", "start": None})
    with pytest.raises(ConfigError, match="needs classes, and the column 'label' of these data holds numbers"):
        pooled_layers(numbers)


def test_the_classifier_of_probes_is_that_of_scikit_learn() -> None:
    chance = np.random.default_rng(0)
    x, labels = chance.normal(size=(90, 5)), chance.integers(3, size=90)
    x[:, 0] += labels
    theirs = LogisticRegression(C=1 / (0.05 * 90), max_iter=1000, tol=1e-8).fit(x, labels)
    ours = log_softmax(classifier(x, labels, 0.05)(x))
    np.testing.assert_allclose(np.exp(ours), theirs.predict_proba(x), atol=1e-4)
