"""Weights of transformers' encoders give the same numbers here, and those written here give the same numbers there."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
import torch
from copying import EAGER, close, randomise
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from starting import start_from_file
from torch import Tensor

from lit_transformers.__main__ import main
from lit_transformers.batch import RowDescription, Vocabulary
from lit_transformers.config import ConfigError
from lit_transformers.exchange.architectures import ARCHITECTURES
from lit_transformers.exchange.transfer import export_weights, import_weights
from lit_transformers.exchange_command import Architecture
from lit_transformers.models import ModelConfig
from lit_transformers.models.capabilities import RowNetwork
from lit_transformers.plain_yaml import read_yaml
from lit_transformers.runs import RunConfig, fit, load, run_key
from lit_transformers.runs.starting_weights import read_weights
from lit_transformers.tasks import MaskedLMConfig
from lit_transformers.tasks.masked_lm import MaskedLM
from lit_transformers.training.config import TrainingConfig

transformers = pytest.importorskip("transformers", reason="compares with transformers, a test dependency")

SYMBOLS, LENGTH = 37, 13
SIZES: dict[str, Any] = {
    "vocab_size": SYMBOLS,
    "hidden_size": 21,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 29,
    "max_position_embeddings": 24,
    "type_vocab_size": 2,
    **EAGER,
}
DISTILBERT_SIZES: dict[str, Any] = {
    "vocab_size": SYMBOLS,
    "dim": 21,
    "n_layers": 3,
    "n_heads": 3,
    "hidden_dim": 29,
    "max_position_embeddings": 24,
    **EAGER,
}
TOLERANCE = 1e-12

CASES: dict[str, Callable[[], Any]] = {
    "bert": lambda: transformers.BertForPreTraining(transformers.BertConfig(**SIZES)),
    "bert, untied": lambda: transformers.BertForMaskedLM(
        transformers.BertConfig(**SIZES, hidden_act="relu", tie_word_embeddings=False)
    ),
    "roberta": lambda: transformers.RobertaForMaskedLM(
        transformers.RobertaConfig(**SIZES | {"type_vocab_size": 1}, layer_norm_eps=1e-5)
    ),
    "distilbert": lambda: transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(**DISTILBERT_SIZES)),
    "albert": lambda: transformers.AlbertForPreTraining(transformers.AlbertConfig(**SIZES, embedding_size=11)),
    "albert, groups": lambda: transformers.AlbertForPreTraining(
        transformers.AlbertConfig(**SIZES | {"num_hidden_layers": 4}, embedding_size=21, num_hidden_groups=2)
    ),
    "electra": lambda: transformers.ElectraForMaskedLM(transformers.ElectraConfig(**SIZES, embedding_size=11)),
    "electra, wide": lambda: transformers.ElectraForMaskedLM(transformers.ElectraConfig(**SIZES, embedding_size=21)),
}


class Rows(NamedTuple):
    """An odd batch: two segments in some rows, padding in others."""

    symbols: Tensor
    padding_mask: Tensor
    segments: Tensor


class Case(NamedTuple):
    """A model of transformers, our task with its weights, both in double precision, and the notes of the import."""

    theirs: Any
    ours: MaskedLM
    folder: Path
    imported: Path
    notes: list[str]


def rows(name: str) -> Rows:
    torch.manual_seed(1)
    padding_mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [7], [LENGTH - 2]])
    symbols = torch.randint(2, SYMBOLS, padding_mask.shape).masked_fill(~padding_mask, int(name == "roberta"))
    segments = (torch.arange(LENGTH) > torch.tensor([[4], [LENGTH], [8]])) & padding_mask
    return Rows(symbols, padding_mask, segments.long() * int(name not in ("roberta", "distilbert")))


def our_task(weights: Path, relations: int = 2) -> MaskedLM:
    """Our task for the network of an import, with its weights."""
    vocabulary = Vocabulary(size=SYMBOLS, boundary=2, unit="piece", byte_lengths=None)
    data = RowDescription(
        vocabulary=vocabulary, length=24, mask=3, separator=4, segments=2, predictions=4, relations=relations
    )
    task = MaskedLMConfig().build(read_weights(weights).model, data, TrainingConfig())
    start_from_file(task, weights)
    return task.eval()


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Makes each case once, by way of files."""

    @cache
    def make(name: str) -> Case:
        folder = tmp_path_factory.mktemp("theirs")
        theirs = CASES[name]()
        randomise(theirs)
        theirs.save_pretrained(folder)
        imported = tmp_path_factory.mktemp("imports") / "weights"
        notes = import_weights(str(folder), imported).notes
        return Case(
            theirs.double().eval(), our_task(imported / "weights.safetensors").double(), folder, imported, notes
        )

    return make


