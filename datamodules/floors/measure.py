"""Measures floors once for a machine: a cache, and the simple predictors of each kind of data."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch

from datamodules.core.data import Data
from datamodules.core.documents import cache_folder
from datamodules.core.errors import DataError
from datamodules.core.index import cached_value
from datamodules.denoising.denoising import DenoisingData
from datamodules.floors.cache import VisibleContext
from datamodules.floors.denoising import denoising_floors
from datamodules.floors.generated_texts import pair_floors
from datamodules.floors.labelled import labelled_floors, mixed_floors
from datamodules.floors.language import language_cache_floors, language_floors
from datamodules.floors.retrieval import retrieval_floors
from datamodules.floors.rows import row_cache_floors, row_floors
from datamodules.floors.strings import answer_floors
from datamodules.labelled.labelled import LabelledData
from datamodules.labelled.mixed import MixedData
from datamodules.pairs.pairs import PairData
from datamodules.pairs.prompts import PromptData
from datamodules.pairs.retrieval import RetrievalData
from datamodules.rows.rows import RowData
from datamodules.strings.generated import GeneratedData
from datamodules.text.language import LanguageData
from lit_transformers.config import Plain, canonical_hash
from lit_transformers.machine.processor import processor_model
from lit_transformers.source_code import code_from_outside

__all__ = ["cache_floors", "floors", "measured_cache_floors", "measured_floors"]

VERSION = 4
"""Part of every cache key. Change it when floors of the same data change."""


@singledispatch
def floors(data: Data, metric: str, batches: int) -> dict[str, float]:
    """Returns the values of a metric on the validation split for simple predictors, by the names of the predictors.

    batches: the number of training batches that the predictors learn from, the same batches as of a run. Data of
    plug-ins add predictors by ``floors.register``. Raises DataError for data without predictors.
    """
    raise DataError(f"data of kind {data.config.kind} have no simple predictors")


floors.register(LanguageData, language_floors)
floors.register(LabelledData, labelled_floors)
floors.register(MixedData, mixed_floors)
floors.register(GeneratedData, answer_floors)
floors.register(PairData, pair_floors)
floors.register(PromptData, answer_floors)
floors.register(RetrievalData, retrieval_floors)
floors.register(RowData, row_floors)
floors.register(DenoisingData, denoising_floors)


@singledispatch
def cache_floors(data: Data, metric: str, batches: int, context: VisibleContext | None) -> dict[str, float]:
    """Returns such values for predictors that remember the symbols that a network sees of the text that it predicts.

    context: the symbols that it sees; None: all of the document up to there. Nothing for data without such predictors;
    data of plug-ins add them by ``cache_floors.register``. Raises DataError.
    """
    return {}


cache_floors.register(LanguageData, language_cache_floors)
cache_floors.register(RowData, row_cache_floors)


def measured_floors(data: Data, metric: str, batches: int) -> dict[str, float]:
    """Returns ``floors``, from the cache if the same code measured them on the same model of processor. Raises
    DataError for data without predictors."""
    code = code_from_outside(floors.dispatch(type(data)).__module__)
    return _kept([data.fingerprint, metric, batches, code], lambda: floors(data, metric, batches))


def measured_cache_floors(data: Data, metric: str, batches: int, context: VisibleContext | None) -> dict[str, float]:
    """Returns ``cache_floors``, from the cache in the same manner."""
    code = code_from_outside(cache_floors.dispatch(type(data)).__module__)
    seen = "document" if context is None else [*context]
    return _kept([data.fingerprint, metric, batches, code, seen], lambda: cache_floors(data, metric, batches, context))


def _kept(decisive: list[Plain], measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Returns values from the cache, where they are measured if it has none. decisive: all that decides them, besides
    the code of the suite. Raises DataError where they are damaged."""
    folder = cache_folder() / "floors" / canonical_hash([VERSION, *decisive, processor_model()], 32)
    values = cached_value(folder, measure)
    try:
        return {str(name): float(value) for name, value in values.items()}
    except (ValueError, AttributeError, TypeError):
        raise DataError(f"{folder}: damaged cache; remove this folder and it is made again") from None
