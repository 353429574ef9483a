"""The first line of a report is one sentence, whatever was found; the others follow it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from study_on_disk import BYTES, key_of, name_of, product_arms, write_json, write_plan, write_product, write_run

from reports.read.records import load_study
from reports.report import find
from reports.show.answer import answer, headline
from reports.show.sections import Findings

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
    pattern = (
        r"Recurrence on vs off: bits per byte lower by 0\.1\d+ \(95 % interval 0\.1\d+ to 0\.1\d+, 3 seeds\): better"
    )
    assert re.fullmatch(pattern + r"\.", headline(findings))
    (sentence,) = answer(findings)
    assert re.fullmatch(pattern + r"; at equal FLOPs per token and equal time\.", sentence)


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


def test_of_several_the_largest_gain_leads_with_a_tally_of_verdicts(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.5, "absolute": 0.2}, contrasts=SEVERAL)
    findings = load_findings(tmp_path)
    assert re.fullmatch(
        r"The largest gain is on vs off, absolute: bits per byte lower by 0\.\d+ \(95 % interval .*, 3 seeds\); "
        r"of 3 comparisons 1 better and 2 worse\.",
        headline(findings),
    )
    assert len(answer(findings)) == 3


def test_where_nothing_gains_the_largest_loss_leads(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.5}, contrasts=SEVERAL[:2])
    assert headline(load_findings(tmp_path)).startswith(
        "Nothing gains, and the largest loss is off vs on: bits per byte higher"
    )


def test_where_all_is_open_the_headline_says_how_many_seeds_it_would_take(tmp_path: Path) -> None:
    write_product(tmp_path, {}, contrasts=SEVERAL)
    assert re.fullmatch(
        r"Unresolved: none of 3 comparisons shows a difference; "
        r"the nearest to one, .*, would take (\d+|over 1,000.*) seeds\.",
        headline(load_findings(tmp_path)),
    )


def test_one_seed_gives_no_verdict_and_the_reason(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.5}, seeds=1, contrasts=SEVERAL)
    assert headline(load_findings(tmp_path)) == "No verdict on any of 3 comparisons: one seed: no interval, no verdict."


@pytest.mark.parametrize("count", [1, 12, 30])
def test_the_headline_is_one_short_sentence_with_any_number_of_arms(tmp_path: Path, count: int) -> None:
    levels = [{"mixer": f"m{number}"} for number in range(count + 1)]
    plan: dict[str, Any] = write_plan(tmp_path, levels, design="explicit", factors={})
    for number, arm in enumerate(plan["arms"]):
        for seed in range(3):
            write_run(tmp_path, arm["name"], seed, BYTES * (1 + 0.1 * (number % 3) + 0.001 * seed * (number + 1)))
    findings = load_findings(tmp_path)
    sentence = headline(findings)
    assert len(sentence) < 220 and sentence.count(". ") == 0 and sentence.endswith(".")
    sentences = answer(findings)
    assert len(sentences) == min(count, 9)
    assert count <= 8 or sentences[-1] == f"The table holds {count - 8} more."


def test_without_a_finished_run_the_headline_says_why_and_nothing_follows(tmp_path: Path) -> None:
    write_plan(tmp_path)
    findings = load_findings(tmp_path)
    assert headline(findings) == "No arm finished, so there is no answer yet: not run."
    assert answer(findings) == ()
