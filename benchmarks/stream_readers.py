"""Readers of a corpus for ``benchmarks.stream``: this suite, and peers as their documentation says.

A reader yields batches of ``ROWS`` rows of ``LENGTH`` tokens over all ranks. All of them read the same files with the
same tokenizer, shuffle, and join documents to rows without padding.
"""

from __future__ import annotations

import gzip
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader

from datamodules import FilesConfig, HubConfig, LanguageDataConfig
from datamodules.core.documents import Documents
from datamodules.core.tokenizers import BPE, Bytes, Tokenizer, TokenizerConfig

__all__ = ["LENGTH", "READERS", "ROWS", "SUFFIXES", "Case", "StreamReader", "texts_of"]

ROWS, LENGTH, SHUFFLED = 32, 512, 1000
"""Rows of a batch over all ranks, tokens of a row, and the documents of a buffer that shuffles."""
SUFFIXES = {"parquet": ".parquet", "jsonl.gz": ".jsonl.gz", "text": ".txt", "hub": ".parquet"}
Rows = npt.NDArray[np.int64]
Plain = Any


class Case(NamedTuple):
    """The input of a reader: the folder of the files of a format, with the tokenizer's JSON, or None for bytes, and a
    folder for the files that the reader writes; and the rank that reads."""

    format: str
    folder: Path
    tokenizer: Path | None
    cache: Path
    workers: int
    rank: int = 0
    ranks: int = 1

    @property
    def files(self) -> list[str]:
        return sorted(str(path) for path in self.folder.iterdir())

    def opened_tokenizer(self) -> Tokenizer:
        return Bytes() if self.tokenizer is None else BPE(self.tokenizer.read_text(encoding="utf-8"), "strict")


class LearnedTokenizerConfig(TokenizerConfig, kind="learned_before"):
    """The tokenizer in a file, or bytes: all readers encode with the same one, which none of them learns."""

    learned: ClassVar[bool] = False

    path: str | None = None

    def build(self, documents: Documents | Any) -> Tokenizer:
        return Bytes() if self.path is None else BPE(Path(self.path).read_text(encoding="utf-8"), "strict")


class StreamReader(ABC):
    """Opens a corpus once; every ``rows`` begins there, or where a state says."""

    needs: ClassVar[str]
    """The package that it needs."""
    has_own_files: ClassVar[bool] = False
    """Whether it writes its own files and reads those, so that the format of the corpus matters to the cold start
    alone."""

    def __init__(self, case: Case) -> None:
        self.case = case

    @classmethod
    def omission(cls) -> str | None:
        """Returns the reason why it cannot read a case; None where it can."""
        return None if find_spec(cls.needs) else f"{cls.needs} is not installed"

    def prepare(self) -> None:
        """Writes its own files, in one process for all ranks. Only where ``has_own_files``."""
        raise NotImplementedError

    @abstractmethod
    def rows(self, state: Plain = None) -> Iterator[tuple[Rows, int]]:
        """Yields the rows of this rank (b, t) of each batch, and how many of their tokens are text."""

    @abstractmethod
    def state(self) -> Plain:
        """Returns the state after the last batch, which ``rows`` of another process takes; None where there is none."""


class Suite(StreamReader):
    """This suite, as ``LanguageDataConfig`` reads."""

    needs = "datamodules"

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        os.environ["LIT_CACHE"] = str(case.cache)
        path = str(case.folder)
        source = HubConfig(name=path, window=SHUFFLED) if case.format == "hub" else FilesConfig(path=path)
        tokenizer = LearnedTokenizerConfig(path=None if case.tokenizer is None else str(case.tokenizer))
        self.data = LanguageDataConfig(
            source=source,
            tokenizer=tokenizer,
            segment_length=LENGTH,
            batch_size=ROWS,
            documents="stream",
            workers=case.workers,
        ).build()
        self.cursor = ""

    def rows(self, state: Plain = None) -> Iterator[tuple[Rows, int]]:
        if state is not None:
            self.data.load_state_dict({"of": self.data.identity(), "cursor": state})
        for batch in self.data.train_dataloader():
            self.cursor = batch.cursor
            yield batch.inputs.numpy(), int(batch.padding_mask.sum())

    def state(self) -> Plain:
        return self.cursor


def encoder(tokenizer: Tokenizer) -> Callable[[list[str]], list[Any]]:
    """Returns a function from texts to the symbols of each, with a boundary before; of BPE by the batch."""
    boundary = tokenizer.vocabulary.boundary
    if isinstance(tokenizer, BPE):
        encode = tokenizer.model.encode_batch_fast
        return lambda texts: [[boundary, *encoded.ids] for encoded in encode(texts)]
    return lambda texts: [np.concatenate([[boundary], tokenizer.encode(text.encode())]) for text in texts]


