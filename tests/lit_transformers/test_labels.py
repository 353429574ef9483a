"""Labels of arms name the differences between the arms, and nothing that all of them share."""

from __future__ import annotations

import pytest

from lit_transformers.config import ConfigError
from lit_transformers.records.labels import ArmLabels, label_arms
from lit_transformers.records.plan import PlannedArm


def labels_of(design: str, *levels: dict[str, str], names: tuple[str, ...] = ()) -> ArmLabels:
    whole = names or tuple(" ".join(f"{factor}={level}" for factor, level in one.items()) for one in levels)
    arms = [PlannedArm(name, one) for name, one in zip(whole, levels, strict=True)]
    return label_arms(arms, design, arms[0].name)


def test_an_arm_of_one_factor_is_its_level_below_the_factor() -> None:
    labels = labels_of("one_factor", {"mixer": "attention"}, {"mixer": "lsh"}, names=("baseline", "mixer=lsh"))
    assert labels.heading("arm") == "mixer"
    assert [labels.in_column(arm) for arm in labels.names] == ["attention (baseline)", "lsh"]
    assert [labels.alone(arm) for arm in labels.names] == ["attention (baseline)", "lsh"]


def test_levels_of_which_one_is_a_number_have_their_factor_where_they_stand_alone() -> None:
    labels = labels_of("product", {"kept": "all"}, {"kept": "2"})
    assert [labels.in_column(arm) for arm in labels.names] == ["all (baseline)", "2"]
    assert [labels.alone(arm) for arm in labels.names] == ["kept=all (baseline)", "kept=2"]


def test_a_grid_keeps_what_differs() -> None:
    grid = [{"memory": m, "positions": p, "loss": "full"} for m in ("on", "off") for p in ("xl", "none")]
    labels = labels_of("product", *grid)
    assert labels.heading("arm") == "arm"
    assert [labels.in_column(arm) for arm in labels.names] == [
        "memory=on positions=xl",
        "memory=on positions=none",
        "memory=off positions=xl",
        "memory=off positions=none",
    ]
    assert labels.marked("memory=on positions=xl loss=full") == "memory=on positions=xl (baseline)"


@pytest.mark.parametrize("design", ["explicit", "leave_one_out"])
def test_arms_whose_names_say_more_than_levels_keep_them(design: str) -> None:
    labels = labels_of(design, {"gate": "on"}, {"gate": "off"}, names=("all", "without gate"))
    assert [labels.alone(arm) for arm in labels.names] == ["all", "without gate"]
    assert labels.marked("all") == "all (baseline)"


def test_an_arm_is_called_by_its_name_and_by_every_label_of_it() -> None:
    labels = labels_of("one_factor", {"kept": "all"}, {"kept": "2"}, names=("baseline", "kept=2"))
    assert {labels.find(text) for text in ("baseline", "all", "all (baseline)", "kept=all")} == {"baseline"}
    assert {labels.find(text) for text in ("kept=2", "2")} == {"kept=2"}
    with pytest.raises(ConfigError, match=r"--arm: no arm is called 'kept=3'; did you mean kept=2\?"):
        labels.find("kept=3")


def test_a_name_is_called_before_the_label_of_another_arm() -> None:
    labels = labels_of("one_factor", {"kept": "some"}, {"kept": "baseline"}, names=("baseline", "kept=baseline"))
    assert labels.find("baseline") == "baseline"
