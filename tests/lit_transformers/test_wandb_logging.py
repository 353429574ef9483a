"""The data that a run leaves for Weights & Biases, read back from the file that would be uploaded."""

from __future__ import annotations

import getpass
import json
import math
import os
import shutil
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import wandb
from waiting import wait_for
from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]  # made when it is imported
from wandb_logins import logged_out

from lit_transformers.lightning_runs import LightningRunConfig
from lit_transformers.lightning_runs.fit import fit as fit_module
from lit_transformers.records.record import parse_record
from lit_transformers.runs import Interrupted, RunConfig, fit, run_key, wandb_logging
from lit_transformers.runs.wandb_logging import WandbConfig, upload_finished_run
from lit_transformers.training.reporting import Progress, ProgressReporter
from lit_transformers.wandb_target import NO_TARGET, WandbTarget

pytestmark = pytest.mark.slow

OFFLINE = WandbConfig(
    WandbTarget("offline", entity="team", tags=("mine",)), study="xl_memory", arm="memory 8", levels={"memory": "8"}
)
MEMORY = wandb_logging.MEMORY
UPDATES = (*wandb_logging.UPDATES, MEMORY)
KEY = "0123456789" * 4


@pytest.fixture(scope="module")
def config(small_run: RunConfig) -> RunConfig:
    """With a curve of some points."""
    return small_run.override({"training.steps": 30, "training.validate_every": 10, "training.log_every": 5})


@pytest.fixture(autouse=True)
def nobody_is_logged_in(tmp_path: Path) -> Iterator[None]:
    with logged_out(tmp_path / "home"):
        yield


