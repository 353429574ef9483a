"""Runs of commands: small programs of a shell and awk, and the files that they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import wait_for

from lit_transformers.command_runs import CommandRunConfig
from lit_transformers.command_runs.config import CommandDataConfig
from lit_transformers.command_runs.fit import fit
from lit_transformers.command_runs.keys import run_key
from lit_transformers.command_runs.runner import RUNNER
from lit_transformers.command_runs.short_run import ShortRun, check, short_run
from lit_transformers.config import ConfigError
from lit_transformers.machine.memory import memory_of_tree
from lit_transformers.records.record import REPEATS_WITHIN
from lit_transformers.run_file import read_run
from lit_transformers.training.search_pruning import Bars
from lit_transformers.training.stopping import Interrupted, ProcessKilled

LOSSES = """#!/bin/sh
for step in 1 2 3; do
    echo "{\\"step\\": $step, \\"val_loss\\": $(awk -v s=$step -v r="$1" -v n="$2" 'BEGIN { print 1/(s*r) + n/100 }')}"
done
echo progress "$3" >&2
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a program, which is the working folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    program(folder, LOSSES)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    short_run.cache_clear()
    return folder


def program(folder: Path, text: str) -> None:
    path = folder / "losses.sh"
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}")
    path.chmod(0o755)


def config(command: str = "./losses.sh {rate} {seed}", **fields: Any) -> CommandRunConfig:
    params = {"rate": 0.5} if "{rate}" in command else {}
    return CommandRunConfig(**{"command": command, "params": params, "metrics": {"val_loss": "minimize"}, **fields})


def test_a_run_leaves_its_result_its_curves_and_what_its_command_printed(project: Path) -> None:
    run = project / "runs" / "a"
    record = fit(config(seed=2, repeats_within=0.5), run)
    assert record["protocol"][REPEATS_WITHIN] == 0.5
    assert record["outcome"] == "finished" and record["metrics"] == {"val_loss": pytest.approx(2 / 3 + 0.02, abs=1e-5)}
    curve = (run / "metrics.csv").read_text().splitlines()
    assert curve[0] == "step,tokens,name,value" and [row.split(",")[0] for row in curve[1:]] == ["1", "2", "3"]
    assert (run / "output.txt").read_text().count("val_loss") == 3 and (run / "errors.txt").read_text() == "progress \n"
    assert record["measured"]["steps"] == 3 and record["measured"]["seconds"] > 0
    program(project, "exit 1")
    with pytest.raises(ConfigError, match=r"the code has changed|data have changed"):  # a finished run stays as it is
        fit(config(seed=2), run)


@pytest.mark.parametrize(
    ("choice", "expected"), [("last", 3.0), ("lowest", 1.0), ("highest", 5.0), ("first", 2.0), (4, 5.0)]
)
def test_the_result_is_the_value_over_steps_that_is_named(project: Path, choice: str | int, expected: float) -> None:
    lines = [(1, 2.0), (2, 1.0), (4, 5.0), (8, 3.0)]
    text = "\n".join(f"echo '{json.dumps({'step': step, 'val_loss': value})}'" for step, value in lines)
    program(project, text)
    record = fit(config("./losses.sh {seed}", choose={"val_loss": choice}), project / "runs" / "a")
    assert record["metrics"]["val_loss"] == expected


READINGS: dict[str, tuple[str, dict[str, Any], dict[str, float]]] = {
    "json_lines": (
        """echo starting; echo '{broken'; echo '{"val_loss": 2, "eval": {"accuracy": 0.5}, "note": "x"}'""",
        {"kind": "json_lines"},
        {"val_loss": 2.0, "eval/accuracy": 0.5},
    ),
    "pattern": (
        "printf 'step 100: train loss 4.1, val loss 3.2\\rstep 200: train loss 3.9, val loss 3.1'",
        {"kind": "pattern", "patterns": r"step (?P<step>\d+): train loss (?P<train>\S+), val loss (?P<val_loss>\S+)"},
        {"val_loss": 3.1, "train": 3.9},
    ),
    "one group": (
        "echo loss: 1e-3",
        {"kind": "pattern", "patterns": "loss: (.*)", "names": {"value": "val_loss"}},
        {"val_loss": 1e-3},
    ),
    "csv": (
        "printf 'step,loss\\n1,0.5\\n2,0.25\\n' > log.csv",
        {"kind": "csv", "file": "log.csv", "names": {"loss": "val_loss"}},
        {"val_loss": 0.25},
    ),
    "json_file": (
        """echo '{"eval": {"val_loss": 7}, "seed": '$1'}' > out-$1.json""",
        {"kind": "json_file", "file": "out-{seed}.json", "names": {"eval/val_loss": "val_loss"}},
        {"val_loss": 7.0, "seed": 0.0},
    ),
    "trainer_state": (
        """echo '{"log_history": [{"step": 2, "val_loss": 4}, {"step": 4, "val_loss": 3}]}' > state.json""",
        {"kind": "json_file", "file": "state.json", "entries": "log_history"},
        {"val_loss": 3.0},
    ),
}


