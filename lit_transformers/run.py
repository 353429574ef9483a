"""A run: one model on one corpus, from a config to a record. The one place where a model meets its data.

``fit`` may be stopped at any moment and called again: it goes on from its checkpoint, and on a CPU ends with the
same record, bit for bit, as if it had never stopped.
"""

from __future__ import annotations

import csv
import os
import sys
import time
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import lightning as L
import torch

from datamodules import DataError, EvaluationConfig, LanguageData, LanguageDataConfig, tokenizer_from_dict
from lit_transformers import gates
from lit_transformers.callbacks import (
    Curves,
    Interrupted,
    Keeper,
    Progress,
    Report,
    Watch,
    measured,
)
from lit_transformers.code import code_hash
from lit_transformers.config import Config, ConfigError, NonNegative, Plain, canonical_hash
from lit_transformers.cost import cost
from lit_transformers.files import replace_file, write_json
from lit_transformers.knobs import changes_nothing
from lit_transformers.mirror import Copy, Mirror, mirrored
from lit_transformers.models import LanguageModelConfig, ModelConfig
from lit_transformers.ranks import is_first_rank
from lit_transformers.record import (
    CHECKPOINT,
    CURVES,
    DOCUMENTS,
    RECORD,
    RUN,
    VERSION,
    environment,
    first_line,
    is_disk_full,
    peak_memory,
    quiet,
    reason,
)
from lit_transformers.stopping import Stop, stop_requests
from lit_transformers.tasks.causal_lm import CausalLM, CausalLMConfig
from lit_transformers.tasks.language_metric import DocumentLoss
from lit_transformers.trained import offer, take_over
from lit_transformers.training import TrainingConfig

__all__ = ["Interrupted", "Progress", "RunConfig", "changes_nothing", "describe", "evaluate", "fit", "load", "run_key"]


class RunConfig(Config):
    """All that a run depends on. ``seed`` is of the weights and of dropout; the order of the data has its own."""

    model: ModelConfig = LanguageModelConfig()
    task: CausalLMConfig = CausalLMConfig()
    data: LanguageDataConfig = LanguageDataConfig()
    training: TrainingConfig = TrainingConfig()
    seed: NonNegative = 0

    def conflicts(self) -> Iterator[str]:
        try:
            self.model.override(self.task.evaluation)
        except ConfigError as error:
            yield f"task.evaluation changes what model does not have: {error}"
        if self.training.precision == "bf16" and self.training.device == "cpu":
            yield "training.precision bf16 needs CUDA, and training.device is cpu"

    def build_task(self, data: LanguageData) -> CausalLM:
        """The LightningModule, for this data's vocabulary."""
        return CausalLM(self.model, data.vocabulary, self.data.segment_length, self.task, self.training)


class Description(NamedTuple):
    """What a run will cost, told without training. FLOPs of training are three times those of the forward pass."""

    parameters: int
    embedding_parameters: int
    flops_per_token: float
    train_flops: float
    tokens: int
    state_bytes: int


def describe(config: RunConfig, data: LanguageData | None = None) -> Description:
    """Parameters, FLOPs, tokens and state of a run. ``data``: the config's own, where it is at hand already."""
    found = cost(config.model, (data or LanguageData(config.data)).vocabulary.size, config.data.segment_length)
    tokens = config.training.steps * tokens_per_step(config)
    train_flops = 3 * found.flops_per_token * tokens
    return Description(
        found.parameters, found.embedding_parameters, found.flops_per_token, train_flops, tokens, found.state_bytes
    )


def tokens_per_step(config: RunConfig) -> int:
    """Tokens of one update, over all ranks; rows may hold padding at the end of a document."""
    return config.data.batch_size * config.data.segment_length


def run_key(config: RunConfig, data: LanguageData | None = None) -> str:
    """The name of a run: a hash of its config, of its data's content and of the code it uses."""
    content = (data or LanguageData(config.data)).fingerprint
    return canonical_hash({"config": config.to_dict(), "data": content, "code": code_of(config)})


def training_key(config: RunConfig, data: LanguageData) -> str:
    """The name that all runs share which train alike, however they are measured."""
    trained = config.override({"task.evaluation": {}, "data.evaluation": EvaluationConfig()}).to_dict()
    return canonical_hash({"config": trained, "data": data.corpus.fingerprint, "code": code_of(config)})


def code_of(config: RunConfig) -> str:
    """A hash of the library code that the run uses."""
    return code_hash(config, ["lit_transformers.run"])


