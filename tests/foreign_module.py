"""A LightningModule and a LightningDataModule that know nothing of this suite, and variants with faults."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any, Literal

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lit_transformers.records.measure import maximized

DIE = "DIE_AT_STEP"
"""The environment variable with the signal and the step at which training sends it to its own process: ``15 7``."""


class Net(L.LightningModule):
    """Two layers with dropout, which draws from NumPy's and Python's global random numbers in training, too."""

    def __init__(self, width: int = 8, lr: float = 0.1, idle: bool = False, examples: bool = True) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(width, 2))
        if idle:
            self.pooler = nn.Linear(2, 2)
        self.lr, self.examples = lr, examples

    def training_step(self, batch: Any, index: int) -> Tensor:
        signal_number, step = os.environ.get(DIE, "0 -1").split()
        if self.global_step == int(step):
            os.kill(os.getpid(), int(signal_number))
        x, y = batch
        x = x + 0.01 * np.random.rand() + 0.01 * random.random()
        loss = nn.functional.cross_entropy(self.layers(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> Any:
        return self._measure(batch, "val")

    def test_step(self, batch: Any, index: int) -> Any:
        return self._measure(batch, "test")

    def _measure(self, batch: Any, split: str) -> Any:
        x, y = batch
        right = (self.layers(x).argmax(1) == y).float()
        self.log(f"{split}_acc", right.mean())
        self.log(f"{split}_loss", nn.functional.cross_entropy(self.layers(x), y))
        return {"example_values": {"acc": right}} if self.examples else None

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]


class StatedNet(Net):
    """States the meaning of one of its metrics."""

    measures = maximized("acc", per="example")


class Points(Dataset[Any]):
    """Points, by the sign of their sum; those of training are moved at random by three kinds of random numbers."""

    def __init__(self, count: int, seed: int, moved: bool) -> None:
        self.x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
        self.y, self.moved = (self.x.sum(1) > 0).long(), moved

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        noise = torch.rand(4) + np.random.rand() + random.random() if self.moved else 0
        return self.x[index] + 0.1 * noise, self.y[index]


class Stream(IterableDataset[Any]):
    """The same points in a random order, without a length."""

    def __init__(self, points: Points) -> None:
        self.points = points

    def __iter__(self) -> Iterator[Any]:
        yield from (self.points[index] for index in torch.randperm(len(self.points)).tolist())


class Plane(L.LightningDataModule):
    """Points in batches of eight, five of them an epoch."""

    def __init__(self, kind: Literal["plain", "generator", "stream", "workers"] = "plain", path: str = "") -> None:
        super().__init__()
        self.kind, self.path = kind, path

    def setup(self, stage: str) -> None:
        self.points = Points(40, 0, True)

    def train_dataloader(self) -> Any:
        match self.kind:
            case "stream":
                return DataLoader(Stream(self.points), batch_size=8)
            case "generator":
                generator = torch.Generator().manual_seed(3)
                return DataLoader(self.points, batch_size=8, shuffle=True, generator=generator)
            case "workers":
                return DataLoader(self.points, batch_size=8, shuffle=True, num_workers=2)
        return DataLoader(self.points, batch_size=8, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(Points(50, 1, False), batch_size=20)

    def test_dataloader(self) -> Any:
        return DataLoader(Points(50, 2, False), batch_size=20)


class Elsewhere(Plane):
    """Validates on ``count`` points of a seed, in batches of ``batch``."""

    def __init__(self, seed: int = 1, count: int = 50, batch: int = 20, name: str | None = None) -> None:
        super().__init__()
        self.seed, self.count, self.batch = seed, count, batch
        if name is not None:
            self.evaluation_fingerprint = name

    def val_dataloader(self) -> Any:
        return DataLoader(Points(self.count, self.seed, False), batch_size=self.batch)