@pytest.mark.parametrize("name", READINGS)
def test_numbers_are_read_as_the_config_says(project: Path, name: str) -> None:
    text, values, expected = READINGS[name]
    program(project, text)
    assert fit(config("./losses.sh {seed}", values=values), project / "runs" / "a")["metrics"] == expected


FAILURES: dict[str, tuple[str, dict[str, Any], str]] = {
    "status": (
        """echo '{"val_loss": 1}'; echo ValueError: no such layer >&2; exit 3""",
        {},
        "exit status 3: ValueError: no such layer",
    ),
    "signal": ("kill -11 $$", {}, "killed by signal 11, and it printed nothing"),
    "nan": ("""echo '{"val_loss": NaN}'""", {}, "not-a-number: val_loss is nan at step 1"),
    "other numbers": ("""echo '{"loss": 1}'""", {}, "val_loss never appeared; the numbers that did are loss"),
    "no numbers": (
        "echo step 10 loss 2.5; echo step 20 loss 2.4",
        {},
        r"val_loss never appeared in its output, and no other number; the lines there have the forms: step # loss #.#",
    ),
    "broken line": ("""echo '{"val_loss": 1.5'""", {}, "a line is no JSON"),
    "no file": ("true", {"values": {"kind": "csv", "file": "log.csv"}}, "has written no log.csv"),
    "no column": (
        "printf 'step,val_los\\n1,2\\n' > log.csv",
        {"values": {"kind": "csv", "file": "log.csv"}},
        "has no column 'val_loss'; did you mean val_los?",
    ),
    "no step": ("""echo '{"val_loss": 1}'""", {"choose": {"val_loss": 9}}, "has no value at step 9"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_run_without_a_result_has_failed_and_says_why_in_a_line(project: Path, name: str) -> None:
    text, fields, reason = FAILURES[name]
    program(project, text)
    record = fit(config("./losses.sh {seed}", **fields), project / "runs" / "a")
    assert record["outcome"] == "failed" and reason in record["reason"] and "\n" not in record["reason"]
    assert not record["metrics"]


def test_values_are_single_arguments_and_no_shell_reads_them(project: Path) -> None:
    program(project, """printf '%s\\n' "$@" > words; echo '{"val_loss": 1}'""")
    text = "1; touch stolen $(touch stolen) 'x"
    words = config("./losses.sh --rate={rate} {seed} {flags}", params={"rate": text, "flags": ["--a b", "{rate}"]})
    fit(words, project / "runs" / "a")
    work = project / "runs" / "a" / "work"
    assert (work / "words").read_text().splitlines() == [f"--rate={text}", "0", "--a b", "{rate}"]
    in_shell = config("./losses.sh {rate} {seed} && true", params={"rate": text}, shell=True)
    fit(in_shell, project / "runs" / "b")
    assert (project / "runs" / "b" / "work" / "words").read_text().splitlines() == [text, "0"]
    assert not [*project.rglob("stolen")]


def test_variables_and_files_hold_placeholders_too(project: Path) -> None:
    program(project, """echo "{\\"val_loss\\": $(cat conf/rate.txt), \\"threads\\": $OMP_NUM_THREADS, \\"s\\": $S}" """)
    files, variables = {"conf/rate.txt": "{rate}"}, {"S": "{seed}", "OMP_NUM_THREADS": "3"}
    run = config("./losses.sh", params={"rate": 0.25}, files=files, environment=variables, seed=4)
    assert fit(run, project / "runs" / "a")["metrics"] == {"val_loss": 0.25, "threads": 3.0, "s": 4.0}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown placeholder": (
        {"command": "./losses.sh {rat} {seed}"},
        "no value for the placeholder {rat}; did you mean rate",
    ),
    "value without placeholder": ({"params": {"rate": 1, "width": 2}}, r"params.width: has no effect"),
    "no seed": ({"command": "./losses.sh {rate}"}, "nothing holds the placeholder {seed}.*--seed {seed}"),
    "no group": ({"values": {"kind": "pattern", "patterns": "loss"}}, "values.patterns.0: has no group"),
    "bad expression": ({"values": {"kind": "pattern", "patterns": "(loss"}}, "is no regular expression"),
    "open quote": ({"command": "./losses.sh '{rate} {seed}"}, "cannot be split into words"),
    "list in a word": ({"command": "./losses.sh -r{rate} {seed}", "params": {"rate": [1]}}, "is no single text"),
    "reserved": ({"params": {"rate": 1, "seed": 3}}, "is a placeholder for the seed of the run"),
    "other metric": ({"choose": {"loss": "last"}}, "is no metric; did you mean val_loss"),
    "file outside": ({"files": {"../a": "x"}}, "is no path within the working folder"),
    "steps without a value": ({"command": "./losses.sh {rate} {seed} {steps}"}, "training.steps has no value"),
    "steps without a placeholder": ({"training": {"steps": 5}}, "nothing holds the placeholder {steps}"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_run_is_refused_in_a_line(name: str) -> None:
    changes, message = BAD[name]
    with pytest.raises(ConfigError, match=message) as caught:
        config(**{"command": "./losses.sh {rate} {seed}", "params": {"rate": 1}} | changes)
    assert "\n" not in str(caught.value)


def test_what_is_missing_is_known_before_a_run(project: Path) -> None:
    (project / "large").mkdir()
    (project / "large" / "data.bin").write_bytes(b"0" * (2 << 20))
    for command, message in {
        "./loses.sh {rate} {seed}": "there is no program './loses.sh' in .",
        "no-such-program {rate} {seed}": "there is no program 'no-such-program' on the PATH",
        "sh train.sh {rate} {seed}": "there is no file train.sh in .",
    }.items():
        with pytest.raises(ConfigError, match=message):
            RUNNER.rehearse(config(command))
    with pytest.raises(ConfigError, match="there is no folder elsewhere"):
        run_key(config(folder="elsewhere"))
    with pytest.raises(ConfigError, match=r"more than 1 MiB.*large alone holds 2 MiB: name it in folder.ignore"):
        run_key(config(folder={"path": ".", "limit": 1}))
    with pytest.raises(ConfigError, match=r"data.files.0: there is no points.csv"):
        run_key(config(data={"files": ["points.csv"]}))
    with pytest.raises(ConfigError, match="none of the metrics of its command; did you mean val_loss"):
        RUNNER.measure_of(config(), "val_los")


def test_the_key_covers_the_content_of_the_folder_and_of_data_and_nothing_beside(project: Path) -> None:
    (project / "points.csv").write_text("1")
    with_data = config(data={"files": ["points.csv"]}, folder={"path": ".", "ignore": ["*.csv"]})
    keys = {run_key(with_data)}
    for ignored in ("runs/a", ".git", "__pycache__", "wandb", "anything/b"):
        (project / ignored).mkdir(parents=True)
        (project / ignored / "run.yaml").write_text("new")
    for first in ("other/studies/rates/plans/a.json", "other/0a/log.txt", "third/folder.id", "third/0a/log.txt"):
        (project / first).parent.mkdir(parents=True, exist_ok=True)
        (project / first).write_text("before a run.yaml is there")
    (project / "rates.py").write_text("ABLATION = Ablation(seeds=3)")
    (project / ".gitignore").write_text("# what runs write\n/checkpoints/\n!kept\n")
    for written in ("other.csv", "train.log", "checkpoints/last", "anything/b/work"):
        (project / written).parent.mkdir(exist_ok=True)
        (project / written).write_text("2")
    assert run_key(with_data) in keys
    assert (
        run_key(with_data.override({"search": {"params.rate": {"low": 0.1, "high": 1.0}}, "resume": "folder"})) in keys
    )
    for change in (lambda: (project / "points.csv").write_text("2"), lambda: (project / "lib.py").write_text("")):
        change()
        keys.add(run_key(with_data))
    program(project, LOSSES + "#")
    keys |= {
        run_key(with_data),
        run_key(with_data.override({"params.rate": 1.0})),
        run_key(with_data.override({"seed": 1})),
    }
    assert len(keys) == 6


def test_a_run_works_in_a_copy_with_links_to_its_data(project: Path) -> None:
    (project / "points.csv").write_text("1")
    program(project, """echo "{\\"val_loss\\": $(cat points.csv)}"; echo changed > losses.sh""")
    run = config("./losses.sh {seed}", data={"files": ["points.csv"]}, folder={"path": ".", "ignore": ["points.csv"]})
    assert fit(run, project / "runs" / "a")["metrics"] == {"val_loss": 1.0}
    assert "val_loss" in (project / "losses.sh").read_text()


STOPPED = """
n=$(cat count 2>/dev/null || echo 0); n=$((n + 1)); echo $n > count
echo "{\\"step\\": $n, \\"val_loss\\": $n, \\"given\\": $(test -n "$1" && echo 1 || echo 0)}"
test -e done && exit 0
touch done started
trap 'exit 0' TERM
for _ in 1 2 3 4 5 6 7 8 9 10; do sleep 1 & wait; done
"""


@pytest.mark.parametrize(("resume", "steps"), [("folder", [1, 2]), ("anew", [1])])
def test_a_stopped_run_continues_in_its_old_folder_or_begins_anew(project: Path, resume: Any, steps: set[str]) -> None:
    program(project, STOPPED)
    run = project / "runs" / "a"
    stopped = config("./losses.sh {resume_from} {seed}", resume=resume)

    def stop() -> None:
        wait_for(lambda: (run / "work" / "started").exists())
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(Interrupted, match="old folder" if resume == "folder" else "anew"):
        fit(stopped, run)
    assert not (run / "record.json").exists()
    if resume == "anew":
        (run / "work" / "started").unlink()
        threading.Thread(target=stop, daemon=True).start()
        with pytest.raises(Interrupted):
            fit(stopped, run)
    else:
        assert fit(stopped, run)["metrics"] == {"val_loss": 2.0, "given": 1.0}
    printed = [json.loads(line)["step"] for line in (run / "output.txt").read_text().splitlines()]
    assert printed == steps


KILLED = """
import sys
from pathlib import Path
from lit_transformers.command_runs import CommandRunConfig
from lit_transformers.command_runs.attempt import attempt
attempt(CommandRunConfig.from_yaml(sys.argv[1]), Path(sys.argv[2]), lambda: False, lambda points: False)
"""


def test_no_process_of_a_command_outlives_a_killed_worker(project: Path, tmp_path: Path) -> None:
    program(project, "echo printed; sleep 200 & echo $! > child; echo $$ > own; wait")
    (tmp_path / "run.yaml").write_text(config("./losses.sh {seed}").to_yaml())
    run = tmp_path / "run"
    worker = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "run.yaml"), str(run)])
    written = (run / "output.txt", run / "work" / "own")
    wait_for(lambda: all(path.exists() and path.read_text().strip() for path in written))
    pids = [int((run / "work" / name).read_text()) for name in ("own", "child")]
    worker.kill()
    worker.wait()
    wait_for(lambda: not any(is_alive(pid) for pid in pids))
    assert (run / "output.txt").read_text() == "printed\n", "the output from before is lost"