def fit(
    config: RunConfig,
    directory: Path,
    report: Report | None = None,
    keep_every: float = 30.0,
    mirror: Mirror | None = None,
) -> dict[str, Plain]:
    """Trains, measures, and writes the record, which is also returned.

    What goes wrong inside is an outcome, not an exception: "failed" with the reason, or "invalid" where a gate fails.
    Raises ConfigError or DataError before anything starts, and Interrupted after SIGTERM, with a checkpoint written.
    keep_every: seconds between checkpoints. mirror: a copy for Weights & Biases, None for none.
    """
    data = LanguageData(config.data)
    require_device(config.training)
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(directory / RUN, lambda fresh: fresh.write_text(config.to_yaml(), encoding="utf-8"))
    started, begun = datetime.now(UTC), time.monotonic()
    record: dict[str, Plain] = {
        "version": VERSION,
        "key": run_key(config, data),
        "outcome": "failed",
        "reason": None,
        "seed": config.seed,
        "config": config.to_dict(),
        "data": {"name": config.data.source.kind, "fingerprint": data.corpus.fingerprint},
        "metrics": {},
        "protocol": protocol(config),
        "cost": describe(config, data)._asdict(),
        "gates": [],
        "environment": environment(config.training, code_of(config)),
        "measured": {"started": started.isoformat(timespec="seconds")},
    }
    with stop_requests() as stopping, mirrored(mirror, directory, record) as copy:
        try:
            found = gates.check(config.model, report)
            record["gates"] = [gate._asdict() for gate in found]
            if all(gate.passed for gate in found):
                record["metrics"], told = train(config, data, directory, report, keep_every, stopping, copy)
                record["measured"] |= told
                record["outcome"] = "finished"
            else:
                broken = ", ".join(f"{gate.name} ({gate.detail})" for gate in found if not gate.passed)
                record |= {"outcome": "invalid", "reason": f"a gate failed: {broken}"}
        except (Interrupted, KeyboardInterrupt, ConfigError, DataError):
            raise
        except Exception as error:
            traceback.print_exc()
            record |= {"reason": reason(error), "resumable": is_disk_full(error)}
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    record["measured"] |= {"ended": ended, "peak_memory_bytes": peak_memory()}
    record["measured"].setdefault("seconds", time.monotonic() - begun)
    if is_first_rank():
        write_json(directory / RECORD, record)
    return record


def train(
    config: RunConfig,
    data: LanguageData,
    directory: Path,
    report: Report | None,
    keep_every: float,
    stopping: Stop,
    copy: Copy | None = None,
) -> tuple[dict[str, float], dict[str, Plain]]:
    """Trains from the checkpoint, if there is one, and measures; returns the metrics, and what the clock said."""
    L.seed_everything(config.seed, workers=True, verbose=False)
    alike = training_key(config, data)
    alone = config.training.devices == 1  # ranks would have to agree on what they found
    donor = take_over(directory, alike, CHECKPOINT) if alone and config.training.validate_every is None else None
    task = config.build_task(data)
    curves = Curves(config.training.log_every, tokens_per_step(config))
    keeper = Keeper(directory / CHECKPOINT, keep_every, contents(config, data), stopping)
    mirrors = [copy.callback(curves)] if copy else []
    with quiet():
        apart = 0.0
        trainer = make_trainer(config.training, directory, [curves, *mirrors, Watch(report), keeper])
        trainer.fit(task, data, ckpt_path=usable(directory / CHECKPOINT), weights_only=True)
        if keeper.validated_at != config.training.steps or not task.metric.per_document():
            if report:
                report(Progress(config.training.steps, config.training.steps, float("nan"), {}, None, "evaluate"))
            trainer.validate(task, data, verbose=False)
            apart = task.evaluation_seconds
    losses = task.metric.per_document()
    if is_first_rank():
        curves.write(directory / CURVES)
        write_documents(directory / DOCUMENTS, losses, data)
        if config.training.validate_every is None:
            offer(directory, alike)
    spent = keeper.spent()
    told = {
        "seconds": spent + apart,
        "tokens_per_second": config.training.steps * tokens_per_step(config) / spent,
        "evaluation_tokens_per_second": sum(loss.tokens for loss in losses) / task.evaluation_seconds,
        "trained_by": donor,
    }
    return {f"val/{name}": value for name, value in task.metric.compute().items()}, told


