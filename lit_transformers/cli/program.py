"""The name by which a command was started: that of an installed script, which a shell can complete, or a module's."""

from __future__ import annotations

import sys
from pathlib import Path

from typer import _completion_shared

__all__ = ["is_script", "program_name"]

# Typer's script for zsh only defines a function when zsh loads it, so that the first Tab of a session would do nothing.
_completion_shared._completion_scripts["zsh"] = (
    _completion_shared.COMPLETION_SCRIPT_ZSH
    + '\n[[ $zsh_eval_context[-1] != loadautofunc ]] || %(complete_func)s "$@"\n'
)


def is_script(package: str) -> bool:
    """Whether this process is the installed command of a package, such as ``lit-ablations``."""
    return Path(sys.argv[0]).stem == _script(package)


def program_name(package: str) -> str:
    """Returns the words that were typed to start the command of a package, for its help and for the shell's
    completion."""
    return _script(package) if is_script(package) else f"python -m {package}"


def _script(package: str) -> str:
    return f"lit-{package.removeprefix('lit_')}"
