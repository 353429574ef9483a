"""Writes a study to disk as the runs of one would leave it, from numbers that a test chooses."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

BYTES = np.array([400.0, 1000.0, 2500.0, 700.0, 1200.0, 900.0, 1800.0, 600.0, 3100.0, 1500.0])

FACTORS = {"recurrence": ["on", "off"], "positions": ["relative", "absolute"]}


def product_arms() -> list[dict[str, str]]:
    return [{"recurrence": r, "positions": p} for r in FACTORS["recurrence"] for p in FACTORS["positions"]]


def name_of(levels: Mapping[str, str]) -> str:
    return " ".join(f"{factor}={level}" for factor, level in levels.items())


def key_of(arm: str, seed: int) -> str:
    return f"{arm}-{seed}".replace(" ", "_").replace("=", "-").replace("/", "-")


def write_plan(
    runs: Path, arms: Sequence[Mapping[str, str]] | None = None, seeds: int = 3, **changes: Any
) -> dict[str, Any]:
    levels = [dict(arm) for arm in (arms or product_arms())]
    plan: dict[str, Any] = {
        "version": 1,
        "study": "xl_recurrence",
        "scale": "demo",
        "question": "Does segment recurrence help, and does it need relative positions?",
        "source": {"title": "Dai et al. 2019", "arxiv": "1901.02860", "table": "6"},
        "metric": {"name": "val/bpb", "goal": "minimize", "label": "bits per byte"},
        "design": "product",
        "factors": FACTORS,
        "baseline": name_of(levels[0]),
        "match": None,
        "arms": [
            {
                "name": name_of(arm),
                "levels": arm,
                "runs": [{"seed": seed, "key": key_of(name_of(arm), seed)} for seed in range(seeds)],
            }
            for arm in levels
        ],
        "protocol": "standard library, bytes, segment 32, memory 32",
        "left_out": [],
        "commands": {"run": "python -m ablations run xl_recurrence --scale demo"},
    } | changes
    write_json(runs / "studies" / plan["study"] / "plan.json", plan)
    return plan


def write_run(
    runs: Path, arm: str, seed: int, nats: Sequence[float] | np.ndarray[Any, Any], **changes: Any
) -> dict[str, Any]:
    """Writes a finished run whose documents lose ``nats``; its metric is the ratio of the sums of nats and bytes."""
    directory = runs / key_of(arm, seed)
    sums = np.asarray(nats, dtype=np.float64)
    record: dict[str, Any] = {
        "version": 1,
        "key": directory.name,
        "outcome": "finished",
        "reason": None,
        "seed": seed,
        "config": {},
        "data": {"name": "stdlib", "fingerprint": "f00d"},
        "metrics": {
            "val/bpb": float(sums.sum() / BYTES.sum() / math.log(2)),
            "val/nats": float(sums.sum() / BYTES.sum()),
        },
        "protocol": {"segment_length": 32, "memory": 32},
        "cost": {"parameters": 120_000, "flops_per_token": 7.2e5, "tokens": 1_500_000, "state_bytes": 24_576},
        "gates": [],
        "environment": {"torch": "2.13.0", "hardware": "2 CPU cores", "library": "abc"},
        "measured": {"seconds": 50.0 + seed, "peak_memory_bytes": 3.2e8, "tokens_per_second": 30_000.0},
    } | changes
    write_json(directory / "record.json", record)
    write_rows(directory / "documents.csv", ["document", "name", "nats", "tokens", "bytes"], _documents(sums))
    return record


def _documents(sums: np.ndarray[Any, Any]) -> list[list[Any]]:
    return [[i, f"module{i}.py", repr(float(n)), b, b] for i, (n, b) in enumerate(zip(sums, BYTES, strict=True))]


def write_curve(runs: Path, arm: str, seed: int, end: float) -> None:
    """Writes a learning curve that falls from 8 to ``end`` bits per byte, and a noisy training loss."""
    generator = np.random.default_rng(seed)
    rows: list[list[Any]] = []
    for step in range(1, 501):
        tokens, level = step * 1024, end + (8 - end) * math.exp(-step / 60)
        rows.append([step, tokens, "train/loss", level * math.log(2) + generator.normal(0, 0.05)])
        if step % 50 == 0:
            rows.append([step, tokens, "val/bpb", level + 0.02 * seed])
    write_rows(runs / key_of(arm, seed) / "metrics.csv", ["step", "tokens", "name", "value"], rows)


def write_product(
    runs: Path, effects: Mapping[str, float], seeds: int = 3, noise: float = 0.01, **changes: Any
) -> dict[str, Any]:
    """Writes a study of two by two factors; each level in ``effects`` adds that many bits per byte to 2.5."""
    plan = write_plan(runs, seeds=seeds, **changes)
    generator = np.random.default_rng(7)
    per_document = generator.normal(0, 0.2, len(BYTES))
    for arm in plan["arms"]:
        total = 2.5 + sum(effects.get(level, 0.0) for level in arm["levels"].values())
        for seed in range(seeds):
            bits = total + per_document + generator.normal(0, noise) + generator.normal(0, noise, len(BYTES))
            write_run(runs, arm["name"], seed, bits * BYTES * math.log(2))
            write_curve(runs, arm["name"], seed, total)
    return plan


def write_json(path: Path, plain: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(plain), encoding="utf-8")


def write_rows(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
