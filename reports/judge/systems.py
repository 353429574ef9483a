"""The systems that studies are about, by the paper that introduced each."""

from __future__ import annotations

from collections.abc import Mapping

from lit_transformers.records.plan import Source

__all__ = ["UNSOURCED", "system_of"]

UNSOURCED = "No source"
"""The system of studies without a source."""

_SYSTEMS: Mapping[str, str] = {
    "1706.03762": "Transformer",
    "1803.02155": "Relative positions",
    "1807.03819": "Universal Transformer",
    "1808.04444": "Character Transformer",
    "1810.04805": "BERT",
    "1901.02860": "Transformer-XL",
    "1902.09113": "Star-Transformer",
    "1904.10509": "Sparse Transformer",
    "1905.02450": "MASS",
    "1905.07799": "Adaptive-Span",
    "1906.08237": "XLNet",
    "1907.11692": "RoBERTa",
    "1909.00015": "Adaptively Sparse Transformer",
    "1909.11942": "ALBERT",
    "1910.10683": "T5",
    "1910.13461": "BART",
    "1911.05507": "Compressive Transformer",
    "1912.11637": "Explicit Sparse Transformer",
    "2001.04451": "Reformer",
    "2002.06170": "Transformer on a Diet",
    "2003.10555": "ELECTRA",
    "2004.05150": "Longformer",
    "2004.11886": "Lite Transformer",
    "2005.00743": "Synthesizer",
    "2006.04768": "Linformer",
    "2006.16236": "Linear Transformer",
    "2007.14062": "BigBird",
}


def system_of(source: Source | None) -> str:
    """Returns the name of the system that a paper introduced, or the title of the source where it is not known."""
    if source is None:
        return UNSOURCED
    return _SYSTEMS.get(source.arxiv or "", source.title)
