"""Writes a study whose names are all attacks: markup, control characters, bidirectional text, great length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from study_on_disk import BYTES, write_curve, write_json, write_plan, write_run

ATTACK = "<script>window.broken=1</script><img src=x onerror=window.broken=2>"
NAMES = (
    "plain",
    ATTACK,
    '"\' onmouseover="window.broken=3" x=\'</title></style></script><!--',
    "a-very-long-name-" + "x" * 300,
    "זרוע עם זיכרון ‮ RTL",
    "🧪🔬 ablation 👩🏽‍🔬",
    "control \x00\x01\x1b characters & &amp; ]]>",
)


def write_hostile(runs: Path) -> None:
    """Writes three seeds of an arm for each of NAMES; the first is the baseline, and the last one has failed."""
    arms = [{"arm": name} for name in NAMES]
    plan = write_plan(
        runs,
        arms,
        question=f"Does {ATTACK} help?",
        source={"title": ATTACK, "arxiv": '"><script>window.broken=4</script>', "table": ATTACK},
        metric={"name": "val/bpb", "goal": "minimize", "label": f"bits {ATTACK}"},
        protocol=ATTACK,
        factors={"arm": list(NAMES)},
        design="explicit",
        commands={ATTACK: ATTACK},
        left_out=[{"arm": ATTACK, "reason": ATTACK}],
        published={
            "protocol": ATTACK,
            "metric": ATTACK,
            "cells": [{"arm": ATTACK, "value": 1.0, "note": ATTACK}],
            "claims": [ATTACK],
        },
    )
    for number, arm in enumerate(plan["arms"]):
        for seed, run in enumerate(arm["runs"]):
            run["key"] = f"arm{number}-{seed}"
            write_one(runs, run["key"], seed, number)
    write_json(runs / "studies" / plan["study"] / "plan.json", plan)


def write_one(runs: Path, key: str, seed: int, number: int) -> None:
    """Writes one run of arm ``number`` in the folder named ``key``."""
    failed = {"outcome": "failed", "reason": ATTACK} if number == len(NAMES) - 1 else {}
    observed: dict[str, Any] = {
        "tokens": 4,
        "parts": [
            {"part": ATTACK, "values": {ATTACK: [1.0, 2.0]}, "maps": [{"side": 2, "peak": 0.5, "levels": "AAB/"}]},
            {"part": ATTACK, "maps": [{"side": 2, "peak": 0.5, "levels": "AAB//w=="}]},
        ],
    }
    write_run(runs, f"arm{number}", seed, BYTES * (2 + 0.1 * number + 0.01 * seed), **failed)
    write_curve(runs, f"arm{number}", seed, 2 + 0.1 * number)
    path = runs / key / "record.json"
    record = json.loads(path.read_text())
    record["config"] = {"model": {ATTACK: ATTACK if number else "plain"}}
    record["gates"] = [{"name": ATTACK, "passed": False, "detail": ATTACK}]
    record["environment"] = {"torch": ATTACK, "hardware": ATTACK}
    record["cost"]["flops_per_token"] *= 1 + number
    record["observed"] = observed | {"flops_by_length": [[n, n * (1 + number)] for n in (32, 64, 128)]}
    write_json(path, record)
