"""All claims by name. A new claim needs an entry here and its marks in the text."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from rich.console import Console

from ablations import catalog
from claims import error_rates, starting_weights
from claims.canaries import CANARIES, intervals
from claims.claim import ROOT, Claim
from claims.shell import metrics_in, run_line
from docs.pictures import STUDY
from lit_transformers.config import Plain
from lit_transformers.records.files import RESULTS
from lit_transformers.runs import RunConfig
from reports.read.results import read_results
from reports.report import find, print_report

__all__ = ["CLAIMS"]

EXAMPLE = ROOT / "examples" / "multi30k.yaml"


def _demo_configs() -> list[RunConfig]:
    """Returns the configs of the demo's runs."""
    ablation = catalog.load(catalog.find(STUDY))
    configs = ablation.resolve("demo", {}).configs.values()
    return [config for config in configs if isinstance(config, RunConfig)]


def _measure_demo(folder: Path, commands: tuple[str, ...]) -> dict[str, Plain]:
    """Runs the demo; returns the screen with which it ends at 80 columns."""
    for command in commands:
        run_line(command, folder)
    findings = find(read_results(folder / "studies" / STUDY / "report" / RESULTS))
    console = Console(width=80, file=StringIO())
    print_report(findings, console)
    assert isinstance(console.file, StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().rstrip().splitlines()]
    return {"table": "\n".join(["```", *lines, "```"])}


def _measure_multi30k(folder: Path, commands: tuple[str, ...]) -> dict[str, Plain]:
    """Trains and evaluates; returns BLEU on the validation split and on test2016, and the number of training steps."""
    train, test = commands
    return {
        "validation_bleu": metrics_in(run_line(train, folder))["val/bleu"],
        "test_bleu": metrics_in(run_line(test, folder))["val/bleu"],
        "steps": RunConfig.from_yaml(EXAMPLE).training.steps,
    }


CLAIMS = {
    claim.name: claim
    for claim in (
        Claim(
            "demo",
            (f"python -m ablations run {STUDY} --runs {{folder}}",),
            _measure_demo,
            _demo_configs,
            (f"ablations.studies.{STUDY}", "reports.judge.comparisons"),
            minutes=5,
        ),
        Claim(
            "multi30k",
            (
                "python -m lit_transformers fit examples/multi30k.yaml --to {folder}/multi30k",
                "python -m lit_transformers evaluate {folder}/multi30k/checkpoint.ckpt"
                " --set data.evaluation.split=test",
            ),
            _measure_multi30k,
            lambda: [RunConfig.from_yaml(EXAMPLE)],
            minutes=40,
        ),
        Claim(
            "canaries",
            ("python -m claims measure canaries",),
            lambda folder, commands: intervals(folder),
            lambda: [canary.config for canary in CANARIES.values()],
            ("claims.canaries",),
            minutes=5,
        ),
        Claim(
            "starting_weights",
            ("python -m claims measure starting_weights",),
            lambda folder, commands: starting_weights.compared(folder),
            starting_weights.configs,
            ("claims.starting_weights",),
            minutes=45,
        ),
        Claim(
            "error_rates",
            ("python -m claims measure error_rates",),
            lambda folder, commands: error_rates.measured(),
            lambda: _demo_configs()[:1],
            ("claims.error_rates", "reports.judge.comparisons"),
            minutes=5,
        ),
    )
}
