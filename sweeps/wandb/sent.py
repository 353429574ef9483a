"""Notes of the parts of a study that were sent to W&B, so that the same answer is not sent twice, and workspace and
report are updated in place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from lit_transformers.records.files import write_json
from lit_transformers.wandb_target import WandbTarget

__all__ = ["OFFLINE", "SentViews", "place_of", "read_sent", "write_sent"]

FILE = "sent.json"
OFFLINE = "offline"
"""The place of views that are written for a later ``wandb sync``."""


class SentViews(NamedTuple):
    """The views of a study at one place: the digest of its answer, the address of its workspace, the id of its report;
    empty for views that were not sent."""

    answer: str = ""
    workspace: str = ""
    report: str = ""


def place_of(target: WandbTarget) -> str:
    """Returns the name of the project that a target is: host, user or team, and project."""
    import wandb

    host = wandb.setup(wandb.Settings(silent=True)).settings.base_url
    return "/".join([host.rstrip("/"), *([target.entity] if target.entity else []), target.project])


def read_sent(folder: Path) -> dict[str, SentViews]:
    """Returns by place the views that were sent of the study of a folder. A file that is missing or damaged counts as
    empty, since sending again does no harm."""
    try:
        places = json.loads((folder / "wandb" / FILE).read_text(encoding="utf-8"))
        return {place: SentViews(**sent) for place, sent in places.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def write_sent(folder: Path, places: Mapping[str, SentViews]) -> None:
    """Writes the views that were sent, by place. Raises OSError where the folder cannot be written."""
    (folder / "wandb").mkdir(parents=True, exist_ok=True)
    write_json(folder / "wandb" / FILE, {place: sent._asdict() for place, sent in places.items()})
