"""Runs of any LightningModule, on the data of any LightningDataModule, which may know nothing of this suite."""

from lit_transformers.lightning_runs.config import LightningRunConfig

__all__ = ["LightningRunConfig"]
