"""The table of all trackers, and which of them an address is a store of."""

from __future__ import annotations

from collections.abc import Sequence

from lit_transformers.config import nearest
from reports.read.study import ReportError
from reports.read.trackers.hydra_sweep import hydra_reader
from reports.read.trackers.lightning_csv import LIGHTNING_CSV
from reports.read.trackers.mlflow_store import MLFLOW
from reports.read.trackers.optuna_storage import OPTUNA
from reports.read.trackers.tensorboard_events import TENSORBOARD
from reports.read.trackers.tracked_run import RunsAddress, TrackerReader, is_database
from reports.read.trackers.trackio_store import TRACKIO
from reports.read.trackers.trainer_state import TRAINER_STATE
from reports.read.trackers.wandb_files import WANDB_FILES
from reports.read.trackers.wandb_project import WANDB_PROJECT

__all__ = ["HYDRA", "READERS", "is_tracked", "reader_of"]

_IN_FOLDERS = (TRAINER_STATE, LIGHTNING_CSV, WANDB_FILES, TENSORBOARD)
"""Trackers that write into the folder of each run."""
HYDRA = hydra_reader(_IN_FOLDERS)
READERS = (WANDB_PROJECT, HYDRA, MLFLOW, OPTUNA, TRACKIO, *_IN_FOLDERS)
"""All trackers. The first that recognises an address reads it, unless another one is named."""
_TABLES = (".csv", ".tsv", ".md", ".txt", ".jsonl", ".ndjson", ".parquet")


def is_tracked(source: str) -> bool:
    """Whether a source is the address of a store of runs, not a table."""
    address = RunsAddress(source)
    if source.startswith("wandb:") or "://" in source or address.path.is_dir():
        return True
    if source.endswith(_TABLES) or not address.path.is_file():
        return False
    return is_database(address.path) or any(reader.recognises(address) for reader in READERS)


def reader_of(address: RunsAddress, kind: str | None) -> tuple[TrackerReader, tuple[str, ...]]:
    """Returns the reader of an address, and the kinds of the others that recognise it.

    kind: that of the reader to take, None to recognise it. Raises ReportError where there is no such kind, and where
    the address is a store of none.
    """
    kinds = [reader.kind for reader in READERS]
    if kind is not None and kind not in kinds:
        raise ReportError(f"--from {kind}: no such tracker; {nearest(kind, kinds)}")
    _require_there(address)
    able: Sequence[TrackerReader] = [reader for reader in READERS if reader.recognises(address)]
    if kind is not None:
        named = [reader for reader in able if reader.kind == kind]
        others = f"; it holds files of {_titles(able)}" if able else ""
        if not named:
            raise ReportError(f"{address.text}: holds nothing of {kind}{others}")
        return named[0], ()
    if not able:
        raise ReportError(f"{address.text}: no tracker's files are there; known are {', '.join(kinds)}, and tables")
    return able[0], tuple(reader.kind for reader in able[1:])


def _require_there(address: RunsAddress) -> None:
    is_local = address.text.startswith("sqlite:///") or (
        "://" not in address.text and not address.text.startswith("wandb:")
    )
    if is_local and not address.path.exists():
        raise ReportError(f"{address.text}: there is no such file or folder")


def _titles(readers: Sequence[TrackerReader]) -> str:
    return ", ".join(reader.title for reader in readers)
