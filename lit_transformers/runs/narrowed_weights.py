"""The weights of a wider network as those of a narrower one, whose heads and channels are chosen on the run's data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from lit_transformers.batch import DataDescription
from lit_transformers.compression.narrow import Narrowing, scores_of, with_widths_of
from lit_transformers.config import ConfigError
from lit_transformers.models import ModelConfig
from lit_transformers.runs.config import RunConfig
from lit_transformers.runs.starting_weights import StartingWeights, start_from
from lit_transformers.tasks import Task
from lit_transformers.tasks.labelled import LabelledTaskConfig

__all__ = ["narrowed_weights", "require_narrower"]


def require_narrower(there: ModelConfig, here: ModelConfig, data: DataDescription) -> None:
    """Raises ConfigError, which names the field, where a network does not have some of the heads and channels of each
    layer of another one."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        wide, narrow = (model.build(data) for model in (with_widths_of(here, there), here))
    Narrowing(wide, narrow, here.heads != there.heads)


def narrowed_weights(
    config: RunConfig, task: Task, sources: Mapping[str, StartingWeights], batches: Callable[[], Iterable[Any]]
) -> StartingWeights:
    """Returns the weights of the source of a run's network as those of the run's narrower network (``start.narrow``).
    They are the same on all ranks.

    sources: of the parts of the task. batches: returns batches of training. Raises ConfigError where weights do not fit
    a network as wide as the source's, or the loss that importance is measured by comes from heads that the sources
    lack.
    """
    narrow, source = config.start.narrow, sources["network"]
    assert narrow is not None
    objective = config.measured_task
    if isinstance(objective, LabelledTaskConfig):
        objective = objective.by_labels_alone()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        wide = objective.build(with_widths_of(config.model, source.model), task.data, config.training)
        narrowing = Narrowing(wide, task, config.model.heads != source.model.heads)
        by_loss = narrow.score == "importance"
        lines = start_from(wide, {**(sources if by_loss else {}), "network": source}, config.start.head)
        anew = [line for line in lines if line.startswith("heads.") and line.endswith("starts anew")]
        if by_loss and anew:
            reason = f"importance needs the loss of trained heads, and {anew[0]}"
            raise ConfigError(f"{reason}; set score: magnitude", "start.narrow.score")
        scores = scores_of(narrow, narrowing, wide.eval(), batches)
    tensors = narrowing.narrowed(task.current_names(source.tensors), scores)
    model = with_widths_of(source.model, config.model)
    return source._replace(model=model, tensors=tensors, notes=(*source.notes, f"{narrowing.note} ({narrow.score})"))
