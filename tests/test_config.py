"""Configs: strict about names, types, ranges and combinations; every error names its place and the way out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules import PairDataConfig
from lit_transformers.batch import LanguageDescription, PairDescription, Vocabulary
from lit_transformers.config import Config, ConfigError, Memory, canonical_hash, nearest, parse_assignments
from lit_transformers.encodings import EncodingConfig, HuangConfig, LearnedRelativeConfig, ShawConfig, XLConfig
from lit_transformers.encodings.positions import LearnedConfig, SinusoidalConfig
from lit_transformers.json_schema import config_schema
from lit_transformers.mixers import AttentionConfig, MixerConfig
from lit_transformers.models import EncoderDecoderConfig, LanguageModelConfig, ModelConfig
from lit_transformers.models.tokens import AdaptiveTokenEmbeddingConfig
from lit_transformers.runs import RunConfig
from lit_transformers.stacks import SharedConfig
from lit_transformers.tasks import Seq2SeqConfig
from lit_transformers.training.config import AdamWConfig, SGDConfig, TrainingConfig

MODEL = LanguageModelConfig(
    mixer=AttentionConfig(encoding=XLConfig(), memory=4), positions=SinusoidalConfig(), stack=SharedConfig()
)

Make = Callable[[], object]

WRONG: dict[str, tuple[Make, str, str]] = {
    "unknown field": (lambda: AttentionConfig(memmory=3), "memmory", "did you mean memory?"),  # type: ignore[call-arg]
    "unknown field below": (
        lambda: ModelConfig.from_dict({"kind": "language_model", "mixer": {"kind": "attention", "headdim": 3}}),
        "mixer.headdim",
        "did you mean head_dim?",
    ),
    "not by name": (lambda: XLConfig("shared"), "", "XLConfig takes its fields by name"),  # type: ignore[call-arg]
    "wrong type": (lambda: AttentionConfig(memory="3"), "memory", "valid integer; got '3'"),  # type: ignore[arg-type]
    "a float for an integer": (lambda: MODEL.override({"dim": 8.0}), "dim", "integer; got 8.0"),
    "a number for a switch": (lambda: ShawConfig(keys=1), "keys", "boolean; got 1"),  # type: ignore[arg-type]
    "a switch for a number": (lambda: AttentionConfig(memory=True), "memory", "got True"),
    "out of range": (lambda: AttentionConfig(memory=-1), "memory", "greater than or equal to 0; got -1"),
    "all dropped": (lambda: AttentionConfig(dropout=1.0), "dropout", "less than 1; got 1.0"),
    "no number": (lambda: MODEL.override({"initial_std": float("nan")}), "initial_std", "got nan"),
    "not a choice": (lambda: MODEL.override({"norm": "mid"}), "norm", "'pre' or 'post'; got 'mid'"),
    "unknown kind": (lambda: EncodingConfig.from_dict({"kind": "rotery"}), "kind", "did you mean rotary?"),
    "no kind": (lambda: EncodingConfig.from_dict({}), "kind", "there are: huang, learned_relative, rotary, shaw, xl"),
    "a kind that is no word": (lambda: EncodingConfig.from_dict({"kind": ["xl"]}), "kind", "no kind ['xl']"),
    "another's kind": (lambda: XLConfig.from_dict({"kind": "shaw"}), "kind", "XLConfig is of kind 'xl'"),
    "another's place": (
        lambda: MODEL.override({"mixer": XLConfig()}),
        "mixer",
        "wants a MixerConfig, not a XLConfig",
    ),
    "not a mapping": (lambda: MODEL.override({"mixer": 3}), "mixer", "made from a mapping, not from 3"),
    "a key that is no word": (lambda: XLConfig.from_dict({3: 4}), "", "a field's name is a string, not 3"),
    "combination": (
        lambda: AttentionConfig(same_length=True),
        "",
        "same_length gives every query as many keys as memory holds, and memory is 0",
    ),
    "combination by override": (
        lambda: MODEL.override({"mixer.same_length": True, "mixer.memory": 0}),
        "mixer",
        "same_length",
    ),
    "no encoding left": (lambda: ShawConfig(keys=False, values=False), "", "write encoding: null"),
    "no bias left": (
        lambda: XLConfig(biases="per_layer", content_bias=False, position_bias=False),
        "",
        "write biases: shared",
    ),
    "table and restart": (lambda: LearnedConfig(max_length=9), "", "set restart: document"),
    "buckets": (lambda: LearnedRelativeConfig(buckets=6), "", "they come in fours, not 6"),
    "unknown path": (lambda: MODEL.override({"mixer.encodign": None}), "mixer.encodign", "did you mean encoding?"),
    "a path below none": (
        lambda: MODEL.override({"mixer.encoding": None, "mixer.encoding.biases": "shared"}),
        "mixer.encoding.biases",
        "it is none; set mixer.encoding first",
    ),
    "a path below a number": (lambda: MODEL.override({"dim.x": 3}), "dim.x", "it is 512; set dim first"),
    "a path of no name": (lambda: MODEL.override({"": 3}), "", "has no field ''"),
    "the kind of a part": (
        lambda: MODEL.override({"mixer.kind": "lsh"}),
        "mixer.kind",
        "is set as the part itself, without .kind: to lsh",
    ),
    "a field of another kind": (
        lambda: MODEL.override({"mixer.encoding.distance": 3}),
        "mixer.encoding.distance",
        "XLConfig has no field 'distance'",
    ),
    "a list's item": (
        lambda: AdaptiveTokenEmbeddingConfig(cutoffs=(3, 0)),
        "cutoffs.1",
        "greater than or equal to 1; got 0",
    ),
    "no such value": (lambda: MODEL.get("mixer.memori"), "mixer.memori", "did you mean memory?"),
    "no assignment": (lambda: parse_assignments(["mixer.memory"]), "", "write path=value, not 'mixer.memory'"),
    "no YAML": (lambda: parse_assignments(["mixer=[1"]), "mixer", "'[1' is not a YAML value"),
    "a key twice": (lambda: parse_assignments(["mixer={a: 1, b: {a: 2}, a: 3}"]), "mixer", "key 'a' is given twice"),
}


@pytest.mark.parametrize(("make", "path", "reason"), WRONG.values(), ids=WRONG.keys())
def test_an_error_names_the_place_and_the_way_out_in_one_line(make: Make, path: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.path == path
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def aliases(first: str, other: str) -> str:
    """Some hundred bytes that stand for a million values."""
    lines = [f"a: &a {first}", *(f"{b}: &{b} {other.format(f'*{a},' * 10)}" for a, b in pairwise("abcdefg"))]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("dim: [", "cannot be read as YAML: while parsing"),
        ("\x00", "cannot be read as YAML: unacceptable character"),
        ("- 1", "holds [1], and not the fields of a ModelConfig"),
        ("", "is empty, and not the fields of a ModelConfig"),
        ("kind: language_model\ndim: 8\ndim: 16\n", "line 3: the key 'dim' is given twice, first in line 2"),
        ("dim: &a [*a]", "cannot be read as YAML: it contains itself"),
        (aliases("[x]", "[{}]"), "it stands for more than 100,000 values"),
        (aliases("{x: 1}", "{{<<: [{}]}}"), "it stands for more than 100,000 values"),
        (
            f"a: &a {'x' * 10**4}\nb: [{'*a,' * 10**4}]",
            "it stands for more than 100,000 values",
        ),
    ],
)
def test_a_damaged_file_is_named_with_its_fault(text: str, fault: str, tmp_path: Path) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_yaml(file)
    assert caught.value.path == str(file) and fault in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read as YAML: .*No such file"):
        ModelConfig.from_yaml(tmp_path / "nowhere.yaml")


def test_a_config_cannot_be_changed_after_it_was_checked() -> None:
    with pytest.raises(AttributeError):
        MODEL.dim = 3  # type: ignore[misc]


def test_an_override_changes_what_it_names_and_nothing_else() -> None:
    changed = MODEL.override({"mixer.memory": 7, "mixer.encoding.clamp_length": 5, "norm": "post"})
    before, after = dict(MODEL.leaves()), dict(changed.leaves())
    assert {path: after[path] for path in after if after[path] != before[path]} == {
        "mixer.memory": 7,
        "mixer.encoding.clamp_length": 5,
        "norm": "post",
    }
    assert MODEL.mixer == AttentionConfig(encoding=XLConfig(), memory=4)


def test_fields_that_only_fit_together_are_set_together() -> None:
    none = MODEL.override({"mixer.memory": 0})
    both = none.override({"mixer.same_length": True, "mixer.memory": 9})
    assert both.get("mixer.memory") == 9 and both.get("mixer.same_length") is True


def test_a_part_is_replaced_and_its_new_fields_are_set_in_one_go() -> None:
    changed = MODEL.override({"mixer.encoding": "huang", "mixer.encoding.distance": 3})
    assert changed.get("mixer.encoding") == HuangConfig(distance=3)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=1", 1),
        ("a=1.5", 1.5),
        ("a=1e-3", 0.001),
        ("a=true", True),
        ("a=null", None),
        ("a=", None),
        ("a=[1, 2]", [1, 2]),
        ("a={kind: xl, clamp_length: 3}", {"kind": "xl", "clamp_length": 3}),
        ("a=post", "post"),
        ("a='1e-3'", "1e-3"),
        ("a=b=c", "b=c"),
    ],
)
def test_a_value_on_the_command_line_is_what_a_person_means(text: str, value: object) -> None:
    parsed = parse_assignments([text])["a"]
    assert parsed == value and type(parsed) is type(value)


class NamedPartsConfig(Config):
    """A mapping from names to configs."""

    parts: dict[str, MixerConfig] = dataclasses.field(default_factory=dict)
    values: dict[str, float] = dataclasses.field(default_factory=dict)


def test_configs_by_name_are_parts_like_others() -> None:
    """They are read by kind, changed by path, listed with their fields, and named in errors."""
    plain = {"parts": {"b": {"kind": "attention", "memory": 4}, "a": "window"}, "values": {"x.y": 1.0}}
    config = NamedPartsConfig.from_dict(plain)
    assert config.parts["b"] == AttentionConfig(memory=4) and NamedPartsConfig.from_dict(config.to_dict()) == config
    changed = config.override({"parts.b.memory": 8, "parts.b.head_dim": 2, "values.x.y": 2.0, "parts.c": "attention"})
    assert changed.parts["b"] == AttentionConfig(memory=8, head_dim=2) and changed.values == {"x.y": 2.0}
    assert [*changed.parts] == ["b", "a", "c"] and config.get("parts.b.memory") == 4
    leaves = dict(config.leaves())
    assert leaves["parts.b.memory"] == 4 and leaves["values"] == {"x.y": 1.0}
    assert dict(config.leaves_with(Memory))["parts.b.memory"] == 4
    assert config.override({path: value for path, value in leaves.items() if not path.endswith("kind")}) == config
    schema = config_schema(NamedPartsConfig)["$defs"]["NamedPartsConfig"]["properties"]["parts"]
    assert schema["additionalProperties"] == {"$ref": "#/$defs/MixerConfig"}
    for values, place in (
        ({"parts.b.memry": 8}, r"^parts\.b\.memry: .*did you mean memory"),
        ({"parts.d": "windw"}, r"^parts\.d\.kind: no kind 'windw'; did you mean window"),
        ({"parts": ["window"]}, r"^parts: wants a mapping from names"),
    ):
        with pytest.raises(ConfigError, match=place):
            config.override(values)


def test_a_mapping_without_a_kind_is_of_the_kind_that_is_there() -> None:
    for plain in ({"optimizer": {"learning_rate": 0.1}}, {"optimizer": {"kind": "adamw", "learning_rate": 0.1}}):
        assert TrainingConfig.from_dict(plain).optimizer == AdamWConfig(learning_rate=0.1)
    sgd = TrainingConfig(optimizer=SGDConfig())
    assert sgd.override({"optimizer": {"learning_rate": 0.1}}).optimizer == SGDConfig(learning_rate=0.1)
    assert sgd.override({"optimizer": {"kind": "adamw"}}).optimizer == AdamWConfig()
    with pytest.raises(ConfigError, match=r"^positions.kind: needs a kind"):
        LanguageModelConfig(positions={"max_length": 3})  # type: ignore[arg-type]


VOCABULARY = Vocabulary(size=9, boundary=8, unit="word", byte_lengths=None)
ADVICE: dict[str, tuple[dict[str, Any], str]] = {
    "of a part": ({"model.mixer.same_length": True, "model.mixer.memory": 0}, "model.mixer: same_length gives"),
    "of a combination": (
        {"training.strategy": "fsdp", "training.devices": 1},
        "training: strategy fsdp cuts a network over several devices; set training.devices too, or training.strategy "
        "to ddp",
    ),
    "deep": (
        {"model.mixer": {"kind": "lsra", "branches": "attention", "fraction": 0.2}},
        "model.mixer: branches: attention has all the channels; drop model.mixer.fraction, or set "
        "model.mixer.branches: both",
    ),
    "when it is built": (
        {"model.dim": 65},
        "model.mixer.head_dim: dim 65 is not divisible by 8 heads; set model.mixer.head_dim",
    ),
    "around it": (
        {"model.depth": 1, "model.stack": {"kind": "universal", "halting": {}}},
        "model.stack.halting: one step leaves nothing to decide; set model.depth: 2, or model.stack.halting: null",
    ),
}


@pytest.mark.parametrize("name", ADVICE)
def test_what_is_advised_can_be_set_as_it_stands(name: str) -> None:
    changes, line = ADVICE[name]
    data = SimpleNamespace(description=LanguageDescription.for_probe(VOCABULARY, 8))
    with pytest.raises(ConfigError) as caught:
        RunConfig().override(changes).build_task(data)  # type: ignore[arg-type]
    assert str(caught.value).startswith(line)


def test_a_mixer_of_a_decoder_is_named_by_its_own_field() -> None:
    for field in ("decoder_mixer", "cross_mixer"):
        mixer = AttentionConfig(head_dim=8) if field == "cross_mixer" else AttentionConfig()
        others = {"mixer": AttentionConfig(head_dim=8), "decoder_mixer": mixer, "cross_mixer": AttentionConfig()}
        run = RunConfig(model=EncoderDecoderConfig(dim=65, **others), task=Seq2SeqConfig(), data=PairDataConfig())  # type: ignore[arg-type]
        data = SimpleNamespace(description=PairDescription.for_probe(VOCABULARY, 8))
        with pytest.raises(ConfigError, match=f"^model.{field}.head_dim: .*; set model.{field}.head_dim$"):
            run.build_task(data)  # type: ignore[arg-type]


def test_configs_are_equal_by_content_and_told_apart_by_type() -> None:
    assert AttentionConfig(memory=3) == AttentionConfig(memory=3)
    assert len({AttentionConfig(memory=3), AttentionConfig(memory=3), AttentionConfig()}) == 2
    shaw, huang = ShawConfig(distance=3), HuangConfig(distance=3)
    assert shaw != huang and shaw != shaw.to_dict()


def test_a_hash_does_not_depend_on_the_order_of_keys() -> None:
    assert canonical_hash({"a": 1, "b": [2, {"c": 3, "d": 4}]}) == canonical_hash({"b": [2, {"d": 4, "c": 3}], "a": 1})
    assert canonical_hash({"a": 1}) != canonical_hash({"a": 2})


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 600) | st.floats() | st.text(max_size=8) | st.just("attention"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(
    [path for path, _ in MODEL.leaves()] + ["mixer", "mixer.encoding", "stack", "x", "dim.y", "", "."]
)


@given(tree=plain)
@settings(max_examples=200)
def test_no_tree_raises_anything_but_a_config_error(tree: Any) -> None:
    owners: tuple[type[Config], ...] = (ModelConfig, MixerConfig, EncodingConfig, XLConfig)
    for owner in owners:
        make_or_refuse(partial(owner.from_dict, tree))


@pytest.mark.slow
@given(values=st.dictionaries(names, plain, max_size=3))
@settings(max_examples=400)
def test_no_override_raises_anything_but_a_config_error(values: dict[str, Any]) -> None:
    make_or_refuse(lambda: MODEL.override(values))


@pytest.mark.slow
@given(damage=st.dictionaries(st.sampled_from(list(MODEL.to_dict())), plain, min_size=1, max_size=3))
@settings(max_examples=300)
def test_no_damaged_file_raises_anything_but_a_config_error(damage: dict[str, Any]) -> None:
    make_or_refuse(lambda: ModelConfig.from_dict(MODEL.to_dict() | damage))


@given(text=st.text(max_size=30))
@settings(max_examples=300)
def test_no_assignment_raises_anything_but_a_config_error(text: str) -> None:
    try:
        values = parse_assignments([text])
    except ConfigError as error:
        assert "\n" not in str(error)
    else:
        make_or_refuse(lambda: MODEL.override(values))


def make_or_refuse(make: Callable[[], Config]) -> None:
    """Asserts that ``make`` returns a config that equals itself after a round trip, or raises a one-line error."""
    try:
        config = make()
    except ConfigError as error:
        assert "\n" not in str(error)
    else:
        assert type(config).from_dict(yaml.safe_load(config.to_yaml())) == config


def test_a_wrong_name_gets_the_nearest_names_or_all_where_these_are_few() -> None:
    fields = ("fraction", "score", "steps")
    assert nearest("scor", fields) == "did you mean score?"
    assert nearest("share", fields) == "did you mean score? There are: fraction, score, steps"
    assert nearest("zzz", fields) == "there are: fraction, score, steps"
    assert nearest("share", ["score", *map(str, range(20))]) == "did you mean score?"
    assert nearest("share", ()) == "there are none"
