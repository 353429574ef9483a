"""The order of training data: the same for all arms of a seed, and the same again after an interruption.

A DataLoader draws its order, and its workers their seeds, from the global random numbers. Dropout and other operations
of an arm advance these numbers. A plain DataLoader cannot be resumed within an epoch either: Lightning would continue
with a new order. So each pass over a loader draws from separate random numbers, which depend on the seed of the run and
on the number of the pass alone, and a resumed run reads the pass anew up to the batch that it had come to. Loaders are
built under such random numbers too, and as of the epoch that they were first built in.

Workers start anew in each pass (also ``persistent_workers``), for their random numbers cannot be set otherwise. Where a
place within an epoch cannot be held, which is printed at the start, checkpoints are written between epochs alone. The
state that a data set stores between epochs besides its generators (a counter, a buffer) cannot be repeated. A loader
that has a ``state_dict``, as the StatefulDataLoader of torchdata, is left to itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain, count
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden

from lit_transformers.config import Plain, canonical_hash
from lit_transformers.training.loop import BetweenUpdates

__all__ = ["DataOrder"]

TRAINING, VALIDATION, TEST = "train_dataloader", "val_dataloader", "test_dataloader"
"""The methods that build loaders."""
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


def streams_of(identity: Plain) -> Streams:
    """Returns random numbers that depend on plain data alone."""
    seed = int(canonical_hash(identity, 8), 16)
    return (
        torch.Generator().manual_seed(seed).get_state(),
        np.random.RandomState(seed).get_state(),
        random.Random(seed).getstate(),
    )


@contextmanager
def drawing_from(streams: Streams) -> Iterator[list[Streams]]:
    """Puts random numbers in the place of the global ones within the block, after which the list holds their states."""
    global_states = random_states()
    moved_on: list[Streams] = []
    set_random_states(streams)
    try:
        yield moved_on
    finally:
        moved_on.append(random_states())
        set_random_states(global_states)


class Pass:
    """A pass over a loader: its number, its batches so far, and the random numbers that it draws from.

    seed: that of the run and of the loader among its loaders. ``trained`` counts the batches that training has used;
    they are fewer than those that were read where a batch ``is_read_ahead``, as Lightning does without a length. own:
    the loader's own generators. generators: their states at the beginning of the pass. epoch: the one that it is read
    in. resumed: how many batches to skip of the pass that a checkpoint was written in, which comes next, or None.
    later: the states of the generators when the checkpoint was written, for others may draw from them too.
    """

    def __init__(self, seed: str) -> None:
        self.seed, self.epoch, self.is_read_ahead = seed, 0, False
        self.number, self.batches, self.trained = -1, 0, 0
        self.resumed: int | None = None
        self.generators: list[torch.Tensor] = []
        self.later: list[torch.Tensor] = []
        self.own: list[torch.Generator] = []
        self.streams: Streams | None = None

    def begin(self, generators: list[torch.Generator]) -> int:
        """Begins the next pass, or again the one that a checkpoint was written in. Returns how many batches to skip."""
        skipped, resumed = self.resumed or 0, self.resumed is not None
        self.resumed, self.own = None, generators
        if resumed:
            _set(generators, self.generators)
        if not resumed:
            self.number += 1
        self.generators = [generator.get_state() for generator in generators]
        self.batches = self.trained = 0
        self.streams = streams_of([self.seed, self.number])
        return skipped

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that is needed to begin the next pass, or this one again."""
        later = [generator.get_state() for generator in self.own]
        return {"number": self.number, "epoch": self.epoch, "generators": self.generators, "later": later}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the pass that begins next the one that follows."""
        self.number, self.epoch = state["number"], state["epoch"]
        self.generators, self.later = list(state["generators"]), list(state["later"])

    def go_on(self) -> None:
        """Sets the generators as they were when the checkpoint was written, after all that is read anew."""
        _set(self.own, self.later)
        self.later = []

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Puts the random numbers of this pass in the place of the global ones within the block."""
        assert self.streams is not None
        with drawing_from(self.streams) as moved_on:
            yield
        self.streams = moved_on[0]


