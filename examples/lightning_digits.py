"""An image classifier of the transformers library as a LightningModule, and the digits of scikit-learn as its data."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from transformers import ViTConfig, ViTForImageClassification


class DigitClassifier(L.LightningModule):
    """A small vision Transformer (arXiv:2010.11929) that reads images of 8 x 8 pixels in patches.

    patch_size: pixels a side; width: channels, in heads of 16; depth: layers.
    """

    def __init__(self, patch_size: int = 2, width: int = 32, depth: int = 2, learning_rate: float = 3e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = ViTForImageClassification(
            ViTConfig(
                image_size=8, num_channels=1, num_labels=10, patch_size=patch_size, hidden_size=width,
                num_hidden_layers=depth, num_attention_heads=width // 16, intermediate_size=4 * width,
            )
        )  # fmt: skip

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        images, labels = batch
        return self.network(pixel_values=images, labels=labels).loss

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> dict[str, Any]:
        return self._measure(batch, "val")

    def test_step(self, batch: tuple[Tensor, Tensor], index: int) -> dict[str, Any]:
        return self._measure(batch, "test")

    def _measure(self, batch: tuple[Tensor, Tensor], split: str) -> dict[str, Any]:
        images, labels = batch
        right = (self.network(pixel_values=images).logits.argmax(1) == labels).float()
        self.log(f"{split}_accuracy", right.mean(), batch_size=len(labels))
        return {"example_values": {"accuracy": right}}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["learning_rate"])


class Digits(L.LightningDataModule):
    """1,797 images of handwritten digits: 1,197 for training, 300 for validation, 300 for the test."""

    fingerprint = "sklearn.datasets.load_digits: 1797 images"

    def __init__(self, batch_size: int = 32) -> None:
        super().__init__()
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
        whole = TensorDataset(images[order], torch.tensor(digits.target)[order])
        self.train, self.validation, self.test = torch.utils.data.random_split(
            whole, [1197, 300, 300], torch.Generator().manual_seed(0)
        )
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.validation, batch_size=100)

    def test_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.test, batch_size=100)

    def floors(self, metric: str) -> dict[str, float]:
        """Returns the accuracy on the validation split of always predicting the most frequent class of training."""
        labels = [torch.stack([label for _, label in part]) for part in (self.train, self.validation)]
        most_frequent = labels[0].mode().values
        return {"the most frequent class": float((labels[1] == most_frequent).float().mean())}
