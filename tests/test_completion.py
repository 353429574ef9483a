"""Shells complete the installed commands, in a terminal as a person has it."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from waiting import SECONDS

PROMPT = "ready> "
SHELLS = {
    "bash": (".bashrc", f"PS1='{PROMPT}'\nbind -x '\"\\C-g\": echo \"$READLINE_LINE\" > line'\n"),
    # insert-tab: a Tab completes also where more has been typed behind it already.
    "zsh": (
        ".zshrc",
        f"PS1='{PROMPT}'\nzstyle ':completion:*' insert-tab false\n"
        "line() { print -r -- $BUFFER > line }; zle -N line; bindkey '^G' line\n",
    ),
    "fish": (
        ".config/fish/config.fish",
        f"function fish_prompt; echo '{PROMPT}'; end\nbind \\cg 'commandline > line'\n",
    ),
}
"""Of each shell the file of its settings, and settings by which Ctrl-G writes the typed text into the file ``line``."""


class Terminal(NamedTuple):
    """An interactive shell at the other end of a pseudo terminal, in a folder."""

    process: int
    descriptor: int
    folder: Path

    def read_until(self, condition: Callable[[str], bool]) -> None:
        """Reads the output of the shell until a condition holds for it, which is when the shell is done."""
        output, deadline = b"", time.monotonic() + SECONDS
        poll = select.poll()  # not select.select, which refuses descriptors from 1,024 on
        poll.register(self.descriptor, select.POLLIN)
        while not condition(output.decode(errors="replace")):
            assert time.monotonic() < deadline, output
            if poll.poll(20):
                output += os.read(self.descriptor, 1 << 16)

    def type(self, text: str) -> str:
        """Types text and returns the line that then stands behind the prompt."""
        line = self.folder / "line"
        line.unlink(missing_ok=True)
        os.write(self.descriptor, f"{text}\x07".encode())
        self.read_until(lambda _: line.exists() and line.read_text().endswith("\n"))
        os.write(self.descriptor, b"\x15")
        return line.read_text().rstrip("\n")

    def close(self) -> None:
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.descriptor)


def shell_in(folder: Path, shell: str, home: Path) -> Terminal:
    """Starts a shell, which has read its settings from a home, in a folder."""
    variables = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(home)}
    process, descriptor = pty.fork()
    if not process:
        os.chdir(folder)
        os.execvpe(shell, [shell, "-i"], os.environ | variables | {"TERM": "xterm"})
    terminal = Terminal(process, descriptor, folder)
    terminal.read_until(lambda output: PROMPT in output)
    return terminal


@pytest.mark.parametrize(
    ("shell", "lines"),
    [
        ("bash", ("lit-transformers conf|ig ", "lit-ablations pl|an xl_memo|ry --sca|le ho|ur ")),
        pytest.param("zsh", ("lit-reports ga|llery ", "lit-ablations pl|an my_|question "), marks=pytest.mark.slow),
        pytest.param("fish", ("lit-sweeps sta|tus ", "lit-ablations pl|an my_|question "), marks=pytest.mark.slow),
    ],
)
def test_an_installed_shell_completes_commands_options_values_and_studies_at_the_first_tab(
    tmp_path: Path, shell: str, lines: tuple[str, ...]
) -> None:
    """Where ``|`` stands in a line, Tab is typed, and the shell completes the rest of the word."""
    if not Path(sys.executable).with_name("lit-ablations").exists():
        pytest.skip("the commands are not installed here")
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: apt-get install {shell}")
    home, folder = tmp_path / "home", tmp_path / "folder"
    name, settings = SHELLS[shell]
    (home / name).parent.mkdir(parents=True)
    (home / name).write_text(settings)
    (folder / "studies").mkdir(parents=True)
    (folder / "studies" / "my_question.py").write_text("ABLATION = None\n")
    terminal = shell_in(folder, shell, home)
    for command in (line.split()[0] for line in lines):
        os.write(terminal.descriptor, f"{command} --install-completion\r".encode())
        terminal.read_until(lambda output: "take effect once you restart" in output)
    terminal.close()
    terminal = shell_in(folder, shell, home)
    for line in lines:
        typed = re.sub(r"\|\S+ ", "\t", line)
        assert terminal.type(typed) == line.replace("|", "")
    terminal.close()


def test_help_names_the_command_that_was_typed_and_offers_completion_where_a_shell_can(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("lit-sweeps")
    if not script.exists():
        pytest.skip("the commands are not installed here")
    for command, usage in (([str(script)], "lit-sweeps"), ([sys.executable, "-m", "sweeps"], "python -m sweeps")):
        done = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=600, cwd=tmp_path)
        assert f"Usage: {usage} " in done.stdout
        assert ("--install-completion" in done.stdout) == (usage == "lit-sweeps")
