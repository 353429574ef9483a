"""A run starts from weights part by part: from files, and from other runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
from torch import nn

from datamodules import DataError
from lit_transformers.__main__ import main
from lit_transformers.batch import DataDescription
from lit_transformers.config import Added, ConfigError, Positive
from lit_transformers.gates import gates
from lit_transformers.lightning_runs import LightningRunConfig
from lit_transformers.models import MODELS
from lit_transformers.models.encoder import Encoder, EncoderConfig
from lit_transformers.records.files import CHECKPOINT
from lit_transformers.runs import RunConfig, evaluate, fit, run_key
from lit_transformers.runs.rehearsal import rehearse
from lit_transformers.runs.runner import RUNNER
from lit_transformers.runs.stages import stages_within
from lit_transformers.runs.starting_weights import StartingWeights, digest_of, read_weights, start_from, write_weights

LEARNED = {"kind": "learned", "max_length": 16, "restart": "document"}
SMALL: dict[str, Any] = {"kind": "encoder", "dim": 8, "heads": 2, "depth": 1, "positions": LEARNED}
STILL = {"steps": 1, "device": "cpu", "optimizer": {"kind": "adamw", "learning_rate": 1e-30}}
WORDS = ["able", "best", "clear", "deep", "eager", "fair", "good", "high"]


def text(path: Path, words: list[str] = WORDS) -> str:
    lines = [" ".join(words[n % 5 :][:3]) + "." for n in range(40)]
    path.write_text("\n".join(json.dumps({"text": line}) for line in lines))
    return str(path)


def rows(path: str, **fields: Any) -> RunConfig:
    """A run that predicts hidden words of a text."""
    source = {"kind": "files", "path": path, "validation": 0.3, "test": 0.2}
    data = {"kind": "rows", "source": source, "tokenizer": "words", "length": 12, "batch_size": 2}
    return RunConfig.from_dict({"model": SMALL, "task": "masked_lm", "data": data, "training": STILL} | fields)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a text, and of a run that has learned it a little, below its key."""
    folder = tmp_path_factory.mktemp("trained")
    config = rows(text(folder / "text.jsonl"), training=STILL | {"steps": 3, "optimizer": "sgd"})
    assert fit(config, folder / run_key(config))["outcome"] == "finished"
    return folder


def source(folder: Path) -> RunConfig:
    return rows(str(folder / "text.jsonl"), training=STILL | {"steps": 3, "optimizer": "sgd"})


def after(folder: Path) -> dict[str, Any]:
    return {"network": {"run": source(folder).to_dict()}}


def weights_in(directory: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = torch.load(directory / CHECKPOINT, weights_only=True)["state_dict"]
    return weights


def test_a_path_is_the_file_of_all_parts_and_weights_is_the_former_name() -> None:
    plain = RunConfig().to_dict()
    del plain["start"]
    old = RunConfig.from_dict(plain | {"weights": "bert/weights.safetensors"})
    assert old == RunConfig().override({"weights": "bert/weights.safetensors"})
    file = {"kind": "file", "path": "bert/weights.safetensors"}
    unset = dict.fromkeys(("layers", "narrow", "share", "factorise", "head", "teacher"))
    assert old.to_dict()["start"] == {"network": file, "heads": file, **unset}
    assert RunConfig.from_dict(plain | {"weights": None}) == RunConfig.from_dict(plain) == RunConfig()
    assert RunConfig.from_dict(old.to_dict()) == old
    with pytest.raises(ConfigError, match="no field 'weights'; it is called start"):
        RunConfig(weights="bert")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="heads start from the source of the network, but network has none"):
        RunConfig.from_dict({"start": {"heads": "network"}})


def test_runs_of_lightning_modules_have_no_stages_and_say_so() -> None:
    with pytest.raises(ConfigError, match="have no stages; let the module load its weights"):
        LightningRunConfig.from_dict({"model": {"class_path": "a.B"}, "start": "file"})


