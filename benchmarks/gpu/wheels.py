"""A wheelhouse for a machine without a network: the packages that the kit imports and the machine does not have.

    python -m benchmarks.gpu.wheels --to .gpu/wheels [--present LIST] [--limit 16]

``LIST`` names the packages installed there, one a line: ``python -m pip list --format freeze`` on that machine writes
it. The default is ``benchmarks/gpu/present.txt``, as it was read on a machine with Python 3.12.3 and torch 2.11.
Requirements are those of ``pyproject.toml`` and, recursively, of the metadata of these packages, for Python 3.12 on
x86-64 Linux; torch is never among them. On the machine ``python -m benchmarks.gpu --wheels .gpu/wheels`` installs them
into a separate folder.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.gpu import ROOT

PRESENT = Path(__file__).with_name("present.txt")
NOT_NEEDED = {
    "wandb": "the kit sends nothing to Weights & Biases",
    "datasets": "the kit reads no data from the hub",
}
"""Large dependencies that the kit does not use, with the reasons."""
FURTHER = (
    "pytest", "pytest-xdist", "hypothesis", "transformers", "fla-core", "x-transformers", "local-attention",
    "reformer-pytorch", "linformer",
)  # fmt: skip
"""The packages that tests and benchmarks need beyond the dependencies, including the timed peers of mixers."""
TAGS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux_2_12", "manylinux2010")
TARGET = {
    "python_version": "3.12",
    "python_full_version": "3.12.3",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "os_name": "posix",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}
MIB = 2**20


class WheelsError(Exception):
    """A wheelhouse cannot be made; the message names the reason or the remedy."""


def names_in(listing: str) -> set[str]:
    """The canonical names of a list of packages, a name or ``name==version`` a line; comments are skipped."""
    lines = (line.partition("#")[0].strip() for line in listing.splitlines())
    return {canonicalize_name(line.split("==")[0].split(" ")[0]) for line in lines if line}


def project_requirements() -> list[Requirement]:
    """The dependencies in pyproject.toml, and the packages that tests and benchmarks need beyond them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    further = {
        canonicalize_name(Requirement(line).name): line
        for extra in project["optional-dependencies"].values()
        for line in extra
    }
    return [Requirement(line) for line in (*project["dependencies"], *(further.get(name, name) for name in FURTHER))]


def missing(present: Iterable[str]) -> dict[str, str]:
    """The versions, by name, of all packages that are required, directly or indirectly, and not present.

    Raises WheelsError where the package index has no version for the target.
    """
    excluded = {*present, *NOT_NEEDED, "torch"}
    requirements: dict[str, list[Requirement]] = {}
    waiting, versions = project_requirements(), dict[str, str]()
    while waiting:
        updated = set()
        for requirement in waiting:
            name = canonicalize_name(requirement.name)
            if name not in excluded and (requirement.marker is None or requirement.marker.evaluate(TARGET)):
                requirements.setdefault(name, []).append(requirement)
                updated.add(name)
        waiting = []
        for name in sorted(updated):
            metadata = metadata_of(name, requirements[name])
            if versions.get(name) != metadata["version"]:
                versions[name] = metadata["version"]
                waiting += [Requirement(line) for line in metadata.get("requires_dist", ())]
                waiting = [need for need in waiting if "extra" not in str(need.marker)]
    return versions


def metadata_of(name: str, requirements: Iterable[Requirement]) -> Mapping[str, Any]:
    """The metadata of the version that pip selects for all the requirements of one package."""
    specifiers = ",".join(sorted({str(part) for need in requirements for part in need.specifier}))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        further = ["--dry-run", "--ignore-installed", "--report", str(report), "--target", folder]
        try:
            pip("install", *further, *for_target(), f"{name}{specifiers}")
        except WheelsError:  # no wheel for the target: a source distribution, of which a wheel can be built here
            pip("install", *further[:-2], "--no-deps", "--no-build-isolation", f"{name}{specifiers}")
        return json.loads(report.read_text(encoding="utf-8"))["install"][0]["metadata"]


def for_target() -> list[str]:
    """pip's options that select wheels for the target alone."""
    platforms = [word for tag in TAGS for word in ("--platform", f"{tag}_x86_64")]
    return [
        "--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp",
        "--abi", "cp312", "--abi", "abi3", "--abi", "none", *platforms,
    ]  # fmt: skip


def pip(*arguments: str) -> None:
    """Runs pip. Raises WheelsError with the last line of its errors where it fails."""
    command = [sys.executable, "-m", "pip", arguments[0], "--quiet", "--disable-pip-version-check", *arguments[1:]]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or result.stderr.splitlines()
        raise WheelsError(f"pip {arguments[0]} {arguments[-1]}: {(lines or ['no output'])[-1]}")


def download(versions: Mapping[str, str], folder: Path) -> None:
    """Downloads wheels to a folder, which is emptied first. Pure Python packages without a wheel are built.

    Raises WheelsError where a built wheel is not pure Python.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, version in versions.items():
        try:
            pip("download", "--dest", str(folder), *for_target(), f"{name}=={version}")
        except WheelsError:
            pip("wheel", "--no-deps", "--wheel-dir", str(folder), f"{name}=={version}")
    impure = [wheel.name for wheel in folder.glob("*.whl") if wheel.stem.split("-")[-1] == "linux_x86_64"]
    if impure:
        raise WheelsError(f"{impure[0]} was built for this machine's Python alone; install it there, and list it")


def main(
    to: Annotated[Path, typer.Option(help="The folder of the wheelhouse; it is emptied first.")],
    present: Annotated[Path, typer.Option(help="The packages installed there, a name a line.")] = PRESENT,
    limit: Annotated[float, typer.Option(help="Largest size of all wheels together, in MiB.")] = 16,
) -> None:
    """Downloads the packages that the kit imports and the machine does not have."""
    try:
        versions = missing(names_in(present.read_text(encoding="utf-8")))
        download(versions, to)
    except (WheelsError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2) from None
    sizes = {wheel.name: wheel.stat().st_size / MIB for wheel in to.glob("*.whl")}
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        typer.echo(f"{sizes[name]:8.2f} MiB  {name}")
    typer.echo(f"{sum(sizes.values()):8.2f} MiB  in {len(sizes)} wheels")
    if sum(sizes.values()) > limit:
        typer.echo(
            f"error: more than {limit} MiB; list the packages installed there with --present, or raise --limit",
            err=True,
        )
        raise SystemExit(2)


if __name__ == "__main__":
    typer.run(main)
