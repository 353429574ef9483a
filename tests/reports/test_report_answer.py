"""The first lines of a report answer its question, for any results; the others follow."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from study_on_disk import BYTES, key_of, name_of, product_arms, write_json, write_plan, write_product, write_run

from lit_transformers.records.files import RESULTS
from reports.gallery import read_entry
from reports.judge.findings import Findings
from reports.read.answers import ANSWERS, STATED_LATER, write_answers
from reports.read.study import ReportError, load_study
from reports.report import REPORT, find, render, write_study
from reports.show.answer import answer, headline
from reports.show.figures import drawings
from reports.show.sections import differences

ON, ON_ABSOLUTE, OFF, OFF_ABSOLUTE = map(name_of, product_arms())


def load_findings(runs: Path) -> Findings:
    return find(load_study(runs, "xl_recurrence"))


def contrasts(*pairs: tuple[str, str, str]) -> list[dict[str, str]]:
    return [{"name": name, "arm": arm, "against": against} for name, arm, against in pairs]


ONE = contrasts(("recurrence on vs off", ON, OFF))
SEVERAL = contrasts(
    ("off vs on", OFF, ON),
    ("absolute vs relative", ON_ABSOLUTE, ON),
    ("on vs off, absolute", ON_ABSOLUTE, OFF_ABSOLUTE),
)


def test_of_one_comparison_the_headline_is_what_was_found_and_the_answer_adds_its_price(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.123}, contrasts=ONE)
    findings = load_findings(tmp_path)
    pattern = r"ecurrence on vs off: -0\.1\d+ bits per byte \(95 % interval -0\.1\d+ to -0\.0\d+, 3 seeds\)"
    assert re.fullmatch(rf"Better: r{pattern}\.", headline(findings))
    (sentence,) = answer(findings)
    assert re.fullmatch(rf"R{pattern}: better; at equal FLOPs per token and equal time\.", sentence)


@pytest.mark.parametrize(
    ("seconds", "time"),
    [
        # By hand: the mean of the logarithms is -0.6696 and their standard deviation 0.0233.
        ((20.0, 21.0, 22.0), r"0\.51 times the time \(95 % interval 0\.48 to 0\.54\) and "),
        ((9.2, 41.0, 130.0), ""),
        ((9.2, None, None), ""),
    ],
    ids=["measured well", "so unevenly that it says nothing", "once"],
)
def test_a_measured_price_has_an_interval_that_says_something_or_is_not_told(
    tmp_path: Path, seconds: tuple[float | None, ...], time: str
) -> None:
    write_product(tmp_path, {"off": 0.123}, contrasts=ONE)
    for arm, measured in ((ON, seconds), (OFF, (40.0, 41.0, 42.0))):
        for seed, value in enumerate(measured):
            path = tmp_path / key_of(arm, seed) / "record.json"
            write_json(path, json.loads(path.read_text()) | {"measured": {"seconds": value}})
    (sentence,) = answer(load_findings(tmp_path))
    assert re.search(rf"; at {time}equal FLOPs per token\.$", sentence)


def test_the_headline_is_of_the_first_contrast_and_not_of_the_largest_effect(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.5, "absolute": 0.2}, contrasts=SEVERAL)
    findings = load_findings(tmp_path)
    assert re.fullmatch(
        r"Worse: off vs on: \+0\.\d+ bits per byte \(95 % interval 0\.\d+ to 0\.\d+, 3 seeds\)\. "
        r"Of 2 other comparisons 1 better and 1 worse\.",
        headline(findings),
    )
    assert len(answer(findings)) == 3


def test_the_headline_is_of_the_comparisons_that_the_study_names_by_verdict(tmp_path: Path) -> None:
    names = ["absolute vs relative", "on vs off, absolute"]
    write_product(tmp_path, {"off": 0.5, "absolute": 0.2}, contrasts=SEVERAL, answer=names)
    findings = load_findings(tmp_path)
    assert re.fullmatch(
        r"Better: on vs off, absolute: -0\.[^;]+\. Worse: absolute vs relative: \+0\.[^;]+\. "
        r"Of 1 other comparison 1 worse\.",
        headline(findings),
    )
    assert [text.partition(":")[0] for text in answer(findings)] == [
        "absolute vs relative",
        "on vs off, absolute",  # levels keep their spelling at the head of a sentence
        "off vs on",
    ]


def test_levels_of_one_factor_are_named_without_the_factor_and_the_baseline_once(tmp_path: Path) -> None:
    levels = [{"mixer": f"m{number}"} for number in range(5)]
    plan: dict[str, Any] = write_plan(tmp_path, levels, design="one_factor", factors={})
    for number, arm in enumerate(plan["arms"]):
        for seed in range(3):
            write_run(tmp_path, arm["name"], seed, BYTES * (1 + 0.1 * number + 0.001 * seed * (number + 1)))
    assert re.fullmatch(
        r"Worse than the baseline: m4 \(\+0\.\d+\), m3 \(\+0\.\d+\), m2 \(\+0\.\d+\), m1 \(\+0\.\d+\)\. "
        r"Differences in bits per byte are in brackets\.",
        headline(load_findings(tmp_path)),
    )


def test_an_interaction_takes_the_place_of_main_effects_that_mean_nothing_alone(tmp_path: Path) -> None:
    plan = write_plan(tmp_path)
    for arm in plan["arms"]:
        crossed = arm["name"] in (OFF, ON_ABSOLUTE)
        for seed in range(3):
            write_run(tmp_path, arm["name"], seed, BYTES * (1 + 0.5 * crossed + 0.001 * seed * (1 + crossed)))
    findings = load_findings(tmp_path)
    assert headline(findings).startswith("Depends on each other: recurrence=off with positions=absolute: -")
    kinds = [effect.kind for effect in findings.effects]
    assert kinds == ["interaction", "main effect", "main effect"]
    assert all(effect.name.endswith(" (not meaningful alone)") for effect in findings.effects[1:])


def test_the_figure_of_differences_has_the_order_of_its_table(tmp_path: Path) -> None:
    plan = write_plan(tmp_path)
    for number, arm in enumerate(plan["arms"]):
        crossed = arm["name"] in (OFF, ON_ABSOLUTE)
        for seed in range(3):
            write_run(tmp_path, arm["name"], seed, BYTES * (1 + 0.5 * crossed + 0.001 * seed * number**2))
    figure = next(one.figure for one in drawings(load_findings(tmp_path)) if one.name == "differences")
    rows = [row.get_text() for row in figure.axes[0].get_yticklabels()]
    assert rows[-3] == "recurrence=off with positions=absolute (interaction)"
    assert all(row.endswith(" (not meaningful alone)") for row in rows[-2:])


def test_where_the_answer_is_open_the_headline_says_how_many_seeds_it_would_take(tmp_path: Path) -> None:
    write_product(tmp_path, {}, contrasts=SEVERAL)
    assert re.fullmatch(
        r"Unresolved: off vs on: .*; a verdict would take \d+ seeds \(in half of cases \d+, in 95 % over 1,000\)\. "
        r"Of 2 other comparisons 2 unresolved\.",
        headline(load_findings(tmp_path)),
    )


def test_one_seed_gives_no_verdict_and_the_reason(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.5}, seeds=1, contrasts=SEVERAL)
    assert headline(load_findings(tmp_path)) == (
        "No verdict: off vs on (one seed cannot be judged; add seeds). Of 2 other comparisons 2 without a verdict."
    )


@pytest.mark.parametrize("count", [1, 12, 30])
def test_the_headline_is_short_with_any_number_of_arms(tmp_path: Path, count: int) -> None:
    levels = [{"mixer": f"m{number}"} for number in range(count + 1)]
    plan: dict[str, Any] = write_plan(tmp_path, levels, design="explicit", factors={})
    for number, arm in enumerate(plan["arms"]):
        for seed in range(3):
            write_run(tmp_path, arm["name"], seed, BYTES * (1 + 0.1 * (number % 3) + 0.001 * seed * (number + 1)))
    findings = load_findings(tmp_path)
    sentence = headline(findings)
    assert len(sentence) < 320 and sentence.endswith(".")
    sentences = answer(findings)
    assert len(sentences) == min(count, 9)
    assert count <= 8 or sentences[-1] == f"The table holds {count - 8} more."


def test_an_interval_without_zero_beside_no_verdict_is_explained(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.123}, contrasts=ONE)
    findings = load_findings(tmp_path)
    better = findings.comparisons[0]
    notes = [
        differences(findings, [one], "differences", "Differences").notes
        for one in (better, replace(better, verdict="unresolved"))
    ]
    line = "Intervals are of one comparison each; verdicts allow for all of them (p after Holm's correction)."
    assert [line in one for one in notes] == [False, True]


def test_without_a_finished_run_the_headline_says_why_and_nothing_follows(tmp_path: Path) -> None:
    write_plan(tmp_path)
    findings = load_findings(tmp_path)
    assert headline(findings) == "No arm finished, so there is no answer yet: not run."
    assert answer(findings) == ()


def test_the_answer_of_a_publication_is_stated_beside_its_results_which_stay_as_they_are(tmp_path: Path) -> None:
    write_product(tmp_path / "runs", {"off": 0.5, "absolute": 0.2}, contrasts=SEVERAL)
    folder = tmp_path / "published" / "xl_recurrence"
    write_study(load_study(tmp_path / "runs", "xl_recurrence"), folder, publication=folder)
    results = (folder / RESULTS).read_bytes()
    assert headline(read_entry(folder).findings).startswith("Worse: off vs on")
    write_answers(folder.parent, {folder.name: ["on vs off, absolute"]})
    render(folder, publication=folder)
    page = (folder / REPORT).read_text(encoding="utf-8")
    assert "**Better: on vs off, absolute: -0." in page and STATED_LATER in page
    assert headline(read_entry(folder).findings).startswith("Better: on vs off, absolute")
    assert (folder / RESULTS).read_bytes() == results
    (folder.parent / ANSWERS).write_text('{"xl_recurrence": "on vs off"}')
    with pytest.raises(ReportError, match="does not hold lists of names by folder"):
        read_entry(folder)
