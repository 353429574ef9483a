"""How far back the networks of a study see: windows, memories and segments, which the roles of fields name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from datamodules import LanguageDataConfig, RowDataConfig
from datamodules.floors.cache import VisibleContext
from lit_transformers.config import Dilation, Memory, Reach
from lit_transformers.gates.miniature import whole
from lit_transformers.mixers import ConvolutionConfig
from lit_transformers.models import ModelConfig
from lit_transformers.runs.config import RunConfig

__all__ = ["reach", "smallest_reach", "visible_context"]


def smallest_reach(configs: Sequence[RunConfig]) -> int | None:
    """Returns the smallest ``reach`` of runs of which some vary a window, a dilation or a memory of the first one; None
    where none does, and of data that are not read symbol by symbol.

    A field is varied only if the baseline's network has it too: further fields of another mixer do not count.
    """
    baseline = dict(_sizes(configs[0]))
    others = [dict(_sizes(config)) for config in configs[1:]]
    if not any(sizes[path] != baseline[path] for sizes in others for path in sizes.keys() & baseline.keys()):
        return None
    return min((length for config in configs if (length := reach(config)) is not None), default=None)


def reach(config: RunConfig) -> int | None:
    """Returns how many symbols back the narrowest layer of a language model sees when it is measured; None where no
    field says so, and of other data.

    It is the smallest window or, without one, the memory and half a segment, which a row shows its middle position.
    Several layers together see further; a baseline that gains nothing beyond the narrowest needs none of this.
    """
    if not isinstance(config.data, LanguageDataConfig):
        return None
    model = _measured_model(config)
    if windows := [number for _, value in model.leaves_with(Reach) for number in whole(value)]:
        return min(windows)
    memories = [number for _, value in model.leaves_with(Memory) for number in whole(value)]
    segment = config.data.evaluation.segment_length or config.data.segment_length
    return min(memories) + segment // 2 if memories else None


def visible_context(config: RunConfig) -> VisibleContext | None:
    """Returns the part of the predicted text that the narrowest layer of a network sees when it is measured; None of
    other data, and of networks that read rows in other orders or in segments.

    A field that limits this part is a window, a kernel or a memory. Without a memory, a mixer whose segments continue
    one another has a state of all that it has read, and any other mixer sees its row.
    """
    model, order = _measured_model(config), config.task.protocol()
    windows = [number for _, value in model.leaves_with(Reach) for number in whole(value)]
    windows += whole(model.mixer.kernel) if isinstance(model.mixer, ConvolutionConfig) else []
    if isinstance(config.data, RowDataConfig):
        in_own_order = order.get("order") == "all" or order.get("segment_length") is not None
        return None if in_own_order else VisibleContext(window=min(windows, default=None))
    if not isinstance(config.data, LanguageDataConfig):
        return None
    memories = [number for _, value in model.leaves_with(Memory) for number in whole(value)]
    is_recurrent = not memories and model.mixer.promises().streams
    return VisibleContext(None if is_recurrent else min(memories, default=0), min(windows, default=None))


def _measured_model(config: RunConfig) -> ModelConfig:
    """Returns the config of the network that is measured, which may have more memory than the one that is trained."""
    return config.model.override(config.task.evaluation)


def _sizes(config: RunConfig) -> Iterator[tuple[str, Any]]:
    """Yields the paths and values of the fields of the measured network that settle how far back it sees."""
    model = _measured_model(config)
    for role in (Reach, Dilation, Memory):
        yield from model.leaves_with(role)
