"""The search of one arm: which values to try next, what became of those tried, and which were best.

An Optuna study in the ledger's database, so a search that was stopped goes on. TPE (Bergstra et al. 2011) proposes
values, a round of them at a time, each drawn by a generator of its own: what is proposed depends on the rounds before
and on nothing else, not on timing, workers, or where the search was stopped.

The median rule (Golovin et al. 2017) ends runs early: one whose best value so far is worse than the median of finished
runs at the same step. It judges by runs of earlier rounds alone, so its answers are known when a run begins and are
as repeatable as the rest. Hyperband's are not: they depend on which runs happen to be under way together.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, TrialState

from lit_transformers.config import Plain, canonical_hash
from lit_transformers.space import Choice, Knob

__all__ = ["ROUND", "Budget", "Outcome", "Search", "Trial"]

ROUND = 4
"""Trials that are proposed together. TPE loses little by not knowing the other three, and four workers are busy."""
STARTUP = 8
"""Trials that are drawn at random, two rounds, before TPE has something to go by."""
JUDGES = 4
"""Finished runs that a median needs before it ends others."""
GRACE = 1 / 3
"""The first part of a run, in which nothing ends it: schedules that start slowly would be cut for that alone."""

TOLD = "told"
"""What a trial's run came to, among the trial's attributes."""

_STATES = {"finished": TrialState.COMPLETE, "pruned": TrialState.PRUNED}


class Budget(NamedTuple):
    """What every arm may spend: so many trials, or so many training tokens. One of them is None."""

    trials: int | None = None
    tokens: int | None = None

    def room(self, asked: int, spent: int, price: int) -> int:
        """How many trials more, each of which may cost ``price`` tokens."""
        if self.trials is not None:
            return max(0, self.trials - asked)
        return max(0, ((self.tokens or 0) - spent) // price)


class Trial(NamedTuple):
    """Values to try, by path; ``number`` names the trial in its search."""

    number: int
    values: dict[str, Plain]


class Outcome(NamedTuple):
    """What became of a trial's run. curve: the metric by step; tokens: what it was trained on."""

    key: str
    outcome: str
    value: float | None
    curve: Mapping[int, float]
    tokens: int
    reason: str | None = None


class Search:
    """One arm's trials. Whoever asks holds a lock: looking and then proposing must be one step."""

    def __init__(self, study: optuna.Study, space: Mapping[str, Knob], price: int) -> None:
        """``study`` minimizes or maximizes; ``price`` is the tokens of a whole run."""
        self._study, self._price = study, price
        self._distributions = {path: _distribution(knob) for path, knob in space.items()}

    @property
    def goal(self) -> str:
        """Whether the metric is minimized or maximized."""
        return "minimize" if self._study.direction == optuna.study.StudyDirection.MINIMIZE else "maximize"

    def begin(self, values: Mapping[str, Plain]) -> None:
        """Has the first trial try these values; paths that are left out are drawn."""
        if not self._trials():
            self._study.enqueue_trial(dict(values))

    def round(self, budget: Budget) -> list[Trial]:
        """The trials that are to be run now: those that were proposed and have no outcome yet, and new ones.

        Empty when the budget is spent.
        """
        pending = self._pending()
        proposed = len(pending) + len(self._told())
        wanted = -proposed % ROUND if pending else ROUND
        spent = self.tokens() + len(pending) * self._price
        new = min(wanted, budget.room(proposed, spent, self._price))
        return pending + [self._propose() for _ in range(new)]

    def tell(self, number: int, outcome: Outcome) -> None:
        """Notes what became of a trial. Harmless when somebody else has told already."""
        frozen = self._trials()[number]
        if frozen.state.is_finished():
            return
        trial = optuna.trial.Trial(self._study, frozen._trial_id)
        for step, value in outcome.curve.items():
            trial.report(value, step)
        told = ("key", "outcome", "tokens", "reason")
        trial.set_user_attr(TOLD, {name: getattr(outcome, name) for name in told})
        state = _STATES.get(outcome.outcome, TrialState.FAIL)
        is_number = outcome.value is not None and math.isfinite(outcome.value)
        if state == TrialState.COMPLETE and not is_number:
            state = TrialState.FAIL
        self._study.tell(number, outcome.value if state == TrialState.COMPLETE else None, state, skip_if_finished=True)

    def bars(self, number: int, steps: int) -> dict[int, float]:
        """What a trial must reach by step, from the finished ones of earlier rounds; empty while they are too few."""
        first = number - number % ROUND
        judges = [trial.intermediate_values for trial in self._trials((TrialState.COMPLETE,)) if trial.number < first]
        if len(judges) < JUDGES:
            return {}
        known = sorted({step for curve in judges for step in curve if GRACE * steps <= step < steps})
        return {step: statistics.median(curve[step] for curve in judges if step in curve) for step in known}

    def tokens(self) -> int:
        """What was spent so far."""
        return sum(int(trial.user_attrs[TOLD]["tokens"]) for trial in self._told())

    def outcomes(self) -> list[tuple[Trial, dict[str, Any]]]:
        """Every trial that is over, with what was told of it and its ``value``."""
        return [
            (Trial(trial.number, dict(trial.params)), {**trial.user_attrs[TOLD], "value": _value(trial)})
            for trial in self._told()
        ]

    def best(self) -> tuple[Trial, float] | None:
        """The finished trial with the best value, the earliest of equals; None where none has finished."""
        finished = self._trials((TrialState.COMPLETE,))
        if not finished:
            return None
        sign = 1 if self.goal == "minimize" else -1
        found = min(finished, key=lambda trial: (sign * (_value(trial) or 0.0), trial.number))
        return Trial(found.number, dict(found.params)), _value(found) or 0.0

    def _pending(self) -> list[Trial]:
        """Trials without an outcome. One whose proposer died before it had all its values is given up."""
        found = []
        for trial in self._trials((TrialState.RUNNING,)):
            if trial.params.keys() == self._distributions.keys():
                found.append(Trial(trial.number, dict(trial.params)))
            else:
                self._study.tell(trial.number, state=TrialState.FAIL)
        return found

    def _told(self) -> list[FrozenTrial]:
        """Trials whose run is over; not those that were given up."""
        return [trial for trial in self._trials(_OVER) if TOLD in trial.user_attrs]

    def _propose(self) -> Trial:
        number = len(self._told()) + len(self._trials((TrialState.RUNNING,)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            warnings.filterwarnings("ignore", message="Heartbeat of storage")
            seed = int(canonical_hash([self._study.study_name, number], 8), 16)
            self._study.sampler = TPESampler(seed=seed, n_startup_trials=STARTUP, constant_liar=True)
            trial = self._study.ask(self._distributions)
        return Trial(trial.number, dict(trial.params))

    def _trials(self, states: Sequence[TrialState] | None = None) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=None if states is None else tuple(states))


_OVER = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


def _distribution(knob: Knob) -> BaseDistribution:
    if isinstance(knob, Choice):
        return CategoricalDistribution(knob.values)
    if knob.whole:
        return IntDistribution(int(knob.low), int(knob.high), log=knob.log)
    return FloatDistribution(knob.low, knob.high, log=knob.log)


def _value(trial: FrozenTrial) -> float | None:
    """The metric of a finished trial; of a pruned one, its last."""
    if trial.state == TrialState.COMPLETE:
        return trial.value
    return trial.intermediate_values[max(trial.intermediate_values)] if trial.intermediate_values else None
