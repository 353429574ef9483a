"""The benchmarks of servers and of texts a second: every way computes the same network, and a request is never lost."""

from __future__ import annotations

from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from benchmarks.acceleration import BASE, makers_of, measured, rows_of
from benchmarks.serving import overload, serve_queue
from benchmarks.text_networks import forms_of, labelled_texts, tiny_checkpoint
from lit_transformers.serving.messages import Failure, ServingOptions


@pytest.mark.slow
def test_every_way_computes_the_same_network(tmp_path: Path) -> None:
    checkpoint, file = tiny_checkpoint(tmp_path)
    texts, labels = labelled_texts(file, 24)
    ways = {name: make() for name, make in makers_of(forms_of(checkpoint, tmp_path)).items()}
    rows = {row["way"]: row for row in rows_of(measured(ways, texts, 1, 2), [*map(int, labels)])}
    for name in [*rows]:
        if name.endswith(("bfloat16", "int8")):
            assert rows.pop(name)["nats"] == pytest.approx(0, abs=0.05 if "ONNX" in name else 0.02)
    assert len(rows) == 5 and BASE in rows
    for row in rows.values():
        assert row["nats"] == pytest.approx(0, abs=1e-5) and row["equal_labels"] == 100
        assert row["texts_a_second"] > 0 and row["p99_ms"] >= row["p50_ms"] > 0


def refuse(connection: Connection, options: ServingOptions) -> None:
    """Says why it cannot start."""
    connection.send(Failure("the network is gone"))


@pytest.mark.slow
def test_a_server_that_does_not_start_gives_its_reason() -> None:
    ours, theirs = Pipe()
    serve_queue(theirs, refuse, Path("none"))
    assert ours.recv() > 0 and ours.recv() == "the network is gone"


@pytest.mark.slow
def test_an_overloaded_server_answers_or_refuses_every_request() -> None:
    result = overload(0.5)
    assert result["lost"] == 0 and {*result["statuses"]} == {"200", "429"}
    assert sum(result["statuses"].values()) == result["sent"] > 100
