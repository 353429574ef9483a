"""Printed configs are read back unchanged, and the schema of editors takes the same values as ``Config``."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from ablations import catalog
from ablations.config_command import config as print_study
from datamodules import FilesConfig
from lit_transformers.cli.commented_config import commented_lines, differences
from lit_transformers.cli.printed_config import read_target
from lit_transformers.config import ConfigError
from lit_transformers.config_command import config as print_model
from lit_transformers.json_schema import config_schema, docs_of
from lit_transformers.mixers import WindowConfig
from lit_transformers.runs import RunConfig

SCHEMA = config_schema(RunConfig)


@pytest.fixture(scope="module")
def configs() -> dict[str, RunConfig]:
    """The configs of all arms of all studies, at every scale."""
    configs = {}
    for name in catalog.names():
        study = catalog.load(catalog.find(name))
        for scale in study.scales or ("demo",):
            for arm, config in study.resolve(scale).configs.items():
                assert isinstance(config, RunConfig)
                configs[f"{name} {scale} {arm}"] = config
    return configs


@pytest.mark.slow
def test_the_schema_takes_the_config_of_every_arm_of_every_study(configs: dict[str, RunConfig]) -> None:
    Draft202012Validator.check_schema(SCHEMA)
    validator, validated = Draft202012Validator(SCHEMA), set[tuple[str, str]]()
    assert len(configs) > 100
    for name, config in configs.items():
        values = {(path, repr(value)) for path, value in config.leaves()}
        if not values <= validated:  # most arms combine values of others
            validated |= values
            assert validator.is_valid(config.to_dict()), name


def test_a_printed_config_is_read_back_unchanged_and_is_of_the_schema(
    configs: dict[str, RunConfig], tmp_path: Path
) -> None:
    baselines = {name.split()[0]: config for name, config in configs.items()}
    for name, config in baselines.items():
        text = "\n".join(commented_lines(config))
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        assert RunConfig.from_yaml(path) == config, name
        assert Draft202012Validator(SCHEMA).is_valid(yaml.safe_load(text)), name
        assert all(len(line) <= 80 for line in text.splitlines() if line.lstrip().startswith("#")), name


WRONG = {
    "an unknown field": {"model": {"kind": "language_model", "depht": 2}},
    "an unknown kind": {"model": {"kind": "language_model", "mixer": {"kind": "atention"}}},
    "a field of another kind": {"model": {"kind": "language_model", "mixer": {"kind": "attention", "window": 8}}},
    "no kind where there is none by default": {"model": {"positions": {"max_length": 8}}},
    "out of range": {"training": {"accumulate": 0}},
    "another type": {"seed": "3"},
    "no choice": {"training": {"device": "gpu"}},
}


@pytest.mark.parametrize("case", WRONG)
def test_the_schema_refuses_what_a_config_refuses(case: str) -> None:
    with pytest.raises(ConfigError):
        RunConfig.from_dict(WRONG[case])
    assert not Draft202012Validator(SCHEMA).is_valid(WRONG[case])


@pytest.mark.parametrize(
    "short",
    [
        {"data": {"kind": "language", "tokenizer": "characters"}},
        {"data": {"segment_length": 8}, "task": {}, "model": {"dim": 8, "mixer": {"memory": 8}}},
        {"training": {"optimizer": {"learning_rate": 0.1}}},
    ],
)
def test_the_schema_takes_a_kind_by_its_name_and_a_mapping_of_the_kind_by_default(short: dict[str, Any]) -> None:
    assert RunConfig.from_dict(short) and Draft202012Validator(SCHEMA).is_valid(short)


def test_docs_are_of_one_field_each_and_of_bases_too() -> None:
    docs = docs_of(WindowConfig)
    assert docs["dilation"].startswith("the step between the keys of a window")
    assert docs["dilation"].endswith("1 is none.")
    assert docs["global_projections"].startswith("whether they have their own query")
    assert docs["smallest"] == docs["schedule"]
    assert docs["dropout"] == "of the attention weights."


def test_a_field_is_printed_with_its_doc_its_range_and_its_default() -> None:
    lines = [*commented_lines(WindowConfig(window=8))]
    place = lines.index("window: 8")
    comment = " ".join(line.removeprefix("# ") for line in lines[place - 5 : place])
    assert "keys that a query sees on each side" in comment
    assert comment.endswith("integer >= 1 or list of integer >= 1. default 128")


def test_a_kind_is_named_alone_or_by_its_path() -> None:
    assert read_target("window") == read_target("model.mixer=window") == ("model.mixer", WindowConfig())
    with pytest.raises(ConfigError, match="did you mean window"):
        read_target("windov")


def test_a_study_of_ones_own_is_named_as_one_of_the_suite_by_both_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "studies").mkdir()
    shutil.copy(catalog.STUDIES / "xl_recurrence.py", tmp_path / "studies" / "my_question.py")
    monkeypatch.chdir(tmp_path)
    texts = {}
    for target in ("xl_recurrence", "my_question", "studies/my_question.py"):
        for command, print_it in (("of one model", print_model), ("of studies", partial(print_study, scale="demo"))):
            print_it(target)
            texts[target, command] = yaml.safe_load(capsys.readouterr().out)
    assert len(texts) == 6 and all(text == texts["xl_recurrence", "of studies"] for text in texts.values())
    with pytest.raises(ConfigError, match="no study of this name; did you mean my_question"):
        read_target("my_qestion")


def test_a_kind_with_fields_that_have_no_default_is_printed_with_places_for_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_study("data.source=files", "demo", None, None, None)
    text = capsys.readouterr().out
    assert "\n    path: # <- required: write it here\n" in text
    plain = yaml.safe_load(text)["data"]["source"]
    assert plain["path"] is None and FilesConfig.from_dict(plain | {"path": "mine.txt"}) == FilesConfig(path="mine.txt")
    print_study("data.source=files", "demo", None, None, ["path=mine.txt", "splits=order"])
    plain = yaml.safe_load(capsys.readouterr().out)["data"]["source"]
    assert FilesConfig.from_dict(plain) == FilesConfig(path="mine.txt", splits="order")
    with pytest.raises(ConfigError, match=r"path: FilesConfig needs a value for 'path'"):
        print_study("data.source=files", "demo", None, None, ["splits=order"])


def test_differences_have_both_values_and_nothing_that_is_equal() -> None:
    first = RunConfig()
    second = first.override({"model.mixer": {"kind": "window", "window": 8}, "seed": 3})
    paths = differences(first, second)
    assert paths["seed"] == ("0", "3")
    assert paths["model.mixer.window"] == ("", "8")
    assert paths["model.mixer.same_length"] == ("false", "")
    assert "model.mixer.dropout" not in paths


def test_a_study_is_printed_by_its_arm_with_what_is_set(capsys: pytest.CaptureFixture[str]) -> None:
    study = catalog.load(catalog.find("xl_recurrence"))
    arm = [*study.resolve("demo").configs][-1]
    print_study("xl_recurrence", "demo", arm, None, ["training.steps=7"])
    text = capsys.readouterr().out
    assert text.startswith("# yaml-language-server: $schema=run.schema.json\n")
    assert RunConfig.from_dict(yaml.safe_load(text)) == study.resolve("demo", {"training.steps": 7}).configs[arm]
    with pytest.raises(ConfigError, match="no arm is called 'no'"):
        print_study("xl_recurrence", "demo", "no", None, None)
