"""Every field of config.json goes in and out again as it was, or is named: symbols, how texts are written, all else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from copying import randomise
from torch import Tensor

from lit_transformers.config import ConfigError
from lit_transformers.exchange.architectures import ARCHITECTURES
from lit_transformers.exchange.changed_network import convert_weights
from lit_transformers.exchange.convert import read_config, write_config
from lit_transformers.exchange.folders import GENERATION, TOKENIZER
from lit_transformers.exchange.original_fields import outgoing_fields
from lit_transformers.exchange.transfer import export_weights, import_weights
from lit_transformers.quantisation import FORM
from lit_transformers.runs import RunConfig, fit
from lit_transformers.runs.starting_weights import read_weights, write_weights

transformers = pytest.importorskip("transformers", reason="compares with transformers, a test dependency")

SYMBOLS = 37
ENCODER: dict[str, Any] = {
    "vocab_size": SYMBOLS, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3,
    "intermediate_size": 8, "max_position_embeddings": 24,
}  # fmt: skip
NUMBERS = {"pad_token_id": 11, "bos_token_id": 12, "eos_token_id": 13}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertForMaskedLM", ENCODER | NUMBERS),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", ENCODER | NUMBERS | {"pad_token_id": 1}),
    "distilbert": (
        "DistilBertConfig",
        "DistilBertForMaskedLM",
        {"vocab_size": SYMBOLS, "dim": 12, "n_layers": 2, "n_heads": 3, "hidden_dim": 8} | NUMBERS,
    ),
    "albert": ("AlbertConfig", "AlbertForMaskedLM", ENCODER | NUMBERS | {"embedding_size": 7}),
    "electra": ("ElectraConfig", "ElectraForMaskedLM", ENCODER | NUMBERS | {"embedding_size": 7}),
    "xlnet": (
        "XLNetConfig",
        "XLNetLMHeadModel",
        {"vocab_size": SYMBOLS, "d_model": 12, "n_layer": 2, "n_head": 3, "d_inner": 8} | NUMBERS,
    ),
    "longformer": (
        "LongformerConfig",
        "LongformerForMaskedLM",
        ENCODER | NUMBERS | {"pad_token_id": 1, "sep_token_id": 14, "attention_window": [4, 4]},
    ),
    "big_bird": (
        "BigBirdConfig",
        "BigBirdForMaskedLM",
        ENCODER | NUMBERS | {"sep_token_id": 14, "block_size": 4, "num_random_blocks": 1},
    ),
    "modernbert": (
        "ModernBertConfig",
        "ModernBertForMaskedLM",
        ENCODER | NUMBERS | {"cls_token_id": 14, "sep_token_id": 15, "local_attention": 4},
    ),
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {"vocab_size": SYMBOLS, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 24} | NUMBERS,
    ),
    "marian": (
        "MarianConfig",
        "MarianMTModel",
        {"vocab_size": SYMBOLS, "decoder_vocab_size": SYMBOLS, "d_model": 12, "encoder_layers": 1, "decoder_layers": 1}
        | {"encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
        | NUMBERS
        | {"decoder_start_token_id": 11, "forced_eos_token_id": 13, "max_position_embeddings": 64},
    ),
}
"""The classes of transformers for each architecture, and small sizes with numbers of symbols that are no defaults."""


def saved(name: str, folder: Path) -> dict[str, Any]:
    """Saves a small network, with every field of its class in config.json, and returns these."""
    config_class, model_class, sizes = MODELS[name]
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**sizes))
    randomise(model)
    model.save_pretrained(folder)
    for file in folder.glob("generation_config.json"):
        file.unlink()
    written = json.loads((folder / "config.json").read_text())
    fields = json.loads(json.dumps(model.config.to_dict())) | written
    (folder / "config.json").write_text(json.dumps(fields))
    return fields


def other(value: Any) -> Any:
    """Another value of the type of this one."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value} too"
        case list():
            return [*value, 3]
        case dict():
            return value | {"2": "LABEL_2"}
    return 9


