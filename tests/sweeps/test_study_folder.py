"""The names of plans' folders: readable where they can be, never shared by two plans, and safe as names of files."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lit_transformers.records.study_folder import folder_name, require_name


@pytest.mark.parametrize(
    ("scale", "changes", "name"),
    [
        ("demo", {}, "xl"),
        ("gpu", {}, "xl--gpu"),
        ("demo", {"training.steps": 50, "model.dim": 64}, "xl--model.dim=64--training.steps=50"),
        ("gpu", {"training.optimizer.learning_rate": 1e-3}, "xl--gpu--training.optimizer.learning_rate=0.001"),
    ],
)
def test_a_folder_says_what_sets_its_plan_apart(scale: str, changes: dict[str, Any], name: str) -> None:
    assert folder_name("xl", scale, changes) == name


def test_a_change_that_is_no_name_of_a_file_is_told_apart_by_its_hash() -> None:
    first, second = (folder_name("xl", "demo", {"data.path": path}) for path in ("/home/me/a b", "/home/me/a/b"))
    assert first.rpartition("--")[0] == second.rpartition("--")[0] == "xl--data.path=-home-me-a-b"
    assert first != second


plain = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=4)
requests = st.tuples(
    st.sampled_from(["demo", "gpu", "a--b"]),
    st.dictionaries(st.sampled_from(["seed", "data.path", "a=b"]), plain, max_size=3),
)


@example(first=("demo", {"seed": 1}), second=("demo", {"seed": "1"}))
@given(first=requests, second=requests)
def test_every_folder_is_a_safe_name_and_no_two_requests_share_one(first: Any, second: Any) -> None:
    names = [folder_name("xl", *request) for request in (first, second)]
    require_name(names[0], "study")
    assert (names[0].lower() == names[1].lower()) == (
        json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
    )
