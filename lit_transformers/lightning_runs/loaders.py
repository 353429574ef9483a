"""The order of training data: the same for all arms of a seed, and the same again after an interruption.

A DataLoader draws its order, and its workers their seeds, from the global random numbers, which dropout and whatever
else an arm does move on; and a plain DataLoader cannot be resumed within an epoch: Lightning would go on with a new
order. So each pass over a loader draws from random numbers of its own, which depend on the seed of the run and on the
number of the pass alone, and a resumed run reads the pass anew up to the batch that it had come to.

What this cannot repeat: what a data set keeps between epochs besides its generators (a counter, a buffer), and random
numbers of workers that live on from epoch to epoch (``persistent_workers``). A loader that has a ``state_dict``, as the
StatefulDataLoader of torchdata, is left to itself, and one that is no DataLoader begins its epoch again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader

from lit_transformers.config import canonical_hash

__all__ = ["DataOrder"]

Streams = tuple[Any, Any, Any]
"""The states of the global random numbers of torch (of the CPU), of NumPy and of Python."""


def random_states() -> Streams:
    """Returns the states of the global random numbers."""
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def set_random_states(states: Streams) -> None:
    """Sets the states of the global random numbers."""
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


class Pass:
    """A pass over a training loader: its number, its batches so far, and the random numbers that it draws from.

    seed: that of the run and of the loader among its loaders. ``trained`` counts the batches that training has used.
    generators: the states of the loader's own generators at its beginning. resumed: how many batches to skip of the
    pass that a checkpoint was written in, which comes next, or None.
    """

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.number, self.batches, self.trained = -1, 0, 0
        self.resumed: int | None = None
        self.generators: list[torch.Tensor] = []
        self.streams: Streams | None = None

    def begin(self, generators: list[torch.Generator]) -> int:
        """Begins the next pass, or again the one that a checkpoint was written in. Returns how many batches to skip."""
        skipped, resumed = self.resumed or 0, self.resumed is not None
        self.resumed = None
        if resumed:
            for generator, state in zip(generators, self.generators, strict=True):
                generator.set_state(state)
        else:
            self.number += 1
        self.generators = [generator.get_state() for generator in generators]
        self.batches = self.trained = 0
        seed = int(canonical_hash([self.seed, self.number], 8), 16)
        self.streams = (
            torch.Generator().manual_seed(seed).get_state(),
            np.random.RandomState(seed).get_state(),
            random.Random(seed).getstate(),
        )
        return skipped

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Puts the random numbers of this pass in the place of the global ones within the block."""
        global_states = random_states()
        assert self.streams is not None
        set_random_states(self.streams)
        try:
            yield
        finally:
            self.streams = random_states()
            set_random_states(global_states)


class RepeatedLoader(DataLoader[Any]):
    """A DataLoader whose passes are those of ``order``, and whose state a checkpoint holds. Loaders become of a class
    below this one and below their own, so that whatever Lightning makes of a DataLoader, it makes of them."""

    order: Pass

    def __iter__(self) -> Any:
        skipped = self.order.begin(_generators(self))
        with self.order.drawing():
            batches = super().__iter__()
        repeated = _Batches(batches, self.order, _length(self))
        for _ in range(skipped):
            next(repeated)
        return repeated

    def state_dict(self) -> dict[str, Any]:
        """Returns what is needed to go on at the batch that follows those of training."""
        # Of a loader without length Lightning reads a batch ahead.
        used = self.order.trained if _length(self) is None else self.order.batches
        return {"number": self.order.number, "used": used, "generators": self.order.generators}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next pass the one of the state, from the batch on that it had come to."""
        self.order.number, self.order.resumed = state["number"], state["used"]
        self.order.generators = list(state["generators"])


class _Batches:
    """The batches of one pass, counted. A loader of a known ``length`` is not asked for more: its sampler would draw
    once more from its generator, and Lightning asks only where it resumes at the end of an epoch."""

    def __init__(self, batches: Iterator[Any], order: Pass, length: int | None) -> None:
        self.batches, self.order, self.length = batches, order, length

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        if self.order.batches == self.length:
            raise StopIteration
        with self.order.drawing():
            batch = next(self.batches)
        self.order.batches += 1
        return batch


def _length(loader: DataLoader[Any]) -> int | None:
    """Returns the number of batches of a pass; None where it is not known."""
    try:
        return len(loader)
    except TypeError:
        return None


def _generators(loader: DataLoader[Any]) -> list[torch.Generator]:
    """Returns the generators that a loader and its samplers draw from, each once."""
    samplers = (loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    generators = (getattr(sampler, "generator", None) for sampler in samplers)
    return list({id(one): one for one in generators if isinstance(one, torch.Generator)}.values())


class DataOrder(Callback):
    """Gives the training loaders of a run passes of its own, and keeps the global random numbers of NumPy and Python in
    its checkpoint. seed: that of the run."""

    def __init__(self, seed: int, rank: int) -> None:
        self.seed, self.rank = seed, rank
        self.passes: list[Pass] = []
        self.loaded: Streams | None = None

    def attach(self, source: L.LightningModule | L.LightningDataModule) -> None:
        """Makes ``train_dataloader`` of a module or a data module return repeated loaders."""
        original = source.train_dataloader

        def train_dataloader() -> Any:
            return self._repeated(original(), count())

        source.train_dataloader = train_dataloader  # type: ignore[method-assign]

    def _repeated(self, loaders: Any, numbers: Iterator[int]) -> Any:
        """Returns the loaders of a collection as repeated ones, in the order of ``numbers``."""
        match loaders:
            case CombinedLoader():
                loaders.flattened = [self._repeated(loader, numbers) for loader in loaders.flattened]
            case Mapping():
                return {name: self._repeated(loader, numbers) for name, loader in loaders.items()}
            case list() | tuple():
                return type(loaders)([self._repeated(loader, numbers) for loader in loaders])
            case DataLoader() if getattr(loaders, "state_dict", None) is None:
                number = next(numbers)
                if number == len(self.passes):
                    self.passes.append(Pass(f"{self.seed} {self.rank} {number}"))
                kind = type(loaders)
                loaders.__class__ = type(kind.__name__, (RepeatedLoader, kind), {"order": self.passes[number]})
        return loaders

    def on_train_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        if self.loaded is not None:
            set_random_states((torch.get_rng_state(), *self.loaded[1:]))
            self.loaded = None

    def on_train_batch_end(self, trainer: L.Trainer, task: L.LightningModule, outputs: Any, batch: Any, i: int) -> None:
        for one in self.passes:
            one.trained = i + 1

    def state_dict(self) -> dict[str, Any]:
        _, (name, keys, *rest), (version, internal, gauss) = random_states()
        numpy_state = [name, torch.from_numpy(keys.astype(np.int64)), *rest]
        return {"numpy": numpy_state, "python": [version, list(internal), gauss]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        name, keys, *rest = state["numpy"]
        version, internal, gauss = state["python"]
        numpy_state = (name, keys.numpy().astype(np.uint32), *rest)
        self.loaded = (None, numpy_state, (version, tuple(internal), gauss))
