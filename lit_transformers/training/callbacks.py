"""Callbacks of training: curves, checkpoints, stopping, and the end of a run that diverged."""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback

from lit_transformers.config import Plain
from lit_transformers.records.cells import cell_of
from lit_transformers.records.files import replace_file
from lit_transformers.training.logged import logged_state, set_logged_state
from lit_transformers.training.loop import BetweenUpdates, amid_update
from lit_transformers.training.ranks import from_all_ranks, mean_over_ranks
from lit_transformers.training.stopping import Diverged, Interrupted, Stop
from lit_transformers.training.token_count import TokenCount

RANKS_AT_MOST = 1 << 16
"""The seeds of the random numbers of ranks lie so far apart from step to step."""

Point = tuple[int, int, str, float]
"""A point of a learning curve: step, tokens that were planned up to this step, name, value."""


def random_state() -> dict[str, torch.Tensor]:
    """Returns the state of the random numbers that training draws."""
    return {"cpu": torch.get_rng_state()} | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def set_random_state(state: Mapping[str, torch.Tensor]) -> None:
    """Sets a state that ``random_state`` returned; the part for a device only where there is one."""
    torch.set_rng_state(state["cpu"].cpu())
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())


def same_random_state(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    """Whether two states of random numbers are equal; that of a device where both have one."""
    return all(torch.equal(first[name].cpu(), second[name].cpu()) for name in first.keys() & second.keys())


class Curves(Callback):
    """Records learning curves. They are part of the checkpoint, so a resumed run has those of one never stopped.

    A point of training is the mean over the targets of all batches of an update. Its tokens are planned ones, so that
    the points of several seeds lie at the same tokens. updates: the values that a sender has sent besides the points,
    as step, name and value, so that a later attempt can send them again.
    """

    def __init__(self, every: int, tokens_per_step: int) -> None:
        self.every, self.tokens_per_step = every, tokens_per_step
        self.points: list[Point] = []
        self.updates: list[tuple[int, str, float]] = []
        self.update: list[Mapping[str, Any]] = []

    def on_train_batch_end(self, trainer: L.Trainer, task: L.LightningModule, outputs: Any, batch: Any, i: int) -> None:
        self.update.append(outputs)
        if amid_update(trainer):
            return
        if trainer.global_step % self.every == 0:
            self._add_update(trainer)
        self.update = []

    def _add_update(self, trainer: L.Trainer) -> None:
        """Adds the losses of an update: of the first head, which all ranks have computed together; of all; those of
        other heads; and those of the network's own, by name."""
        self._add(trainer, "train/nats", mean_of([(result["nats"], result["targets"]) for result in self.update]))
        total = torch.stack([result["total"] for result in self.update]).sum()
        self._add(trainer, "train/loss", float(mean_over_ranks(total)))
        for name in dict.fromkeys(name for result in self.update for name in result["heads"]):
            of_head = [result["heads"][name] for result in self.update if name in result["heads"]]
            self._add(trainer, f"train/{name}_nats", mean_of(of_head))
        for name in self.update[-1]["weighted_aux"]:
            shares = torch.stack([result["weighted_aux"][name].detach() for result in self.update])
            self._add(trainer, f"train/{name}", float(mean_over_ranks(shares.sum())))

    def on_validation_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        if trainer.state.fn != "fit":
            return
        for name, value in measured(trainer).items():
            self._add(trainer, name, value)

    def _add(self, trainer: L.Trainer, name: str, value: float) -> None:
        step = trainer.global_step
        self.points.append((step, step * self.tokens_per_step, name, value))

    def state_dict(self) -> dict[str, Any]:
        sent = {"updates": [list(update) for update in self.updates]} if self.updates else {}
        return {"points": [list(point) for point in self.points], **sent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.points = [(step, tokens, name, value) for step, tokens, name, value in state["points"]]
        self.updates = [(step, name, value) for step, name, value in state.get("updates", [])]

    def write(self, path: Path) -> None:
        """Writes the curves as a CSV table with the columns step, tokens, name, value."""

        def write(fresh: Path) -> None:
            with fresh.open("w", newline="", encoding="utf-8") as file:
                rows = csv.writer(file)
                rows.writerow(["step", "tokens", "name", "value"])
                rows.writerows((step, tokens, cell_of(name), repr(value)) for step, tokens, name, value in self.points)

        replace_file(path, write)


def mean_of(losses: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Returns the mean over the targets of all batches of an update, given that of each batch and their number."""
    if len(losses) == 1:
        return float(losses[0][0])
    means, targets = (torch.stack(column) for column in zip(*losses, strict=True))
    return float((means * targets).sum() / targets.sum().clamp(min=1))


class TokensRead(Callback):
    """Counts the tokens that training reads. They are part of the checkpoint, so that of a resumed run each batch that
    its weights have learned from counts once."""

    def __init__(self) -> None:
        self.count = TokenCount()

    def on_train_batch_start(self, trainer: L.Trainer, task: L.LightningModule, batch: Any, i: int) -> None:
        self.count.add(batch)

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.count.total()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count.resume(state["total"])


def measured(trainer: L.Trainer) -> dict[str, float]:
    """Returns the metrics of the last validation or test."""
    return {n: float(v) for n, v in trainer.callback_metrics.items() if n.startswith(("val/", "test/"))}


class Checkpointer(BetweenUpdates):
    """Writes a checkpoint every ``seconds``, and once when asked to stop; ``extra`` is plain data stored with it.

    It is written between two updates, and state that Lightning does not restore is restored there, so a resumed run
    neither omits nor repeats anything. is_held: whether a checkpoint written now would hold the place in the data; if
    not, none is written, and a stopped run resumes from the checkpoint before. keep_optimizer: whether the checkpoint
    after the last update holds the state of the optimizer too, which only a trainer that continues the run reads.
    """

    def __init__(
        self,
        path: Path,
        seconds: float,
        extra: Mapping[str, Plain],
        stop: Stop,
        is_held: Callable[[], bool] = lambda: True,
        keep_optimizer: bool = True,
    ) -> None:
        self.path, self.seconds, self.extra, self.stop, self.is_held = path, seconds, dict(extra), stop, is_held
        self.keep_optimizer = keep_optimizer
        self.saved_at = time.monotonic()
        self.started: float | None = None
        self.validated_at, self.saved_step, self.earlier = 0, 0, 0.0
        self.ended = self.trains = self.is_last = False
        self.loaded: dict[str, Any] = {}
        self.ranks: list[dict[str, Plain]] = []

    def on_fit_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self.started = self.saved_at = time.monotonic()
        self.trains = False

    def on_fit_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self.earlier, self.started = self.spent(), None

    def spent(self) -> float:
        """Seconds of training so far, validation within it and earlier attempts included."""
        return self.earlier + (0.0 if self.started is None else time.monotonic() - self.started)

    def between_updates(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        if self.trains:
            self._save_if_due(trainer)
            return
        self.trains = True
        self._restore(trainer, task)

    def on_validation_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self.stop.listen()

    def on_validation_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.state.fn != "fit" and self._agreed(trainer, self.stop()):
            raise Interrupted("stopped while it was measured; run again to measure it")

    def on_validation_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self.validated_at = trainer.global_step

    def on_test_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self.stop.listen()

    def on_test_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self.on_validation_batch_end(trainer)

    def on_train_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self.is_last = True
        self.save(trainer)

    def on_save_checkpoint(self, trainer: L.Trainer, task: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["lit_transformers"] = self.extra
        if self.is_last and not self.keep_optimizer:
            checkpoint["optimizer_states"] = []
        checkpoint["random"] = from_all_ranks(random_state())
        checkpoint["logged"] = from_all_ranks(logged_state(trainer, task))
        if not task.automatic_optimization:  # the module may be amid an update that only it knows of
            gradients = {name: parameter.grad for name, parameter in task.named_parameters()}
            checkpoint["gradients"] = {name: value for name, value in gradients.items() if value is not None}

    def on_load_checkpoint(self, trainer: L.Trainer, task: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        self.loaded = {name: checkpoint[name] for name in ("random", "logged", "gradients") if name in checkpoint}
        self.saved_step = checkpoint["global_step"]

    def on_train_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self.stop.listen()
        trainer.should_stop |= self.ended

    def _restore(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        """Restores, before the first batch, the parts of a checkpoint, if any, that Lightning does not restore."""
        loaded, self.loaded = self.loaded, {}
        random_states, logged = loaded.get("random", []), loaded.get("logged", [])
        if len(logged) == trainer.world_size:
            set_logged_state(trainer, task, logged[trainer.global_rank])
        for name, gradient in loaded.get("gradients", {}).items():
            parameter = task.get_parameter(name)
            parameter.grad = gradient.to(parameter.device)
        is_drawn_from = bool(random_states) and not same_random_state(random_states[0], random_state())
        if len(random_states) == trainer.world_size:
            set_random_state(random_states[trainer.global_rank])
        elif is_drawn_from:
            self._draw_anew(trainer, len(random_states))
        elif trainer.global_rank:  # the first rank continues as a single process; others drop out other channels
            torch.manual_seed(torch.initial_seed() + trainer.global_rank)
        if not self.ranks or self.ranks[-1]["ranks"] != trainer.world_size:
            changed = {"step": trainer.global_step, "ranks": trainer.world_size, "drawn_anew": is_drawn_from}
            self.ranks = [*self.ranks, changed]

    def _draw_anew(self, trainer: L.Trainer, before: int) -> None:
        """Gives each rank its own random numbers after the number of ranks changed from ``before``, and says so."""
        torch.manual_seed(torch.initial_seed() + trainer.global_step * RANKS_AT_MOST + trainer.global_rank)
        if trainer.is_global_zero:
            print(
                f"resuming at step {trainer.global_step} with {trainer.world_size} ranks after {before}: from here on "
                f"dropout and other random draws differ from a run of {before} ranks",
                flush=True,
            )

    def state_dict(self) -> dict[str, Any]:
        return {
            "validated_at": self.validated_at, "spent": self.spent(), "ended": self.ended, "ranks": self.ranks
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.validated_at, self.earlier, self.ended = state["validated_at"], state["spent"], state["ended"]
        self.ranks = state["ranks"]

    def _save_if_due(self, trainer: L.Trainer) -> None:
        stopping = self._agreed(trainer, self.stop())
        due = stopping or self._agreed(
            trainer, trainer.is_global_zero and time.monotonic() - self.saved_at >= self.seconds
        )
        if due and self.is_held():
            self.save(trainer)
        if stopping:
            step = trainer.global_step
            place = "here" if self.saved_step == step else f"step {self.saved_step}"
            raise Interrupted(f"stopped at step {step}; run again to resume from {place}")

    def _agreed(self, trainer: L.Trainer, vote: bool) -> bool:
        """Whether any rank votes yes, so that either all of them act or none does."""
        if trainer.world_size == 1:
            return vote
        return bool(mean_over_ranks(torch.tensor(float(vote), device=trainer.strategy.root_device)) > 0)

    def save(self, trainer: L.Trainer) -> None:
        """Writes the checkpoint now. All ranks take part, and the first one writes. Where a callback has ended training
        early, a run that resumes from it does not train further."""
        self.ended = bool(trainer.should_stop)
        if trainer.is_global_zero:
            replace_file(self.path, lambda fresh: trainer.save_checkpoint(fresh))
        else:
            trainer.save_checkpoint(self.path)
        self.saved_at, self.saved_step = time.monotonic(), trainer.global_step


class DivergenceCheck(Callback):
    """Raises Diverged when the loss is not finite. On a device it looks every ``every`` seconds: reading waits."""

    def __init__(self, every: float = 0.2) -> None:
        self.every, self.checked_at = every, -math.inf

    def on_train_batch_end(self, trainer: L.Trainer, task: L.LightningModule, outputs: Any, batch: Any, i: int) -> None:
        now = time.monotonic()
        due = trainer.is_global_zero and now - self.checked_at >= self.every
        if not due and task.device.type != "cpu":
            return
        self.checked_at = now
        nats = float(outputs["nats"])
        if not math.isfinite(nats):
            raise Diverged(f"the loss is {nats} at step {trainer.global_step}")
