"""Malformed studies, nearly a thousand: an error that names the place, or a plan that agrees with the study."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import pytest
from fuzz.garbage import broken, examples, one_line
from hypothesis import given
from hypothesis import strategies as st
from standin.run import RunConfig

from ablations.ablation import Ablation, Contrast, Match, Metric, Published, PublishedValue, Scale, Source
from ablations.plan import Request, make_plan
from lit_transformers.config import ConfigError
from reports.read.study import read_plan

pytestmark = pytest.mark.slow

SPEC: dict[str, Any] = {
    "question": "Does recurrence help?",
    "source": {"title": "Dai et al. 2019", "arxiv": "1901.02860", "table": "6"},
    "factors": {
        "recurrence": {"on": {}, "off": {"model.mixer.memory": 0}},
        "positions": {"relative": {}, "absolute": {"model.mixer.encoding": None}},
    },
    "design": "product",
    "arms": {},
    "seeds": 2,
    "metric": {"name": "val/bpb", "goal": "minimize", "label": "bits per byte", "compare": "difference"},
    "match": {"on": "parameters", "free": "model.width", "step": 1, "tolerance": 0.1},
    "contrasts": [{"name": "memory", "arm": "recurrence=on positions=relative",
                   "against": "recurrence=off positions=relative"}],
    "published": {"protocol": "WikiText-103", "metric": "perplexity",
                  "cells": [{"arm": "recurrence=on", "value": 26.77, "note": ""}], "claims": ["It helps."]},
    "scales": {"demo": {"overrides": {"training.steps": 9}, "seeds": 1,
                        "leave_out": {"recurrence=off positions=absolute": "no time"}},
               "full": {"arms": ["recurrence=on"]}},
}  # fmt: skip
EXPLICIT = SPEC | {
    "factors": {},
    "design": "explicit",
    "arms": {"long": {}, "short": {"model.mixer.memory": 2}, "none": {"model.mixer.memory": 0}},
    "match": {"on": "tokens"},
    "contrasts": [{"name": "memory", "arm": "long", "against": "none"}],
    "published": None,
    "scales": {},
}
ONE_FACTOR = SPEC | {"design": "one_factor", "contrasts": [], "published": None, "scales": {}, "match": None}


@examples(900)
@given(spec=st.one_of(*map(broken, (SPEC, EXPLICIT, ONE_FACTOR))))
def test_a_study_is_refused_by_place_or_planned_as_it_says(tmp_path_factory: pytest.TempPathFactory, spec: Any) -> None:
    if not isinstance(spec, dict):
        return
    try:
        ablation = make_part(Ablation, {"baseline": RunConfig()} | with_parts(spec))
        plan = make_plan("malformed", ablation, Request())
    except ConfigError as error:
        assert one_line(str(error)) and error.path
        return
    except TypeError as error:  # Python's own words for a call without required arguments
        assert re.match(r"\w+\.__init__\(\) missing", str(error))
        return
    runs = tmp_path_factory.getbasetemp() / "runs"
    plan.write(runs)
    loaded = read_plan(runs, "malformed")
    assert loaded.question == spec["question"]
    assert loaded.metric.name == spec["metric"]["name"] and loaded.goal == "minimize"
    assert [c.name for c in loaded.contrasts or ()] in ([], [c["name"] for c in spec.get("contrasts", ())])
    levels = {name: list(levels) for name, levels in spec.get("factors", {}).items()}
    assert {name: list(names) for name, names in loaded.factors.items()} == levels
    assert {len(arm.runs) for arm in loaded.arms} == {ablation.resolve().seeds}


def make_part(part: type[Any], plain: Any) -> Any:
    """A part of a study from the fields that it has; a value that is not a mapping is returned unchanged."""
    if not isinstance(plain, Mapping):
        return plain
    names = {field.name for field in dataclasses.fields(part)}
    return part(**{name: value for name, value in plain.items() if name in names})


def with_parts(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec with parts of a study in place of the mappings that describe them."""
    study_fields = dict(spec)
    for name, part in {"source": Source, "metric": Metric, "match": Match}.items():
        if name in study_fields:
            study_fields[name] = make_part(part, study_fields[name])
    if isinstance(study_fields.get("published"), dict):
        study_fields["published"] = make_part(Published, with_items(study_fields["published"], "cells", PublishedValue))
    if isinstance(study_fields.get("scales"), dict):
        study_fields["scales"] = {name: make_part(Scale, scale) for name, scale in study_fields["scales"].items()}
    return with_items(study_fields, "contrasts", Contrast)


def with_items(plain: dict[str, Any], name: str, part: type[Any]) -> dict[str, Any]:
    if not isinstance(plain.get(name), list):
        return plain
    return plain | {name: [make_part(part, item) for item in plain[name]]}
