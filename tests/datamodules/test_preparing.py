"""The writing of data to the cache prints its progress, and data that were written are not written again."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from datamodules import DataError, FilesConfig
from datamodules.core import index, preparing, processes
from datamodules.core.documents import SPLITS
from datamodules.core.index import cached_value, make_once
from datamodules.core.preparing import ByteCount, TextCount, alone
from datamodules.core.processes import TaskKilled, in_processes
from datamodules.pairs import parallel, stored_pairs
from datamodules.pairs.parallel import ParallelConfig
from datamodules.pairs.source import PairsRead
from datamodules.text import sources

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="tasks have separate processes on Linux alone")


def write_meta(folder: Path) -> None:
    """Writes the file that completes a folder of the cache."""
    (folder / "meta.json").write_text("{}")


def write_slowly(progress: TextCount | None, line: str, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    """Writes 1.5 MB, and completes the folder when a line is printed."""
    (folder / "symbols").write_bytes(bytes(1_500_000))
    if progress is not None:
        progress.done += 1200
    lines: list[str] = []
    deadline = time.monotonic() + 30
    while line not in lines:
        assert time.monotonic() < deadline, lines
        time.sleep(0.02)
        lines += capsys.readouterr().err.splitlines()
    write_meta(folder)


def test_a_long_preparation_prints_how_much_was_written_and_a_short_one_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "rows"
    make_once(folder, "meta.json", write_meta)
    assert capsys.readouterr().err == "" and folder.is_dir()
    monkeypatch.setattr(preparing, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(preparing, "EVERY_SECONDS", 0.05)
    for name, progress in (("bytes", None), ("texts", TextCount(2872))):
        line = f"prepares {tmp_path / name}, once: {(progress and '1,200 of 2,872 texts') or '1.5 MB'} so far"
        make_once(other := tmp_path / name, "meta.json", partial(write_slowly, progress, line, capsys), progress)
        *_, last = capsys.readouterr().err.splitlines()
        assert re.fullmatch(rf"prepared {re.escape(str(other))} in \d+ s: 1\.5 MB", last)


def test_a_terminal_shows_a_bar_with_the_share_that_is_done_and_the_time_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preparing, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress, drawn = ByteCount(4_000_000), ""

    def write(temporary: Path) -> None:
        nonlocal drawn
        progress.done, deadline = 1_000_000, time.monotonic() + 30
        while "25%" not in drawn:
            assert time.monotonic() < deadline
            time.sleep(0.02)
            drawn += capsys.readouterr().err
        write_meta(temporary)

    make_once(tmp_path / "corpus", "meta.json", write, progress)
    assert re.search(r"\r\x1b\[Kprepares corpus, once: \[#{6}\.{18}\] 25%, \d+ s left", drawn)
    assert str(progress) == "1.0 of 4.0 MB read"


def write_corpus(folder: Path) -> None:
    """Writes a few small files of every format that is unpacked, and one that is read in place."""
    folder.mkdir()
    words = [f"text {number} " + "é and more words " * (number % 7) for number in range(300)]
    lines = "".join(json.dumps({"text": text}) + "\n" * (1 + (number % 11 == 3)) for number, text in enumerate(words))
    (folder / "a.jsonl").write_text("\ufeff" + lines)
    (folder / "b.txt").write_text("read in place")
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(lines.replace("words", "terms").encode()))
    parquet.write_table(pyarrow.table({"text": [f"cell {text}" for text in words]}), folder / "d.parquet", 40)


def contents(path: Path) -> tuple[object, ...]:
    """Returns all that a corpus says: its fingerprint, and the documents of its splits in order."""
    corpus = FilesConfig(path=str(path), piece=64, validation=0.2, test=0.1).build()
    return (corpus.fingerprint, *([*corpus.documents(split)] for split in SPLITS))


def own_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LIT_CACHE", str(folder))
    return folder / "corpora"


@LINUX
@pytest.mark.parametrize("cores", [1, 3])
def test_parts_of_files_read_by_any_number_of_processes_give_the_same_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    write_corpus(tmp_path / "data")
    own_cache(tmp_path / "whole", monkeypatch)
    whole = contents(tmp_path / "data")
    assert whole[0] == "7d22dae5c16ebb0768ab89e64a4c7479"
    monkeypatch.setattr(sources, "PART", 2000)
    monkeypatch.setattr("datamodules.core.reading.BLOCK", 500)
    monkeypatch.setattr(processes, "usable_cores", lambda: cores)
    made = own_cache(tmp_path / "parts", monkeypatch)
    assert contents(tmp_path / "data") == whole
    [folder] = made.iterdir()
    assert sum(path.is_dir() for path in folder.iterdir()) > 8
    assert {path.name for path in folder.glob("0*/*")} == {"packed"}


@LINUX
@pytest.mark.parametrize(
    ("name", "damaged", "says"),
    [
        ("a.jsonl", b'{"text": "x"}\n' * 400 + b"{no JSON\n" + b'{"text": "x"}\n' * 400, "a.jsonl:401: not JSON"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "x"}\n' * 9000)[:-9], "a.jsonl.gz: cannot be read, damaged"),
        ("a.parquet", None, "a.parquet: damaged parquet"),
    ],
)
def test_damage_in_a_part_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, damaged: bytes | None, says: str
) -> None:
    made = own_cache(tmp_path / "cache", monkeypatch)
    monkeypatch.setattr(sources, "PART", 1000)
    monkeypatch.setattr("datamodules.core.reading.BLOCK", 100)
    monkeypatch.setattr(processes, "usable_cores", lambda: 3)
    if damaged is None:
        parquet.write_table(pyarrow.table({"text": ["x" * 100] * 1000}), tmp_path / name, 40)
        damaged = (tmp_path / name).read_bytes()[:-100]
    (tmp_path / name).write_bytes(damaged)
    with pytest.raises(DataError) as error:
        FilesConfig(path=str(tmp_path / name)).build()
    assert says in str(error.value) and "\n" not in str(error.value)
    assert list(made.iterdir()) == []


@LINUX
def test_what_was_complete_when_a_process_was_killed_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus(tmp_path / "data")
    own_cache(tmp_path / "whole", monkeypatch)
    whole = contents(tmp_path / "data")
    made = own_cache(tmp_path / "parts", monkeypatch)
    monkeypatch.setattr(sources, "PART", 2000)
    monkeypatch.setattr("datamodules.core.reading.BLOCK", 500)
    monkeypatch.setattr(processes, "usable_cores", lambda: 1)
    write_part, read = index._write_part, Counter[str]()

    def counted(folder: Path, piece: int, part: index.CorpusPart) -> Path:
        def texts(left_out: Counter[str]) -> Iterator[index.Text]:
            read[folder.name] += 1
            if read.total() == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            return part.texts(left_out)

        return write_part(folder, piece, part._replace(texts=texts))

    monkeypatch.setattr(index, "_write_part", counted)
    if not (child := os.fork()):
        contents(tmp_path / "data")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    [unfinished] = made.glob("*.unfinished")
    assert {path.parent.name for path in unfinished.glob("*/meta.json")} == {"00000", "00001", "00002", "00003"}
    read["so that this process is not killed"] = 5
    assert contents(tmp_path / "data") == whole
    assert not read.keys() & {"00000", "00001", "00002", "00003"} and read["00004"] == 1
    assert not list(made.glob("*.unfinished")) and not list(made.glob("*.lock"))


def counting(folder: Path, log: Path) -> None:
    """Makes a folder of the cache, and notes that it was made in a file."""

    def make(temporary: Path) -> None:
        with log.open("a") as file:
            file.write("made\n")
        time.sleep(0.3)
        write_meta(temporary)

    make_once(folder, "meta.json", make)


@LINUX
def test_processes_that_start_at_once_share_one_preparation(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    task: Callable[[], None] = partial(counting, tmp_path / "folder", tmp_path / "log")
    assert list(in_processes([task] * 4, 4)) == [None] * 4
    assert (tmp_path / "log").read_text() == "made\n"
    assert f"waits for another process, which prepares {tmp_path / 'folder'}" in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "log"]


def counting_value(folder: Path, log: Path) -> Any:
    """Computes a value of the cache, and notes that it was computed in a file."""

    def compute() -> dict[str, int]:
        with log.open("a") as file:
            file.write("computed\n")
        time.sleep(0.3)
        return {"a": 1}

    return cached_value(folder, compute)


@LINUX
def test_processes_that_need_a_value_at_once_compute_it_once(tmp_path: Path) -> None:
    task: Callable[[], Any] = partial(counting_value, tmp_path / "folder", tmp_path / "log")
    assert list(in_processes([task] * 3, 3)) == [{"a": 1}] * 3
    assert (tmp_path / "log").read_text() == "computed\n"
    (tmp_path / "folder" / "value.json").write_text("{")
    with pytest.raises(DataError, match="remove this folder and it is made again"):
        counting_value(tmp_path / "folder", tmp_path / "log")


def test_without_locks_a_folder_is_made_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with alone(tmp_path / "folder") as is_alone:
        assert not is_alone
    counting(tmp_path / "folder", tmp_path / "log")
    assert (tmp_path / "folder" / "meta.json").exists()


def fail() -> None:
    raise DataError("a file is damaged")


@LINUX
def test_results_come_in_order_and_the_first_error_is_raised() -> None:
    assert list(in_processes([partial(pow, 2, number) for number in range(7)], 3)) == [2**n for n in range(7)]
    assert list(in_processes([os.getpid] * 2, 1)) == [os.getpid()] * 2
    assert os.getpid() not in list(in_processes([os.getpid] * 2, 2))
    with pytest.raises(DataError, match="a file is damaged"):
        list(in_processes([partial(pow, 2, 2), fail, partial(os._exit, 1)], 3))
    with pytest.raises(TaskKilled, match=r"ended from outside \(exit code 3\).*prepared parts are kept"):
        list(in_processes([partial(os._exit, 3)], 2))


@LINUX
def test_pairs_of_any_number_of_processes_are_the_same_to_the_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    sides = {"en": "a man  with {n} dogs\u2028 runs's\tfast", "de": "ein Mann mit {n} Hunden rennt."}
    for suffix, text in sides.items():
        lines = [text.replace("{n}", str(number)) if number % 9 else "" for number in range(500)]
        for split in ("train", "val", "test"):
            (tmp_path / "data" / f"{split}.{suffix}").write_text("".join(f"{line}\n" for line in lines))

    def made(cache: Path) -> dict[str, bytes]:
        own_cache(cache, monkeypatch)
        pairs = ParallelConfig(path=str(tmp_path / "data")).open(PairsRead(None, None, (), None))
        assert pairs.lengths("train") is not None and pairs.name("train", 499) == "train.en:500"
        return {path.name: path.read_bytes() for path in (cache / "pairs").rglob("*") if path.is_file()}

    whole = made(tmp_path / "whole")
    monkeypatch.setattr(stored_pairs, "BLOCK", 70)
    monkeypatch.setattr(parallel, "LINES", 90)
    monkeypatch.setattr(parallel, "PART", 100)
    monkeypatch.setattr("datamodules.core.reading.BLOCK", 300)
    monkeypatch.setattr(processes, "usable_cores", lambda: 2)
    assert made(tmp_path / "parts") == whole
    assert sorted(whole) == ["meta.json", "source", "source.npy", "target", "target.npy"]
