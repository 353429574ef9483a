"""The walk through one step in ``docs/architecture.md``: the lines that it quotes exist, and run in that order."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from ablations.studies.xl_recurrence import ABLATION
from lit_transformers.runs.train import make_trainer, quiet, starting_task

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
WALK = TEXT.partition("## One step of training, line by line\n")[2].partition("\n## ")[0]
FEW = {"data.source.documents": 40, "data.source.validation": 0.3, "data.source.test": 0.2, "training.steps": 2}
CONFIG = ABLATION.baseline.override(dict(ABLATION.scales["demo"].overrides) | FEW)


class Item(NamedTuple):
    """One item of the walk: a function, its file and a line of it."""

    function: str
    file: str
    line: str


QUOTED = re.compile(r"^\d+\. \[`([\w.]+)`\]\(\.\./([\w/]+\.py)\): `(.+)`$", re.MULTILINE)
ITEMS = [Item(*groups) for groups in QUOTED.findall(WALK)]


def source_of(item: Item) -> str | None:
    """The source of a function; None where its file has none of this name."""
    text = (ROOT / item.file).read_text(encoding="utf-8")
    node: Any = ast.parse(text)
    for name in item.function.split("."):
        node = next((part for part in node.body if getattr(part, "name", None) == name), None)
        if node is None:
            return None
    return ast.get_source_segment(text, node)


def joined(code: str) -> str:
    """Code without the places where its lines are broken."""
    return re.sub(r"\s+", "", code)


def test_every_item_of_the_walk_is_read() -> None:
    assert len(ITEMS) == len(re.findall(r"^\d+\.", WALK, re.MULTILINE)) > 25


def test_what_the_walk_quotes_is_a_line_of_the_function_that_it_names() -> None:
    for item in ITEMS:
        source = source_of(item)
        assert source is not None, f"{item.file} has no function {item.function}; name another in docs/architecture.md"
        assert joined(item.line) in joined(source), f"{item.function} has no such line; quote another in the walk"


def test_the_sizes_of_the_walk_are_those_of_the_demo() -> None:
    data, model = CONFIG.data, CONFIG.model
    rows, heads, memory = data.get("batch_size"), model.get("heads"), model.get("mixer.memory")
    for words in (
        f"are (b, t) = ({rows}, {data.length})",
        f"d = {model.dim},",
        f"h = {heads} heads of k = {model.dim // heads} channels",
        f"{memory} of them and without gradient",
        f"its {model.depth} blocks",
        f"at most {CONFIG.training.clip:g}.",
    ):
        assert words in WALK, words


def test_a_step_of_the_demo_calls_the_functions_of_the_walk_in_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its second step, which has the state of the first; a function that is left again is met once more."""
    monkeypatch.setenv("LIT_CACHE", str(tmp_path))
    met: list[tuple[str, str]] = []

    def notice(frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "return") and frame.f_code.co_filename.startswith(str(ROOT)):
            file = Path(frame.f_code.co_filename).relative_to(ROOT).as_posix()
            met.append((frame.f_code.co_qualname, file))

    data = CONFIG.build_data()
    task, _ = starting_task(CONFIG, data, {})
    with quiet():
        trainer = make_trainer(CONFIG.training, tmp_path, [])
        sys.setprofile(notice)
        try:
            trainer.fit(task, data)
        finally:
            sys.setprofile(None)
    starts = [place for place, (function, _) in enumerate(met) if function == ITEMS[0].function]
    events = iter(met[starts[2] :])  # those of the first step are that of its call and of its return
    for item in ITEMS:
        is_met = any(event == (item.function, item.file) for event in events)
        assert is_met, f"a step does not come to {item.function} there; mend the walk in docs/architecture.md"
