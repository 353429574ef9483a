"""The command line of the ledger."""

from __future__ import annotations

import pytest

from ablations.__main__ import PROGRAM
from sweeps.__main__ import STUDY_COMMANDS, main


@pytest.mark.parametrize("name", STUDY_COMMANDS)
def test_a_command_that_takes_a_study_is_named_where_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert name in PROGRAM.commands
    assert main([name]) == 2
    error = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert f"No such command {name!r}. It takes a study: python -m ablations {name}" in error
