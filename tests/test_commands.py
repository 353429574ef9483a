"""A terminal shows one line where a command ends otherwise than planned."""

from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from foreign_module import Net
from torch import Tensor

from lit_transformers.__main__ import main
from lit_transformers.cli.commands import message_of
from lit_transformers.cli.console import SteadyConsole
from lit_transformers.lightning_runs import LightningRunConfig


def test_a_console_whose_reader_is_gone_ends_nothing_and_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as file:
        console = SteadyConsole(file=file)
        for _ in range(3):
            console.print("a line")
    assert capfd.readouterr().err == "nobody reads the output any more; the work continues\n"


def test_ctrl_c_during_imports_is_one_line() -> None:
    code = "import lit_transformers.startup.search_path; raise KeyboardInterrupt"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert completed.stderr == "stopped before anything was begun\n" and completed.returncode


def test_a_name_that_is_no_utf_8_is_one_line() -> None:
    with pytest.raises(UnicodeEncodeError) as raised:
        'the "runs" are in "/tmp/\udcff/x" and elsewhere'.encode()
    assert message_of(raised.value) == r"/tmp/\udcff/x: holds a name that is no UTF-8; rename the folder or the file"
    with pytest.raises(UnicodeEncodeError) as raised:
        "caf\u00e9".encode("ascii")
    assert message_of(raised.value) is None, "a fault of the program"


def test_a_file_that_is_not_there_is_one_line_and_a_full_disk_says_what_stays() -> None:
    line = message_of(FileNotFoundError(errno.ENOENT, "No such file or directory", "a.csv"))
    assert line == "a.csv: No such file or directory"
    line = message_of(OSError(errno.ENOSPC, "No space left on device", "a.csv"))
    assert line == "a.csv: the disk is full; nothing that was finished is lost"


@pytest.mark.parametrize("reason", ["not-a-number: the loss is nan", "RuntimeError: something broke"])
def test_a_run_that_fails_prints_a_line_and_its_log_holds_the_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], reason: str
) -> None:
    train = Net.training_step

    def break_down(module: Net, batch: Any, index: int) -> Tensor:
        if module.global_step == 3 and "broke" in reason:
            raise RuntimeError("something broke")
        return train(module, batch, index) * (math.nan if module.global_step == 3 else 1.0)

    monkeypatch.setattr(Net, "training_step", break_down)
    model, data = {"class_path": "foreign_module.Net"}, {"class_path": "foreign_module.Plane"}
    config = LightningRunConfig(model=model, data=data, training={"steps": 5, "device": "cpu"})
    run, log = tmp_path / "run.yaml", tmp_path / "run" / "log.txt"
    run.write_text(config.to_yaml(), encoding="utf-8")
    assert main(["fit", str(run), "--to", str(log.parent), "--allow-module", "foreign_module"]) == 1
    shown = capfd.readouterr().err
    assert "Traceback" not in shown and f"failed: {reason}" in shown and f"; see {log}" in shown
    assert "Traceback" in log.read_text(encoding="utf-8")
