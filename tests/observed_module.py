"""A LightningModule that records all that happens to it, and data of many kinds, for comparisons of whole runs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Literal

import lightning as L
import numpy as np
import torch
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset
from torchmetrics import MeanMetric

from lit_transformers.training.stopping import Stop

EVENTS: list[tuple[Any, ...]] = []
"""The events of modules, in order: the hook, the epoch, the step, and the values that the hook saw."""
STOP = Stop()
STOPS: set[int] = set()
"""The batches in which a stop of the run is requested, by their numbers among all trained batches."""
TRAINED = [0]


class Observed(L.LightningModule):
    """Two layers with dropout, whose loss depends on the epoch and on global random numbers.

    schedule: when the rate changes, and by which value; epoch_loss is the mean of the losses of an epoch; the loss is 1
    with constant_loss. by_hand: with two optimizers and updates of two batches, which the module makes by itself.
    """

    def __init__(
        self,
        schedule: Literal[
            "none", "step", "epoch", "validated_step", "validated_epoch", "epoch_loss", "constant_loss"
        ] = "none",
        by_hand: bool = False,
        augments: bool = False,
    ) -> None:
        super().__init__()
        self.schedule, self.augments = schedule, augments
        self.automatic_optimization = not by_hand
        self.layers = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Dropout(0.2))
        self.last = nn.Linear(4, 1)
        self.distance = MeanMetric()

    def record(self, hook: str, *values: Any) -> None:
        if self.trainer.state.fn == "fit":
            EVENTS.append((hook, self.current_epoch, self.global_step, *values))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(self.layers(x))
        return output

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if not self.augments or not self.trainer.training:
            return batch
        moved = torch.rand(2)
        return [x + 0.1 * moved for x in batch] if isinstance(batch, list) else batch + 0.1 * moved

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        TRAINED[0] += 1
        if TRAINED[0] in STOPS:
            STOP.request.set()
        x = torch.cat([one for one in (batch if isinstance(batch, list) else [batch]) if one is not None])
        loss = (self(x) - 1 - self.current_epoch - 0.1 * np.random.rand() - 0.1 * random.random()).square().mean()
        if self.schedule == "constant_loss":
            loss = 1 + 0 * loss
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        self.record("training_step", batch_idx, x.sum().item(), loss.item(), rate)
        self.log("train_loss", loss, on_step=True, on_epoch=True, batch_size=len(x))
        self.distance(loss)
        self.log("distance", self.distance, on_step=False, on_epoch=True)
        if not self.automatic_optimization:
            self.update_by_hand(loss, batch_idx)
        return loss

    def update_by_hand(self, loss: Tensor, batch_idx: int) -> None:
        first, second = self.optimizers()
        self.manual_backward(loss)
        if batch_idx % 2 == 1:
            first.step()
            second.step()
            first.zero_grad()
            second.zero_grad()

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        loss = self(batch).square().mean()
        self.record("validation_step", batch_idx, dataloader_idx, loss.item())
        self.log("val_loss" if dataloader_idx == 0 else "other_loss", loss, add_dataloader_idx=False)

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        self.record("lr_scheduler_step", None if metric is None else float(metric))
        super().lr_scheduler_step(scheduler, metric)

    def on_train_epoch_start(self) -> None:
        self.record("on_train_epoch_start")

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.record("on_train_batch_start", batch_idx)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.record("on_train_batch_end", batch_idx)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        gradients = [parameter.grad.sum().item() for parameter in self.parameters() if parameter.grad is not None]
        self.record("on_before_optimizer_step", *gradients)

    def on_validation_end(self) -> None:
        self.record("on_validation_end")

    def on_train_epoch_end(self) -> None:
        metrics = {name: float(value) for name, value in self.trainer.callback_metrics.items() if "/" not in name}
        self.record("on_train_epoch_end", *sorted(metrics.items()))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.layers.parameters(), lr=0.1, momentum=0.9)
        if not self.automatic_optimization:
            return [optimizer, torch.optim.Adam(self.last.parameters())]
        optimizer.add_param_group({"params": [*self.last.parameters()]})
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        monitored = {"scheduler": plateau, "monitor": "val_loss", "strict": False}
        halved = {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)}
        schedules: dict[str, Any] = {
            "step": halved | {"interval": "step"},
            "epoch": halved | {"interval": "epoch"},
            "validated_step": monitored | {"interval": "step"},
            "validated_epoch": monitored | {"interval": "epoch"},
            "epoch_loss": monitored | {"monitor": "train_loss_epoch"},
        }
        return [optimizer], [schedules[self.schedule]] if self.schedule in schedules else []


class Points(Dataset[Any]):
    """Points, moved at random where they are read."""

    def __init__(self, count: int) -> None:
        self.x = torch.randn(count, 2, generator=torch.Generator().manual_seed(count))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index] + 0.1 * torch.rand(2) + 0.1 * np.random.rand() + 0.1 * random.random()


class Stream(IterableDataset[Any]):
    """Points in another order each time, of which nobody knows how many there are."""

    def __init__(self, count: int) -> None:
        self.points = Points(count)

    def __iter__(self) -> Iterator[Any]:
        yield from (self.points[index] for index in torch.randperm(len(self.points)).tolist())


class Batches:
    """Batches of points, which are no DataLoader."""

    def __init__(self, count: int) -> None:
        self.points = Points(count)

    def __len__(self) -> int:
        return len(self.points) // 2

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(len(self.points)).tolist()
        yield from (self.points[index][None] for index in order[: len(self)])


KINDS = ("plain", "generator", "stream", "batches", "epochs", "two", "two_min", "two_streams", "growing", "drawn")
"""The kinds of training data."""


class ObservedData(L.LightningDataModule):
    """Points in batches of two. growing: more of them in each epoch that they are loaded in; drawn: some of them, drawn
    when they are loaded."""

    def __init__(self, kind: str = "plain", count: int = 10, workers: int = 0, validated: int = 1) -> None:
        super().__init__()
        self.kind, self.count, self.validated = kind, count, validated
        self.options: dict[str, Any] = {"batch_size": 2, "num_workers": workers, "persistent_workers": workers > 1}
        self.generator = torch.Generator().manual_seed(3)

    def train_dataloader(self) -> Any:
        points, plain = Points(self.count), {"shuffle": True, **self.options}
        match self.kind:
            case "generator":
                return DataLoader(points, generator=self.generator, **plain)
            case "stream":
                return DataLoader(Stream(self.count), **self.options)
            case "batches":
                return Batches(self.count)
            case "epochs":
                return DataLoader(points, sampler=DistributedSampler(points, 2, 1), **self.options)
            case "two":
                return [DataLoader(points, **plain), DataLoader(Points(5), **plain)]
            case "two_min":
                return CombinedLoader([DataLoader(points, **plain), DataLoader(Points(20), **plain)], "min_size")
            case "two_streams":
                return [DataLoader(Stream(self.count), **self.options), DataLoader(Points(5), **plain)]
            case "growing":
                assert self.trainer is not None
                return DataLoader(Points(self.count + 4 * self.trainer.current_epoch), **plain)
            case "drawn":
                return DataLoader(Points(self.count + 2 * int(torch.randint(3, ()))), **plain)
        return DataLoader(points, **plain)

    def val_dataloader(self) -> Any:
        loaders = [
            DataLoader(Points(6 + 2 * i), generator=self.generator, **self.options) for i in range(self.validated)
        ]
        return loaders if len(loaders) > 1 else loaders[0]