def fields_in(folder: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return fields


def unequal(original: Mapping[str, Any], written: Mapping[str, Any], lines: list[str]) -> Iterator[str]:
    """The fields that are not as in the original, and that no line names."""
    for name in original.keys() | written.keys():
        is_named = any(line.startswith(f"config.json: {name} was {original.get(name)!r} and ") for line in lines)
        if not is_named and (name not in written or written[name] != original.get(name)):
            yield name


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_fields_that_describe_no_network_go_out_as_they_came_in(name: str, tmp_path: Path) -> None:
    """All of them changed at once, with some that configs of old files and of other tools have."""
    architecture, fields = ARCHITECTURES[name], saved(name, tmp_path / "theirs")
    ours = {setting.theirs for setting in architecture.settings} | {*architecture.refused, "rope_parameters"}
    free = fields.keys() - ours - {"model_type", "vocab_size", "architectures", "dtype", "is_encoder_decoder"}
    assert {field for field in fields if field.endswith("_token_id")} == {*architecture.symbols}
    assert free >= {*architecture.symbols} - {"pad_token_id"}
    changed = {field: other(fields[field]) for field in free} | {
        "bad_words_ids": [[11]], "max_length": 512, "num_beams": 6, "early_stopping": True, "mask_token_id": 4,
        "unk_token_id": 5, "task_specific_params": {"summarization": {"min_length": 3}}, "dtype": "bfloat16",
        "auto_map": {"AutoModel": "modeling.Model"},
    }  # fmt: skip
    original = fields | changed
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(original))
    import_weights(str(tmp_path / "theirs"), tmp_path / "in")
    lines = [line for line in export_weights(tmp_path / "in", tmp_path / "out").notes if line.startswith("config")]
    assert [line.split()[1] for line in lines] == [field for field in original if field in ("auto_map", "dtype")]
    assert [*unequal(original, fields_in(tmp_path / "out"), lines)] == []


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_fields_that_describe_the_network_go_out_as_they_came_in_or_are_refused(name: str) -> None:
    """Each changed by itself, and each left out, as in files of other versions."""
    architecture = ARCHITECTURES[name]
    config_class, model_class, sizes = MODELS[name]
    written_by_class = getattr(transformers, config_class)(**sizes).to_dict()
    whole = json.loads(json.dumps(written_by_class)) | {"architectures": [model_class], "dtype": "float32"}
    settings = {setting.theirs for setting in architecture.settings}
    values = {
        "hidden_act": "gelu_python",
        "activation_function": "swish",
        "activation": "relu",
        "ff_activation": "relu",
    }
    values |= {"hidden_activation": "gelu_python_tanh", "classifier_activation": "relu", "layer_types": None}
    taken = 0
    for field in sorted(settings | {*architecture.refused}):
        for original in (
            whole | {field: values.get(field, other(whole.get(field)))},
            {own: value for own, value in whole.items() if own != field},
        ):
            try:
                model = read_config(architecture, original)
            except ConfigError:
                continue
            fields = write_config(architecture, model, dict(model.leaves()).get("positions.max_length"))
            fields |= {"vocab_size": SYMBOLS, "architectures": [model_class], "dtype": "float32"}
            written, lines = outgoing_fields(architecture, fields, original)
            assert [*unequal(original, written, lines)] == [], field
            assert read_config(architecture, written) == model
            taken += 1
    assert taken > len(settings), "most of them can be mapped"


def test_fields_of_another_network_or_architecture_are_named_and_its_symbols_are_kept(tmp_path: Path) -> None:
    """Longer rows are the same architecture; an ELECTRA has other fields, and a RoBERTa pads with symbol 1."""
    fields = saved("bert", tmp_path / "theirs") | {"problem_type": "regression"}
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(fields))
    import_weights(str(tmp_path / "theirs"), tmp_path / "in")
    convert_weights(tmp_path / "in", tmp_path / "long", {}, 40)
    lines = export_weights(tmp_path / "long", tmp_path / "a").notes
    assert "config.json: max_position_embeddings was 24 and is 40" in lines
    assert fields_in(tmp_path / "a") == fields | {"max_position_embeddings": 40}
    lines = export_weights(tmp_path / "in", tmp_path / "b", "electra").notes
    assert "config.json: of the fields of bert only the numbers of symbols are kept" in lines
    assert fields_in(tmp_path / "b").items() >= NUMBERS.items()
    lines = export_weights(tmp_path / "in", tmp_path / "c", "roberta").notes
    assert "config.json: pad_token_id was 11 and is 1" in lines
    assert fields_in(tmp_path / "c").items() >= {**NUMBERS, "pad_token_id": 1}.items()


def test_unnamed_fields_of_weights_without_an_original_are_null(tmp_path: Path) -> None:
    """Rather than the numbers that symbols have in the release of an architecture."""
    saved("albert", tmp_path / "theirs")
    import_weights(str(tmp_path / "theirs"), tmp_path / "in")
    weights = tmp_path / "in" / "weights.safetensors"
    write_weights(weights, read_weights(weights)._replace(fields={}))
    export_weights(tmp_path / "in", tmp_path / "out")
    assert {fields_in(tmp_path / "out")[field] for field in NUMBERS} == {None}


