"""A shell completes the installed commands, as bash asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
eval "$(_LIT_ABLATIONS_COMPLETE=source_bash lit-ablations)"
complete -p lit-ablations
for typed in "pl" "plan xl_m" "plan my_" "plan --see"; do
  COMP_WORDS=(lit-ablations $typed); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  _lit_ablations_completion lit-ablations
  echo "$typed: ${COMPREPLY[*]}"
done
"""


def test_bash_completes_commands_options_and_studies_of_the_suite_and_of_the_folder(tmp_path: Path) -> None:
    folder = Path(sys.executable).parent
    if not (folder / "lit-ablations").exists():
        pytest.skip("the commands are not installed here")
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "my_question.py").write_text("ABLATION = None\n")
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", SCRIPT], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "complete -o default -F _lit_ablations_completion lit-ablations",
        "pl: plan",
        "plan xl_m: xl_memory",
        "plan my_: my_question",
        "plan --see: --seeds",
    ]


def test_help_names_the_command_that_was_typed_and_offers_completion_where_a_shell_can(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("lit-sweeps")
    if not script.exists():
        pytest.skip("the commands are not installed here")
    for command, usage in (([str(script)], "lit-sweeps"), ([sys.executable, "-m", "sweeps"], "python -m sweeps")):
        done = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=600, cwd=tmp_path)
        assert f"Usage: {usage} " in done.stdout
        assert ("--install-completion" in done.stdout) == (usage == "lit-sweeps")
