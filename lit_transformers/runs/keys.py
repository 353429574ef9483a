"""The keys of runs. They cover everything that changes a run's numbers, which is its config, its data, and the code on
the path of training and measuring, and nothing else: a gate's message or a line of progress leaves finished runs valid.
The number of ranks, the part of the network on each rank, and the number of worker processes change no more than
rounding and the draws of dropout."""

from __future__ import annotations

from datamodules import Data
from lit_transformers.config import Plain, canonical_hash
from lit_transformers.runs.code import code_hash
from lit_transformers.runs.config import RunConfig
from lit_transformers.runs.folder import Identity
from lit_transformers.runs.made_weights import content_of
from lit_transformers.runs.stages import source_runs, stages_within

__all__ = ["PLACEMENT_FIELDS", "ROOTS", "code_of", "identity_of", "run_key", "source_keys", "training_key"]

PLACEMENT_FIELDS = ("training.devices", "training.strategy", "data.workers")
"""The fields that say on how many ranks a run is done, whether each holds the whole network, and by how many worker
processes of each its data are read."""

ROOTS = ("lit_transformers.runs.train",)
"""The modules from which all code is imported that computes a run's numbers, the classes of its config apart."""


def run_key(config: RunConfig, data: Data | None = None) -> str:
    """Returns the key of a run: a hash of its config, its data's content and the code of its numbers.

    Weights are looked for before the data, whose tokenizer may be theirs.
    """
    plain = with_content(config)
    content = (data or config.build_data()).fingerprint
    return canonical_hash({"config": plain, "data": content, "code": code_of(config)})


def training_key(config: RunConfig, data: Data) -> str:
    """Returns the key that all runs with identical training share, however they are measured."""
    trained_config = config.override(
        {"task.evaluation": {}, "timed": False, "data": config.data.with_default_evaluation()}
    )
    # The data of the measurement may decide how large a vocabulary and how long a row a network is built for.
    read = {"content": data.content, "training": data.identity(), "described": data.description.to_dict()}
    return canonical_hash({"config": with_content(trained_config), "data": read, "code": code_of(config)})


def with_content(config: RunConfig) -> dict[str, Plain]:
    """Returns the config as plain data, with the content of the weights that it starts from in place of their path, or
    with the key of the run that trains them in place of its config, and without the fields of its placement."""
    plain = config.to_dict()
    for path in PLACEMENT_FIELDS:
        part, name = path.split(".")
        plain[part].pop(name, None)
    del plain["start"]
    if not config.timed:
        del plain["timed"]
    start: dict[str, Plain] = {field: {"run": key} for field, key in source_keys(config).items()}
    for part, source in config.start.sources().items():
        if f"start.{part}" not in start:
            start[f"start.{part}"] = content_of(source, f"start.{part}")
    if config.start.layers is not None:
        start["start.layers"] = [*config.start.layers]
    if config.start.narrow is not None:
        start["start.narrow"] = config.start.narrow.to_dict()
    if config.start.share is not None:
        start["start.share"] = config.start.share
    if config.start.factorise is not None:
        start["start.factorise"] = config.start.factorise
    if config.start.head is not None:
        start["start.head"] = config.start.head
    return plain | {"start": start} if start else plain


def source_keys(config: RunConfig) -> dict[str, str]:
    """Returns the keys of the runs that a run starts from itself, by the fields of their sources."""
    sources = source_runs(config)
    keys = {source: run_key(source) for source in dict.fromkeys(sources.values())}
    return {field: keys[source] for field, source in sources.items()}


def code_of(config: RunConfig) -> str:
    """Returns a hash of the library code that computes the run's numbers."""
    return code_hash(config, ROOTS)


def identity_of(config: RunConfig, data: Data) -> Identity:
    """Returns the identity that distinguishes the run from others in its folder."""
    free = tuple(f"{prefix}{path}" for prefix, _ in stages_within(config) for path in PLACEMENT_FIELDS)
    return Identity(config, run_key(config, data), training_key(config, data), code_of(config), free)