def files(directory: Path) -> list[Path]:
    """The files of all attempts, in order of time. wandb's own process may write their last block a moment later."""
    paths = sorted(directory.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    for path in paths:
        wait_for(lambda path=path: "exit" in {record.WhichOneof("record_type") for record in records(path)})
    return paths


def records(path: Path) -> Iterator[Record]:
    """wandb's file is a log as LevelDB writes them: blocks of 32 KiB, in which records follow 7 bytes of header.

    A record that is not yet whole is omitted.
    """
    data, offset, record_bytes = path.read_bytes(), 7, b""
    while offset + 7 <= len(data):
        block_space = 32_768 - offset % 32_768
        if block_space < 7:
            offset += block_space
            continue
        _, length, kind = struct.unpack("<IHB", data[offset : offset + 7])
        offset += 7
        if offset + length > len(data):
            return  # it is being written
        record_bytes += data[offset : offset + length]
        offset += length
        if kind in (1, 4):  # a record that is whole, or the last part of one
            record = Record()
            record.ParseFromString(record_bytes)
            record_bytes = b""
            yield record


def values_by_name(items: Iterable[Any]) -> dict[str, Any]:
    return {"/".join(entry.nested_key) or entry.key: json.loads(entry.value_json) for entry in items}


def curves(path: Path) -> dict[int, dict[str, float]]:
    """Every step's values, without those that wandb adds and without tables."""
    values_by_step: dict[int, dict[str, float]] = {}
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            values = {
                "/".join(entry.nested_key) or entry.key: json.loads(entry.value_json) for entry in record.history.item
            }
            metrics = {
                name: value for name, value in values.items() if not name.startswith(("_", "documents", *UPDATES))
            }
            values_by_step.setdefault(values["_step"], {}).update(metrics)
    return values_by_step


def updates(path: Path) -> dict[int, dict[str, float]]:
    """The values of updates that were sent, by step."""
    rows = [
        values_by_name(record.history.item) for record in records(path) if record.WhichOneof("record_type") == "history"
    ]
    by_step: dict[int, dict[str, float]] = {}
    for row in rows:
        values = {name: row[name] for name in UPDATES if name in row}
        assert not values or row["_step"] not in by_step, "a point that was sent twice"
        by_step |= {row["_step"]: values} if values else {}
    return by_step


def repeatable(points: dict[int, dict[str, float]]) -> dict[int, list[float]]:
    """The values of updates that do not depend on the machine, by step."""
    return {step: [values["train/learning_rate"], values["train/gradient_norm"]] for step, values in points.items()}


def header(path: Path) -> Any:
    return next(record.run for record in records(path) if record.WhichOneof("record_type") == "run")


def last_summary(path: Path) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for record in records(path):
        if record.WhichOneof("record_type") == "summary":
            summary |= values_by_name(record.summary.update)
    return summary


def written_curves(directory: Path) -> dict[int, dict[str, float]]:
    values_by_step: dict[int, dict[str, float]] = {}
    for line in (directory / "metrics.csv").read_text().splitlines()[1:]:
        step, tokens, name, value = line.split(",")
        values_by_step.setdefault(int(step), {"tokens": int(tokens)})[name] = float(value)
    return values_by_step


def written_updates(directory: Path) -> dict[int, dict[str, float]]:
    values_by_step: dict[int, dict[str, float]] = {}
    for line in (directory / "updates.csv").read_text().splitlines()[1:]:
        step, name, value = line.split(",")
        assert name not in values_by_step.setdefault(int(step), {})
        values_by_step[int(step)][name] = float(value)
    return values_by_step


def reproducible(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "measured"}


class Server(NamedTuple):
    """A place that claims to be W&B and is out of order: its address, and the paths that were requested of it."""

    address: str
    requested_paths: list[str]


@contextmanager
def out_of_order() -> Iterator[Server]:
    requested_paths: list[str] = []

    class OutOfOrder(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requested_paths.append(self.path)
            self.send_response(503)
            self.end_headers()

        do_GET = do_POST  # noqa: N815  the server's own names

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    http_server = HTTPServer(("127.0.0.1", 0), OutOfOrder)
    threading.Thread(target=http_server.serve_forever, daemon=True).start()
    yield Server(f"http://127.0.0.1:{http_server.server_port}", requested_paths)
    http_server.shutdown()


class SentRun(NamedTuple):
    """A run that was sent: its directory, its record, and the paths that were requested of W&B meanwhile."""

    directory: Path
    record: dict[str, Any]
    requested_paths: list[str]


@pytest.fixture(scope="module")
def sent(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> SentRun:
    """A run that is sent offline, where there are credentials and a service that would answer; tests only read it."""
    directory = tmp_path_factory.mktemp("sent")
    with logged_out(tmp_path_factory.mktemp("home")) as patch, out_of_order() as server:
        patch.setenv("SECRET_TOKEN", "s3cr3t-value")
        patch.setenv("WANDB_API_KEY", KEY)
        patch.setenv("WANDB_BASE_URL", server.address)
        record = fit(config, directory, wandb_config=OFFLINE)
        files(directory)
    return SentRun(directory, record, server.requested_paths)


@pytest.fixture(scope="module")
def unsent(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the same run, which is not sent; tests only read it."""
    directory = tmp_path_factory.mktemp("unsent")
    fit(config, directory)
    return directory


def test_wandb_shows_the_run_its_config_its_curves_and_its_end(sent: SentRun) -> None:
    record = sent.record
    (path,) = files(sent.directory)
    run = header(path)
    assert (run.run_id, run.project, run.entity) == (record["key"], "lit-transformers", "team")
    assert run.display_name == f"memory 8-{record['seed']}-{record['key'][:8]}"
    assert (run.run_group, run.job_type, [*run.tags]) == ("xl_memory", "memory 8", ["xl_memory", "memory 8", "mine"])
    logged_config = {update.key: json.loads(update.value_json) for update in run.config.update}
    assert {name: logged_config[name] for name in record["config"]} == record["config"]
    assert logged_config["factors"] == {"memory": "8"}
    assert curves(path) == written_curves(sent.directory) and {5, 10, 30} <= curves(path).keys()
    summary = last_summary(path)
    assert summary["outcome"] == "finished" and summary["val/bpb"] == record["metrics"]["val/bpb"]
    assert summary["cost/parameters"] == record["cost"]["parameters"]
    assert all(summary[f"gates/{gate['name']}"] is True for gate in record["gates"])


def test_everything_is_drawn_over_tokens(sent: SentRun) -> None:
    (path,) = files(sent.directory)
    axes = [record.metric for record in records(path) if record.WhichOneof("record_type") == "metric"]
    assert [(axis.glob_name, axis.step_metric) for axis in axes if axis.step_metric] == [("*", "tokens")]


def test_learning_rate_gradient_throughput_and_memory_are_sent_beside_the_loss(
    config: RunConfig, sent: SentRun
) -> None:
    (path,) = files(sent.directory)
    by_step = updates(path)
    assert all(set(by_step[step]) >= {*UPDATES} - {"train/tokens_per_second"} for step in range(5, 31, 5))
    assert all(by_step[step]["train/tokens_per_second"] > 0 for step in range(10, 31, 5))
    assert 0 < by_step[30]["train/learning_rate"] <= config.training.optimizer.learning_rate
    assert all(values["train/gradient_norm"] > 0 for values in by_step.values() if values)
    assert by_step[5][wandb_logging.MEMORY] <= by_step[30][wandb_logging.MEMORY] < 2**40


def test_updates_of_any_module_are_sent_too(tmp_path: Path) -> None:
    config = LightningRunConfig(
        model={"class_path": "foreign_module.Net"},
        data={"class_path": "foreign_module.Plane"},
        training={"steps": 12, "validate_every": 6, "log_every": 2, "device": "cpu"},
    )
    fit_module(config, tmp_path, wandb_config=OFFLINE)
    (path,) = files(tmp_path)
    rows: dict[int, dict[str, float]] = {}
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            values = values_by_name(record.history.item)
            rows.setdefault(values["_step"], {}).update(values)
    names = ["train/loss", "train/learning_rate", "train/gradient_norm", wandb_logging.MEMORY]
    assert all(rows[step].keys() >= {*names} for step in range(2, 13, 2))
    assert all(rows[step][wandb_logging.UPDATE_RATE] > 0 for step in (4, 6, 10, 12))
    assert all(rows[step]["train/gradient_norm"] > 0 for step in range(2, 13, 2))


def table(path: Path) -> dict[str, Any]:
    """The table that was logged: wandb stores it as a file next to its own file."""
    history: dict[str, Any] = {}
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            history |= values_by_name(record.history.item)
    reference = history["documents"] if "documents" in history else {"path": history["documents/path"]}
    return json.loads((path.parent / "files" / reference["path"]).read_text())


def test_wandb_shows_the_loss_of_every_document_as_a_table(sent: SentRun) -> None:
    logged_table = table(files(sent.directory)[0])
    csv_rows = [line.split(",") for line in (sent.directory / "documents.csv").read_text().splitlines()]
    assert logged_table["columns"] == csv_rows[0]
    assert [[str(cell) if name == "name" else float(cell) for name, cell in zip(csv_rows[0], row, strict=True)]
            for row in csv_rows[1:]] == logged_table["data"]  # fmt: skip


def test_a_run_that_is_over_is_sent_from_its_files(unsent: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(unsent, tmp_path / "run")
    assert not files(directory)
    record = json.loads((directory / "record.json").read_text())
    study = "two--" + "training.steps=20" * 9
    upload_finished_run(OFFLINE._replace(study=study), directory, parse_record(record))
    (path,) = files(directory)
    assert header(path).run_group == study and study.startswith(header(path).tags[0])
    assert header(path).run_id == record["key"] and last_summary(path)["outcome"] == "finished"
    assert curves(path) == written_curves(directory)


def test_sending_a_run_changes_no_number_and_no_key(sent: SentRun, unsent: Path) -> None:
    assert reproducible(sent.record) == reproducible(json.loads((unsent / "record.json").read_text()))


def test_a_run_that_is_not_to_be_sent_has_the_same_key_and_leaves_nothing_of_wandbs(
    config: RunConfig, tmp_path: Path
) -> None:
    short = config.override({"training.steps": 2})
    assert fit(short, tmp_path, wandb_config=WandbConfig(NO_TARGET))["key"] == run_key(short)
    assert not (tmp_path / "wandb").exists()


def test_nothing_is_sent_of_who_and_where(config: RunConfig, sent: SentRun) -> None:
    (path,) = files(sent.directory)
    kinds = {record.WhichOneof("record_type") for record in records(path)}
    assert not kinds & {"stats", "output", "output_raw", "environment"}
    run = header(path)
    assert (run.host, run.git.remote_url, run.git.commit) == ("", "", "")
    # The path of a table on this machine is for `wandb sync` alone, which opens the table by it and does not send it.
    sent_records = (record for record in records(path) if record.WhichOneof("record_type") not in ("artifact", "files"))
    sent_bytes = b"".join(record.SerializeToString() for record in sent_records)
    sent_bytes = sent_bytes.replace(config.to_dict()["data"]["source"]["path"].encode(), b"")
    names = (str(Path.cwd()), str(sent.directory), "pytest", socket.gethostname())
    for secret in ("s3cr3t-value", KEY[:20], *names):
        if len(secret) > 3:  # a shorter name is found in any text
            assert secret.encode() not in sent_bytes, secret
    assert f'"{getpass.getuser()}"'.encode() not in sent_bytes


def stop_at(step: int) -> Callable[[Progress], None]:
    def stop(progress: Progress) -> None:
        if progress.phase == "fit" and progress.step >= step:
            os.kill(os.getpid(), signal.SIGTERM)

    return stop


def test_a_run_that_was_stopped_and_killed_shows_all_its_points_under_one_id(
    config: RunConfig, sent: SentRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed run resumes from the checkpoint before the last one, and has sent more than that checkpoint holds."""
    report = ProgressReporter.on_train_batch_end

    def report_at_once(reporter: ProgressReporter, *arguments: Any) -> None:
        reporter.reported_at = -math.inf
        report(reporter, *arguments)

    monkeypatch.setattr(ProgressReporter, "on_train_batch_end", report_at_once)
    with pytest.raises(Interrupted):
        fit(config, tmp_path, stop_at(12), wandb_config=OFFLINE)
    before = (tmp_path / "checkpoint.ckpt").read_bytes()
    with pytest.raises(Interrupted):
        fit(config, tmp_path, stop_at(23), wandb_config=OFFLINE)
    (tmp_path / "checkpoint.ckpt").write_bytes(before)
    record = fit(config, tmp_path, wandb_config=OFFLINE)
    first, second, third = files(tmp_path)
    assert len({header(path).run_id for path in (first, second, third)}) == 1
    assert max(curves(first)) == 10 and max(curves(second)) == 20
    assert curves(third) == written_curves(tmp_path) == written_curves(sent.directory)
    assert curves(first).items() <= curves(third).items()
    assert repeatable(updates(third)) == repeatable(updates(files(sent.directory)[0]))
    assert updates(third) == written_updates(tmp_path) and all(step[MEMORY] > 0 for step in updates(third).values())
    assert all(values["train/tokens_per_second"] > 0 for values in updates(third).values())
    again = shutil.copytree(tmp_path, tmp_path / "again", ignore=shutil.ignore_patterns("wandb"))
    upload_finished_run(OFFLINE, again, parse_record(record))
    assert updates(files(again)[0]) == updates(third) and curves(files(again)[0]) == curves(third)


def test_without_a_key_a_run_says_so_in_one_line_and_goes_on(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = fit(config, tmp_path, wandb_config=OFFLINE._replace(target=WandbTarget("online")))
    assert record["outcome"] == "finished"
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "W&B" in line]
    assert "No API key configured" in line and "logged offline" in line
    assert curves(files(tmp_path)[0]) == written_curves(tmp_path)


def test_without_a_network_a_run_says_so_in_one_line_and_goes_on(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setattr(wandb_logging, "CONNECT_SECONDS", 0.5)
    with out_of_order() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.address)
        record = fit(config, tmp_path, wandb_config=OFFLINE._replace(target=WandbTarget("online")))
    assert record["outcome"] == "finished"
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "W&B" in line]
    assert "logged offline" in line
    assert curves(files(tmp_path)[0]) == written_curves(tmp_path)
    assert server.requested_paths, "it never tried"


def test_offline_nothing_is_asked_of_the_network(sent: SentRun) -> None:
    assert files(sent.directory) and not sent.requested_paths


def test_sending_that_breaks_does_not_cost_the_run(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise OSError("the service went away")

    monkeypatch.setattr(wandb.Run, "log", broken)
    assert fit(config, tmp_path, wandb_config=OFFLINE)["outcome"] == "finished"
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "W&B" in line]
    assert "sending broke off, the run continues without: the service went away" in line
