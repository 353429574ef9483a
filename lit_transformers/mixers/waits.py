"""The mixers of which a pass depends on values that only a device knows, so that the host waits for it.

All others plan a pass from shapes alone. While the host waits it queues no work, and the device may run dry.
"""

from __future__ import annotations

from collections.abc import Mapping

from lit_transformers.mixer import MixerConfig
from lit_transformers.mixers.adaptive_span.adaptive_span import AdaptiveSpanConfig
from lit_transformers.mixers.big_bird import BigBirdConfig
from lit_transformers.mixers.window import WindowConfig

WAITS: Mapping[str, str] = {
    "adaptive_span": "the spans that the last update left, for a head computes no keys beyond its own",
    "big_bird": "where rows have padding, which blocks see which, for the last block of each row is global, and random "
    "blocks are drawn among those of its length; not where FlexAttention runs, which needs no plan",
    "window": "which tokens are global, for each is a query that sees everything; not where they are set by positions "
    "that the host knows (``Context.start``)",
}
"""The values that the host reads once in each forward pass of a layer, by the kind of the mixer."""


def most_waits(config: MixerConfig, padded: bool = True) -> int:
    """Returns the most times that the host waits for a device in one forward pass of a layer. Backward passes wait for
    nothing. padded: whether the rows have a padding mask."""
    match config:
        case AdaptiveSpanConfig(learns=learns):
            return int(learns != "dynamic")
        case BigBirdConfig():
            return int(padded)
        case WindowConfig(global_tokens=kind):
            return int(kind != "none")
    return 0
