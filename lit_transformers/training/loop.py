"""Lightning's loop over the batches of an epoch, with validations between updates and a moment at which all is at rest.

Lightning counts the batches between two validations, which with accumulated gradients and the update at the end of an
epoch may lie amid an update. And none of its hooks sees a state from which training resumes as if it had never stopped:
within a batch or a validation some hooks, schedules and counters of epochs are still to come, which are left out when
it resumes, and at the start of a batch the batch has been read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, final

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loops.fetchers import _DataFetcher, _PrefetchDataFetcher
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

__all__ = ["BetweenUpdates", "UpdateLoop", "amid_update", "batches_ahead"]


def amid_update(trainer: L.Trainer) -> bool:
    """Whether the update needs more batches after the last one, which the last batch of an epoch never does. No
    checkpoint is written in between."""
    return trainer.fit_loop._should_accumulate()


def batches_ahead(trainer: L.Trainer, count: int) -> list[Any]:
    """Returns the batches of the epoch that follow the one that is trained, at most ``count``, which are trained all
    the same. Lightning then holds them in its fetcher, as it does one batch of data of unknown length."""
    fetcher: Any = trainer.fit_loop._data_fetcher
    left = trainer.num_training_batches - trainer.fit_loop.epoch_loop.batch_progress.current.ready
    if not isinstance(fetcher, _PrefetchDataFetcher) or not left:
        return []
    wanted = int(min(count, left))
    fetcher.length = None  # or it would take the last batch that it holds for the last one that was trained
    while len(fetcher.batches) < wanted:
        try:
            fetcher.batches.append(_DataFetcher.__next__(fetcher))
        except StopIteration:
            break
    fetcher.done = not fetcher.batches
    return [batch for batch, _, _ in fetcher.batches[:wanted]]


class BetweenUpdates(Callback, ABC):
    """A callback that acts between two updates."""

    @abstractmethod
    def between_updates(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        """Acts where nothing is left to be done of the update before, hooks, schedules, validation and the end of its
        epoch included, and nothing is done of the next one, not even the reading of its batch."""


@final
class UpdateLoop(_TrainingEpochLoop):
    """The loop of a trainer, in place of Lightning's. validate_every: updates between validations; None for none."""

    def __init__(self, trainer: L.Trainer, validate_every: int | None) -> None:
        super().__init__(trainer, max_steps=trainer.max_steps)
        self.validate_every = validate_every
        self.steps_before = 0

    def advance(self, data_fetcher: Any) -> None:
        """Trains a batch, after all that acts between updates where it is the first one of an update."""
        callbacks: list[Callback] = self.trainer.callbacks
        if not amid_update(self.trainer):
            for callback in callbacks:
                if isinstance(callback, BetweenUpdates):
                    callback.between_updates(self.trainer, self.trainer.lightning_module)
        self.trainer.fit_loop._restarting = False  # or schedules that wait for metrics would wait an epoch longer
        self.steps_before = self.global_step
        super().advance(data_fetcher)

    def _should_check_val_fx(self, data_fetcher: Any) -> bool:
        """Whether a validation follows the batch: where an update, or one of those of several optimizers, was the last
        one of an interval, or where a callback ends training."""
        if not self._should_check_val_epoch():
            return False
        if self.trainer.should_stop and self.trainer.fit_loop._can_stop_early:
            return True
        every = self.validate_every
        return every is not None and self.global_step // every > self.steps_before // every