def their_inputs(name: str, batch: Rows) -> dict[str, Tensor]:
    segments = {} if name == "distilbert" else {"token_type_ids": batch.segments}
    return {"input_ids": batch.symbols, "attention_mask": batch.padding_mask.long(), **segments}


def hidden_of(network: RowNetwork, batch: Rows) -> Tensor:
    return network.read_row(
        batch.symbols, batch.padding_mask, torch.zeros_like(batch.padding_mask), batch.segments
    ).hidden


def symbols_logits(output: Any) -> Tensor:
    logits = output.get("prediction_logits", output.get("logits"))
    assert isinstance(logits, Tensor)
    return logits.log_softmax(dim=-1)


@pytest.mark.parametrize("name", CASES)
def test_hidden_states_and_logits_are_those_of_transformers(name: str, case: Callable[[str], Case]) -> None:
    theirs, ours, *_ = case(name)
    kind, batch = name.split(",")[0], rows(name.split(",")[0])
    expected = theirs(**their_inputs(kind, batch), output_hidden_states=True)
    hidden, real = hidden_of(ours.network, batch), batch.padding_mask
    close(hidden[real], expected.hidden_states[-1][real], TOLERANCE)
    predicted = ours.network.tokens.log_probabilities(ours.network.predict(hidden))
    close(predicted[real], symbols_logits(expected)[real], TOLERANCE)


@pytest.mark.parametrize(("name", "field"), [("bert", "seq_relationship_logits"), ("albert", "sop_logits")])
def test_relations_are_predicted_as_by_transformers_in_the_same_order(
    name: str, field: str, case: Callable[[str], Case]
) -> None:
    theirs, ours, *_, notes = case(name)
    batch = rows(name)
    assert notes == ["tokenizer: the folder has none"]
    relation = ours.heads["relation"].map(hidden_of(ours.network, batch)[:, 0])
    close(relation, theirs(**their_inputs(name, batch))[field], TOLERANCE)


@pytest.mark.parametrize("name", ["electra", "albert, groups"])
def test_gradients_are_those_of_transformers(name: str, case: Callable[[str], Case]) -> None:
    """That of the embeddings, which the softmax shares, and of a map in a layer, which layers of a group share."""
    theirs, ours, *_ = case(name)
    kind, batch = name.split(",")[0], rows(name)
    targets = batch.symbols.roll(1, dims=1)[batch.padding_mask]
    their_layer = {
        "electra": "electra.encoder.layer.0.attention.self.key",
        "albert": "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.key",
    }[kind]
    their_parameters = [theirs.get_input_embeddings().weight, theirs.get_submodule(their_layer).weight]
    loss = torch.nn.functional.nll_loss(
        symbols_logits(theirs(**their_inputs(kind, batch)))[batch.padding_mask], targets
    )
    expected = torch.autograd.grad(loss, their_parameters)
    hidden = ours.network.predict(hidden_of(ours.network, batch))[batch.padding_mask]
    names = dict(ours.network.named_parameters())
    gradients = torch.autograd.grad(
        ours.network.tokens.nll(hidden, targets).mean(),
        [names["tokens.table.weight"], names["stack.blocks.0.mixer.key.weight"]],
    )
    their_tokens, ours_tokens = expected[0].clone(), gradients[0].clone()
    their_tokens[0] = ours_tokens[0] = 0.0  # the symbol of padding, whose vector they do not train by reading it
    close(ours_tokens, their_tokens, TOLERANCE)
    close(gradients[1], expected[1], TOLERANCE)


@pytest.mark.parametrize("name", CASES)
def test_what_is_exported_is_read_by_transformers_with_the_same_numbers(
    name: str, case: Callable[[str], Case], tmp_path: Path
) -> None:
    theirs, *_, imported, _ = case(name)
    kind, batch = name.split(",")[0], rows(name.split(",")[0])
    export_weights(imported, tmp_path / "out")
    again, report = transformers.AutoModelForMaskedLM.from_pretrained(
        tmp_path / "out", output_loading_info=True, **EAGER
    )
    assert not report["missing_keys"] and not report["mismatched_keys"]
    expected = symbols_logits(theirs(**their_inputs(kind, batch)))[batch.padding_mask]
    close(symbols_logits(again.double().eval()(**their_inputs(kind, batch)))[batch.padding_mask], expected, TOLERANCE)
    whole = type(theirs).from_pretrained(tmp_path / "out").state_dict()
    skipped = {"roberta": 2}.get(kind, 0)  # rows that no token reads
    unread = "cls.predictions.bias" if name == "bert, untied" else ""
    for tensor_name, tensor in theirs.float().state_dict().items():
        if tensor_name == unread:
            continue
        start = skipped if "position_embeddings" in tensor_name else 0
        torch.testing.assert_close(whole[tensor_name][start:], tensor[start:], rtol=0, atol=0)
    theirs.double()


