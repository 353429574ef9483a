"""Every kind of every table: has a case here, survives the way through plain data, and names its source."""

from __future__ import annotations

import pickle
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import contract_cases
import pytest
import yaml
from contract_cases import CASES, KINDS, name
from toy_parts import DecayConfig

from lit_transformers.config import Config, field_types, roles
from lit_transformers.mixers import MIXERS

CITED = ("MIXERS", "ENCODINGS", "POSITIONS", "STACKS", "FEEDFORWARDS", "ADAPTERS")


def every_case() -> Iterator[Config]:
    for _, cases in CASES.values():
        yield from cases


def abstract(config: Config) -> type[Config]:
    """The table's owner among the bases of a config."""
    return next(base for base in type(config).__mro__ if issubclass(base, Config) and config.kind in base.kinds)


@pytest.mark.parametrize("table", CASES)
def test_every_kind_has_a_case(table: str) -> None:
    kinds, cases = CASES[table]
    missing = [kind for kind, config in kinds.items() if config not in map(type, cases)]
    where = "tests/contracts/contract_cases.py"
    assert not missing, f"{table} has kinds without a case: {', '.join(missing)}; list small configs of each in {where}"


def test_a_mixer_without_a_case_is_named_and_the_others_are_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MIXERS, "decay", DecayConfig)
    assert runpy.run_path(contract_cases.__file__)["KINDS"].keys() == KINDS.keys() == {*MIXERS} - {"decay"}
    with pytest.raises(AssertionError, match="MIXERS has kinds without a case: decay; list small configs of each in"):
        test_every_kind_has_a_case("MIXERS")


@pytest.mark.parametrize("config", list(every_case()), ids=name)
def test_a_config_survives_plain_data_yaml_and_pickle(config: Config, tmp_path: Path) -> None:
    base = abstract(config)
    file = tmp_path / "config.yaml"
    file.write_text(config.to_yaml(), encoding="utf-8")
    for copy in (
        base.from_dict(config.to_dict()),
        base.from_dict(yaml.safe_load(config.to_yaml())),
        base.from_yaml(file),
        pickle.loads(pickle.dumps(config)),
        config.override({}),
        config.override(dict(config_leaves_without_kinds(config))),
    ):
        assert type(copy) is type(config)
        assert copy == config
        assert hash(copy) == hash(config)
        assert copy.to_dict() == config.to_dict()


def config_leaves_without_kinds(config: Config) -> Iterator[tuple[str, object]]:
    return ((path, value) for path, value in config.leaves() if path.rsplit(".", 1)[-1] != "kind")


@pytest.mark.parametrize("config", list(every_case()), ids=name)
def test_the_name_of_a_kind_stands_for_its_defaults(config: Config) -> None:
    assert abstract(config).from_dict(config.kind) == type(config)()


PARTS = [config for table in ("MIXERS", "ENCODINGS", "STACKS", "ADAPTERS") for config in CASES[table][0].values()]


def holds_whole_numbers(hint: Any) -> bool:
    """Whether an annotation admits integers; a Literal admits its choices alone."""
    return hint is int or (get_origin(hint) is not Literal and any(map(holds_whole_numbers, get_args(hint))))


@pytest.mark.parametrize("config", PARTS, ids=lambda config: config.__name__)
def test_every_whole_number_of_a_part_says_whether_rows_must_be_longer(config: type[Config]) -> None:
    """By its role: a miniature whose rows are too short for a length would test nothing of the mechanism."""
    assert [name for name, hint in field_types(config).items() if holds_whole_numbers(hint) and not roles(hint)] == []


@pytest.mark.parametrize(
    "config", [config for table in CITED for config in CASES[table][0].values()], ids=lambda config: config.__name__
)
def test_the_source_of_an_idea_is_cited(config: type[Config]) -> None:
    """In the docstring of the config or of the class that it builds; in the module's docstring where the module holds
    no other kind."""
    kinds = [kind for table in CITED for kind in CASES[table][0].values()]
    texts = [config.__doc__, get_type_hints(config.build)["return"].__doc__]  # type: ignore[attr-defined]
    if sum(kind.__module__ == config.__module__ for kind in kinds) == 1:
        texts.append(sys.modules[config.__module__].__doc__)
    cited = any(re.search(r"arXiv:\d{4}\.\d{4,5}", text or "") for text in texts)
    assert cited, "name the paper, with its arXiv id, in the docstring"
