"""On a ghost of a GPU (``tests/ghost``) the suite has the pinned results: devices, dtypes, gradients, waits of the
host for the device, kernels, graphs. Planted faults are reported. Skipped where there is no environment of the ghost.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ghost import __main__ as ghost
from tests.ghost import build as building
from tests.ghost.__main__ import Result, differences, record, sweep
from tests.ghost.build import NoGhostError, build, environment, install


@pytest.fixture(scope="module")
def _there(tmp_path_factory: pytest.TempPathFactory) -> None:
    try:
        build(environment(), tmp_path_factory.mktemp("ghost"))
    except NoGhostError as error:
        pytest.skip(str(error))


REPORTED = {
    "no fault": "y=bfloat16 state=- grads=all waits=0",
    "a tensor on the host": "y=bfloat16@cpu state=- grads=all waits=forward:1!,backward:1!,evaluate:1!",
    "a value read by the host": "y=bfloat16 state=- grads=all waits=forward:1!,evaluate:1!",
    "a wide dtype": "y=float64 state=- grads=all waits=0",
    "no gradient": "y=float32 state=- grads=none:map.weight waits=0",
    "tensors of two devices": "error=RuntimeError: Expected all tensors to be on the same device, but found at least "
    "two devices, cuda:0 and cpu!",
    "a mask": "y=bfloat16 state=- grads=all waits=forward:2!,backward:2!,evaluate:2!",
    "compiled no fault": "graphs=1,1,1,1 breaks=0 grads=all",
    "compiled a graph break": "graphs=1,1,1,1 breaks=2 grads=all",
    "compiled a recompilation": "graphs=1,2,3,4 breaks=0 grads=all",
}
"""The ghost's report about each planted fault (``tests/ghost/faults.py``)."""


@pytest.mark.slow
@pytest.mark.usefixtures("_there")
def test_planted_faults_are_reported() -> None:
    results = {result.name: result for result in sweep("--faults")}
    assert {name: result.text for name, result in results.items()} == REPORTED
    assert any("faults.py" in place and ".item()" in place for place in results["a value read by the host"].places)


@pytest.mark.slow
@pytest.mark.usefixtures("_there")
@pytest.mark.parametrize("cases", ["^mixer [a-l]", "^mixer [m-z]", "^task", "^(compile|kernels|run)"])
def test_a_few_cases_of_each_part_are_as_expected(cases: str) -> None:
    results = sweep("--quick", "--only", cases)
    lines = differences(results, whole=False)
    assert results and not lines, "\n".join(lines)


def test_what_is_expected_is_compared_and_recorded_case_by_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ghost, "EXPECTED", tmp_path / "expected.txt")
    record([Result("b", "y=1", []), Result("a", "y=2: of 3", [])], whole=True)
    assert (tmp_path / "expected.txt").read_text() == "a: y=2: of 3\nb: y=1\n"
    assert differences([Result("a", "y=2: of 3", [])], whole=False) == []
    assert differences([Result("a", "y=4", ["1 x forward f.py"])], whole=True) == [
        "- a: y=2: of 3", "+ a: y=4", "    1 x forward f.py", "- b: y=1",
    ]  # fmt: skip
    assert differences([Result("c", "y=1", [])], whole=False) == ["+ c: y=1"]
    record([Result("b", "y=5", [])], whole=False)
    assert (tmp_path / "expected.txt").read_text() == "a: y=2: of 3\nb: y=5\n"


def test_without_its_python_the_environment_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.delenv("LIT_GHOST", raising=False)
    monkeypatch.setattr(building, "FOLDER", tmp_path / "ghost")
    for python in (str(tmp_path / "absent"), str(shim)):
        monkeypatch.setattr(building, "PYTHON", python)
        with pytest.raises(
            NoGhostError, match=r"does not run here: install it, or name an environment .* by LIT_GHOST"
        ):
            install()
    assert not (tmp_path / "ghost").exists()
