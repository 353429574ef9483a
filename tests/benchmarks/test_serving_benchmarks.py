"""The benchmarks of servers and of texts a second: every way computes the same network, and a request is never lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.acceleration import BASE, measured, ways_of
from benchmarks.serving import overload
from benchmarks.text_networks import forms_of, labelled_texts, tiny_checkpoint


@pytest.mark.slow
def test_every_way_computes_the_same_network(tmp_path: Path) -> None:
    checkpoint, file = tiny_checkpoint(tmp_path)
    texts, labels = labelled_texts(file, 24)
    rows = {row["way"]: row for row in measured(ways_of(forms_of(checkpoint, tmp_path)), texts, [*map(int, labels)], 1)}
    assert rows.pop("predict, bfloat16")["nats"] == pytest.approx(0, abs=0.02)
    assert rows.pop("ONNX Runtime, int8")["nats"] == pytest.approx(0, abs=0.05)
    assert len(rows) == 5 and BASE in rows
    for row in rows.values():
        assert row["nats"] == pytest.approx(0, abs=1e-5) and row["equal_labels"] == 100 and row["texts_a_second"] > 0


@pytest.mark.slow
def test_an_overloaded_server_answers_or_refuses_every_request() -> None:
    result = overload(0.5)
    assert result["lost"] == 0 and {*result["statuses"]} == {"200", "429"}
    assert sum(result["statuses"].values()) == result["sent"] > 100
