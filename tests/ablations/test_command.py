"""The command as a person types it, in separate processes, on the stand-in."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from standin.run import RunConfig, fit
from waiting import wait_for, when

from ablations import catalog
from ablations.__main__ import main
from ablations.arms import list_arms
from ablations.options import out
from ablations.plan import PlannedStudy, Request, make_plan
from ablations.show import gate_table
from ablations.training import records_elsewhere
from lit_transformers.machine.cores import usable_cores
from lit_transformers.records.labels import label_arms
from lit_transformers.records.record import Gate
from reports.judge.findings import Findings
from reports.read.study import Study
from reports.report import find
from sweeps.ledger.run_records import write_failure
from sweeps.ledger.ticket import State, Ticket
from sweeps.live import Row

STUDY = """
from ablations.ablation import Ablation, Contrast, Match, Metric, Published, PublishedValue, Scale, Source
from standin.run import RunConfig

ABLATION = Ablation(
    question="Does recurrence help?",
    source=Source("Dai et al. 2019", arxiv="1901.02860", table="6"),
    baseline=RunConfig(),
    factors={
        "recurrence": {"on": {}, "off": {"model.mixer.memory": 0}},
        "positions": {"relative": {}, "absolute": {"model.mixer.encoding": None}},
    },
    seeds=2,
    metric=Metric("val/bpb", goal="minimize", label="bits per byte"),
    match=Match("tokens"),
    contrasts=[Contrast("recurrence", "recurrence=on positions=relative", "recurrence=off positions=relative")],
    published=Published(protocol="WikiText-103", metric="perplexity", cells=[PublishedValue("recurrence=on", 26.77)]),
    scales={"demo": Scale(leave_out={"recurrence=off positions=absolute": "no time"}), "full": Scale()},
)
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "memory_helps.py"
    path.write_text(STUDY)
    return path


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "ablations", *map(str, words)]


def run_cli(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words), capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}, timeout=120
    )


def test_runs_that_finished_in_another_folder_of_the_same_ledger_are_named_with_it(tmp_path: Path) -> None:
    rows = [
        Row(Ticket(f"key{seed}", "arm", seed, {}), State.FINISHED, reason="its record is on b in /runs")
        for seed in (0, 1)
    ]
    sentence = records_elsewhere(tmp_path, [*rows, Row(Ticket("key2", "arm", 2, {}), State.FAILED)])
    assert sentence is not None
    assert sentence.startswith(
        f"2 of 2 finished runs are in other folders than {tmp_path} (its record is on b in /runs)"
    )
    write_failure(tmp_path, rows[0].ticket, "none", resumable=False)
    assert str(records_elsewhere(tmp_path, rows)).startswith("1 of 2")
    assert records_elsewhere(tmp_path, rows[:1]) is None


def finishes(runs: Path) -> list[int]:
    return [len(path.read_text().splitlines()) for path in runs.glob("*/finishes.txt")]


