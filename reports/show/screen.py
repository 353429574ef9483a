"""The end of a run on a terminal: the question, the answer, and the arms with every interval drawn."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.text import Text

from lit_transformers.printing.arm_names import BreakableName
from reports.judge.comparisons import Comparison
from reports.judge.costs import cost_ratio
from reports.judge.fairness import cost_of
from reports.judge.findings import Findings
from reports.read.answers import STATED_LATER
from reports.read.study import Study
from reports.show.about_runs import about_runs
from reports.show.answer import further_answers, headline, interval_of, leading
from reports.show.names import name_comparisons
from reports.show.tables import VERDICT_STYLES, fixed

__all__ = ["LINES", "IntervalScale", "cost_multiple", "screen"]

LINES = 38
"""The lines of a screen; the path of the report follows."""
_LEAST = 9
"""The lines that each table gets however long the text around it is."""
_GAP = "  "
_NAME_SHARE = 0.3
"""The largest share of the width that names get."""
_SHORTEST_NAME = 12
_SHORTEST_BAR, _LONGEST_BAR = 8, 40
"""A shorter bar shows nothing, and a longer one is not easier to read."""
_NOTES = 500
"""The characters of notes that a screen has room for: longer ones are counted."""
_COSTS = ("flops_per_token", "seconds")
_EFFECT = ("Change", "95 % interval")


class IntervalScale(NamedTuple):
    """The scale of the bars: the values at their ends, and the margin within which a difference counts as equal."""

    low: float
    high: float
    margin: float

    @classmethod
    def of(cls, comparisons: Iterable[Comparison]) -> IntervalScale:
        """Returns the scale that shows zero, every interval and the margin."""
        values, margin = [0.0], 0.0
        for one in comparisons:
            margin = one.margin or margin
            if one.estimate is not None:
                values += [one.estimate.difference, *(one.estimate.interval or ())]
        return cls(min(*values, -margin), max(*values, margin), margin)

    def wider(self) -> IntervalScale:
        """Returns the scale with some room at both ends, for marks that have a size."""
        room = 0.04 * (self.high - self.low)
        return self._replace(low=self.low - room, high=self.high + room)

    def share(self, value: float) -> float:
        """Returns where a value lies, from 0 at the low end of the scale to 1 at the high one."""
        return (value - self.low) / (self.high - self.low or 1.0)

    def percent(self, value: float) -> str:
        """Returns where a value lies, as SVG writes it."""
        return f"{100 * self.share(value):.2f}%"

    def bar(self, comparison: Comparison | None, width: int) -> Text:
        """Returns the interval of a comparison as characters, with its estimate, zero and the margin as a band."""
        if comparison is None or comparison.estimate is None:
            return Text(" " * width)
        difference = comparison.estimate.difference
        low, high = comparison.estimate.interval or (difference, difference)
        characters = [" "] * width
        for first, last, character in (
            *([(-self.margin, self.margin, "░")] if self.margin else []),
            (0.0, 0.0, "│"),
            (low, high, "━"),
            (difference, difference, "●"),
        ):
            for place in range(self._place(first, width), self._place(last, width) + 1):
                characters[place] = character
        return Text("".join(characters), VERDICT_STYLES.get(comparison.verdict or "", ""))

    def _place(self, value: float, width: int) -> int:
        return round(self.share(value) * (width - 1))


class _Row(NamedTuple):
    """A row of a table: its name, the texts of its columns, the comparison whose interval is drawn, and the verdict."""

    name: str
    numbers: tuple[str, ...]
    cost: str
    verdict: str = ""
    comparison: Comparison | None = None


def screen(findings: Findings, width: int) -> list[Text]:
    """Returns the lines of a screen, at most ``LINES`` where the question and the answer leave room.

    A study whose arms are all compared with the baseline has one table; any other one has a table of its arms above
    the table of its comparisons.
    """
    before = [*_wrapped(findings.study.plan.question, width, "bold"), Text(), *_wrapped(headline(findings), width)]
    after = [line for text in _closing(findings) for line in _wrapped(text, width, "dim")]
    room = max(LINES - len(before) - len(after) - 2, _LEAST)
    shown = [one for one in leading(findings) if one.estimate is not None]
    against = {next(iter(one.weights)): one for one in shown if _is_against_baseline(findings, one)}
    if len(against) == len(shown):
        tables = _table(_arms(findings, against), width, room)
    else:
        comparisons = _table(_comparisons(findings, shown), width, max(room - _LEAST - 1, _LEAST))
        arms = _table(_arms(findings, {}), width, max(room - len(comparisons) - 1, _LEAST))
        tables = [*arms, Text(), *comparisons]
    return [*before, Text(), *tables, *([Text(), *after] if after else [])]


def _wrapped(text: str, width: int, style: str = "") -> list[Text]:
    return [Text(line, style) for line in textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)]


def _is_against_baseline(findings: Findings, comparison: Comparison) -> bool:
    return comparison.kind == "contrast" and [*comparison.weights][1:] == [findings.study.plan.baseline]


def _arms(findings: Findings, against: Mapping[str, Comparison]) -> list[_Row]:
    """Returns a header and a row for each arm: its mean, how it differs from the baseline, and its cost."""
    study, labels = findings.study, findings.study.plan.labels
    head = _Row(labels.heading("Arm"), ("Mean", *(_EFFECT if against else ())), "Cost", "Verdict" if against else "")
    rows = [head]
    for arm in (one.name for one in study.plan.arms):
        mean, one = study.mean_of(arm), against.get(arm)
        numbers = (
            "-" if mean is None else fixed(mean, findings.decimals),
            *(_effect(findings, one) if against else ()),
        )
        cost = cost_multiple(study, [arm, study.plan.baseline])
        rows.append(_Row(labels.marked(arm), numbers, cost, _verdict(one), one))
    return rows


def _comparisons(findings: Findings, shown: Sequence[Comparison]) -> list[_Row]:
    """Returns a header and a row for each comparison."""
    names = name_comparisons(findings.study.plan, shown)
    return [
        _Row(names.heading("Comparison"), _EFFECT, "Cost", "Verdict"),
        *(
            _Row(
                names.levels[one.name],
                _effect(findings, one),
                cost_multiple(findings.study, [*one.weights]) if one.kind == "contrast" else "",
                _verdict(one),
                one,
            )
            for one in shown
        ),
    ]


def _verdict(comparison: Comparison | None) -> str:
    return "" if comparison is None else comparison.verdict or "none"


def _effect(findings: Findings, comparison: Comparison | None) -> tuple[str, ...]:
    """Returns the difference of a comparison and its interval as texts, which are empty without a comparison."""
    if comparison is None or comparison.estimate is None:
        return ("",) * len(_EFFECT)
    change = fixed(findings.as_printed(comparison.estimate.difference), findings.difference_decimals)
    return change, interval_of(findings, comparison).replace(" to ", ", ") or "-"


def cost_multiple(study: Study, arms: Sequence[str]) -> str:
    """Returns the FLOPs per token of the first of two arms as a multiple, or the time where FLOPs are not counted."""
    mine, *others = map(study.finished, arms)
    ratios = [cost_ratio(mine, others[0], key) for key in _COSTS] if len(others) == 1 else []
    ratio = next((one for one in ratios if one is not None), None)
    return "-" if ratio is None else f"{fixed(ratio.value, 2)}x"


def _table(rows: Sequence[_Row], width: int, most: int) -> list[Text]:
    """Returns the lines of a table, at most ``most``: the last rows give way to a line that counts them. On a narrow
    terminal names are folded sooner, and costs are omitted."""
    numbers = [max(map(len, column)) for column in zip(*(row.numbers for row in rows), strict=True)]
    verdict, cost = (max(map(len, column)) for column in ([row.verdict for row in rows], [row.cost for row in rows]))
    room = width - sum(len(_GAP) + one for one in (*numbers, *([verdict] if verdict else [])))
    cost = cost if room - len(_GAP) - cost >= _SHORTEST_NAME else 0
    room -= len(_GAP) + cost if cost else 0
    names = min(room, int(_NAME_SHARE * width), max(len(row.name) for row in rows))
    bar = min(_LONGEST_BAR, room - names - len(_GAP)) if verdict else 0
    scale = IntervalScale.of(row.comparison for row in rows if row.comparison)
    lines = list[Text]()
    for number, row in enumerate(rows):
        name, *further = BreakableName(row.name).lines(names)
        rest = len(rows) - number
        if number > 1 and len(lines) + 1 + len(further) + (rest > 1) > most:
            return [*lines, Text(f"{rest} more: --full", "dim")]
        line = Text(name.ljust(names))
        for text, column in zip(row.numbers, numbers, strict=True):
            line.append(_GAP + text.rjust(column))
        if bar >= _SHORTEST_BAR:
            line.append(_GAP).append_text(scale.bar(row.comparison, bar))
        if verdict:
            line.append(_GAP).append(row.verdict.ljust(verdict), VERDICT_STYLES.get(row.verdict, ""))
        if cost:
            line.append(_GAP + row.cost.rjust(cost))
        lines += [line, *map(Text, further)]
    return lines


def _closing(findings: Findings) -> Iterator[str]:
    """Yields the unit, the margin, and which comparisons have no verdict and why."""
    ratio = "Ratios of" if findings.ratio else "In"
    margin = f" ░ Equal: {findings.margin}." if findings.margin else ""
    better = _BETTER[findings.study.plan.goal]
    counted = any(cost_of(run, _COSTS[0]) is not None for run in findings.study.runs)
    cost = "FLOPs per token" if counted else "time"
    width = f" Over seeds, {findings.about_width}." if findings.about_width else ""
    yield f"{ratio} {findings.metric.title}; {better} is better. Cost: {cost}.{margin}{width}"
    yield " ".join(about_runs(findings))
    yield from further_answers(findings)
    by_reason: dict[str, list[str]] = {}
    for one in findings.shown:
        if one.verdict is None and one.reason:
            by_reason.setdefault(one.reason, []).append(one.name)
    for reason, names in by_reason.items():
        rest = f" and {len(names) - 2} more" if len(names) > 2 else ""
        yield f"Not judged: {', '.join(names[:2])}{rest}: {reason}."
    notes = [note for note in findings.notes if note != STATED_LATER]
    if sum(map(len, notes)) <= _NOTES:
        yield from notes
    else:
        yield notes[0]
        yield f"{len(notes) - 1} more notes limit the comparisons: --full."


_BETTER = {"minimize": "lower", "maximize": "higher"}
