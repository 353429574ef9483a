"""Measures floors once for a machine: a cache, and the simple predictors of each kind of data."""

from __future__ import annotations

import json
from functools import singledispatch

from datamodules.core.data import Data
from datamodules.core.documents import cache_folder
from datamodules.core.errors import DataError
from datamodules.core.index import made_aside
from datamodules.denoising.denoising import DenoisingData
from datamodules.floors.denoising import denoising_floors
from datamodules.floors.generated_texts import pair_floors
from datamodules.floors.labelled import labelled_floors, mixed_floors
from datamodules.floors.language import language_floors
from datamodules.floors.retrieval import retrieval_floors
from datamodules.floors.rows import row_floors
from datamodules.floors.strings import answer_floors
from datamodules.labelled.labelled import LabelledData
from datamodules.labelled.mixed import MixedData
from datamodules.pairs.pairs import PairData
from datamodules.pairs.prompts import PromptData
from datamodules.pairs.retrieval import RetrievalData
from datamodules.rows.rows import RowData
from datamodules.strings.generated import GeneratedData
from datamodules.text.language import LanguageData
from lit_transformers.config import canonical_hash
from lit_transformers.machine.processor import processor_model
from lit_transformers.source_code import code_from_outside

__all__ = ["floors", "measured_floors"]

VERSION = 2
"""Part of every cache key. Change it when floors of the same data change."""
VALUES = "floors.json"


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


def measured_floors(data: Data, metric: str, batches: int) -> dict[str, float]:
    """Returns ``floors``, from the cache if the same code measured them on the same model of processor. Raises
    DataError for data without predictors."""
    code = code_from_outside(floors.dispatch(type(data)).__module__)
    key = canonical_hash([VERSION, data.fingerprint, metric, batches, code, processor_model()], 32)
    folder = cache_folder() / "floors" / key
    if not (folder / VALUES).exists():
        values = floors(data, metric, batches)
        with made_aside(folder, VALUES) as temporary:
            (temporary / VALUES).write_text(json.dumps(values), encoding="utf-8")
    try:
        return {str(name): float(value) for name, value in json.loads((folder / VALUES).read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        raise DataError(f"{folder}: damaged cache; remove this folder and it is made again") from None
