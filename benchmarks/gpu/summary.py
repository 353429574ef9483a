"""The report of a call of the kit at its end: every job with its outcome and its most important numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table

from benchmarks.gpu.goals import Goal, goals
from benchmarks.gpu.job import PARTS, KitJob
from benchmarks.gpu.job_queue import JobAttempt

__all__ = ["headline", "markdown", "table_of", "table_of_goals"]


def headline(attempt: JobAttempt) -> str:
    """The most important numbers of an attempt. One without a result has the last line of its output instead."""
    if attempt.result is not None and (summarise := HEADLINES.get(attempt.part)):
        return summarise(attempt.result)
    return attempt.tail[-1] if attempt.tail and attempt.outcome != "finished" else ""


def tests(result: Mapping[str, Any]) -> str:
    """How many tests passed, failed and were skipped."""
    return ", ".join(f"{count:,} {outcome}" for outcome, count in result["outcomes"].items()) or "no test was selected"


def transformer_xl(result: Mapping[str, Any]) -> str:
    """Speed, next to NVIDIA's published one; before it is timed, whether the mode agrees with eager."""
    if "tokens_per_second" not in result:
        return "agrees with eager, not timed" if result.get("check", {}).get("agrees") else "not timed"
    speed, published = result["tokens_per_second"], result["published_tokens_per_second"]
    parts = [f"{speed:,.0f} tokens a second, {speed / published:.2f} times NVIDIA's A100"]
    if result.get("peak_tflops"):
        parts.append(f"{speed * result['flops_per_token'] / result['peak_tflops'] / 1e12:.1%} of the device's peak")
    if "masked" in result:
        parts.append(f"{result['masked']['tokens_per_second']:,.0f} with a mask")
    return "; ".join(parts)


def environment(result: Mapping[str, Any]) -> str:
    """How often each kernel of attention was chosen."""
    counts = Counter(row["kernel"] for row in result["choices"])
    return "attention by " + ", ".join(f"{name} ({count})" for name, count in counts.most_common())


def values(result: Mapping[str, Any]) -> str:
    """How many comparisons agree, and which do not."""
    rows = result["rows"]
    others = [
        f"{row['kind']} {row['mode']} {row['precision']}{' masked' if row['masked'] else ''}"
        for row in rows
        if not row["agrees"]
    ]
    return f"{len(rows) - len(others)} of {len(rows)} agree" + (f"; not {', '.join(others)}" if others else "")


def layer(result: Mapping[str, Any]) -> str:
    """Milliseconds of every layer at every length, each mixer before its peers."""
    rows = [row for row in result["rows"] if row["milliseconds"]]
    cells = (
        f"{row['length']:,}: "
        + ", ".join(f"{name} {milliseconds:.1f}" for name, milliseconds in row["milliseconds"].items())
        for row in rows
    )
    return "; ".join(cells) + (" ms" if rows else "nothing was measured")


def resumed(result: Mapping[str, Any]) -> str:
    """Whether a run was killed and ended, and how far its loss fell."""
    if "last_loss" not in result:
        return "did not end"
    speed, kernels = result["tokens_per_second"], result["environment"].get("attention", "none")
    losses = f"loss from {result['first_loss']:.2f} to {result['last_loss']:.2f}"
    return f"{losses}; {speed:,.0f} tokens a second; attention by {kernels}"


def shared(result: Mapping[str, Any]) -> str:
    """Tokens a second of one run and of two, the memory of a run, and their ratio."""
    parts = []
    for name, group in result.items():
        if name != "ratio" and group["tokens_per_second"] is not None:
            peak = max(run["peak_memory_bytes"] for run in group["runs"])
            parts.append(f"{name}: {group['tokens_per_second']:,.0f} tokens a second, {peak / 2**30:.2f} GiB a run")
    return "; ".join([*parts, *([f"{result['ratio']:.2f} times"] if "ratio" in result else [])])


def study(result: Mapping[str, Any]) -> str:
    """How many runs are finished, how fast one trains, which failed, and the first finding."""
    speed = result["tokens_per_second_of_a_run"]
    parts = [f"{result['finished']} of {result['runs']} runs"]
    parts += [f"{speed:,.0f} tokens a second each, {result['workers']} at a time"] if speed else []
    parts += [f"failed: {'; '.join(result['failed'])}"] if result["failed"] else []
    return "; ".join([*parts, *result["findings"][:1]])


def throughput(result: Mapping[str, Any]) -> str:
    """Ratios of ours to a peer, or to a bare loop."""
    if "found" in result:
        rows = result["found"].items()
        return "; ".join(f"{name} {row['ours']:,.0f} tokens a second, {row['ratio']:.2f} times" for name, row in rows)
    return "; ".join(f"{row['case']}: {row['overhead']:.1%} over a bare loop" for row in result["cases"])


HEADLINES: Mapping[str, Callable[[Any], str]] = {
    "a": environment, "b": values, "c": tests, "d": resumed, "e": transformer_xl, "f": layer, "g": shared, "h": tests,
    "i": transformer_xl, "j": layer, "k": study, "l": tests, "m": throughput, "n": study,
}  # fmt: skip


def rows_of(jobs: Sequence[KitJob], last: Mapping[str, JobAttempt]) -> list[tuple[str, str, str, str, str]]:
    """Part, job, outcome, seconds and headline, in the order of the jobs."""
    rows = []
    for job in jobs:
        attempt = last.get(job.name)
        if attempt is None:
            rows.append((job.part, job.name, "waits", f"about {job.seconds:.0f}", ""))
        else:
            rows.append((job.part, job.name, attempt.outcome, f"{attempt.seconds:.0f}", headline(attempt)))
    return rows


def table_of(jobs: Sequence[KitJob], last: Mapping[str, JobAttempt]) -> Table:
    """The jobs and their outcomes as a table for a terminal."""
    table = Table("part", "job", "outcome", "seconds", "measured")
    for row in rows_of(jobs, last):
        table.add_row(*row)
    return table


def table_of_goals(reached: Sequence[Goal]) -> Table:
    """The goals and whether they are met, as a table for a terminal."""
    table = Table("goal", "measured", "verdict")
    for goal in reached:
        table.add_row(goal.text, goal.measured, goal.verdict)
    return table


def markdown(jobs: Sequence[KitJob], last: Mapping[str, JobAttempt], machine: Mapping[str, Any]) -> str:
    """The machine, the goals, and a table for every part, as Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in machine.get("versions", {}).items())
    lines = ["# Measurements of the kit", "", f"{machine.get('gpu') or machine.get('processor')}; {versions}", ""]
    lines += ["| goal | measured | verdict |", "| --- | --- | --- |"]
    lines += [f"| {goal.text} | {goal.measured} | {goal.verdict} |" for goal in goals(last, machine)] + [""]
    rows = rows_of(jobs, last)
    for part, title in PARTS.items():
        part_rows = [row[1:] for row in rows if row[0] == part]
        if part_rows:
            lines += [f"## {part}: {title}", "", "| job | outcome | seconds | measured |", "| --- | --- | ---: | --- |"]
            lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in part_rows] + [""]
    return "\n".join(lines)