class RepeatedLoader:
    """A loader whose passes are those of ``order``, and whose state a checkpoint holds. A loader becomes an object of a
    new class below its class and this one, so that Lightning treats it as any DataLoader; ``read`` is the ``__iter__``
    of its former class."""

    __slots__ = ()  # so that the class of an object can become one below this one
    order: Pass
    read: Callable[[Any], Iterator[Any]]

    def __iter__(self) -> Any:
        loader: Any = self
        if self.order.resumed is not None:
            for sampler in _samplers(loader):  # Lightning does so after it has begun the pass
                if callable(set_epoch := getattr(sampler, "set_epoch", None)):
                    set_epoch(self.order.epoch)
        skipped = self.order.begin(_generators(loader))
        if getattr(loader, "persistent_workers", False):
            loader._iterator = None
        with self.order.drawing():
            batches = loader.read()
        repeated = _Batches(batches, self.order, _length(self))
        for _ in range(skipped):
            next(repeated)
        return repeated

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that is needed to resume at the batch that follows those of training."""
        used = self.order.trained if self.order.is_read_ahead else self.order.batches
        return {"used": used, **self.order.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next pass the one of the state, from the batch on that it had come to."""
        self.order.load_state_dict(state)
        self.order.resumed = state["used"]


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


def _length(loader: Any) -> int | None:
    """Returns the number of batches of a pass; None where it is not known."""
    try:
        return len(loader)
    except TypeError:
        return None


