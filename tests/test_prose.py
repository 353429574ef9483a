"""Pages, help and messages are in plain English: ``python -m docs lint`` finds nothing, and finds planted forms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from docs import site_command
from docs.__main__ import main
from docs.prose import WHAT_CLAUSES, Passage, findings, passages, rate_of_what

ROOT = Path(__file__).parents[1]
PLANTED = '''
"""The module, of its
own."""

app = Typer(help="A command, of its own.")


def run(steps: int = 3) -> None:
    """Train what is beside."""
    raise ValueError(f"{steps} steps, and a run that went on")


class WindowConfig:
    """window: keys at hand, so many."""

    window: int = 3
    """Keys that are left away."""


class Window:
    """Keys that are left away."""

    def scores(self) -> int:
        """Returns what is left away."""
        return len("keys left away")  # those left away
'''


@cache
def _read() -> Sequence[Passage]:
    return list(passages(ROOT))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with empty pages, and no modules."""
    (tmp_path / "docs").mkdir()
    for page in ("README.md", "CONTRIBUTING.md", "docs/page.md"):
        (tmp_path / page).write_text("# Pages\n", encoding="utf-8")
    return tmp_path


def test_no_form_is_banned() -> None:
    found = [str(finding) for finding in findings(_read())]
    assert not found, "\n".join(["python -m docs lint:", *found])


@pytest.mark.parametrize("suffix", [".md", ".py"])
def test_few_clauses_have_what(suffix: str) -> None:
    """Of pages, and of the code."""
    part = [passage for passage in _read() if passage.file.suffix == suffix]
    assert sum(len(passage.text.split()) for passage in part) > 20_000, "the lint reads too little"
    assert rate_of_what(part) <= WHAT_CLAUSES


def test_banned_forms_are_found_in_pages_and_code(checkout: Path) -> None:
    page = "A run\ngoes on.\n\n`beside` [them](beside.md) <!-- told -->\n\n```sh\nbeside\n```\n\nPages: three in all.\n"
    (checkout / "docs" / "page.md").write_text(page, encoding="utf-8")
    (checkout / "sweeps").mkdir()
    (checkout / "sweeps" / "planted_command.py").write_text(PLANTED, encoding="utf-8")
    (checkout / "docs" / "prose.py").write_text(PLANTED, encoding="utf-8")
    found = [(finding.file.name, finding.line, finding.form) for finding in findings(list(passages(checkout)))]
    assert sorted(found) == [
        ("page.md", 2, "goes on"),
        ("page.md", 10, "in all"),
        ("planted_command.py", 2, "of its\nown"),
        ("planted_command.py", 5, "of its own"),
        ("planted_command.py", 9, "beside"),
        ("planted_command.py", 10, "went on"),
        ("planted_command.py", 14, "at hand"),
        ("planted_command.py", 14, "so many"),
        ("planted_command.py", 17, "left away"),
        ("planted_command.py", 21, "left away"),
        ("planted_command.py", 24, "left away"),
        ("planted_command.py", 25, "left away"),
        ("planted_command.py", 25, "left away"),
    ]


def test_clauses_with_what_are_counted_and_questions_are_not(checkout: Path) -> None:
    text = "Read what follows. What follows? Print whatever is read. `what`\n"
    (checkout / "docs" / "page.md").write_text(text, encoding="utf-8")
    read = [passage for passage in passages(checkout) if passage.file.name == "page.md"]
    assert rate_of_what(read) == pytest.approx(1000 * 2 / 9)


def test_the_command_prints_findings_and_fails(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(site_command, "ROOT", checkout)
    (checkout / "README.md").write_text("What.\n", encoding="utf-8")
    (checkout / "docs" / "page.md").write_text("A run goes on.\n", encoding="utf-8")
    assert main(["lint"]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == "docs/page.md:1: 'goes on': write resume, or continue"
    assert second.startswith("pages: ") and second.endswith(
        f'clauses with "what" in a thousand words; at most {WHAT_CLAUSES}'
    )
    for page in ("README.md", "docs/page.md"):
        (checkout / page).write_text("A run resumes.\n", encoding="utf-8")
    assert main(["lint"]) == 0
    assert capsys.readouterr().out == ""
