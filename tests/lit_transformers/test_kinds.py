"""The kinds of each part of a run are listed, chosen by name, and read from files from before there was a choice."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from datamodules import DATA, GENERATORS, LanguageDataConfig, PeriodicConfig
from lit_transformers.config import Config, ConfigError, table
from lit_transformers.kinds import described, places
from lit_transformers.mixers import MIXERS
from lit_transformers.runs import RunConfig, run_key
from lit_transformers.tasks import TASKS, CausalLMConfig


def test_every_place_is_listed_once_with_all_its_kinds() -> None:
    kinds_by_path = {place.path: place.kinds for place in places(RunConfig)}
    assert kinds_by_path["task"] == TASKS and kinds_by_path["data"] == DATA and kinds_by_path["model.mixer"] == MIXERS
    assert kinds_by_path["data.generator"] == GENERATORS
    assert kinds_by_path["data.source"]["periodic"] is PeriodicConfig
    assert "model.mixer.encoding" in kinds_by_path and "training.schedule" in kinds_by_path
    assert len(list(places(RunConfig))) == len(kinds_by_path)


def test_a_place_is_described_by_what_its_kinds_say_of_themselves() -> None:
    assert "task: causal_lm, " in "\n".join(described(RunConfig, None))
    text = "".join(described(RunConfig, "data.generator"))
    assert all(kind in text for kind in GENERATORS) and "arXiv:2001.04451" in text
    with pytest.raises(ConfigError, match=r"data\.generatr: no kinds .*did you mean data\.generator"):
        list(described(RunConfig, "data.generatr"))


def test_a_run_without_kinds_of_task_and_data_is_one_from_before_there_were_others(tmp_path: Path) -> None:
    fields = RunConfig().to_dict()
    assert fields["task"].pop("kind") == "causal_lm" and fields["data"].pop("kind") == "language"
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(fields))
    assert RunConfig.from_yaml(tmp_path / "run.yaml") == RunConfig()
    with pytest.raises(ConfigError, match=r"data\.generator: LanguageDataConfig has no field 'generator'"):
        RunConfig().override({"data": {"generator": "copy"}})


def test_only_a_table_that_says_so_implies_a_kind() -> None:
    class Part(Config):
        """Either."""

    class One(Part, kind="one"):
        """One."""

    table(Part, One)
    with pytest.raises(ConfigError, match="kind: needs a kind"):
        Part.from_dict({})
    table(Part, One, implied="one")
    assert Part.from_dict({}) == One()


@pytest.mark.parametrize("kind", TASKS)
def test_a_task_survives_plain_data_and_names_what_it_reads(kind: str) -> None:
    config = TASKS[kind]()
    assert type(config).from_dict(config.to_dict()) == config and RunConfig.kinds == {}
    matching = [name for name, data in DATA.items() if data.describes is TASKS[kind].reads]
    assert matching, "no kind of data fits the task"
    run = RunConfig().override({"task": kind, "data": matching[0]})
    assert RunConfig.from_dict(yaml.safe_load(run.to_yaml())) == run


def test_the_key_of_a_run_changes_with_its_task() -> None:
    run = RunConfig(data=LanguageDataConfig(source=PeriodicConfig(images=40, validation=0.2)))
    assert run_key(run) != run_key(run.override({"task": CausalLMConfig(loss="half")}))