def _samplers(loader: Any) -> list[Any]:
    """Returns the samplers of a loader."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    return [getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)]


def _generators(loader: Any) -> list[torch.Generator]:
    """Returns the generators that a loader and its samplers draw from, each once."""
    generators = (getattr(sampler, "generator", None) for sampler in (loader, *_samplers(loader)))
    return list({id(one): one for one in generators if isinstance(one, torch.Generator)}.values())


def _set(generators: list[torch.Generator], states: list[torch.Tensor]) -> None:
    """Sets the states of generators, where there are any."""
    for generator, state in zip(generators, states, strict=False):
        generator.set_state(state)


class DataOrder(BetweenUpdates):
    """Gives the training loaders of a run their own passes, and stores the global random numbers of NumPy and Python in
    its checkpoint. seed: that of the run."""

    def __init__(self, seed: int, rank: int) -> None:
        self.seed, self.rank = seed, rank
        self.passes: dict[str, list[Pass]] = {TRAINING: [], VALIDATION: [], TEST: []}
        self.loaded: Streams | None = None
        self.trainer: L.Trainer | None = None
        self.built_in = dict.fromkeys(self.passes, 0)
        self.to_build: set[str] = set()
        self.is_over = False
        self.not_held = ""

    def attach(self, source: L.LightningModule | L.LightningDataModule) -> None:
        """Makes a module or a data module return repeated loaders."""
        for name in self.passes:
            if name == TRAINING or is_overridden(name, source):
                setattr(source, name, self._building(name, getattr(source, name)))

    def is_held(self) -> bool:
        """Whether a checkpoint that is written now holds the place in the data: always, or at the start of an epoch."""
        assert self.trainer is not None
        return not self.not_held or self.trainer.fit_loop.epoch_loop.batch_progress.current.ready == 0

    def _building(self, name: str, original: Callable[[], Any]) -> Callable[[], Any]:
        """Returns a function that builds loaders as of the epoch in which they were first built, by random numbers that
        depend on it alone."""

        def build() -> Any:
            with self._as_of(self._epoch_of(name)), drawing_from(streams_of([self.seed, name, self.built_in[name]])):
                loaders = original()
            return self._repeated(loaders, name, count())

        return build

    def _epoch_of(self, name: str) -> int:
        """Returns the epoch as of which loaders are built: this one, or, once, that of a checkpoint."""
        if name not in self.to_build and self.trainer is not None:
            self.built_in[name] = self.trainer.current_epoch
        self.to_build.discard(name)
        return self.built_in[name]

    @contextmanager
    def _as_of(self, epoch: int) -> Iterator[None]:
        """Makes ``current_epoch`` of the trainer, if there is one, an earlier one within the block."""
        if self.trainer is None:
            yield
            return
        progress = self.trainer.fit_loop.epoch_progress.current
        now, progress.completed = progress.completed, epoch
        try:
            yield
        finally:
            progress.completed = now

    def _repeated(self, loaders: Any, name: str, numbers: Iterator[int]) -> Any:
        """Returns the loaders of a collection as repeated ones, in the order of ``numbers``."""
        passes = self.passes[name]
        match loaders:
            case CombinedLoader():
                loaders.flattened = [self._repeated(loader, name, numbers) for loader in loaders.flattened]
            case Mapping():
                return {key: self._repeated(loader, name, numbers) for key, loader in loaders.items()}
            case list() | tuple():
                return type(loaders)([self._repeated(loader, name, numbers) for loader in loaders])
            case _ if getattr(loaders, "state_dict", None) is None:
                number = next(numbers)
                if number == len(passes):
                    which = "" if name == TRAINING else f" {name}"
                    passes.append(Pass(f"{self.seed} {self.rank} {number}{which}"))
                passes[number].own = _generators(loaders)
                for generator in passes[number].own if self.is_over else ():
                    generator.manual_seed(self.seed)
                kind = type(loaders)
                with suppress(TypeError, AttributeError):  # a class that is not written in Python is left to itself
                    own = {"order": passes[number], "read": kind.__iter__, "__iter__": RepeatedLoader.__iter__}
                    loaders.__class__ = type(kind.__name__, (kind, RepeatedLoader), own)
        return loaders

    def setup(self, trainer: L.Trainer, task: L.LightningModule, stage: str) -> None:
        self.trainer = trainer

    def teardown(self, trainer: L.Trainer, task: L.LightningModule, stage: str) -> None:
        """Makes measurements after training independent of the state that training, or its interruption, has left."""
        self.is_over = True
        self.to_build = set()
        self.passes = {name: [] for name in self.passes}

    def on_train_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        trainer.fit_loop._last_train_dl_reload_epoch = self.built_in[TRAINING]
        trainer.fit_loop.epoch_loop.val_loop._last_val_dl_reload_epoch = self.built_in[VALIDATION]
        fetcher = trainer.fit_loop._data_fetcher
        assert fetcher is not None
        for one in self.passes[TRAINING]:
            one.is_read_ahead = fetcher.length is None
        self.not_held = _not_held(fetcher)
        if self.not_held and trainer.is_global_zero:
            print(f"{self.not_held}: a run that is stopped resumes from the start of its epoch", flush=True)

    def on_train_epoch_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        for one in self.passes[TRAINING]:
            one.epoch = trainer.current_epoch

    def on_train_batch_end(self, trainer: L.Trainer, task: L.LightningModule, outputs: Any, batch: Any, i: int) -> None:
        for one in self.passes[TRAINING]:
            one.trained = i + 1

    def between_updates(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        if self.loaded is not None:
            set_random_states((torch.get_rng_state(), *self.loaded[1:]))
            self.loaded = None
            for one in chain(*self.passes.values()):
                one.go_on()

    def state_dict(self) -> dict[str, Any]:
        _, (name, keys, *rest), (version, internal, gauss) = random_states()
        numpy_state = [name, torch.from_numpy(keys.astype(np.int64)), *rest]
        return {
            "numpy": numpy_state,
            "python": [version, list(internal), gauss],
            "built_in": dict(self.built_in),
            "validations": [one.state_dict() for one in self.passes[VALIDATION]],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        name, keys, *rest = state["numpy"]
        version, internal, gauss = state["python"]
        numpy_state = (name, keys.numpy().astype(np.uint32), *rest)
        self.loaded = (None, numpy_state, (version, tuple(internal), gauss))
        self.built_in, self.to_build = dict(state["built_in"]), {*self.passes}
        self.passes[VALIDATION] = [
            Pass(f"{self.seed} {self.rank} {number} {VALIDATION}") for number in range(len(state["validations"]))
        ]
        for one, ended in zip(self.passes[VALIDATION], state["validations"], strict=True):
            one.load_state_dict(ended)


def _not_held(fetcher: Any) -> str:
    """Returns why a checkpoint cannot hold a place within an epoch of the training data; empty where it can."""
    loaders = fetcher.combined_loader.flattened
    if isinstance(fetcher, _DataLoaderIterDataFetcher):
        return "training_step reads its batches itself, as many ahead as it likes"
    for loader in loaders:
        if getattr(loader, "state_dict", None) is None:
            return f"a {type(loader).__name__} cannot be read from its middle"
    if len(loaders) > 1 and fetcher.length is None:
        return "of several loaders, of which one has no length, Lightning reads ahead"
    return ""
