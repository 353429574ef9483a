"""The goals of a call on a GPU, and whether the measurements meet them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.gpu.job_queue import JobAttempt

__all__ = ["Goal", "goals"]

FASTEST_DEVICE, LEAST_RATE = "H100", 200_000
LONGEST, LEAST_SPEEDUP = 65_536, 8.0
LEAST_SHARING = 1.5


class Goal(NamedTuple):
    """A goal, its measurement, and whether the measurement meets it; None if there is no measurement."""

    text: str
    measured: str
    is_met: bool | None

    @property
    def verdict(self) -> str:
        """Returns whether it is met, in words."""
        return "not measured" if self.is_met is None else "met" if self.is_met else "missed"


def goals(last: Mapping[str, JobAttempt], machine: Mapping[str, Any]) -> list[Goal]:
    """Returns all goals, given the last attempt at each job and facts of the machine. A CPU meets and misses none."""
    results = {name: attempt.result for name, attempt in last.items() if attempt.result is not None}
    reached = [values_goal(last), speed_goal(results, machine), window_goal(results), sharing_goal(results)]
    return reached if machine.get("gpu") else [goal._replace(is_met=None) for goal in reached]


def values_goal(last: Mapping[str, JobAttempt]) -> Goal:
    """Every comparison has to agree, of a job that reached its end."""
    text = "every kind equals its float64 numbers"
    attempt = last.get("values of mixers")
    rows = (attempt.result or {}).get("rows", []) if attempt else []
    if attempt is None or not rows:
        return Goal(text, "", None)
    agreeing = sum(row["agrees"] for row in rows)
    is_whole = attempt.outcome in ("finished", "failed")
    is_met = None if agreeing == len(rows) and not is_whole else agreeing == len(rows)
    return Goal(text, f"{agreeing} of {len(rows)} comparisons agree", is_met)


def speed_goal(results: Mapping[str, Any], machine: Mapping[str, Any]) -> Goal:
    """The fastest mode counts, on the device that the goal names."""
    text = f"Transformer-XL base trains {LEAST_RATE:,} tokens a second on an {FASTEST_DEVICE}"
    rates = [
        result["tokens_per_second"]
        for name, result in results.items()
        if name.startswith("transformer-xl ") and not result["tiny"] and "tokens_per_second" in result
    ]
    if not rates:
        return Goal(text, "", None)
    device = str(machine.get("gpu"))
    is_met = max(rates) >= LEAST_RATE if FASTEST_DEVICE in device else None
    return Goal(text, f"{max(rates):,.0f} on {device}", is_met)


def window_goal(results: Mapping[str, Any]) -> Goal:
    """By the times of forward and backward passes of whole layers."""
    text = f"a window of 512 is {LEAST_SPEEDUP:g} times as fast as flash attention at {LONGEST:,} tokens"
    rows = results.get("rows of 64k", {}).get("rows", [])
    times = next((row["milliseconds"] for row in rows if row["length"] == LONGEST), {})
    if not {"window 512", "SDPA flash"} <= times.keys():
        return Goal(text, "", None)
    ratio = times["SDPA flash"] / times["window 512"]
    return Goal(text, f"{ratio:.1f} times as fast", ratio >= LEAST_SPEEDUP)


def sharing_goal(results: Mapping[str, Any]) -> Goal:
    """By the tokens a second of all runs together."""
    text = f"two runs on one device train {LEAST_SHARING:g} times the tokens of one"
    ratio = results.get("runs that share the device", {}).get("ratio")
    return Goal(text, "" if ratio is None else f"{ratio:.2f} times", None if ratio is None else ratio >= LEAST_SHARING)