def test_an_encoder_without_heads_is_read_and_what_starts_anew_is_listed(tmp_path: Path) -> None:
    """A discriminator of ELECTRA has a head that predicts no symbols; a BERT alone has names without a prefix."""
    discriminator = transformers.ElectraForPreTraining(transformers.ElectraConfig(**SIZES, embedding_size=11))
    randomise(discriminator)
    discriminator.save_pretrained(tmp_path / "electra")
    notes = import_weights(str(tmp_path / "electra"), tmp_path / "a").notes
    assert [note.partition(":")[0] for note in notes] == [
        "prediction head", "pooler", "relation head", "discriminator_predictions", "tokenizer",
    ]  # fmt: skip
    bert = transformers.BertModel(transformers.BertConfig(**SIZES)).eval()
    randomise(bert)
    bert.save_pretrained(tmp_path / "bert")
    notes = import_weights(str(tmp_path / "bert"), tmp_path / "b").notes
    assert [note.partition(":")[0] for note in notes] == ["prediction head", "relation head", "tokenizer"]
    task, batch = our_task(tmp_path / "b" / "weights.safetensors"), rows("bert")
    expected = bert(**their_inputs("bert", batch))
    close(hidden_of(task.network, batch)[batch.padding_mask], expected.last_hidden_state[batch.padding_mask], 1e-5)
    close(task.heads["relation"].map[:2](hidden_of(task.network, batch)[:, 0]), expected.pooler_output, 1e-5)
    lines = start_from_file(task, tmp_path / "b" / "weights.safetensors")
    assert lines == [
        "network.tokens.logits.bias starts anew", "network.transform starts anew", "heads.relation.map.2 starts anew",
    ], "the table of the symbols was loaded"  # fmt: skip


def test_weights_that_are_divided_or_pickled_are_the_same_weights(case: Callable[[str], Case], tmp_path: Path) -> None:
    theirs, *_, folder, imported, _ = case("bert")
    expected = read_weights(imported / "weights.safetensors").tensors
    theirs.float().save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    theirs.double()
    assert len(list((tmp_path / "parts").glob("model-*.safetensors"))) > 1
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor.float()
        for name, tensor in theirs.state_dict().items()
    }
    pickled = copied(folder, tmp_path / "pickled")
    (pickled / "model.safetensors").unlink()
    torch.save(old | {"bert.embeddings.position_ids": torch.arange(24)[None]}, pickled / "pytorch_model.bin")
    for source in (tmp_path / "parts", pickled):
        import_weights(str(source), tmp_path / f"{source.name} read")
        tensors = read_weights(tmp_path / f"{source.name} read" / "weights.safetensors").tensors
        assert tensors.keys() == expected.keys()
        assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def copied(folder: Path, target: Path, **changes: Any) -> Path:
    """A copy of a folder with changes in its config.json."""
    target.mkdir()
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    fields = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(fields | changes))
    return target


def rewrite(
    folder: Path, *left_out: str, file: str = "model.safetensors", extra: dict[str, Tensor] | None = None
) -> None:
    """Leaves tensors out of a folder's weights, and adds others."""
    tensors = load_file(folder / file)
    kept = {name: tensor for name, tensor in tensors.items() if name not in left_out}
    with safe_open(folder / file, "pt") as opened:
        header = opened.metadata()
    save_file(kept | (extra or {}), folder / file, header)