@pytest.mark.parametrize("status", ["kill -9 $$", "sh -c 'kill -9 $$'; exit $?"])
def test_a_command_that_the_system_has_killed_is_done_again(project: Path, status: str) -> None:
    """The cause is not in the command: the launcher runs it again, and names the likely cause if that happens often."""
    program(project, status)
    with pytest.raises(ProcessKilled, match=r"its command was killed \(signal 9\)"):
        fit(config("./losses.sh {seed}"), project / "runs" / "a")
    assert not (project / "runs" / "a" / "record.json").exists()


def test_a_command_that_is_ended_together_with_its_worker_was_stopped_and_has_not_failed(project: Path) -> None:
    """A batch system signals all processes of a job, and the command ends before the worker asks it to."""
    program(project, f"kill -TERM {os.getpid()} $$; sleep 20")
    with pytest.raises(Interrupted, match="begin anew"):
        fit(config("./losses.sh {seed}"), project / "runs" / "a")
    program(project, "kill -TERM $$; sleep 20")
    record = fit(config("./losses.sh {seed}"), project / "runs" / "b")
    assert record["reason"] is not None and "killed by signal 15" in record["reason"]


def test_memory_counts_what_a_command_has_started_also_where_its_parent_is_gone(tmp_path: Path) -> None:
    held = "import pathlib, time; held = bytearray(64 << 20); pathlib.Path('held').touch(); time.sleep(30)"
    lost = f'({sys.executable} -S -c "{held}" &); read -r end'
    own = subprocess.Popen(["sh", "-c", f"({lost})"], cwd=tmp_path, stdin=subprocess.PIPE, process_group=0)
    try:
        wait_for((tmp_path / "held").exists)
        assert memory_of_tree(own.pid) > 64 << 20
    finally:
        os.killpg(own.pid, signal.SIGKILL)
        own.communicate()
    assert memory_of_tree(own.pid) == 0


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_what_a_command_leaves_behind_in_the_background_ends_with_it(project: Path) -> None:
    program(project, """sleep 200 & echo $! > child; echo '{"val_loss": 1}'""")
    fit(config("./losses.sh {seed}"), project / "runs" / "a")
    child = int((project / "runs" / "a" / "work" / "child").read_text())
    wait_for(lambda: not is_alive(child))