def make_trainer(training: TrainingConfig, directory: Path, callbacks: list[L.Callback]) -> L.Trainer:
    """A Trainer that does what the config says and nothing that it does not."""
    return L.Trainer(
        max_steps=training.steps,
        accelerator={"cuda": "gpu"}.get(training.device, training.device),
        devices=training.devices,
        num_nodes=1,
        strategy="ddp" if training.devices > 1 else "auto",
        precision="bf16-mixed" if training.precision == "bf16" else "32-true",
        gradient_clip_val=training.clip,
        val_check_interval=training.validate_every or training.steps + 1,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        callbacks=callbacks,
        default_root_dir=directory,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )


def evaluate(checkpoint: Path, changes: dict[str, Plain] | None = None) -> dict[str, float]:
    """Measures a trained model again; ``changes`` are paths of its run's config: {"task.evaluation": ...}."""
    task, config, _ = load(checkpoint, changes)
    with quiet():
        trainer = L.Trainer(
            accelerator="auto", devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=sys.stderr.isatty(), enable_model_summary=False, use_distributed_sampler=False,
        )  # fmt: skip
        trainer.validate(task, LanguageData(config.data), verbose=False)
    return measured(trainer)


def load(checkpoint: Path, changes: dict[str, Plain] | None = None) -> tuple[CausalLM, RunConfig, dict[str, Plain]]:
    """A trained task, its run's config, and its tokenizer as plain data. Nothing in the file is executed.

    Raises ConfigError for a file that is no checkpoint of this suite.
    """
    try:
        found = torch.load(checkpoint, map_location="cpu", weights_only=True)
        extra = found["lit_transformers"]
    except Exception as error:
        raise ConfigError(f"is no checkpoint of a run: {first_line(error)}", str(checkpoint)) from None
    config = RunConfig.from_dict(extra["config"]).override(changes or {})
    vocabulary = tokenizer_from_dict(extra["tokenizer"]).vocabulary
    task = CausalLM(config.model, vocabulary, extra["max_length"], config.task, config.training)
    task.load_state_dict(found["state_dict"])
    return task.eval(), config, extra["tokenizer"]


def contents(config: RunConfig, data: LanguageData) -> dict[str, Plain]:
    """What a checkpoint needs to be used without the corpus."""
    return {
        "config": config.to_dict(),
        "tokenizer": data.tokenizer.to_dict(),
        "max_length": config.data.segment_length,
    }


def usable(path: Path) -> Path | None:
    """A checkpoint that can be read; a damaged one is moved aside, and said so."""
    if not path.exists():
        return None
    try:
        torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        if not is_first_rank():
            return None
        aside = path.with_suffix(".damaged")
        path.replace(aside)
        print(
            f"{path} cannot be read ({first_line(error)}); it is now {aside.name}, and the run starts anew", flush=True
        )
        return None
    return path


def protocol(config: RunConfig) -> dict[str, Plain]:
    """How the reported numbers are measured."""
    evaluation = config.data.evaluation
    model = config.model.override(config.task.evaluation)
    return {
        "segment_length": evaluation.segment_length or config.data.segment_length,
        "stride": evaluation.stride or evaluation.segment_length or config.data.segment_length,
        "documents": config.data.documents,
        "changes": dict(config.task.evaluation),
        "memory": dict(model.leaves()).get("mixer.memory"),
    }


def require_device(training: TrainingConfig) -> None:
    """Raises ConfigError where the config asks for what this machine has not."""
    if training.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("no CUDA device is to be found; set training.device=cpu or auto", "training.device")
    if training.precision == "bf16" and not torch.cuda.is_available():
        raise ConfigError(
            "bf16 needs CUDA, and no such device is to be found; set training.precision=32", "training.precision"
        )
    if training.devices > 1 and int(os.environ.get("WORLD_SIZE", "1")) != training.devices:
        start = f"torchrun --nproc-per-node {training.devices} -m lit_transformers fit RUN.yaml"
        raise ConfigError(f"{training.devices} ranks are started by: {start}", "training.devices")


def write_documents(path: Path, losses: list[DocumentLoss], data: LanguageData) -> None:
    """The loss of every document of the last evaluation."""
    documents = data.documents(data.config.evaluation.split)

    def write(fresh: Path) -> None:
        with fresh.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["document", "name", "nats", "tokens", "bytes"])
            for loss in losses:
                rows.writerow([loss.document, documents.name(loss.document), repr(loss.nats), loss.tokens, loss.bytes])

    replace_file(path, write)