def test_the_seeds_of_a_stage_follow_those_of_the_run_or_are_fixed(tmp_path: Path) -> None:
    inner = rows("text").to_dict()
    middle = rows("text", start={"network": {"run": inner}}).to_dict()
    config = rows("text", start={"network": {"run": middle}, "heads": {"run": inner, "seed": 4}})
    seeded = config.override({"seed": 7, "data.seed": 9})
    seeds = {prefix: (run.seed, run.data.get("seed")) for prefix, run in stages_within(seeded)}
    assert seeds == {
        "": (7, 9),
        "start.network.run.": (7, 9),
        "start.network.run.start.network.run.": (7, 9),
        "start.heads.run.": (4, 4),
    }
    assert [stage.seed for stage in RUNNER.earlier(seeded)] == [7, 7, 4]
    shared = rows("text", start={"network": {"run": inner}, "heads": {"run": inner}})
    assert len(RUNNER.earlier(shared)) == 1, "of two parts one run is done once"


def test_who_does_a_stage_is_no_part_of_any_key_and_what_it_computes_is(trained: Path) -> None:
    config = rows(str(trained / "text.jsonl"), start=after(trained))
    again = config.override({"start.network.run.data.workers": 1, "training.devices": 2})
    assert run_key(config) == run_key(again)
    more = config.override({"start.network.run.training.steps": 4})
    assert run_key(config) != run_key(more) and run_key(config) != run_key(rows(str(trained / "text.jsonl")))


def test_the_digest_of_a_checkpoint_does_not_depend_on_how_long_its_run_took(trained: Path, tmp_path: Path) -> None:
    path = trained / run_key(source(trained)) / CHECKPOINT
    contents = torch.load(path, weights_only=True)
    contents["callbacks"]["Checkpointer"]["spent"] += 1.0
    torch.save(contents, tmp_path / "slower.ckpt")
    assert path.read_bytes() != (tmp_path / "slower.ckpt").read_bytes()
    assert digest_of(path) == digest_of(tmp_path / "slower.ckpt")
    next(iter(contents["state_dict"].values())).view(-1)[0] += 1e-3
    torch.save(contents, tmp_path / "other.ckpt")
    contents["lit_transformers"]["tokenizer"]["words"].reverse()
    torch.save(contents, tmp_path / "words.ckpt")
    assert len({digest_of(path), digest_of(tmp_path / "other.ckpt"), digest_of(tmp_path / "words.ckpt")}) == 3


def test_a_run_starts_from_another_one_and_its_record_says_from_what(trained: Path) -> None:
    key = run_key(source(trained))
    config = rows(str(trained / "text.jsonl"), start=after(trained) | {"heads": "network"})
    record = fit(config, trained / "second")
    assert record["outcome"] == "finished" and record["measured"]["started_from"] == []
    read = {"run": key, "digest": digest_of(trained / key / CHECKPOINT)}
    assert record["measured"]["start"] == {"network": read, "heads": read}
    first, second = weights_in(trained / key), weights_in(trained / "second")
    assert all(torch.equal(first[name], tensor) for name, tensor in second.items())
    by_file = rows(str(trained / "text.jsonl"), start=str(trained / key))
    assert fit(by_file, trained / "by file")["metrics"] == record["metrics"]


def test_a_run_whose_source_is_not_done_is_refused_and_says_what_does_it(trained: Path, tmp_path: Path) -> None:
    config = rows(str(trained / "text.jsonl"), start=after(trained))
    with pytest.raises(ConfigError, match=r"start\.network: its run \w+ is not done yet; .* do it first"):
        fit(config, tmp_path / "run")


def test_fit_does_the_runs_first_that_a_run_starts_from(trained: Path, tmp_path: Path) -> None:
    middle = rows(str(trained / "text.jsonl"), start=after(trained))
    config = rows(str(trained / "text.jsonl"), start={"network": {"run": middle.to_dict()}, "heads": "network"})
    (tmp_path / "run.yaml").write_text(config.to_yaml())
    assert main(["fit", str(tmp_path / "run.yaml"), "--to", str(tmp_path / "run")]) == 0
    keys = [run_key(source(trained)), run_key(middle)]
    assert sorted(path.parent.name for path in tmp_path.glob("*/record.json")) == sorted([*keys, "run"])
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert [*record["measured"]["chain"]] == keys
    assert record["cost"]["chain_tokens"] == (3 + 1 + 1) * record["cost"]["tokens"]


