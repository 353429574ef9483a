"""The training texts of labelled data as a source of texts, for further pretraining."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from datamodules.core.documents import Corpus, Split
from datamodules.core.errors import DataError
from datamodules.core.examples import Examples, ExamplesConfig
from datamodules.core.held_out import digests_of_training, held_out_digests, text_digest
from datamodules.core.index import Text, index_corpus
from datamodules.text.sources import SourceConfig, split_by_hash
from lit_transformers.config import Fraction

__all__ = ["LabelledTrainingConfig"]

VERSION = 2
"""Part of the cache key. Change it when other texts are omitted."""
LEFT_OUT = "training texts omitted, since they are also held out"


class LabelledTrainingConfig(SourceConfig, kind="labelled_training"):
    """The texts of the training split of labelled data, without labels, each as a document: for pretraining within the
    task, within its domain, or in another domain (Sun et al. 2019, arXiv:1905.05583, section 4.2; Gururangan et al.
    2020, arXiv:2004.10964). Texts with the same words as a text of validation or test, and texts with a line or a
    sentence that is such a text or a sentence of one, are omitted and counted.

    labelled    the labelled data; its field ``examples`` limits the texts too
    held_out    further labelled data whose texts of validation and test are omitted, such as the task's own data if
                ``labelled`` is other data
    validation  the share of these texts on which pretraining is validated, by a hash of each text
    """

    labelled: ExamplesConfig
    held_out: tuple[ExamplesConfig, ...] = ()
    validation: Fraction = 0.05

    def build(self) -> Corpus:
        labelled = self.labelled.build()
        others = [config.build() for config in self.held_out]
        left_out = Counter[str]()
        key = ["labelled_training", VERSION, self.to_dict(), [examples.content for examples in (labelled, *others)]]
        return index_corpus(key, "", self.piece, self._texts(labelled, others, left_out), left_out)

    def _texts(self, labelled: Examples, others: list[Examples], left_out: Counter[str]) -> Iterator[Text]:
        """Yields the texts of the training split. Raises DataError for examples that are not texts."""
        splits: tuple[Split, Split] = ("validation", "test")
        texts = {one.text for data in (labelled, *others) for split in splits for one in data.texts(split)}
        whole, parts = {*map(text_digest, texts)}, held_out_digests(texts).keys()
        is_empty = True
        for document in labelled.texts("train"):
            is_empty = False
            if text_digest(document.text) in whole or not parts.isdisjoint(digests_of_training(document.text)):
                left_out[LEFT_OUT] += 1
                continue
            split = split_by_hash(document.text, self.validation, 0.0)
            yield Text(document.name, split, BytesIO(document.text), Path(document.name))
        if is_empty:
            raise DataError(
                f"data.source.labelled: the examples of {self.labelled.kind} are not texts; name other data"
            )