def test_a_trial_that_lags_behind_its_bars_is_ended(project: Path) -> None:
    program(project, """for s in 1 2 3; do echo "{\\"step\\": $s, \\"val_loss\\": 5}"; done; sleep 20; touch late""")
    run = project / "runs" / "a"
    Bars("val_loss", "minimize", {2: 1.0}).write(run)
    record = fit(config("./losses.sh {seed} {steps}", training={"steps": 9}), run)
    assert record["outcome"] == "pruned" and "at step 2 of 9, val_loss 5 lags behind 1" in record["reason"]
    assert not (run / "work" / "late").exists(), "the command was not ended"


def test_gates_run_a_seed_twice_and_another_one(project: Path) -> None:
    outcomes = {gate.name: gate for gate in check(config(short={"params.rate": 2.0}))}
    assert all(gate.passed for gate in outcomes.values()) and len(outcomes) == 3
    assert "0.166667" in outcomes["a seed gives the same result twice"].detail, "the run was not the short one"
    program(project, """echo "{\\"val_loss\\": 1}" """)
    *_, seeds = check(config("./losses.sh {seed}"))
    assert not seeds.passed and "does not use {seed}" in seeds.detail
    program(project, """date +%s%N > time; echo "{\\"val_loss\\": 0.$(cut -c10-19 time), \\"x\\": $1}" """)
    _, repeats, _ = check(config("./losses.sh {seed}"))
    assert not repeats.passed and "state repeats_within=" in repeats.detail
    _, repeats, _ = check(config("./losses.sh {seed}", repeats_within=1.0))
    assert repeats.passed
    program(project, "exit 4")
    (ends,) = check(config("./losses.sh {seed}"))
    assert not ends.passed and ends.detail.startswith("exit status 4")