def test_a_run_of_no_steps_measures_what_it_starts_from_and_others_start_from_it(trained: Path, tmp_path: Path) -> None:
    path, start = str(trained / "text.jsonl"), after(trained) | {"heads": "network"}
    config = rows(path, start=start, training={"steps": 0, "device": "cpu"})
    first, folder = trained / run_key(source(trained)), trained / run_key(config)
    record = fit(config, folder)
    assert record["outcome"] == "finished" and record["cost"]["tokens"] == 0
    assert "tokens_per_second" not in record["measured"] and record["measured"]["trained_by"] is None
    assert record["metrics"] == json.loads((first / "record.json").read_text())["metrics"]
    before, here = weights_in(first), weights_in(folder)
    assert before.keys() == here.keys() and all(torch.equal(before[name], here[name]) for name in before)
    again = evaluate(folder / CHECKPOINT)
    assert {name: again[name] for name in record["metrics"]} == pytest.approx(record["metrics"], rel=1e-6)
    following = rows(path, start={"network": {"run": config.to_dict()}, "heads": "network"})
    assert fit(following, trained / "following")["metrics"] == pytest.approx(record["metrics"], abs=1e-5)
    assert fit(config.override({"data.evaluation.examples": 3}), trained / "other")["measured"]["trained_by"] is None


def test_a_longer_table_of_positions_begins_with_the_shorter_one(trained: Path) -> None:
    longer = {"model": SMALL | {"positions": LEARNED | {"max_length": 20}}}
    config = rows(str(trained / "text.jsonl"), start=after(trained), **longer)
    record = fit(config, trained / "longer")
    name = "network.stack.entry.positions.weight"
    assert f"{name} from position 16 on starts anew" in record["measured"]["started_from"]
    first, second = weights_in(trained / run_key(source(trained)))[name], weights_in(trained / "longer")[name]
    assert second.size(1) == 20 and torch.equal(second[:, :16], first)


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"model.feedforward.activation": "gelu"}, "activation"), ({"model.norm": "post"}, "norm")],
)
def test_a_network_that_computes_something_else_is_refused_by_its_field_before_anything_is_trained(
    changes: dict[str, Any], field: str, trained: Path
) -> None:
    """Though all shapes fit."""
    config = rows(str(trained / "text.jsonl"), start=after(trained)).override(changes)
    with pytest.raises(
        ConfigError, match=rf"start\.network\.run: holds .* another network: model.*{field}.*; set these fields"
    ):
        rehearse(config)
    wide = {"model.dim": 16, "start.network.run.model": SMALL}
    with pytest.raises(ConfigError, match=r"model\.dim is 8 there and 16 here"):
        rehearse(config.override(wide))
    dropped = config.override({"start.network.run.model": config.model, "model.dropout": 0.3, "model.initial_std": 0.1})
    rehearse(dropped)


def test_tokenizers_that_differ_between_stages_are_refused(trained: Path, tmp_path: Path) -> None:
    path = str(trained / "text.jsonl")
    with pytest.raises(ConfigError, match=r"data\.tokenizer: characters gives other symbols"):
        rows(path, start=after(trained)).override({"data.tokenizer": "characters"}).build_data()
    other = rows(text(tmp_path / "other.jsonl", WORDS[::-1])).to_dict()
    config = rows(path, start=after(trained) | {"heads": {"run": other}})
    with pytest.raises(ConfigError, match=r"start\.heads: was trained with another tokenizer than start\.network"):
        config.build_data()
    read = rows(str(tmp_path / "other.jsonl"), start=after(trained)).build_data()
    assert read.trained_symbols() == source(trained).build_data().trained_symbols()


class WidenedConfig(EncoderConfig, kind="widened"):
    """extra: numbers that the network holds besides. renames: whether a norm gets another name with them."""

    extra: Annotated[Positive | None, Added] = None
    renames: bool = False

    def build(self, data: DataDescription) -> Encoder:
        network = super().build(data)
        if self.extra is not None:
            network.extra_numbers = nn.Parameter(torch.zeros(self.extra))
            if self.renames:
                network.norm = nn.Sequential(network.norm)
        return network


def test_what_a_config_adds_starts_anew_and_is_listed(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "widened", WidenedConfig)
    monkeypatch.setattr(gates, "check", lambda *_: [])  # which refuse parameters without gradient
    path, small = str(trained / "text.jsonl"), SMALL | {"kind": "widened"}
    bare = rows(path, model=small)
    wide = rows(path, model=small | {"extra": 3}, start={"network": {"run": bare.to_dict()}})
    rehearse(wide)
    fit(bare, tmp_path / run_key(bare))
    lines = fit(wide, tmp_path / "wide")["measured"]["started_from"]
    assert "network.extra_numbers starts anew" in lines
    assert fit(wide, tmp_path / "wide")["metrics"].keys() == fit(bare, tmp_path / run_key(bare))["metrics"].keys()
    back = rows(path, model=small, start={"network": {"run": wide.override({"start": None}).to_dict()}})
    with pytest.raises(ConfigError, match=r"model\.extra is 3 there and None here"):
        rehearse(back)
    with pytest.raises(ConfigError, match=r"model\.extra: gives network\.norm\.\w+ another name"):
        rehearse(wide.override({"model.renames": True, "start.network.run.model.renames": True}))


