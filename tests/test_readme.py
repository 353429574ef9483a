"""What the README shows works as it stands there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.slow
def test_the_ten_lines_for_a_notebook_train_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    assert len(code.strip().splitlines()) <= 12
    names: dict[str, object] = {}
    exec(code, names)
    assert "model" in names


def test_every_command_that_is_shown_exists() -> None:
    packages = "ablations|lit_transformers|reports|sweeps"
    for package, command in set(re.findall(rf"python -m ({packages}) ([\w-]+)", README.read_text(encoding="utf-8"))):
        app = importlib.import_module(f"{package}.__main__").app
        command_names = {c.name or c.callback.__name__ for c in app.registered_commands if c.callback}
        assert command in command_names, f"python -m {package} {command}"