@pytest.mark.slow
def test_run_trains_reports_repeats_nothing_and_shows_what_is_finished_without_importing_torch_or_optuna(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    monkeypatch.setattr(out, "width", 200)
    assert main(["run", str(study), "--runs", str(runs)]) == 0
    first = capsys.readouterr().out
    assert "Does recurrence help?" in first and "recurrence=off positions=relative" in first
    assert "memory_helps: 6 runs left, about " in first
    assert first.count("Preliminary, from seed 0 only.") == 1
    assert (runs / "studies/memory_helps/report/report.md").exists()
    code = (
        "import sys; from ablations.__main__ import main\n"
        f"status = main(['run', {str(study)!r}, '--runs', {str(runs)!r}])\n"
        "print([name for name in ('torch', 'lightning', 'optuna', 'standin.run') if name in sys.modules])\n"
        "sys.exit(status)"
    )
    second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert second.returncode == 0 and second.stdout.splitlines()[-1] == "[]"
    assert "Does recurrence help?" in second.stdout and "Preliminary" not in second.stdout
    assert finishes(runs) == [1] * 6
    assert main(["run", str(study), "--runs", str(runs), "--seeds", "3"]) == 0
    assert finishes(runs) == [1] * 9


def test_plan_tells_runs_costs_and_time_and_trains_nothing(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(out, "width", 200)
    assert main(["plan", str(study), "--runs", str(tmp_path / "runs")]) == 0
    output = capsys.readouterr().out
    assert "1.04 k" in output and "2.56 k" in output and "6 runs left" in output
    assert "left out, no time: recurrence=off positions=absolute" in output
    assert not list((tmp_path / "runs").glob("*/record.json"))


@pytest.mark.slow
def test_a_plan_is_made_again_when_the_study_or_its_data_change(study: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("some text")
    words = ("plan", study, "--runs", tmp_path / "runs", "--set", f"data.path={corpus}")
    folder = tmp_path / "runs/studies/memory_helps/plans"

    def keys() -> set[str]:
        assert main([str(word) for word in words]) == 0
        (plan_file,) = folder.glob("*.json")
        return set(PlannedStudy.from_dict(json.loads(plan_file.read_text())["plan"]).configs)

    first = keys()
    assert keys() == first
    corpus.write_text("some other text")
    second = keys()
    assert not second & first
    study.write_text(STUDY.replace("seeds=2", "seeds=3"))
    assert len(keys()) == 9
    (plan_file,) = folder.glob("*.json")
    plan_file.write_text("{damaged")
    assert len(keys()) == 9


def test_check_runs_the_gates_of_every_arm(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", str(study), "--runs", str(tmp_path)]
    assert main(words) == 0 and "no future leak" in capsys.readouterr().out
    assert main([*words, "--set", "model.width=13"]) == 1
    assert "token 3 changes with token 5" in capsys.readouterr().out


def test_gates_are_counted_and_each_that_is_no_pass_names_its_arm() -> None:
    arms = list_arms("one_factor", {"positions": {"absolute": {}, "relative": {"a": 1}, "none": {"a": 2}}}, {})
    first, second, third = (arm.name for arm in arms)
    leak, padding = Gate("no future", False, "token 3 changes with token 5"), Gate("padding", True)
    results = {first: [Gate("no future", True), padding], second: [leak], third: [Gate("no future", True)]}
    console = Console(width=80, file=StringIO())
    console.print(gate_table(results, label_arms(arms, "one_factor", first)))
    lines = console.file.getvalue().splitlines()
    assert [line.split() for line in lines[2:4]] == [["no", "future", "2", "1", "-"], ["padding", "1", "-", "2"]]
    assert lines[4:] == [
        "no future: relative: token 3 changes with token 5",
        "padding does not apply to relative, none",
    ]


def test_status_tells_where_every_run_stands(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["status", str(study), "--runs", str(tmp_path)]
    assert main(words) == 0 and "6 runs: 6 waiting" in capsys.readouterr().out
    ticket = make_plan("memory_helps", catalog.load(study), Request()).tickets()[0]
    ticket.directory(tmp_path).mkdir()
    fit(RunConfig.from_dict(ticket.config), ticket.directory(tmp_path))
    assert main(words) == 0 and "6 runs: 5 waiting, 1 finished" in capsys.readouterr().out


def finish_runs(study: Path, runs: Path, request: Request) -> None:
    """Does every run of a request without the command."""
    for ticket in make_plan("memory_helps", catalog.load(study), request).tickets():
        if not ticket.directory(runs).exists():
            ticket.directory(runs).mkdir(parents=True)
            fit(RunConfig.from_dict(ticket.config), ticket.directory(runs))


def plan_files(folder: Path) -> dict[Path, bytes]:
    """The files of a plan and its report, without the cached plans."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.parent.name != "plans"}


@pytest.mark.slow
def test_every_scale_and_set_of_changes_has_a_report_of_its_own(study: Path, tmp_path: Path) -> None:
    words = ["report", str(study), "--runs", str(tmp_path)]
    requests = {
        "memory_helps": Request(),
        "memory_helps--full": Request("full"),
        "memory_helps--training.steps=7": Request("demo", ("training.steps=7",)),
    }
    for request in requests.values():
        finish_runs(study, tmp_path, request)
    assert main(words) == 0
    default_files = plan_files(tmp_path / "studies/memory_helps")
    for folder, request in requests.items():
        assert main([*words, *request.arguments()]) == 0
        document = json.loads((tmp_path / "studies" / folder / "plan.json").read_text())
        assert (document["scale"], document["changes"]) == (request.scale, request.changes)
        assert (tmp_path / "studies" / folder / "report/report.md").exists()
    assert plan_files(tmp_path / "studies/memory_helps") == default_files


@pytest.mark.slow
def test_a_report_without_seeds_has_those_of_the_last_run_and_never_fewer_than_stand_there(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(study), "--runs", str(tmp_path)]

    def seeds() -> int:
        return len(json.loads((tmp_path / "studies/memory_helps/plan.json").read_text())["arms"][0]["runs"])

    finish_runs(study, tmp_path, Request(seeds=3))
    assert main(["report", *words, "--seeds", "1"]) == 0 and seeds() == 1
    assert main(["report", *words]) == 0 and seeds() == 1
    assert main(["report", *words, "--seeds", "3"]) == 0 and seeds() == 3
    before = plan_files(tmp_path / "studies/memory_helps")
    for fewer in (["report", *words, "--seeds", "1"], ["run", *words]):
        assert main(fewer) == 2 and "a report of 3 seeds stands there" in capsys.readouterr().err
    assert main(["report", *words]) == 0
    assert plan_files(tmp_path / "studies/memory_helps") == before


@pytest.mark.slow
def test_a_report_of_nothing_is_one_line_and_leaves_what_stands_there(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["report", str(study), "--runs", str(tmp_path), "--seeds", "2"]
    finish_runs(study, tmp_path, Request())
    assert main(words) == 0
    before = plan_files(tmp_path / "studies")
    study.write_text(STUDY.replace("RunConfig()", "RunConfig(seed=0, training=TrainingConfig(steps=9))").replace(
        "import RunConfig", "import RunConfig, TrainingConfig"
    ))  # fmt: skip
    capsys.readouterr()
    assert main(words) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line]
    assert "none of its 6 runs has finished" in line and f"python -m ablations run {study}" in line
    assert plan_files(tmp_path / "studies") == before


@pytest.mark.slow
def test_a_run_that_never_begins_or_finishes_nothing_leaves_the_report_as_it_was(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", str(study), "--runs", str(tmp_path)]
    finish_runs(study, tmp_path, Request())
    assert main(words) == 0
    before = plan_files(tmp_path / "studies/memory_helps")
    study.write_text(STUDY.replace('"positions"', '"place"').replace("positions=", "place=").replace(
        "RunConfig()", 'RunConfig(training=TrainingConfig(fault="nan"))').replace(
        "import RunConfig", "import RunConfig, TrainingConfig"
    ))  # fmt: skip
    assert main([*words, "--storage", "nonsense://"]) == 2
    assert plan_files(tmp_path / "studies/memory_helps") == before
    capsys.readouterr()
    assert main(words) == 1
    output = capsys.readouterr().out
    assert "not-a-number" in output and "No report: no run of memory_helps has finished." in output
    after = plan_files(tmp_path / "studies/memory_helps")
    of_the_plan = ("plan.json", "floors.json")
    assert {path: text for path, text in after.items() if path.name not in of_the_plan} == {
        path: text for path, text in before.items() if path.name not in of_the_plan
    }


@pytest.mark.slow
def test_a_run_that_is_stopped_says_how_to_go_on(study: Path, tmp_path: Path) -> None:
    """From a terminal."""
    shares = ["--workers", "3", "--threads", "1", "--seeds", "1"]
    words = command("run", study, "--runs", tmp_path / "runs", "--set", "training.fault=wait", *shares)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    wait_for(lambda: len(list(tmp_path.glob("runs/*/checkpoint.ckpt"))) == 3)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: everyone hears it
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "stopped; run the same command to resume" in output
    assert main(words[3:]) == 0
    assert finishes(tmp_path / "runs") == [1] * 3


def test_a_run_that_is_terminated_ends_with_the_status_of_the_signal_and_goes_on(study: Path, tmp_path: Path) -> None:
    words = [
        "run",
        str(study),
        "--runs",
        str(tmp_path),
        "--set",
        "training.fault=wait",
        "--workers",
        "3",
        "--seeds",
        "1",
    ]
    with when(lambda: len(list(tmp_path.glob("*/checkpoint.ckpt"))) == 3, lambda: os.kill(os.getpid(), signal.SIGTERM)):
        assert main([*words, "--threads", "1"]) == 128 + signal.SIGTERM
    assert not finishes(tmp_path)
    assert main([*words, "--threads", "1"]) == 0
    assert finishes(tmp_path) == [1] * 3


SEEDS = "study memory_helps: seed: cannot be set, for a study plans its seeds: give their number by --seeds N"
WRONG = [
    (("run", "xl_recurence"), "no study 'xl_recurence'"),
    (("run", "nowhere.py"), "nowhere.py: there is no such file"),
    (
        ("run", "STUDY", "--set", "model.mixr.memory=3"),
        "model.mixr: ModelConfig has no field 'mixr'; did you mean mixer?",
    ),
    (("run", "STUDY", "--set", "model.width=wide"), "model.width: input should be a valid integer; got 'wide'"),
    (("run", "STUDY", "--set", "model.width"), "write path=value, not 'model.width'"),
    (
        ("run", "STUDY", "--set", "model.mixer.memory=0"),
        "model.mixer.memory: cannot be set, for the arms of the study differ",
    ),
    *(((verb, "STUDY", "--set", "seed=5"), SEEDS) for verb in ("run", "report", "tune", "agent")),
    (("run", "STUDY", "--scale", "huge"), "no scale 'huge'"),
    (("run", "STUDY", "--seeds", "0"), "--seeds"),
    (("run", "STUDY", "--slurm", "partition=gpu"), "--slurm: is for runs on a cluster; add --launcher slurm"),
    (("run", "STUDY", "--launcher", "slurm", "--threads", "2"), "--threads: shares out this machine"),
    (("run", "STUDY", "--ray", "cpus=2"), "--ray: is for runs on a cluster; add --launcher ray"),
    (("run", "STUDY", "--runs", "STUDY"), "memory_helps.py"),
    (("plan", "STUDY", "--wrong"), "No such option"),
    (("new", "no-name"), "a study's name is a Python name such as longer_memory, not 'no-name'"),
    (("new", "STUDY"), "is there already"),
]


def status_and_errors(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """The exit status and the standard error of the command, run in this process."""
    return main([str(word) for word in words]), capsys.readouterr().err


@pytest.mark.parametrize(("words", "line"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_bad_input_is_one_clear_line_and_status_2(
    study: Path, tmp_path: Path, words: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(study) if word == "STUDY" else word for word in words]
    runs_option = [] if "--runs" in words or words[0] == "new" else ["--runs", tmp_path / "runs"]
    status, errors = status_and_errors(capsys, *arguments, *runs_option)
    assert status == 2, errors
    assert line in re.sub(r"\s+", " ", errors)


def test_more_ranks_than_cores_are_refused_before_anything_is_written(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cores, runs = usable_cores(), tmp_path / "runs"
    status, errors = status_and_errors(capsys, "run", study, "--runs", runs, "--devices", cores + 1)
    line = f"training.devices: asks for {cores + 1} ranks on a CPU of which {cores} cores may be used; give --devices"
    assert status == 2 and line in errors
    assert not (runs / "studies/memory_helps/plan.json").exists() and not list(runs.glob("*/log.txt"))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("ABLATION = (", "was never closed, line 1"),
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("x = 1", "has to define ABLATION"),
        (STUDY.replace("seeds=2", "seed=2"), "unexpected keyword argument 'seed'"),
        (STUDY.replace("model.mixer.memory", "model.mixer.memry"), "factors.recurrence.off: model.mixer.memry"),
    ],
)
def test_a_study_that_is_wrong_is_one_clear_line(
    study: Path, text: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    study.write_text(text)
    status, errors = status_and_errors(capsys, "show", study)
    assert status == 2 and len(errors.splitlines()) == 1
    assert line in errors and "study memory_helps" in errors


def test_no_traceback_reaches_a_terminal(study: Path) -> None:
    study.write_text("ABLATION = 3 / 0")
    completed = run_cli("show", study)
    assert completed.returncode == 2
    assert (
        completed.stderr
        == f"error: study memory_helps: {study} cannot be loaded: ZeroDivisionError: division by zero\n"
    )


def test_every_study_in_the_folder_has_a_question_that_is_read_without_importing_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["list"]) == 0
    output = capsys.readouterr().out
    for name in catalog.names():
        assert name in output and catalog.headline(catalog.find(name)).question


def test_help_teaches_by_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "python -m ablations plan xl_recurrence" in text and "130" in text
    assert main(["run", "--help"]) == 0
    assert "--set" in capsys.readouterr().out


@pytest.mark.slow
def test_a_new_study_is_ready_to_be_resolved(tmp_path: Path) -> None:
    path = catalog.write_new(str(tmp_path / "my_study.py"))
    ablation = catalog.load(path)
    assert [arm.name for arm in ablation.resolve().arms] == ["baseline", "memory=0", "memory=128"]


def test_a_plan_holds_what_reports_read(study: Path) -> None:
    plan = make_plan("memory_helps", catalog.load(study), Request())
    document = plan.to_dict()["plan"]
    assert document["baseline"] == "recurrence=on positions=relative"
    assert [len(arm["runs"]) for arm in document["arms"]] == [2, 2, 2]
    assert document["match"]["per_arm"]["recurrence=off positions=relative"] == {"target": 2560, "reached": 2560}
    assert document["published"]["cells"] == [{"arm": {"recurrence": "on"}, "value": 26.77, "note": ""}]
    assert document["left_out"] == [{"arm": "recurrence=off positions=absolute", "reason": "no time"}]
    assert document["commands"]["run"] == "python -m ablations run memory_helps --scale demo"
    assert (plan.folder, document["changes"]) == ("memory_helps", {})
    assert [ticket.seed for ticket in plan.tickets()] == [0, 0, 0, 1, 1, 1]
    assert json.loads(json.dumps(plan.to_dict())) == plan.to_dict()


@pytest.mark.slow
def test_the_commands_of_a_plan_can_be_pasted(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--set", "training.steps=3", "--set", "data.path=some corpus.txt", "--seeds", "1", "--runs", "my runs"]
    monkeypatch.chdir(tmp_path)
    Path("some corpus.txt").write_text("text")
    first_command = ["run", "memory_helps.py", *words]
    assert main(first_command) == 0
    (report,) = Path("my runs/studies").glob("memory_helps--*/report/report.md")
    line = next(line for line in report.read_text().splitlines() if line.startswith("- Run: "))
    pasted = shlex.split(line.removeprefix("- Run: ").strip("`"))
    assert pasted[:3] == ["python", "-m", "ablations"]
    before = finishes(Path("my runs"))
    assert main(pasted[3:]) == 0 and finishes(Path("my runs")) == before == [1] * 3


@pytest.mark.parametrize("words", [[], ["--unmatched"]])
def test_verdicts_between_arms_that_do_not_match_are_given_on_request_alone(
    study: Path, tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unmatched: list[bool] = []
    finish_runs(study, tmp_path, Request())

    def write(study: Study, directory: Path, given: bool) -> Findings:
        unmatched.append(given)
        return find(study)

    monkeypatch.setattr("reports.write_study", write)
    assert main(["report", str(study), "--runs", str(tmp_path), *words]) == 0
    assert unmatched == [bool(words)]
