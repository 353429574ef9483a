"""A claim: a number in the text, the commands that measure it, and the file that holds what they said.

A results file names its commands, the commit and hardware they ran on, and a hash of the code and configs on their
path. A claim whose code has changed since is older than the code, and is to be measured again before anybody repeats
it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lit_transformers.code import code_hash
from lit_transformers.config import Plain, canonical_hash
from lit_transformers.files import write_json
from lit_transformers.record import environment
from lit_transformers.run import RunConfig
from lit_transformers.training import TrainingConfig

__all__ = ["RESULTS", "ROOT", "Claim", "ClaimError", "current_commit", "values_of"]

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_name("results")
PACKAGES = ("lit_transformers", "datamodules", "ablations", "reports", "benchmarks", "claims")
WRITTEN = ("claims/results", "README.md", "docs", "reports/published")
"""What measuring changes, and no result depends on."""


class ClaimError(ValueError):
    """A claim that is not known, was not measured, or cannot be measured now; one line."""


@dataclass(frozen=True)
class Claim:
    """Numbers that are measured together.

    commands: lines for a shell, from the root of a checkout; ``{folder}`` is where they may write. measure: runs them
    in such a folder and returns the values by name, numbers or text. configs: of the runs whose code matters; roots:
    further modules whose code matters. minutes: about how long it takes on two cores.
    """

    name: str
    commands: tuple[str, ...]
    measure: Callable[[Path, tuple[str, ...]], dict[str, Plain]]
    configs: Callable[[], list[RunConfig]]
    roots: tuple[str, ...] = ()
    minutes: float = 1.0
    results: Path = RESULTS

    @property
    def path(self) -> Path:
        """The file of results."""
        return self.results / f"{self.name}.json"

    def code(self) -> str:
        """A hash of its configs and of the code on its path, as they are now."""
        roots = ("lit_transformers.run", *self.roots)
        return canonical_hash([[config.to_dict(), code_hash(config, roots, PACKAGES)] for config in self.configs()])

    def read(self) -> dict[str, Plain] | None:
        """What was measured last; None where nothing was."""
        try:
            plain: dict[str, Plain] = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return plain

    def is_older_than_code(self) -> bool:
        """Whether the code on its path has changed since it was measured, or nothing was measured."""
        result = self.read()
        return result is None or result["code"] != self.code()

    def measure_and_write(self, folder: Path) -> dict[str, Plain]:
        """Measures, and replaces the file of results when all of it has been measured.

        Raises ClaimError where the checkout has changes that no commit names, or a command fails.
        """
        commit, code = current_commit(), self.code()
        folder.mkdir(parents=True, exist_ok=True)
        values = self.measure(folder, self.commands)
        surroundings = environment(TrainingConfig(), code)
        result: dict[str, Plain] = {
            "claim": self.name,
            "commands": [command.format(folder="FOLDER") for command in self.commands],
            "commit": commit,
            "code": code,
            "date": datetime.now(UTC).date().isoformat(),
            "environment": {name: surroundings[name] for name in ("python", "torch", "lightning", "hardware")},
            "values": values,
        }
        write_json(self.path, result)
        return result


def current_commit() -> str:
    """The commit that is checked out. Raises ClaimError where files that results depend on differ from it."""
    excluded = [f":(exclude){path}" for path in WRITTEN]
    changed = _git("status", "--porcelain", "--", ".", *excluded)
    if changed:
        first = changed.splitlines()[0][3:]
        raise ClaimError(f"{first} differs from the commit that a result would name; commit first, then measure")
    return _git("rev-parse", "--short=12", "HEAD").strip()


def _git(*words: str) -> str:
    try:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise ClaimError(f"claims are measured in a git checkout: git {words[0]} failed ({error})") from None


def values_of(claims: Mapping[str, Claim]) -> dict[str, Plain]:
    """Every measured value by ``claim.value``; ``claim.commit`` and ``claim.date`` of the measurement, too."""
    values: dict[str, Plain] = {}
    for name, claim in claims.items():
        result = claim.read()
        if result is not None:
            about = {key: result[key] for key in ("commit", "date")} | {"hardware": result["environment"]["hardware"]}
            values |= {f"{name}.{key}": value for key, value in (about | result["values"]).items()}
    return values
