"""The stages of a run: the runs that it starts from, directly or indirectly, each with a folder and a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from lit_transformers.config import ConfigError, Plain
from lit_transformers.records.files import CHECKPOINT, RECORD
from lit_transformers.records.record import load_record
from lit_transformers.runs.config import RunConfig, RunWeightsConfig
from lit_transformers.runs.made_weights import file_of_source
from lit_transformers.runs.starting_weights import digest_of

__all__ = ["Origin", "digests", "origins", "source_runs", "spent_before", "stages_within", "with_chain"]

CHAINED = ("train_flops", "tokens", "planned_tokens", "planned_flops")
"""The costs that are also summed over all stages of a run."""


class Origin(NamedTuple):
    """The origin of a part's weights. path: of their file. key: of the run that trained them; None for other files."""

    path: Path
    key: str | None = None


def source_runs(config: RunConfig) -> dict[str, RunConfig]:
    """Returns the configs of the runs that a run starts from directly, by the fields of their sources. They have the
    class of the run, so that its runner does them."""
    named = {
        f"start.{part}": source.run
        for part, source in config.start.sources().items()
        if isinstance(source, RunWeightsConfig)
    }
    kind = type(config)
    return {field: run if type(run) is kind else kind.from_dict(run.to_dict()) for field, run in named.items()}


def stages_within(config: RunConfig, prefix: str = "") -> Iterator[tuple[str, RunConfig]]:
    """Yields a run and all runs in its config, each with the prefix of the paths of its fields; "" for the run
    itself."""
    yield prefix, config
    for part in ("network", "heads", "teacher"):
        source = config.start.get(part)
        if isinstance(source, RunWeightsConfig):
            yield from stages_within(source.run, f"{prefix}start.{part}.run.")


def origins(config: RunConfig, runs: Path, keys: Mapping[str, str]) -> dict[str, Origin]:
    """Returns the origin of the weights of each part that has a source.

    runs: the folder with the folders of runs. keys: the keys of the runs that it starts from, by the fields of their
    sources. Raises ConfigError if one of them has not finished.
    """
    starting = {}
    for part, source in config.start.sources().items():
        field = f"start.{part}"
        if isinstance(source, RunWeightsConfig):
            starting[part] = Origin(_finished(runs / keys[field], field) / CHECKPOINT, keys[field])
        else:
            starting[part] = Origin(file_of_source(source, field))
    return starting


def digests(starting: Mapping[str, Origin]) -> dict[str, Plain]:
    """Returns the origin and the digest of the weights of each part, for the record."""
    return {
        part: {"run" if origin.key else "file": origin.key or str(origin.path), "digest": digest_of(origin.path)}
        for part, origin in starting.items()
    }


def spent_before(starting: Mapping[str, Origin]) -> dict[str, Plain]:
    """Returns the tokens, FLOPs and seconds of each earlier stage, by its key."""
    chain: dict[str, Plain] = {}
    for origin in starting.values():
        if origin.key is not None:
            record = load_record(origin.path.with_name(RECORD))
            own = _costs(record.cost) | {"seconds": record.measured.get("seconds")}
            chain |= record.measured.get("chain", {}) | {origin.key: own}
    return chain


def with_chain(cost: dict[str, Plain], chain: Mapping[str, Plain]) -> dict[str, Plain]:
    """Returns the cost of a run and, if it has earlier stages, the sums over all stages."""
    costs = [_costs(cost), *chain.values()]
    return cost | ({f"chain_{name}": sum(one[name] for one in costs) for name in CHAINED} if chain else {})


def _costs(cost: Mapping[str, Plain]) -> dict[str, Plain]:
    """Returns the costs of a run that are summed over stages."""
    flops, read, planned = (cost[name] for name in ("train_flops", "tokens", "planned_tokens"))
    values = (flops, read, planned, flops * planned / read if read else flops)
    return dict(zip(CHAINED, values, strict=True))


def _finished(directory: Path, field: str) -> Path:
    """Returns the folder of a finished run. Raises ConfigError if the run has not finished, or has no checkpoint."""
    try:
        record = load_record(directory / RECORD)
    except (OSError, ValueError, RecursionError):
        record = None
    if record is None or record.outcome != "finished":
        how = "is not done yet" if record is None else f"{record.outcome}: {record.reason}"
        reason = f"its run {directory.name} {how}; python -m lit_transformers fit and studies do it first"
        raise ConfigError(f"{reason}, in {directory.parent}", field)
    if not (directory / CHECKPOINT).exists():
        reason = f"the checkpoint of its run {directory.name} is gone; remove {directory} to train it again"
        raise ConfigError(reason, field)
    return directory