def test_all_quantised_inputs_that_an_architecture_has_no_place_for_are_in_one_line(tmp_path: Path) -> None:
    saved("bert", tmp_path / "theirs")
    import_weights(str(tmp_path / "theirs"), tmp_path / "in")
    weights = read_weights(tmp_path / "in" / "weights.safetensors")
    maps = [name.removesuffix(".weight") for name in weights.tensors if "key.weight" in name or "query.weight" in name]
    forms = {f"{name}.{FORM}": torch.tensor([8.0, 0.0, 1.0]) for name in maps}
    write_weights(tmp_path / "int8.safetensors", weights._replace(tensors={**weights.tensors, **forms}))
    notes = export_weights(tmp_path / "int8.safetensors", tmp_path / "out").notes
    line = "quantised inputs of 4 linear maps: omitted, for a bert has no place for them; it reads inputs as they are"
    assert [note for note in notes if "quantise" in note] == [line]


@torch.no_grad()
def test_a_marian_without_generation_config_writes_and_ends_as_the_original(tmp_path: Path) -> None:
    """Its config.json holds how it writes, as older files do, and the loss takes the symbols that begin and pad."""
    fields = saved("marian", tmp_path / "theirs") | {"max_length": 20}
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(fields))
    import_weights(str(tmp_path / "theirs"), tmp_path / "in")
    export_weights(tmp_path / "in", tmp_path / "out")
    drawn = torch.Generator().manual_seed(1)
    source, labels = (torch.randint(14, SYMBOLS, (3, 7), generator=drawn) for _ in range(2))
    labels[1, 4:] = -100

    def outputs(folder: Path) -> tuple[Tensor, Tensor]:
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        model.final_logits_bias[0, 13] = 3.0  # the symbol that ends a text comes at once, or never
        return model(input_ids=source, labels=labels).loss, model.generate(source, num_beams=2)

    (loss, texts), (expected_loss, expected_texts) = outputs(tmp_path / "out"), outputs(tmp_path / "theirs")
    assert torch.equal(loss, expected_loss) and torch.equal(texts, expected_texts)
    assert texts.size(1) < 20 and (texts == 13).any(dim=1).all(), "each text ends before the limit"


def test_files_of_every_tokenizer_and_of_generation_are_copied_as_they_are(tmp_path: Path) -> None:
    saved("marian", tmp_path / "theirs")
    names = [*TOKENIZER, GENERATION]
    for name in names:
        (tmp_path / "theirs" / name).write_text(f"content of {name}")
    import_weights(str(tmp_path / "theirs"), tmp_path / "in")
    export_weights(tmp_path / "in", tmp_path / "out")
    assert all((tmp_path / "out" / name).read_text() == f"content of {name}" for name in names)
    marian = {"source.spm", "target.spm", "vocab.json", "target_vocab.json"}
    assert {*names} >= marian | {"spiece.model", "vocab.txt", "merges.txt", "tokenizer.json", "tokenizer.model"}
    lines = export_weights(tmp_path / "in" / "weights.safetensors", tmp_path / "bare").notes
    assert lines[-1].startswith("tokenizer and generation_config.json: left out")
    assert fields_in(tmp_path / "bare") == fields_in(tmp_path / "out"), "the numbers of symbols are in the weights"


PAIRS_MODEL: dict[str, Any] = {
    "kind": "encoder_decoder", "dim": 8, "heads": 2, "depth": 1, "norm": "post", "positions": "sinusoidal",
    "tokens": {"kind": "full", "scaled": False}, "feedforward": {"kind": "dense", "activation": "relu"},
    **{name: {"kind": "attention", "bias": True} for name in ("mixer", "decoder_mixer", "cross_mixer")},
}  # fmt: skip


def test_a_run_names_the_symbols_of_its_data(tmp_path: Path) -> None:
    """A source ends with the boundary, with which a target begins and ends; a row is [CLS] A [SEP]."""
    lines = [{"source": f"a low sun {n}", "target": f"the river rose {n}"} for n in range(40)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    source = {"kind": "jsonl", "path": str(tmp_path / "pairs.jsonl"), "splits": "hash"}
    source |= {"validation": 0.2, "test": 0.2}
    data = {"kind": "pairs", "source": source, "tokenizer": {"kind": "bpe", "size": 270}, "tokens_per_batch": 256}
    plain = {"model": PAIRS_MODEL, "task": "seq2seq", "data": data, "training": {"steps": 1, "device": "cpu"}}
    assert fit(RunConfig.from_dict(plain), tmp_path / "run")["outcome"] == "finished"
    export_weights(tmp_path / "run" / "checkpoint.ckpt", tmp_path / "out", "marian")
    fields, tokenizer = fields_in(tmp_path / "out"), transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    boundary = fields["vocab_size"] - 1
    expected = dict.fromkeys(("eos_token_id", "decoder_start_token_id", "pad_token_id"), boundary)
    assert fields.items() >= {**expected, "bos_token_id": None, "forced_eos_token_id": None}.items()
    row = tokenizer("a low sun")["input_ids"]
    assert row[-1] == boundary and tokenizer.decode(row[:-1]) == "a low sun" and row.count(boundary) == 1