class Surprise:
    """An object that creates a file when it is read from a pickle."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def pickle_surprise(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Surprise(folder / "executed")}))


def cut_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    torch.save({"bert.weight": torch.ones(2000)}, path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": ')


def index_elsewhere(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "model.safetensors")
    index = {"weight_map": {"bert.pooler.dense.bias": "../model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


REFUSALS: dict[str, tuple[dict[str, Any], Callable[[Path], None], str]] = {
    "another architecture": ({"model_type": "mamba"}, lambda folder: None, "no architecture 'mamba'"),
    "an architecture of other parts": ({"model_type": "t5"}, lambda folder: None, "t5 cannot be mapped: its norms"),
    "weights of another family": ({"model_type": "gpt2"}, lambda folder: None, r"lacks transformer\.wte\.weight"),
    "weights of another architecture": ({"model_type": "roberta", "pad_token_id": 1}, lambda folder: None, "lacks"),
    "relative positions": ({"position_embedding_type": "relative_key"}, lambda folder: None, "position_embedding_type"),
    "a decoder": ({"is_decoder": True}, lambda folder: None, "is_decoder"),
    "an activation": ({"hidden_act": "mish"}, lambda folder: None, "hidden_act: no activation 'mish'"),
    "a field that is missing": ({"hidden_size": None}, lambda folder: None, "hidden_size"),
    "another shape": ({"intermediate_size": 30}, lambda folder: None, r"intermediate\.dense\.weight: is \(29, 21\)"),
    "more layers": ({"num_hidden_layers": 4}, lambda folder: None, r"lacks bert\.encoder\.layer\.3\."),
    "fewer layers": ({"num_hidden_layers": 2}, lambda folder: None, r"holds bert\.encoder\.layer\.2\."),
    "a tensor too few": (
        {},
        lambda folder: rewrite(folder, "bert.encoder.layer.1.output.dense.bias"),
        r"the encoder lacks bert\.encoder\.layer\.1\.output\.dense\.bias$",
    ),
    "half a head": (
        {},
        lambda folder: rewrite(folder, "cls.predictions.transform.LayerNorm.bias"),
        r"prediction head lacks cls\.predictions\.transform\.LayerNorm\.bias$",
    ),
    "a tensor too many": (
        {},
        lambda folder: rewrite(folder, extra={"bert.encoder.rotary.weight": torch.ones(3)}),
        r"holds bert\.encoder\.rotary\.weight",
    ),
    "another softmax": (
        {},
        lambda folder: rewrite(folder, extra={"cls.predictions.decoder.weight": torch.ones(SYMBOLS, 21)}),
        "differs from the tensor that it is tied to",
    ),
    "a file cut in half": ({}, cut, "damaged or no file of weights"),
    "a pickle cut in half": ({}, cut_pickle, "damaged or no file of weights"),
    "code": ({}, pickle_surprise, "would execute code"),
    "parts elsewhere": ({}, index_elsewhere, "names ../model.safetensors, which is no file of that folder"),
    "no weights": ({}, lambda folder: (folder / "model.safetensors").unlink(), "holds neither"),
    "no config": ({}, lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "a damaged config": ({}, cut_config, "cannot be read"),
}


@pytest.mark.parametrize("fault", REFUSALS)
def test_what_cannot_be_mapped_is_refused_in_one_line_and_nothing_is_written(
    fault: str, case: Callable[[str], Case], tmp_path: Path
) -> None:
    changes, spoil, message = REFUSALS[fault]
    folder = copied(case("bert").folder, tmp_path / "source", **changes)
    spoil(folder)
    with pytest.raises(ConfigError, match=message) as error:
        import_weights(str(folder), tmp_path / "target" / "weights")
    assert "\n" not in str(error.value) and str(folder) in str(error.value)
    assert not (tmp_path / "target").exists() or not list((tmp_path / "target").iterdir())
    assert not (folder / "executed").exists()


def test_a_network_that_an_architecture_does_not_have_is_not_exported(
    case: Callable[[str], Case], tmp_path: Path
) -> None:
    imported = case("bert").imported
    with pytest.raises(ConfigError, match=r"cannot be written as albert: stack\.kind is 'sequential' here"):
        export_weights(imported, tmp_path / "out", "albert")
    with pytest.raises(ConfigError, match=r"cannot be written as distilbert: segments is 2 here and 0 there"):
        export_weights(imported, tmp_path / "out", "distilbert")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").touch()
    with pytest.raises(ConfigError, match="not an empty folder"):
        export_weights(imported, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def sums(weights: Path, heads: int = 3, levels: int = 18, learning_rate: float = 1e-3) -> RunConfig:
    """A run that learns to sum numbers, of 37 symbols, from weights of a small BERT."""
    model = read_weights(weights).model.override({"heads": heads})
    source = {"kind": "masked_sum", "train": 20, "validation": 4, "length": 20, "levels": levels}
    optimizer = {"kind": "sgd", "learning_rate": learning_rate}
    return RunConfig.from_dict(
        {
            "model": model,
            "task": "regression",
            "data": {"kind": "labelled", "source": source, "batch_size": 2},
            "training": {"steps": 2, "device": "cpu", "optimizer": optimizer},
            "start": str(weights),
        }
    )


def test_a_run_starts_from_an_import_and_is_exported_and_the_next_one_starts_from_it(
    case: Callable[[str], Case], tmp_path: Path
) -> None:
    """With a learning rate that moves nothing, so that the exported weights are the imported ones."""
    theirs, *_, imported, _ = case("bert")
    config = sums(imported / "weights.safetensors", learning_rate=1e-30)
    assert fit(config, tmp_path / "first")["outcome"] == "finished"
    checkpoint = tmp_path / "first" / "checkpoint.ckpt"
    exported = export_weights(checkpoint, tmp_path / "out")
    assert exported.architecture == "bert (BertForMaskedLM)"
    assert [note.partition(":")[0] for note in exported.notes] == ["head label", "tokenizer"]
    again = transformers.BertForMaskedLM.from_pretrained(tmp_path / "out").double().state_dict()
    assert all(torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in again.items())

    following = sums(checkpoint, learning_rate=1e-30)
    fit(following, tmp_path / "second")
    first, second = (load(tmp_path / name / "checkpoint.ckpt")[0].state_dict() for name in ("first", "second"))
    assert all(torch.equal(tensor, first[name]) for name, tensor in second.items())


def test_a_file_with_the_names_that_a_head_had_before_is_started_from_and_exported(
    case: Callable[[str], Case], tmp_path: Path
) -> None:
    imported = case("bert").imported
    older = Path(shutil.copytree(imported, tmp_path / "older"))
    tensors = load_file(older / "weights.safetensors")
    names = {name: name.replace("heads.relation.map.", "relation_head.") for name in tensors}
    renamed = {names[name]: tensor for name, tensor in tensors.items() if names[name] != name}
    assert len(renamed) == 4
    rewrite(older, *(name for name in names if names[name] != name), file="weights.safetensors", extra=renamed)
    task = our_task(imported / "weights.safetensors")
    assert start_from_file(task, older / "weights.safetensors") == []
    assert torch.equal(task.heads["relation"].map[2].bias, tensors["heads.relation.map.2.bias"])
    assert export_weights(older, tmp_path / "out").architecture == "bert (BertForPreTraining)"


def test_the_key_of_a_run_covers_the_content_of_the_weights_that_it_starts_from(
    case: Callable[[str], Case], tmp_path: Path
) -> None:
    config = sums(case("bert").imported / "weights.safetensors")
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes((case("bert").imported / "weights.safetensors").read_bytes())
    assert run_key(config) == run_key(sums(copy)) != run_key(config.override({"start": None}))
    rewrite(tmp_path, "heads.relation.map.2.bias", file=copy.name)
    assert run_key(config) != run_key(config.override({"start": str(copy)}))


def test_weights_of_another_network_are_refused_by_what_differs(case: Callable[[str], Case], tmp_path: Path) -> None:
    """Another number of heads has the same shapes; another vocabulary has others."""
    imported = case("bert").imported / "weights.safetensors"
    with pytest.raises(ConfigError, match=r"model\.heads is 3 there and 7 here"):
        fit(sums(imported, heads=7), tmp_path / "a")
    with pytest.raises(ConfigError, match=r"network\.tokens\.table\.weight is \(37, 21\) there and \(41, 21\) here"):
        fit(sums(imported, levels=20), tmp_path / "b")
    with pytest.raises(ConfigError, match=r"start\.network: .*none: no such file .*LIT_WEIGHTS"):
        fit(sums(imported).override({"start": str(tmp_path / "none")}), tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_the_commands_print_what_was_mapped_and_name_every_architecture(
    case: Callable[[str], Case], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(get_args(Architecture)) == ARCHITECTURES.keys()
    folder = copied(case("electra").folder, tmp_path / "source")
    (folder / "vocab.txt").write_text("[PAD]\n")
    assert main(["import", str(folder), str(tmp_path / "in")]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("electra: ") and "pooler: starts anew" in printed
    plain = read_yaml((tmp_path / "in" / "config.yaml").read_text())
    assert ModelConfig.from_dict(plain["model"]) == read_weights(Path(plain["start"])).model
    assert main(["export", str(tmp_path / "in"), str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.startswith("electra (ElectraForMaskedLM): ")
    assert (tmp_path / "out" / "vocab.txt").read_text() == "[PAD]\n"
