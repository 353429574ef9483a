"""A wheelhouse for a machine without a network: what the kit imports and the machine does not have.

    python -m benchmarks.gpu.wheels --to .gpu/wheels [--present LIST] [--limit 18]

``LIST`` names what is installed there, a name a line: ``python -m pip list --format freeze`` on that machine writes it.
Without one, ``benchmarks/gpu/present.txt`` is taken, which is a common PyTorch image. Requirements are those of
``pyproject.toml`` with what their own metadata asks for, for Python 3.12 on x86-64 Linux; torch is never among them.
On the machine ``python -m benchmarks.gpu --wheels .gpu/wheels`` installs them into a folder of its own.
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

from benchmarks.gpu.runner import ROOT

PRESENT = Path(__file__).with_name("present.txt")
NOT_NEEDED = {
    "wandb": "the kit mirrors nothing",
    "datasets": "the kit reads no data from the hub",
}
"""Dependencies that are only imported by what the kit does not do, and are large."""
FURTHER = (
    "pytest", "pytest-xdist", "hypothesis", "transformers", "fla-core", "x-transformers", "local-attention",
    "reformer-pytorch", "linformer",
)  # fmt: skip
"""What the tests and the benchmarks need beyond the dependencies: the peers that a mixer is timed beside among it."""
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
    """A wheelhouse that cannot be made, with what to do about it."""


def names_in(listing: str) -> set[str]:
    """The canonical names of a list of packages, a name or ``name==version`` a line; comments are skipped."""
    lines = (line.partition("#")[0].strip() for line in listing.splitlines())
    return {canonicalize_name(line.split("==")[0].split(" ")[0]) for line in lines if line}


def project_requirements() -> list[Requirement]:
    """What the kit imports, by pyproject.toml, and what its tests and benchmarks need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    further = {
        canonicalize_name(Requirement(line).name): line
        for extra in project["optional-dependencies"].values()
        for line in extra
    }
    return [Requirement(line) for line in (*project["dependencies"], *(further.get(name, name) for name in FURTHER))]


def missing(present: Iterable[str]) -> dict[str, str]:
    """The versions, by name, of every package that is required, directly or not, and not present.

    Raises WheelsError where the package index has no version for the target.
    """
    absent = {*present, *NOT_NEEDED, "torch"}
    wanted: dict[str, list[Requirement]] = {}
    waiting, versions = project_requirements(), dict[str, str]()
    while waiting:
        fresh = set()
        for requirement in waiting:
            name = canonicalize_name(requirement.name)
            if name not in absent and (requirement.marker is None or requirement.marker.evaluate(TARGET)):
                wanted.setdefault(name, []).append(requirement)
                fresh.add(name)
        waiting = []
        for name in sorted(fresh):
            metadata = metadata_of(name, wanted[name])
            if versions.get(name) != metadata["version"]:
                versions[name] = metadata["version"]
                waiting += [Requirement(line) for line in metadata.get("requires_dist", ())]
                waiting = [need for need in waiting if "extra" not in str(need.marker)]
    return versions


def metadata_of(name: str, requirements: Iterable[Requirement]) -> Mapping[str, Any]:
    """The metadata of the version that pip takes for all the requirements of one package."""
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
    """pip's options for wheels of the target alone."""
    platforms = [word for tag in TAGS for word in ("--platform", f"{tag}_x86_64")]
    return [
        "--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp",
        "--abi", "cp312", "--abi", "abi3", "--abi", "none", *platforms,
    ]  # fmt: skip


def pip(*arguments: str) -> None:
    """Runs pip. Raises WheelsError with its last line where it fails."""
    command = [sys.executable, "-m", "pip", arguments[0], "--quiet", "--disable-pip-version-check", *arguments[1:]]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise WheelsError(f"pip {arguments[0]} {arguments[-1]}: {(lines or ['no output'])[-1]}")


def download(versions: Mapping[str, str], folder: Path) -> None:
    """The wheels into an empty folder; those that exist as sources alone are built, where they are pure Python."""
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
    present: Annotated[Path, typer.Option(help="What is installed there, a name a line.")] = PRESENT,
    limit: Annotated[float, typer.Option(help="Largest size of all wheels together, in MiB.")] = 18,
) -> None:
    """Downloads what the kit imports and the machine does not have."""
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
        typer.echo(f"error: more than {limit} MiB; list what is installed there, or give --limit", err=True)
        raise SystemExit(2)


if __name__ == "__main__":
    typer.run(main)
