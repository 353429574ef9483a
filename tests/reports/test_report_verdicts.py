"""Four verdicts: better, worse, equal within a margin that is stated beforehand, and unresolved."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from study_on_disk import BYTES, name_of, product_arms, write_plan, write_product, write_run

from ablations.ablation import Margin, Metric
from lit_transformers.config import ConfigError
from lit_transformers.records.floors import Floors
from lit_transformers.records.reference import Reference
from reports.judge.agreement import GalleryEntry, judge_comparisons
from reports.judge.comparisons import Comparison, compare
from reports.judge.findings import Findings
from reports.judge.multiplicity import step_down
from reports.judge.statistics import Variances, estimate, holm, levels
from reports.read.study import load_study
from reports.report import find, markdown
from reports.show.against_source import against_source
from reports.show.answer import headline, sentence
from reports.show.overview import rules
from reports.show.sections import all_tables
from reports.show.tables import to_csv, to_html, to_latex

ON, ON_ABSOLUTE, OFF, OFF_ABSOLUTE = map(name_of, product_arms())
CONTRAST = [{"name": "off vs on", "arm": OFF, "against": ON}]
REASON = "nobody would change a default for less"


def metric(margin: float | None, **changes: Any) -> dict[str, Any]:
    stated = {} if margin is None else {"margin": {"size": margin, "reason": REASON}}
    return {"name": "val/bpb", "goal": "minimize", "label": "bits per byte", **stated, **changes}


def findings(runs: Path, effect: float, margin: float | None, noise: float = 0.01, **changes: Any) -> Findings:
    write_product(runs, {"off": effect}, noise=noise, design="explicit", metric=metric(margin), **changes)
    return find(load_study(runs, "xl_recurrence"))


@pytest.mark.parametrize(
    ("effect", "margin", "noise", "verdict"),
    [
        (0.3, 0.1, 0.01, "worse"),
        (-0.3, 0.1, 0.01, "better"),
        (0.0, 0.1, 0.01, "equal"),
        (0.03, 0.1, 0.001, "equal"),
        (0.03, None, 0.001, "worse"),
        (0.0, None, 0.01, "unresolved"),
        (0.1, 0.1, 0.001, "worse"),
        (0.0, 0.1, 0.2, "unresolved"),
    ],
)
def test_a_comparison_is_equal_where_its_interval_lies_within_the_margin_and_nowhere_without_one(
    tmp_path: Path, effect: float, margin: float | None, noise: float, verdict: str
) -> None:
    [comparison] = findings(tmp_path, effect, margin, noise, contrasts=CONTRAST).comparisons
    assert comparison.verdict == verdict


def test_the_p_value_of_equality_is_twice_that_of_two_one_sided_tests() -> None:
    pairs, margin = [0.01, 0.05, -0.02, 0.03], 0.1
    ends = [stats.ttest_1samp(pairs, end, alternative=side) for end, side in ((-margin, "greater"), (margin, "less"))]
    assert estimate(pairs).p_within(margin) == pytest.approx(2 * max(end.pvalue for end in ends), rel=1e-6)
    assert estimate(pairs).p_within(0.01) == 1.0 and estimate([0.1]).p_within(margin) is None


def test_so_many_seeds_show_four_times_out_of_five_that_there_is_no_difference() -> None:
    needed = Variances(3, seed=1.0, document=0.0, document_freedom=1.0).seeds_needed(1.0, 0.05, power=0.9)
    assert needed is not None
    draws = np.random.default_rng(0).normal(0, 1, (20_000, needed))
    half_widths = stats.t.ppf(0.975, needed - 1) * draws.std(axis=1, ddof=1) / math.sqrt(needed)
    assert 0.79 < np.mean(np.abs(draws.mean(axis=1)) + half_widths < 1.0) < 0.84


def test_the_seeds_needed_are_those_for_whichever_verdict_is_nearer(tmp_path: Path) -> None:
    [small] = findings(tmp_path, 0.0, 0.1, 0.05, contrasts=CONTRAST).comparisons
    [alone] = findings(tmp_path, 0.0, None, 0.05, contrasts=CONTRAST).comparisons
    assert small.estimate == alone.estimate and small.power_of(60) > alone.power_of(60)


@settings(max_examples=20)
@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=9), st.sampled_from([1.0, 0.6]))
def test_a_family_is_tested_by_holm_at_its_share_of_the_error(p_values: list[float], share: float) -> None:
    tested = step_down(dict(enumerate(p_values)), len(p_values), share)
    assert [tested[i].adjusted for i in tested] == holm([p / share for p in p_values])
    assert [tested[i].level for i in tested] == [level * share for level in levels([p / share for p in p_values])]


def test_hypotheses_that_stand_but_are_not_tested_now_count() -> None:
    assert step_down({4: 0.02}, 3, 1.0) == {4: (pytest.approx(0.06), pytest.approx(0.05 / 3))}


def test_a_ratio_has_its_margin_as_a_ratio_either_way(tmp_path: Path) -> None:
    verdicts = []
    for factor in (1.03, 1 / 1.03, 1.5):
        write_plan(
            tmp_path,
            product_arms()[::2],
            design="explicit",
            metric=metric(1.05, name="speed", goal="maximize", compare="ratio"),
        )
        for seed, base in enumerate((1.0, 1.1, 1.3)):
            write_run(tmp_path, ON, seed, BYTES, metrics={"speed": 10.0 * base})
            write_run(tmp_path, OFF, seed, BYTES, metrics={"speed": 10.0 * base * factor * (1 + 0.001 * seed)})
        verdicts += [comparison.verdict for comparison in compare(load_study(tmp_path, "xl_recurrence"), [])]
    assert verdicts == ["equal", "equal", "better"]


def test_a_margin_above_the_baselines_own_value_is_not_used_and_one_line_says_so(tmp_path: Path) -> None:
    result = findings(tmp_path, 0.0, 3.0, contrasts=CONTRAST)
    [note] = (one for one in result.notes if one.startswith("The margin"))
    assert note.startswith("The margin of 3 is not below the baseline's own value of 2.") and "\n" not in note
    assert result.comparisons[0].verdict == "unresolved" and result.margin is None


def test_a_margin_is_used_where_the_baseline_has_learned_more_than_it_beyond_the_floor(tmp_path: Path) -> None:
    """Below the floor by less than the margin, neither arm has learned it."""
    write_product(tmp_path, {"off": 0.0}, noise=0.01, design="explicit", metric=metric(3.0), contrasts=CONTRAST)
    study = load_study(tmp_path, "xl_recurrence")
    for floor, verdict, reason in ((6.0, "equal", ""), (4.0, None, "neither has learned it"), (-4.0, None, "neither")):
        floors = Floors(key="of the baseline", values=(Reference("chance", floor),))
        [comparison] = compare(replace(study, floors=floors), [])
        assert comparison.verdict == verdict and (comparison.reason or "").startswith(reason)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Margin(-0.1, REASON), "margin.size: the smallest effect that matters is above zero; got -0.1"),
        (lambda: Margin(0.0, REASON), "margin.size: the smallest effect that matters is above zero; got 0.0"),
        (lambda: Margin(math.nan, REASON), "margin.size: the smallest effect that matters is above zero; got nan"),
        (lambda: Margin(0.1), "margin.reason: a margin says in a line why a smaller effect would not matter"),
        (lambda: Margin("0.1", REASON), "size: input should be a valid number; got '0.1'"),  # type: ignore[arg-type]
        (
            lambda: Metric("speed", compare="ratio", margin=Margin(0.05, REASON)),
            "margin.size: a margin of ratios lies",
        ),
        (
            lambda: Metric("speed", goal="minimize", compare="ratio", margin=Margin(2.5, REASON)),
            "margin.size: a margin of ratios lies",
        ),
    ],
)
def test_a_wrong_margin_is_one_line(make: Callable[[], object], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("on", "off", "margin", "agreement"),
    [(2.0, 2.12, None, "agrees"), (2.0, 2.2, None, "disagrees"), (2.0, 2.0, None, "agrees"), (20, 21, 2, "agrees")],
)
def test_equality_agrees_with_a_published_difference_below_the_margin_and_with_no_other(
    tmp_path: Path, on: float, off: float, margin: float | None, agreement: str
) -> None:
    """Perplexities meet a margin in bits as bits: 2.12 is .08 bits above 2, and 2.2 is .14 above it."""
    cells = [{"arm": ON, "value": on}, {"arm": OFF, "value": off}]
    published = {"protocol": "words", "metric": "perplexity", "cells": cells, "margin": margin}
    result = findings(tmp_path, 0.0, 0.1, contrasts=CONTRAST, published=published)
    [judged] = judge_comparisons(result)
    assert (judged.comparison.verdict, judged.agreement) == ("equal", agreement)
    entry = GalleryEntry("xl", result, (judged,))
    size = f"{margin or 0.1:g}"
    assert against_source(entry).notes == (
        f"Equal: within ±0.1; {REASON}. A published difference below {size} (perplexity) agrees.",
    )
    assert len(rules([entry])) == 2


def test_equality_by_ratio_agrees_with_a_published_ratio_below_the_margin(tmp_path: Path) -> None:
    agreements = []
    for off in (102.0, 110.0):
        cells = [{"arm": ON, "value": 100.0}, {"arm": OFF, "value": off}]
        published = {"protocol": "words", "metric": "tokens per second", "goal": "maximize", "cells": cells}
        speed = metric(1.05, name="val/bpb", goal="maximize", compare="ratio")
        write_product(tmp_path, {}, design="explicit", metric=speed, contrasts=CONTRAST, published=published)
        agreements += [judged.agreement for judged in judge_comparisons(find(load_study(tmp_path, "xl_recurrence")))]
    assert agreements == ["agrees", "disagrees"]


def test_every_format_says_equal_and_why(tmp_path: Path) -> None:
    result = findings(tmp_path, 0.0, 0.1, contrasts=CONTRAST)
    bound = "up to 63% of runs may lie beyond it"
    assert headline(result).startswith("Equal: off vs on: ") and headline(result).endswith(
        f" (within ±0.1; {REASON}; {bound})."
    )
    assert sentence(result, result.comparisons[0]).count("equal") == 3  # and at equal FLOPs and equal time
    tables = all_tables(result)
    table = next(table for table in tables if table.name == "differences")
    assert [column.title for column in table.columns][3:6] == ["Verdict", "p (Holm)", "p (equal)"]
    assert "differences,1,off vs on,Verdict,,equal,,,," in to_csv(tables)
    assert f"Equal: within $\\pm$0.1; {REASON}." in to_latex(table) and "& equal &" in to_latex(table)
    assert 'class="equal"' in to_html(table)
    assert "is equal if its interval lies within plus and minus the margin" in markdown(result, tables, {})


def test_the_headline_counts_what_is_equal(tmp_path: Path) -> None:
    contrasts = [*CONTRAST, {"name": "absolute vs relative", "arm": ON_ABSOLUTE, "against": ON}]
    result = findings(tmp_path, 0.0, 0.2, contrasts=contrasts)
    assert headline(result).endswith(" may lie beyond it). Of 1 other comparison 1 equal.")
    for seed, bits in enumerate((2.0, 3.1, 2.4)):
        write_run(tmp_path, ON_ABSOLUTE, seed, bits * BYTES * math.log(2))
    assert headline(find(load_study(tmp_path, "xl_recurrence"))).endswith("Of 1 other comparison 1 unresolved.")


def test_a_study_without_a_margin_has_the_columns_and_paragraphs_it_had(tmp_path: Path) -> None:
    result = findings(tmp_path, 0.0, None, contrasts=CONTRAST)
    comparison: Comparison = result.comparisons[0]
    assert (comparison.margin, comparison.equality, result.margin) == (None, None, None)
    page = markdown(result, all_tables(result), {})
    assert "p (equal)" not in page and "margin" not in page


def test_a_comparison_whose_interval_excludes_zero_and_that_is_unresolved_says_that_it_was_corrected(
    tmp_path: Path,
) -> None:
    result = findings(tmp_path, 0.3, None, contrasts=CONTRAST)
    [decided] = result.comparisons
    unresolved = replace(decided, verdict="unresolved", adjusted=0.068)
    assert "p = 0.068 after Holm's correction): unresolved" in sentence(result, unresolved)
    assert "Holm" not in sentence(result, decided)
    [small] = findings(tmp_path / "small", 0.0, None, contrasts=CONTRAST).comparisons
    assert small.verdict == "unresolved" and "Holm" not in sentence(result, small)