def grouped(encode: Callable[[list[str]], list[Any]], columns: dict[str, list[str]]) -> dict[str, list[Rows]]:
    """Returns documents as rows of ``LENGTH`` tokens, as the examples of transformers join them for language modelling:
    the rest of a batch of documents is dropped."""
    joined = np.concatenate([np.asarray(symbols, np.int64) for symbols in encode(columns["text"])])
    return {"rows": list(joined[: len(joined) // LENGTH * LENGTH].reshape(-1, LENGTH))}


class DatasetsReader(StreamReader):
    """The library datasets: streaming, its shuffle buffer, a batched map and a DataLoader. Where torchdata is
    installed, its loader keeps the position of workers; without it, no loader does."""

    needs = "datasets"

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        import datasets
        from datasets.distributed import split_dataset_by_node

        datasets.disable_progress_bars()
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        if case.format == "hub":
            stream = datasets.load_dataset(str(case.folder), split="train", streaming=True)
        else:
            kind = {"parquet": "parquet", "jsonl.gz": "json", "text": "text"}[case.format]
            by = {"sample_by": "document"} if case.format == "text" else {}
            stream = datasets.load_dataset(kind, data_files=case.files, split="train", streaming=True, **by)
        stream = stream.shuffle(seed=0, buffer_size=SHUFFLED)
        if case.ranks > 1:
            stream = split_dataset_by_node(stream, rank=case.rank, world_size=case.ranks)
        encode = encoder(case.opened_tokenizer())
        stream = stream.map(partial(grouped, encode), batched=True, batch_size=100, remove_columns=["text"])
        self.stream = stream.with_format("torch")

    def rows(self, state: Plain = None) -> Iterator[tuple[Rows, int]]:
        size, workers = ROWS // self.case.ranks, self.case.workers
        self.loader: Any = None
        if workers and find_spec("torchdata"):
            from torchdata.stateful_dataloader import StatefulDataLoader

            self.loader = StatefulDataLoader(self.stream, batch_size=size, num_workers=workers)
        if state is not None:
            (self.stream if self.loader is None else self.loader).load_state_dict(state)
        batches = DataLoader(self.stream, batch_size=size, num_workers=workers) if self.loader is None else self.loader
        while True:
            for batch in batches:
                yield batch["rows"].numpy(), batch["rows"].numel()

    def state(self) -> Plain:
        if self.loader is not None:
            return self.loader.state_dict()
        return self.stream.state_dict() if self.case.workers == 0 else None


def texts_of(case: Case) -> Iterator[str]:
    """Yields the texts of a corpus, for peers that write their own files."""
    import pyarrow.parquet

    for path in map(Path, case.files):
        if case.format == "text":
            yield path.read_text(encoding="utf-8")
        elif case.format == "jsonl.gz":
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                yield from (json.loads(line)["text"] for line in lines)
        else:
            for batch in pyarrow.parquet.ParquetFile(path).iter_batches(columns=["text"]):
                yield from batch.column(0).to_pylist()


def written_rows(case: Case) -> Iterator[Rows]:
    """Yields the rows that peers store: documents one after another."""
    encode, rest = encoder(case.opened_tokenizer()), np.zeros(0, np.int64)
    for text in texts_of(case):
        rest = np.concatenate([rest, *encode([text])])
        whole = len(rest) // LENGTH * LENGTH
        yield from rest[:whole].reshape(-1, LENGTH)
        rest = rest[whole:]


class MosaicReader(StreamReader):
    """MosaicML streaming: rows of tokens in its own format, as its guide to language models writes them."""

    needs = "streaming"
    has_own_files = True

    def prepare(self) -> None:
        from streaming import MDSWriter

        with MDSWriter(columns={"rows": f"ndarray:int32:{LENGTH}"}, out=str(self.case.cache / "mds")) as writer:
            for row in written_rows(self.case):
                writer.write({"rows": row.astype(np.int32)})

    def rows(self, state: Plain = None) -> Iterator[tuple[Rows, int]]:
        from streaming import StreamingDataLoader, StreamingDataset

        size = ROWS // self.case.ranks
        dataset = StreamingDataset(local=str(self.case.cache / "mds"), shuffle=True, shuffle_seed=0, batch_size=size)
        self.loader = StreamingDataLoader(dataset, batch_size=size, num_workers=self.case.workers, drop_last=True)
        if state is not None:
            self.loader.load_state_dict(state)
        while True:
            for batch in self.loader:
                yield batch["rows"].numpy().astype(np.int64), batch["rows"].numel()

    def state(self) -> Plain:
        return self.loader.state_dict()


class LitdataReader(StreamReader):
    """litdata: tokens in its own format, as its guide to language models writes them."""

    needs = "litdata"
    has_own_files = True

    def prepare(self) -> None:
        from litdata import optimize
        from litdata.streaming.item_loader import TokensLoader

        optimize(
            fn=partial(_tokens, self.case),
            inputs=[0],
            output_dir=str(self.case.cache / "litdata"),
            chunk_bytes="64MB",
            item_loader=TokensLoader(block_size=LENGTH),
            num_workers=1,
            verbose=False,
        )

    def rows(self, state: Plain = None) -> Iterator[tuple[Rows, int]]:
        from litdata import StreamingDataLoader, StreamingDataset
        from litdata.streaming.item_loader import TokensLoader

        loader, folder = TokensLoader(block_size=LENGTH), str(self.case.cache / "litdata")
        dataset = StreamingDataset(folder, item_loader=loader, shuffle=True, drop_last=True, seed=0)
        size, workers = ROWS // self.case.ranks, self.case.workers
        self.loader = StreamingDataLoader(dataset, batch_size=size, num_workers=workers)
        if state is not None:
            self.loader.load_state_dict(state)
        while True:
            for batch in self.loader:
                yield batch.numpy().astype(np.int64), batch.numel()

    def state(self) -> Plain:
        return self.loader.state_dict()


def _tokens(case: Case, _: int) -> Iterator[torch.Tensor]:
    for row in written_rows(case):  # litdata must see that this is a generator
        yield torch.from_numpy(row.astype(np.int32))


READERS: dict[str, type[StreamReader]] = {
    "suite": Suite,
    "datasets": DatasetsReader,
    "MosaicML": MosaicReader,
    "litdata": LitdataReader,
}
