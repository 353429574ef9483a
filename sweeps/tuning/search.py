"""The search of one arm: which values to try next, the outcomes of those tried, and which were best.

An Optuna study in the ledger's database, so a search that was stopped resumes. TPE (Bergstra et al. 2011) proposes
values, a round of them at a time, each with its own random generator: proposals depend on the earlier rounds and on
nothing else, not on timing, workers, or where the search was stopped.

The median rule (Golovin et al. 2017) ends runs early: one whose best value so far is worse than the median of finished
runs at the same step. It uses runs of earlier rounds alone, so its thresholds are known when a run begins and are
as repeatable as the rest. Hyperband's are not: they depend on which runs happen to be under way together.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, TrialState

from lit_transformers.config import Plain, canonical_hash
from lit_transformers.space import Choice, Conditional, Knob, exists
from sweeps.ledger.storage import trial_id

__all__ = ["GRACE", "ROUND", "Budget", "Outcome", "Search", "Trial"]

ROUND = 4
"""Trials that are proposed together. TPE loses little by not knowing the other three, and four workers are busy."""
STARTUP = 8
"""Trials that are sampled at random, two rounds, before TPE proposes values."""
JUDGES = 4
"""Finished runs that a median needs before it ends others."""
GRACE = 1 / 3
"""The first part of a run, in which it is not pruned: schedules that start slowly would be pruned for that alone."""

OUTCOME = "told"
"""The trial attribute that holds the outcome of its run."""

_STATES = {"finished": TrialState.COMPLETE, "pruned": TrialState.PRUNED}


class Budget(NamedTuple):
    """The budget of every arm: a number of trials, or of training tokens. One of them is None."""

    trials: int | None = None
    tokens: int | None = None

    def room(self, proposed: int, spent: int, price: int) -> int:
        """Returns how many more trials fit, each of which may cost ``price`` tokens.

        proposed: the trials proposed so far; spent: the tokens spent so far.
        """
        if self.trials is not None:
            return max(0, self.trials - proposed)
        return max(0, ((self.tokens or 0) - spent) // price)


class Trial(NamedTuple):
    """Values to try, by path; ``number`` names the trial in its search."""

    number: int
    values: dict[str, Plain]


class Outcome(NamedTuple):
    """The outcome of a trial's run. curve: the metric by step; tokens: the number of tokens it was trained on. costs:
    the values of the further objectives, for a search that has any."""

    key: str
    outcome: str
    value: float | None
    curve: Mapping[int, float]
    tokens: int
    reason: str | None = None
    costs: tuple[float, ...] = ()


class Search:
    """One arm's trials. The caller holds a lock, since reading and then proposing must be one step."""

    def __init__(self, study: optuna.Study, space: Mapping[str, Knob], price: int) -> None:
        """``study`` has a direction for the metric, and one for each further objective; ``price`` is the tokens of a
        whole run."""
        self._study, self._price = study, price
        self._space = space

    @property
    def goal(self) -> str:
        """Whether the metric is minimized or maximized."""
        return "minimize" if self._study.directions[0] == optuna.study.StudyDirection.MINIMIZE else "maximize"

    def begin(self, values: Mapping[str, Plain]) -> None:
        """Makes the first trial try these values; paths that are left out are sampled."""
        if not self._trials():
            self._study.enqueue_trial(dict(values))

    def round(self, budget: Budget) -> list[Trial]:
        """Returns the trials to run now: those that were proposed and have no outcome yet, and new ones.

        The list is empty when the budget is spent.
        """
        pending = self._pending_trials()
        proposed = len(pending) + len(self._recorded_trials())
        missing = -proposed % ROUND if pending else ROUND
        spent = self.tokens() + len(pending) * self._price
        new_count = min(missing, budget.room(proposed, spent, self._price))
        return pending + [self._propose() for _ in range(new_count)]

    def tell(self, number: int, outcome: Outcome) -> None:
        """Records the outcome of a trial. It does nothing where another worker has recorded it already."""
        frozen = self._trials()[number]
        if frozen.state.is_finished():
            return
        trial = optuna.trial.Trial(self._study, trial_id(frozen))
        for step, value in outcome.curve.items() if len(self._study.directions) == 1 else ():
            trial.report(value, step)
        fields = ("key", "outcome", "tokens", "reason")
        trial.set_user_attr(OUTCOME, {name: getattr(outcome, name) for name in fields})
        state = _STATES.get(outcome.outcome, TrialState.FAIL)
        values = [math.nan if outcome.value is None else outcome.value, *outcome.costs]
        if state == TrialState.COMPLETE and not (
            len(values) == len(self._study.directions) and all(math.isfinite(value) for value in values)
        ):
            state = TrialState.FAIL
        self._study.tell(number, values if state == TrialState.COMPLETE else None, state, skip_if_finished=True)

    def bars(self, number: int, steps: int) -> dict[int, float]:
        """Returns pruning thresholds by step: medians of finished trials of earlier rounds, empty if they are few."""
        round_start = number - number % ROUND
        finished_curves = [
            trial.intermediate_values for trial in self._trials((TrialState.COMPLETE,)) if trial.number < round_start
        ]
        if len(finished_curves) < JUDGES:
            return {}
        judged_steps = sorted({step for curve in finished_curves for step in curve if GRACE * steps <= step < steps})
        return {
            step: statistics.median(curve[step] for curve in finished_curves if step in curve) for step in judged_steps
        }

    def tokens(self) -> int:
        """Returns the training tokens spent so far."""
        return sum(int(trial.user_attrs[OUTCOME]["tokens"]) for trial in self._recorded_trials())

    def outcomes(self) -> list[tuple[Trial, dict[str, Any]]]:
        """Returns every trial that has ended, with its recorded outcome and its ``value``."""
        return [
            (Trial(trial.number, dict(trial.params)), {**trial.user_attrs[OUTCOME], "value": _value(trial)})
            for trial in self._recorded_trials()
        ]

    def best(self) -> tuple[Trial, float] | None:
        """Returns the finished trial with the best value, and that value; the earliest of equals; None without any."""
        finished = self._trials((TrialState.COMPLETE,))
        if not finished:
            return None
        sign = 1 if self.goal == "minimize" else -1
        best_trial = min(finished, key=lambda trial: (sign * (_value(trial) or 0.0), trial.number))
        return Trial(best_trial.number, dict(best_trial.params)), _value(best_trial) or 0.0

    def front(self) -> list[tuple[Trial, list[float]]]:
        """Returns the finished trials that no other one beats in all objectives, with their values, from the lowest
        second one on. One of trials with equal values is enough."""
        by_values = {tuple(trial.values): trial for trial in reversed(self._study.best_trials)}
        front = sorted(by_values.values(), key=lambda trial: (trial.values[-1], trial.number))
        return [(Trial(trial.number, dict(trial.params)), list(trial.values)) for trial in front]

    def _pending_trials(self) -> list[Trial]:
        """Returns the trials without an outcome. One whose proposer died before it had all its values is closed."""
        pending = []
        for trial in self._trials((TrialState.RUNNING,)):
            if trial.params.keys() == {path for path, knob in self._space.items() if exists(knob, trial.params)}:
                pending.append(Trial(trial.number, dict(trial.params)))
            else:
                self._study.tell(trial.number, state=TrialState.FAIL)
        return pending

    def _recorded_trials(self) -> list[FrozenTrial]:
        """Returns the trials with a recorded outcome, without those that were closed for lack of values."""
        return [trial for trial in self._trials(_OVER) if OUTCOME in trial.user_attrs]

    def _propose(self) -> Trial:
        number = len(self._recorded_trials()) + len(self._trials((TrialState.RUNNING,)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            warnings.filterwarnings("ignore", message="Heartbeat of storage")
            seed = int(canonical_hash([self._study.study_name, number], 8), 16)
            self._study.sampler = TPESampler(seed=seed, n_startup_trials=STARTUP, constant_liar=True)
            trial = self._study.ask()
            for path, knob in self._space.items():
                if exists(knob, trial.params):
                    _suggest(trial, path, knob)
        return Trial(trial.number, dict(trial.params))

    def _trials(self, states: Sequence[TrialState] | None = None) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=None if states is None else tuple(states))


_OVER = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


def _suggest(trial: optuna.Trial, path: str, knob: Knob) -> None:
    """Draws the value of a knob."""
    knob = knob.knob if isinstance(knob, Conditional) else knob
    if isinstance(knob, Choice):
        trial.suggest_categorical(path, knob.values)
    elif knob.whole:
        trial.suggest_int(path, int(knob.low), int(knob.high), log=knob.log)
    else:
        trial.suggest_float(path, knob.low, knob.high, log=knob.log)


def _value(trial: FrozenTrial) -> float | None:
    """Returns the metric of a finished trial, or the last value of another trial's curve, or None."""
    if trial.state == TrialState.COMPLETE:
        return trial.values[0]
    return trial.intermediate_values[max(trial.intermediate_values)] if trial.intermediate_values else None
