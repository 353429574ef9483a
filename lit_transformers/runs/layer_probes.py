"""Probes every layer and pooling of a network by a logistic regression (Alain and Bengio 2016, arXiv:1610.01644,
section 3; arXiv:1905.05583, section 5.3.2). The features are computed once and cached below LIT_CACHE."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from scipy.optimize import minimize

from datamodules import LabelledData, Split, cache_folder
from datamodules.core.index import make_once
from datamodules.core.preparing import TextCount
from lit_transformers.batch import ClassLabels, needed_mask
from lit_transformers.config import ConfigError, canonical_hash
from lit_transformers.heads.pooling import FixedPooling, Pooling, pooled
from lit_transformers.models.capabilities import depth_of
from lit_transformers.runs.code import code_hash
from lit_transformers.runs.config import RunConfig
from lit_transformers.runs.features import examples_of, moved
from lit_transformers.runs.keys import source_keys
from lit_transformers.runs.stages import origins
from lit_transformers.runs.train import starting_task
from lit_transformers.tasks.features import weights_digest
from lit_transformers.tasks.labelled import LabelledTask, marks
from lit_transformers.training.arithmetic import arithmetic

__all__ = ["PooledLayers", "classifier", "pooled_layers", "probe_layers"]

POOLINGS: tuple[FixedPooling, ...] = get_args(FixedPooling)
VECTORS, LABELS = "vectors.npy", "labels.npy"

Floats = npt.NDArray[np.float64]


class PooledLayers(NamedTuple):
    """The pooled outputs of all layers for the examples of a split.

    vectors: (n, l, p, d) in float32, memory-mapped, for n examples, l layers with the embeddings first, and p poolings.
    Layers below the last are read without the norm that follows the last. labels: the classes (n,). poolings: their
    names.
    """

    vectors: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    poolings: tuple[Pooling, ...] = POOLINGS


def pooled_layers(config: RunConfig, runs: str | Path = "runs") -> dict[Split, PooledLayers]:
    """Returns the pooled outputs of all layers for the examples of training and validation: from the cache, or computed
    with the weights that the run starts from.

    config: of a run that predicts a class for each row; its fields of layers and pooling are ignored. runs: the folder
    of the runs that it starts from. Raises ConfigError for other tasks or labels, and DataError if the data cannot be
    read.
    """
    whole = config.override(
        {"task.layers": None, "task.combined_layers": (), "task.layer_combination": "concatenation"}
    )
    data = whole.build_data()
    starts = {part: origin.path for part, origin in origins(whole, Path(runs), source_keys(whole)).items()}
    task, _ = starting_task(whole, data, starts)
    if not isinstance(task, LabelledTask) or not isinstance(data, LabelledData) or data.description.pieces > 1:
        raise ConfigError("probes of layers read labelled sequences of one piece; set task: classification", "task")
    data.description.labels_of("label", ClassLabels, "a probe of layers")
    splits: tuple[Split, ...] = ("train", data.measured_split)
    weights = weights_digest(task.network, task.network.prediction_only())
    rows = [data.examples.fingerprint, data.config.evaluation.to_dict(), data.config.batch_size]
    code = code_hash(whole.override({"training.callbacks": ()}), (__name__,))
    folder = cache_folder() / "pooled_layers" / canonical_hash([weights, whole.model.to_dict(), rows, code], 32)
    progress = TextCount(sum(len(data.ordinals(split)) for split in splits))

    def make(temporary: Path) -> None:
        for split in splits:
            (temporary / split).mkdir(exist_ok=True)
            _write(whole, task, data, split, temporary / split, progress)

    make_once(folder, f"{splits[-1]}/{LABELS}", make, progress)
    return {
        split: PooledLayers(np.load(folder / split / VECTORS, mmap_mode="r"), np.load(folder / split / LABELS))
        for split in splits
    }


@torch.no_grad()
def _write(
    config: RunConfig, task: LabelledTask, data: LabelledData, split: Split, folder: Path, progress: TextCount
) -> None:
    """Reads every example once, in batches of similar length, and writes the vectors of each batch to a memory-mapped
    file, in the order of ordinals."""
    device = torch.device("cuda" if config.training.device != "cpu" and torch.cuda.is_available() else "cpu")
    network, ordinals = task.to(device).eval().network, np.array(data.ordinals(split))
    shape = (len(ordinals), depth_of(network) + 1, len(POOLINGS), task.model_config.dim)
    written = np.lib.format.open_memmap(folder / VECTORS, "w+", np.float32, shape)
    labels = np.zeros(len(ordinals), np.int64)
    with arithmetic(config.training):
        for batch in examples_of(data, split):
            rows, places = moved(batch, device), np.searchsorted(ordinals, batch.example.numpy())
            layers = network.read_layers(rows.inputs, needed_mask(rows), marks(rows), rows.segments).layers
            pools = [[pooled(layer, rows.padding_mask, pooling) for pooling in POOLINGS] for layer in layers]
            vectors = torch.stack([torch.stack(of_layer, dim=1) for of_layer in pools], dim=1)
            written[places], labels[places] = vectors.float().cpu().numpy(), batch.labels.numpy()
            progress.done += len(places)
    written.flush()
    np.save(folder / LABELS, labels)


def probe_layers(config: RunConfig, penalty: float = 0.05, runs: str | Path = "runs") -> pd.DataFrame:
    """Returns a table with a row for each layer and pooling of a network: the columns layer (0 is the embeddings),
    pooling, accuracy and nats per example of a logistic regression, trained on the training split and measured on the
    validation split.

    penalty: penalty / 2 times the sum of squared weights is added to the mean nats. Features are standardised by the
    mean and deviation of training. Other arguments and errors are the same as of ``pooled_layers``.
    """
    splits = pooled_layers(config, runs)
    train, held_out = splits["train"], next(of for split, of in splits.items() if split != "train")
    rows = []
    for layer in range(train.vectors.shape[1]):
        for number, pooling in enumerate(POOLINGS):
            x, held = (of.vectors[:, layer, number].astype(np.float64) for of in (train, held_out))
            center, scale = x.mean(axis=0), x.std(axis=0)
            scale[scale < 1e-8] = 1.0
            logits = classifier((x - center) / scale, train.labels, penalty)((held - center) / scale)
            nats = -log_softmax(logits)[np.arange(len(held)), held_out.labels]
            accuracy = float((logits.argmax(axis=1) == held_out.labels).mean())
            rows.append({"layer": layer, "pooling": pooling, "accuracy": accuracy, "nats": float(nats.mean())})
    return pd.DataFrame(rows)


def log_softmax(logits: Floats) -> Floats:
    """Returns the logarithms of the softmax of logits (n, c)."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def classifier(x: Floats, labels: npt.NDArray[np.int64], penalty: float) -> Callable[[Floats], Floats]:
    """Fits a multinomial logistic regression to features x (n, d), and returns a function from features to logits
    (n, c). L-BFGS minimizes the mean nats plus ``penalty`` / 2 times the sum of squared weights; biases are free."""
    count, width = int(labels.max()) + 1, x.shape[1]
    targets = np.eye(count)[labels]

    def loss(flat: Floats) -> tuple[float, Floats]:
        weights, biases = flat[:-count].reshape(width, count), flat[-count:]
        log_p = log_softmax(x @ weights + biases)
        difference = (np.exp(log_p) - targets) / len(x)
        gradient = np.concatenate([(x.T @ difference + penalty * weights).ravel(), difference.sum(axis=0)])
        return float(-(log_p * targets).sum() / len(x) + penalty / 2 * (weights**2).sum()), gradient

    flat = minimize(loss, np.zeros((width + 1) * count), jac=True, method="L-BFGS-B", options={"maxiter": 1000}).x
    return lambda features: features @ flat[:-count].reshape(width, count) + flat[-count:]
