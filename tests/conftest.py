"""Settings of every test: one thread each, since tests run side by side; no example is timed; the stand-in of
the library's runner (``tests/standin``) importable here and in the processes that tests start; no garbage collection
of objects that exist before the tests."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # NumPy and torch read it when they are imported

import gc
import logging
import warnings

gc.disable()  # until all tests are collected

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

TESTS = Path(__file__).resolve().parent
for folder in (str(TESTS.parent), str(TESTS)):
    if folder not in sys.path:
        sys.path.insert(0, folder)
os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
import numerics
import sitecustomize  # noqa: F401
from services.wandb_api import KEY, Recorded, wandb_api
from warm_python import warm_python

from lit_transformers import plugins, trust

settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")
torch.set_num_threads(1)  # of fixtures too, which are older than the first test
pytest_addoption, pytest_configure = numerics.add_options, numerics.configure
for absent in (backend for backend in (torch.cuda, torch.xpu, torch.mtia) if not backend.is_available()):
    # torch.manual_seed writes down the whole stack for each kind of device that is not there: some milliseconds.
    absent.manual_seed_all = lambda seed: None


LONG = (TESTS, *(TESTS / name for name in ("sweeps", "reliability", "benchmarks", "ablations", "serving")))
"""The folders of tests that take many seconds each, since they start commands."""
QUICK_CASES = 5
"""The most cases of one test that are quick, unless its own marks say which are."""


def mark_further_cases_slow(items: list[pytest.Item]) -> None:
    """Marks as slow all but a few cases, evenly spread, of every test that has many and marks none itself."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        if len(cases) > QUICK_CASES and not any(case.get_closest_marker("slow") for case in cases):
            quick = {number * len(cases) // QUICK_CASES for number in range(QUICK_CASES)}
            for number in set(range(len(cases))) - quick:
                cases[number].add_marker(pytest.mark.slow)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_further_cases_slow(items)
    # Workers take tests from the ends of each other's lists: those at the beginning remain together, and short ones at
    # the end let all workers end together.
    items.sort(key=lambda item: (item.get_closest_marker("first") is None, item.path.parent not in LONG))
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    selected, others = numerics.of_any_device(items)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = selected


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _nothing_remembered(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))  # and nothing of tests, later


@pytest.fixture(scope="session")
def python() -> Iterator[Path]:
    """A ``python`` whose processes, and the processes that they start with it, have imported torch and Lightning."""
    with warm_python() as folder:
        yield folder / "python"


@pytest.fixture
def wandb_server(tmp_path: Path) -> Iterator[Recorded]:
    """A stand-in of W&B that records all requests; wandb is logged in to it, here and in processes that tests start."""
    from wandb_logins import logged_out

    with wandb_api(tmp_path / "wandb_api") as recorded, logged_out(tmp_path) as patch:
        patch.setenv("WANDB_BASE_URL", recorded.address)
        patch.setenv("WANDB_API_KEY", KEY)
        yield recorded


@pytest.fixture(autouse=True)
def _logging_freed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Frees the lock of logging if a test was interrupted while it held it: other threads would wait for ever."""
    yield
    while logging._lock._is_owned():  # type: ignore[attr-defined]
        logging._lock.release()  # type: ignore[attr-defined]
        warnings.warn(f"{request.node.nodeid} left the lock of logging taken", stacklevel=1)


@pytest.fixture(autouse=True)
def _environment_restored() -> Iterator[None]:
    """A command that a test calls writes to the environment which plug-ins are read, and which modules are trusted."""
    before = {name: os.environ.get(name) for name in (plugins.VARIABLE, plugins.READING, trust.VARIABLE)}
    yield
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _on_the_device_asked_for(request: pytest.FixtureRequest) -> Iterator[None]:
    with numerics.numerics(request.node.get_closest_marker("any_device") is not None):
        yield