def test_a_file_that_lacks_a_tensor_is_refused_whatever_the_config_adds(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "widened", WidenedConfig)
    bare = rows(str(trained / "text.jsonl"), model=SMALL | {"kind": "widened"})
    data = bare.build_data()
    tensors = bare.build_task(data).state_dict()
    task = bare.override({"model.extra": 2}).build_task(data)
    weights = StartingWeights(bare.model, "", tensors, place="here")
    assert "network.extra_numbers starts anew" in start_from(task, {"network": weights})
    del tensors["network.norm.bias"]
    with pytest.raises(ConfigError, match=r"^here: lacks network\.norm\.bias, which the network needs"):
        start_from(task, {"network": weights})


@pytest.mark.parametrize("adapter", ["bottleneck", "low_rank"])
def test_the_weights_of_an_import_start_a_network_with_an_adapter(adapter: str, trained: Path, tmp_path: Path) -> None:
    """An import is the file of a network that has no adapter, without heads."""
    weights = read_weights(trained / run_key(source(trained)) / CHECKPOINT)
    network = {name: tensor.clone() for name, tensor in weights.tensors.items() if name.startswith("network.")}
    write_weights(tmp_path / "weights.safetensors", weights._replace(architecture="bert", tensors=network))
    start = {"network": {"kind": "file", "path": str(tmp_path / "weights.safetensors")}}
    adapted = rows(str(trained / "text.jsonl"), model=SMALL | {"adapter": adapter}, start=start)
    lines = fit(adapted, tmp_path / "adapted")["measured"]["started_from"]
    assert any("adapter" in line and line.endswith(" starts anew") for line in lines)
    own = weights_in(tmp_path / "adapted")
    assert all(torch.equal(own[name], tensor) for name, tensor in network.items())


def test_heads_that_start_anew_have_labels_of_their_own(trained: Path, tmp_path: Path) -> None:
    """Those of a run whose heads start from a classifier are the classifier's, and no others."""

    def classifier(labels: list[str], **fields: Any) -> RunConfig:
        path = tmp_path / f"{'-'.join(labels)}.csv"
        lines = [f"{WORDS[n % 8]} {WORDS[n % 3]} {n},{labels[n % len(labels)]}" for n in range(150)]
        path.write_text("\n".join(["text,label", *lines]))
        texts = {"kind": "labelled_texts", "path": str(path), "labels": labels, "splits": "hash"}
        data = {"kind": "labelled", "source": texts | {"tokenizer": "words", "length": 12}, "batch_size": 2}
        task = {"kind": "classification", "pooling": "mean"}
        return RunConfig.from_dict({"model": SMALL, "task": task, "data": data, "training": STILL} | fields)

    first = classifier(["neg", "pos"])
    for start, labels in (({}, ["pos", "fair", "neg"]), ({"heads": "network"}, ["pos", "neg"])):
        config = classifier(labels, start={"network": {"run": first.to_dict()}} | start)
        symbols = config.build_data().trained_symbols()
        assert symbols.stand_for_those_of(first.build_data().trained_symbols())
        assert [*symbols.labels] == (["neg", "pos"] if start else labels)
    with pytest.raises(DataError, match="the label 'fair' was never trained"):
        config.override({"data": classifier(["pos", "fair", "neg"]).data}).build_data().description  # noqa: B018


def test_weights_that_are_taken_over_are_those_of_the_run_that_took_them(trained: Path) -> None:
    """``evaluate`` gives the numbers of its record, by its own protocol."""
    plain = rows(str(trained / "text.jsonl"), task={"kind": "masked_lm"})
    other = plain.override({"data.evaluation.examples": 3})
    first, second = fit(plain, trained / "donor"), fit(other, trained / "borrower")
    assert second["measured"]["trained_by"] == "donor" and first["metrics"] != second["metrics"]
    again = evaluate(trained / "borrower" / CHECKPOINT)
    assert again == pytest.approx({name: again[name] for name in again} | second["metrics"])
