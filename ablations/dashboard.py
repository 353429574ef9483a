"""Shows a study on W&B: its answer as a run, and a workspace and a report; without a network, all of it as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ablations.options import out
from ablations.plan_report import WrittenReport, write_report
from lit_transformers.config import ConfigError, Plain
from lit_transformers.printing.error_lines import first_line
from lit_transformers.records.plan import Plan, load_plan, plan_path
from lit_transformers.records.schema import first_fault
from lit_transformers.wandb_target import WandbTarget

if TYPE_CHECKING:
    from reports.judge.findings import Findings
    from sweeps.wandb.answer import StudyAnswer
    from sweeps.wandb.dashboard import ShownAnswer

__all__ = ["build_dashboard", "winners_plan"]

WINNERS = "The arms are the winners of a search: {budget}, selected on the {selected} split, measured on {reported}."


def winners_plan(runs: Path, plan: Plan) -> Plan:
    """Returns the plan of the winners of a study's search. Raises ConfigError where there is none."""
    from dataclasses import replace

    folder = replace(plan, study=f"{plan.study}_tuned").folder
    path = plan_path(runs, folder)
    try:
        return load_plan(path)
    except FileNotFoundError:
        command = f"python -m ablations tune {plan.study}"
        raise ConfigError(f"no search of {plan.folder} has ended; search by: {command}", "--tuned") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"holds no plan: {first_fault(error)}", str(path)) from None


def build_dashboard(plan: Plan, study_file: Path, runs: Path, target: WandbTarget, again: str) -> bool:
    """Writes the report of a study, its answer, workspace and report for W&B, and sends these where there is a key.

    again: the command that does the same where there is a network. Returns False where there is a key and W&B cannot be
    reached. Raises ConfigError where W&B's library of workspaces is not installed, OSError where the folder of the
    study cannot be written.
    """
    from sweeps.wandb.answer import offline_answers, send_answer
    from sweeps.wandb.connection import has_key, require_connection
    from sweeps.wandb.dashboard import build, define, require_workspaces, write_definition, write_views

    require_workspaces()
    written = write_report(runs, plan)
    answer = _answer_of(written, study_file) if written.page else None
    arms = [arm.name for arm in plan.arms]
    shown = _shown(written, answer, study_file)
    definition = define(target.project, plan.folder, plan.question, plan.metric.name, arms, shown)
    folder = plan_path(runs, plan.folder).parent
    paths = [write_definition(folder / "wandb", definition), *write_views(folder / "wandb", definition)]
    for name, path in zip(("definition", "workspace", "report"), paths, strict=True):
        _print(f"{name}: {path}")
    reason = None
    if has_key():
        try:
            require_connection(target)
            if answer:
                is_new = send_answer(answer, target, plan.folder, folder)
                _print("answer: sent" if is_new else "answer: as it was sent before")
            build(definition, target, folder, _print)
        except Exception as error:  # any error of the network: everything is on disk
            reason = first_line(error)
        else:
            _print_pending(written)
            return True
        _print(f"W&B cannot be reached: {reason}")
    else:
        _print("no key for W&B was found; log in with: wandb login")
    if answer:
        send_answer(answer, target._replace(mode="offline"), plan.folder, folder)
    _print_pending(written)
    _print("where there is a network:")
    _print(f"wandb sync {runs}/*/wandb/offline-run-*")
    if answer:
        _print(f"wandb sync {offline_answers(folder, plan.folder)}")
    _print(again)
    return reason is None


def _print(line: str) -> None:
    out.print(line, markup=False, highlight=False, soft_wrap=True)


def _print_pending(written: WrittenReport) -> None:
    if written.page is None:
        _print(_pending(written))


def _pending(written: WrittenReport) -> str:
    plan = written.plan
    return f"The answer is pending: none of {len(written.findings.study.runs)} runs has finished ({plan.folder})."