def test_budgets_are_what_a_short_run_prints(project: Path) -> None:
    program(project, """echo "{\\"val_loss\\": 1, \\"size\\": 120, \\"read\\": $(($2 * 32))}" """)
    run = config("./losses.sh {seed} {steps}", training={"steps": 500}, short={"training.steps": 5})
    cost = RUNNER.describe(run.override({"budgets": {"parameters": "size", "tokens": "read"}}))
    assert (cost.parameters, cost.tokens, cost.train_flops) == (120, 16000, None)
    with pytest.raises(ConfigError, match=r"budgets.flops: no number 'flop' appears in a short run"):
        RUNNER.describe(run.override({"budgets": {"flops": "flop"}}))


def test_the_time_of_a_step_is_that_of_more_steps_without_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(config: CommandRunConfig) -> ShortRun:
        assert config.training.steps is not None
        return ShortRun({}, None, 3.0 + 0.25 * config.training.steps, 1000)

    monkeypatch.setattr("lit_transformers.command_runs.short_run.short_run", timed)
    run = config("./losses.sh {seed} {steps}", training={"steps": 1}, short={"training.steps": 8})
    assert RUNNER.probe(run) == (0.25, 1000.0)
    with pytest.raises(ConfigError, match=r"set training.steps, and {steps} in the command"):
        RUNNER.probe(config("./losses.sh {seed}"))


def test_a_file_may_not_bring_a_command_that_no_study_has_named(project: Path) -> None:
    (project / "run.yaml").write_text(config().to_yaml())
    with pytest.raises(ConfigError, match="holds a command that no study of yours has named"):
        read_run(project / "run.yaml")


def test_data_state_their_split_by_a_placeholder() -> None:
    split = config("./losses.sh {seed} {split}", data=CommandDataConfig(evaluation={"split": "test"}))
    assert split.filled_command({})[-1] == "test"
