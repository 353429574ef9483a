"""Lightning's demo of a Transformer (``lightning.pytorch.demos.transformer``), and a text to train it on.

Network, training step and optimizer are the demo's. What a study needs beside is a measurement, which the demo has none
of, and data that are there: the reference of the Python language, which every Python brings along.
"""

from __future__ import annotations

from pydoc_data.topics import topics
from typing import Any

import lightning as L
import torch
from lightning.pytorch.demos.transformer import LightningTransformer
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset


class Demo(LightningTransformer):
    """The demo with a measurement.

    shows_targets: whether the decoder reads the symbols that it is to predict, as in the demo as it is shipped, or
    those before them. The encoder then reads the first symbol of a block, which all the others come after.
    """

    def __init__(self, vocab_size: int, shows_targets: bool = False) -> None:
        super().__init__(vocab_size)
        self.shows_targets = shows_targets

    def prepare_data(self) -> None:
        """Does not download the text that the demo comes with."""

    def forward(self, inputs: Tensor, target: Tensor) -> Tensor:
        if self.shows_targets:
            return super().forward(inputs, target)
        mask = self.model.generate_square_subsequent_mask(inputs.size(1)).to(inputs.device)
        return self.model(inputs[:, :1], inputs, mask)

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> dict[str, Any]:
        inputs, target = batch
        nats = torch.nn.functional.nll_loss(self(inputs, target), target.view(-1), reduction="none")
        nats = nats.view_as(target).mean(1)
        self.log("val_loss", nats.mean(), batch_size=len(target))
        return {"example_values": {"loss": nats}}


class PythonReference(L.LightningDataModule):
    """The reference of the Python language in blocks of characters; the last tenth is measured."""

    fingerprint = f"{len(topics)} topics, {sum(map(len, topics.values()))} characters"

    def __init__(self, block_size: int = 24, batch_size: int = 16, measured: int = 256) -> None:
        super().__init__()
        text = "\n".join(text for _, text in sorted(topics.items())).encode("ascii", "ignore")
        symbols = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        blocks = symbols[: len(symbols) // block_size * block_size].view(-1, block_size)
        split = len(blocks) * 9 // 10
        self.train, self.validation = blocks[:split], blocks[split : split + measured]
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(_pairs(self.train), batch_size=self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(_pairs(self.validation), batch_size=64)

    def floors(self, metric: str) -> dict[str, float]:
        """Returns the loss, in nats per character, of who knows how frequent each one is and nothing else."""
        counts = torch.bincount(self.train.flatten(), minlength=128).double()
        nats = -(counts / counts.sum()).log()[self.validation[:, 1:]]
        return {"how frequent characters are": float(nats.mean())} if metric == "loss" else {}


def _pairs(blocks: Tensor) -> TensorDataset:
    return TensorDataset(blocks[:, :-1], blocks[:, 1:])