def _shown(written: WrittenReport, answer: StudyAnswer | None, study_file: Path) -> ShownAnswer:
    """Returns the report as paragraphs of Markdown: question and answer first, then facts, tables and method."""
    from reports.show.answer import answer as sentences
    from reports.show.answer import further_answers, headline
    from reports.show.method import method
    from reports.show.sections import all_tables
    from reports.show.tables import escape_markdown, to_markdown
    from sweeps.wandb.dashboard import ShownAnswer

    findings, plan = written.findings, written.plan
    question = f"# {escape_markdown(plan.question)}"
    facts = [f"- {name}: {escape_markdown(str(value))}" for name, value in _facts(findings, study_file).items()]
    if answer is None:
        return ShownAnswer([question, f"**{escape_markdown(_pending(written))}**"], ["\n".join(facts)])
    first = [question, f"**{escape_markdown(headline(findings))}**"]
    first += [escape_markdown(text) for text in (*_progress(findings), *_about_search(plan), *sentences(findings))]
    further = [*map(escape_markdown, further_answers(findings)), "\n".join(facts)]
    further += [to_markdown(table.shortened()).rstrip("\n") for table in all_tables(findings)]
    further += ["## How the numbers are made", *method(findings)]
    further += ["\n".join(f"- {escape_markdown(note)}" for note in findings.notes)] if findings.notes else []
    return ShownAnswer(first, further, [*answer.tables], [*answer.pictures])


def _answer_of(written: WrittenReport, study_file: Path) -> StudyAnswer:
    """Returns the answer of a study of which runs have finished, with the pictures of the report that was written."""
    from reports.show.answer import headline
    from reports.show.figures import captions_of
    from reports.show.rows import answer_tables
    from sweeps.wandb.answer import AnswerTable, StudyAnswer

    assert written.page is not None
    findings, plan = written.findings, written.plan
    runs = findings.study.runs
    summary: dict[str, Plain] = {
        "headline": headline(findings),
        "runs/finished": len(runs) - findings.study.missing(),
        "runs/planned": len(runs),
    }
    summary |= {f"verdict/{one.name}": one.verdict or one.reason or "none" for one in findings.primary}
    folder = written.page.parent
    pictures = {name: (folder / f"{name}.png", caption) for name, caption in captions_of(findings).items()}
    of_search = f", winners of a search, on {plan.tuning.reported_on}" if plan.tuning else ""
    return StudyAnswer(
        f"answer of {plan.folder}{of_search}",
        summary,
        _facts(findings, study_file),
        {name: AnswerTable(table.columns, table.rows) for name, table in answer_tables(findings).items()},
        pictures,
    )


def _facts(findings: Findings, study_file: Path) -> dict[str, Plain]:
    """Returns the question of the study and the facts of its runs: study, its file, scale, commits, metric and
    protocol."""
    plan = findings.study.plan
    records = [run.record for run in findings.study.runs if run.record]
    commits = sorted({str(commit) for record in records if (commit := record.environment.get("commit"))})
    facts: dict[str, Plain] = {
        "question": plan.question,
        "study": plan.study,
        "study file": study_file.name,
        "scale": plan.scale,
        "changes": ", ".join(f"{path}={value}" for path, value in plan.changes.items()),
        "commit": ", ".join(commits),
        "metric": f"{plan.metric.name} ({plan.goal})",
        "protocol": plan.protocol,
        "search": " ".join(_about_search(plan)),
    }
    return {name: value for name, value in facts.items() if value}


def _progress(findings: Findings) -> list[str]:
    missing, planned = findings.study.missing(), len(findings.study.runs)
    return [f"{planned - missing} of {planned} runs have finished."] if missing else []


def _about_search(plan: Plan) -> list[str]:
    """Returns that the arms are winners of a search; nothing where they are not."""
    if not plan.tuning:
        return []
    budget = ", ".join(f"{amount:,} {name}" for name, amount in plan.tuning.budget.items())
    return [WINNERS.format(budget=budget, selected=plan.tuning.selected_on, reported=plan.tuning.reported_on)]
