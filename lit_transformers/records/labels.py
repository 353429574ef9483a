"""The names of arms in tables, figures and sentences, which state the differences between the arms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, final

from lit_transformers.config import ConfigError, nearest

__all__ = ["BASELINE", "ArmLabels", "LabelledArm", "are_words", "label_arms"]

BASELINE = "baseline"
_MARK = f" ({BASELINE})"
_FULL_NAMES = ("explicit", "leave_one_out")
"""The designs whose arms have names that say more than levels."""


class LabelledArm(Protocol):
    """An arm with its name and its level of every factor."""

    @property
    def name(self) -> str: ...

    @property
    def levels(self) -> Mapping[str, str]: ...


@final
@dataclass(frozen=True)
class ArmLabels:
    """The labels of the arms that are shown together, without the levels that all of them share.

    factor   the one factor in which arms differ, which heads a column of levels; None where labels say all
    baseline the name of the baseline
    """

    factor: str | None = None
    baseline: str = ""
    levels: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    def in_column(self, arm: str) -> str:
        """Returns the label of an arm in a column or at an axis that the factor heads."""
        return self._marked(arm, self.levels[arm]) if arm in self.levels else self.alone(arm)

    def alone(self, arm: str) -> str:
        """Returns the label of an arm in a sentence or next to a line: if a level is a number, all have the factor."""
        label = self.names.get(arm, arm)
        return self._marked(arm, label) if self.factor else label

    def marked(self, arm: str) -> str:
        """Returns the label of an arm in a column, which says so of the baseline."""
        return self._marked(arm, self.in_column(arm))

    def heading(self, otherwise: str) -> str:
        """Returns the head of the column of arms: the factor, or ``otherwise``."""
        return self.factor or otherwise

    def find(self, text: str) -> str:
        """Returns the name of the arm that is called so, by its name or by one of its labels.

        Raises ConfigError, which suggests the nearest name, where there is none.
        """
        arm = self._called.get(text)
        if arm is None:
            raise ConfigError(f"no arm is called {text!r}; {nearest(text, self.names)}", "--arm")
        return arm

    def calls(self, text: str) -> bool:
        """Returns whether this is the name or a label of an arm."""
        return text in self._called

    @cached_property
    def _called(self) -> dict[str, str]:
        """The name of each arm by all that it is called; names come before labels."""
        called = {BASELINE: self.baseline}
        for arm, name in self.names.items():
            labels = (name, self.levels.get(arm, arm), self.in_column(arm), self.alone(arm), self.marked(arm))
            called |= dict.fromkeys(labels, arm)
        return called | {arm: arm for arm in self.names}

    def _marked(self, arm: str, label: str) -> str:
        is_marked = label == BASELINE or label.endswith(_MARK)
        return f"{label}{_MARK}" if arm == self.baseline and not is_marked else label


def label_arms(arms: Sequence[LabelledArm], design: str, baseline: str) -> ArmLabels:
    """Returns the labels of arms of a design.

    Where one factor differs, an arm is its level. Where several do, it is its name without the levels that all arms
    share.
    """
    factors = dict.fromkeys(factor for arm in arms for factor in arm.levels)
    varied = [factor for factor in factors if len({arm.levels.get(factor) for arm in arms}) > 1]
    names = {arm.name: arm.name for arm in arms}
    if design in _FULL_NAMES or not varied:
        return ArmLabels(None, baseline, {}, names)
    if len(varied) > 1:
        shared = {f"{factor}={arms[0].levels[factor]}" for factor in factors if factor not in varied}
        return ArmLabels(None, baseline, {}, {name: _without(name, shared) for name in names})
    (factor,) = varied
    levels = {arm.name: arm.levels.get(factor, arm.name) for arm in arms}
    in_sentences = levels if are_words(levels.values()) else {arm: f"{factor}={level}" for arm, level in levels.items()}
    return ArmLabels(factor, baseline, levels, in_sentences)


def _without(name: str, words: set[str]) -> str:
    return " ".join(word for word in name.split(" ") if word not in words)


def are_words(levels: Iterable[str]) -> bool:
    """Returns whether no level is a number, so that all are understood without their factor."""
    return all(any(letter.isalpha() or letter == "_" for letter in level) for level in levels)
