"""Storages of Optuna: databases and journals, a run for each trial."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lit_transformers.records.measure import Goal
from reports.read.study import ReportError
from reports.read.table_rows import Cell
from reports.read.trackers.tracked_run import RunsAddress, TrackedRun, TrackerReader, flat, library, value_of

__all__ = ["OPTUNA"]

_TITLE = "Optuna"
_TABLES = ("studies", "trials", "trial_values")
_OBJECTIVE = "value"


def _recognises(address: RunsAddress) -> bool:
    return bool(_urls(address) or _journals(address))


def _urls(address: RunsAddress) -> list[str]:
    if "://" in address.text and not address.text.startswith("sqlite:///"):
        return [] if address.text.startswith("http") else [address.text]
    return [f"sqlite:///{path}" for path in address.databases(*_TABLES)]


def _journals(address: RunsAddress) -> list[Path]:
    return [file for file in address.files if file.suffix in (".log", ".journal") and _is_journal(file)]


def _is_journal(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(12).startswith(b'{"op_code"')


def _runs(address: RunsAddress, metric: str) -> Iterator[TrackedRun]:
    optuna = library("optuna", "optuna", _TITLE)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    places: list[str | Path] = [*_urls(address), *_journals(address)]
    for place in places:
        try:
            storage = _storage(place)
            studies = [
                optuna.load_study(study_name=name, storage=storage) for name in optuna.get_all_study_names(storage)
            ]
            trials = [(study, trial) for study in studies for trial in study.get_trials(deepcopy=False)]
        except Exception as error:
            # Its backends raise errors of their drivers, which have no common class.
            raise ReportError(f"{place}: Optuna cannot read it ({str(error).splitlines()[0][:160]})") from None
        for study, trial in trials:
            yield _run(study, trial, metric)


def _storage(place: str | Path) -> Any:
    if isinstance(place, str):
        return place
    storages = library("optuna.storages", "optuna", _TITLE)
    backends = library("optuna.storages.journal", "optuna", _TITLE)
    return storages.JournalStorage(backends.JournalFileBackend(str(place)))


def _run(study: Any, trial: Any, metric: str) -> TrackedRun:
    objectives = _objectives(study)
    values = dict(zip(objectives, trial.values or (), strict=False))
    attributes = flat(trial.user_attrs)
    logged = values | {key: value for key, cell in attributes.items() if (value := value_of(cell)) is not None}
    return TrackedRun(
        name=f"{study.study_name} trial {trial.number}",
        config={**flat(trial.params), **_settings(attributes)},
        labels={"study": study.study_name},
        status={"complete": "finished", "fail": "failed"}.get(trial.state.name.lower(), trial.state.name.lower()),
        metrics=frozenset({*objectives, *logged}),
        points=((0.0, float(logged[metric])),) if metric in logged else (),
        seconds=trial.duration.total_seconds() if trial.duration is not None else None,
        goal=_goal(study, objectives.index(metric)) if metric in objectives else None,
    )


def _objectives(study: Any) -> Sequence[str]:
    if study.metric_names:
        return list(study.metric_names)
    count = len(study.directions)
    return [_OBJECTIVE] if count == 1 else [f"{_OBJECTIVE}_{place}" for place in range(count)]


def _settings(attributes: dict[str, Cell]) -> dict[str, Cell]:
    """Returns the attributes that can set a run apart: its seed, texts and truth values. Other numbers are results."""
    return {
        key: cell for key, cell in attributes.items() if isinstance(cell, str | bool) or key.casefold().endswith("seed")
    }


def _goal(study: Any, place: int) -> Goal:
    return "minimize" if study.directions[place].name == "MINIMIZE" else "maximize"


OPTUNA = TrackerReader("optuna", _TITLE, _recognises, _runs)
