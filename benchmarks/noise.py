"""Seconds until a difference as large as the margin is decided, by the variances and times of a study's pairs of arms.

    python -m ablations run examples/less_noise.py --scale lags
    python -m benchmarks.noise RUNS/studies/less_noise--lags/report/results.jsonl

A contrast of two arms needs the more seeds the more its paired differences vary, and pays for each with the training
and measuring of both. A change that makes runs vary less is worth its time where the product of the two shrinks.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.hardware import JSON_HELP, save
from reports import ReportError
from reports.judge.comparisons import Comparison, compare
from reports.judge.fairness import cost_of
from reports.read.results import read_results
from reports.read.study import Study


def measure(study: Study) -> dict[str, Any]:
    """Returns the study, its margin, and a row for each contrast that has an interval. Raises ValueError for a study
    without a margin."""
    plan = study.plan
    if plan.metric.margin is None:
        raise ValueError(f"{plan.study} states no margin, so no difference is known to matter")
    margin = plan.metric.margin.size
    comparisons = [one for one in compare(study, []) if one.kind == "contrast"]
    rows = [row(study, one, margin) for one in comparisons if one.estimate and one.estimate.variances]
    return {
        "study": plan.folder,
        "question": plan.question,
        "metric": plan.metric.label,
        "margin": margin,
        "contrasts": rows,
    }


def row(study: Study, comparison: Comparison, margin: float) -> dict[str, Any]:
    """Returns the spread, time and need of seeds of one contrast; ``seeds`` and ``seconds_to_decide`` are None where a
    thousand seeds do not detect the margin with a power of 0.8 and an error of 5 %."""
    assert comparison.estimate is not None and comparison.estimate.variances is not None
    variances = comparison.estimate.variances
    pair = sum(seconds(study, arm) for arm in comparison.weights)
    seeds = variances.seeds_needed(margin)
    of_seeds = variances.seed / variances.seeds
    return {
        "contrast": comparison.name,
        "difference": comparison.estimate.difference,
        "deviation": variances.seed**0.5,
        "share_of_documents": variances.document / (variances.document + of_seeds),
        "seconds_of_a_pair": pair,
        "seeds": seeds,
        "seconds_to_decide": seeds and seeds * pair,
    }


def seconds(study: Study, arm: str) -> float:
    """Returns the median of the seconds that the finished runs of an arm took, training and measuring."""
    costs = (cost_of(run, "seconds") for run in study.finished(arm))
    return statistics.median(cost for cost in costs if cost is not None)


def main(
    results: Annotated[list[Path], typer.Argument(help="results.jsonl of reports.", exists=True, dir_okay=False)],
    json: Annotated[str | None, typer.Option(help=JSON_HELP)] = None,
) -> None:
    """Prints for each contrast its spread over seeds, and the time until its margin would be decided."""
    studies = []
    for path in results:
        try:
            study = measure(read_results(path))
        except (ReportError, ValueError) as error:
            raise typer.BadParameter(f"{path}: {error}", param_hint="RESULTS") from None
        studies.append(study)
        title = f"{study['study']}: until {study['margin']:g} {study['metric']} are decided"
        table = Table("contrast", "deviation", "of documents", "a pair", "seeds", "seconds", title=title)
        for one in study["contrasts"]:
            need = ("over 1,000", "-") if one["seeds"] is None else (one["seeds"], f"{one['seconds_to_decide']:,.0f}")
            spread = (f"{one['deviation']:.4f}", f"{one['share_of_documents']:.0%}")
            table.add_row(one["contrast"], *spread, f"{one['seconds_of_a_pair']:.0f} s", *map(str, need))
        Console().print(table)
    if json:
        save(json, {"studies": studies})


if __name__ == "__main__":
    typer.run(main)
