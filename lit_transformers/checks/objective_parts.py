"""Checks of objectives and heads from outside."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, cast

import torch
from torch import Tensor, nn

from lit_transformers.batch import (
    IGNORED,
    ClassLabels,
    DataDescription,
    LabelledBatch,
    LabelledDescription,
    PairBatch,
    RetrievalBatch,
    RowBatch,
    RowDescription,
    StringBatch,
    Vocabulary,
)
from lit_transformers.checks.network_parts import DIM, HEADS, compare_flops, count_flops, objectives
from lit_transformers.checks.part_checks import PartChecks, require_effects
from lit_transformers.config import ConfigError
from lit_transformers.encodings import XLConfig
from lit_transformers.gates.gates import Broken, is_small, largest, not_finite
from lit_transformers.gates.inert_fields import changes_nothing
from lit_transformers.gates.miniature import SHORTEST, VOCABULARY
from lit_transformers.heads import HeadConfig
from lit_transformers.mixers import AttentionConfig
from lit_transformers.models import MODELS, EncoderConfig, ModelConfig
from lit_transformers.records.measure import Measure
from lit_transformers.runs.config import RunConfig
from lit_transformers.tasks import Task, TaskConfig
from lit_transformers.tasks.task import DESCRIPTION
from lit_transformers.training.config import TrainingConfig

__all__ = ["checks"]

TOLERANCE = 1e-6
"""The largest difference in float64 between losses or outputs that are computed in different orders."""
BEYOND_RANDOM_ROWS = ("longest", "longest_answer", "phrase_weight", "bleu_tokenizer", "rouge_tokenizer")
"""Fields that act on spans, phrases and texts, which random rows do not have."""


def checks(case: Any) -> PartChecks:
    """Yields the checks of an objective, or of a head, in the first objective that reads its data; none of another
    part."""
    match case:
        case TaskConfig():
            yield from _checks_of_objective(lambda: case)
            yield "every field has an effect", lambda: _every_field_has_an_effect(case)
        case HeadConfig():
            yield "learns with another loss", lambda: learns_with_another_loss(case)
            yield from _checks_of_objective(lambda: with_head(case))
            yield "every field has an effect", lambda: _every_field_of_a_head_has_an_effect(case)


def _checks_of_objective(objective: Callable[[], TaskConfig]) -> PartChecks:
    yield "trains a model", lambda: trains_a_model(objective())
    yield "every parameter learns", lambda: every_parameter_learns(objective())
    yield "padding changes nothing", lambda: padding_changes_nothing(objective())
    yield "costs equal the count", lambda: costs_equal_the_count(objective())
    yield "batches of an update add up", lambda: batches_of_an_update_add_up(objective())
    yield "measures add up", lambda: measures_add_up(objective())
    yield "measures name its metrics", lambda: measures_name_its_metrics(objective())
    yield "targets are not read", lambda: targets_are_not_read(objective())
    yield "read from a checkpoint", lambda: is_read_from_a_checkpoint(objective())


def _every_field_has_an_effect(case: TaskConfig) -> str:
    return require_effects(case, _objectives_alike, "losses or measures", BEYOND_RANDOM_ROWS, True)


def _every_field_of_a_head_has_an_effect(case: HeadConfig) -> str:
    def alike(part: HeadConfig, other: HeadConfig) -> bool:
        return _objectives_alike(with_head(part), with_head(other))

    return require_effects(case, alike, "losses or measures", ("name", *BEYOND_RANDOM_ROWS), True)


def with_head(case: HeadConfig) -> TaskConfig:
    """Returns the first objective that a head can be added to. Raises Broken with the reason of the last refusal where
    there is none."""
    refusal = "no objective reads its data"
    for _, objective, _ in objectives():
        if issubclass(objective.reads, case.reads):
            candidate = objective(heads=(case,))
            try:
                _built(candidate)
            except Broken as error:
                refusal = str(error)
                continue
            return candidate
    raise Broken(f"it can be added to no objective: {refusal}; name another description in reads")


def learns_with_another_loss(case: HeadConfig) -> str:
    """Checks that a head that is added to an objective has a separate loss there, under its name, that is weighted and
    trains all parameters of the head."""
    objective = with_head(case)
    task, batch = _built(objective)
    name = case.name or case.kind
    losses = task.training_step(batch, 0)
    if name not in losses["heads"]:
        raise Broken("at the beginning of training it has no loss; let learns be True for a progress of 0")
    mean, targets = losses["heads"][name]
    if not targets or not mean:
        reason = f"the loss of {int(targets)} random targets is {float(mean):.3g}"
        raise Broken(f"{reason}; predict targets that reads describes")
    losses["loss"].backward()
    idle = [key for key, parameter in task.heads[name].named_parameters() if parameter.grad is None]
    if idle:
        raise Broken(f"no gradient reaches {', '.join(idle)}; use them in loss")
    return f"{objective.kind}, loss {float(mean):.3g} of {int(targets)} targets"


def _models() -> Iterator[ModelConfig]:
    """Yields a small model of each family, and an encoder that predicts in an order of its rows."""
    for family in MODELS.values():
        yield family(dim=DIM, heads=HEADS, depth=3)
    relative = AttentionConfig(encoding=XLConfig())
    yield EncoderConfig(dim=DIM, heads=HEADS, depth=3, mixer=relative, query_stream="learned")


def _built(case: TaskConfig) -> tuple[Task, Any]:
    """Builds an objective for the first family of models that it can train, in float64, with a batch of random symbols.

    Raises Broken with the reason of the last refusal where it can train none.
    """
    vocabulary = Vocabulary(size=VOCABULARY, boundary=0, unit="byte", byte_lengths=None)
    described, refusals = case.probe_data(vocabulary, SHORTEST), []
    with_phrases = [replace(described, phrases=True)] if isinstance(described, RowDescription) else []
    for data, model in product([described, *with_phrases], _models()):
        try:
            with torch.random.fork_rng(devices=[]):
                task = case.build(model, data, TrainingConfig())
        except (ConfigError, TypeError) as error:
            refusals.append(str(error))
            continue
        return task.double(), case.random_batch(data)
    raise Broken(f"it trains no family of models ({refusals[-1] if refusals else 'there are none'}); read one of them")


def _loss(task: Task, batch: Any) -> Tensor:
    torch.manual_seed(0)
    loss: Tensor = task.training_step(batch, 0)["loss"]
    return loss


def trains_a_model(case: TaskConfig) -> str:
    """Checks that the loss of random symbols is finite and has a gradient."""
    task, batch = _built(case)
    loss = _loss(task, batch)
    loss.backward()
    if not loss.isfinite():
        raise Broken(f"the loss of random symbols is {loss.item()}; divide by counts that are at least 1")
    gradients = {name: parameter.grad for name, parameter in task.named_parameters()}
    if all(gradient is None or not gradient.any() for gradient in gradients.values()):
        raise Broken("no parameter has a gradient; return the loss of a head with its graph")
    if broken := not_finite(gradients):
        raise Broken(f"the gradient of {', '.join(broken)} is not finite; keep divisors away from 0")
    return f"{task.model_config.kind}, loss {loss.item():.3g}{_chance(task.data)}"


def _chance(data: DataDescription) -> str:
    """Returns a text with the loss of a uniform guess at a class or a symbol, which is shown next to a loss."""
    labels = data.labels if isinstance(data, LabelledDescription) else ClassLabels(count=VOCABULARY)
    return f"; chance of {labels.count} is {math.log(labels.count):.3g}" if isinstance(labels, ClassLabels) else ""


def every_parameter_learns(case: TaskConfig) -> str:
    """Checks that all parameters that a task trains have a gradient, except those that its network lists as unused."""
    task, batch = _built(case)
    for _ in range(2):
        _loss(task, batch).backward()
    unused = {id(parameter) for parameter in task.network.unused()}
    idle = [
        name
        for name, parameter in task.named_parameters()
        if parameter.requires_grad and id(parameter) not in unused and parameter.grad is None
    ]
    if broken := not_finite({name: parameter.grad for name, parameter in task.named_parameters()}):
        raise Broken(f"the gradient of {', '.join(broken)} is not finite; keep divisors away from 0")
    if idle:
        raise Broken(f"no gradient reaches {', '.join(idle)}; use them in the loss, or let them require none")
    return f"{sum(parameter.requires_grad for parameter in task.parameters())} tensors"


def costs_equal_the_count(case: TaskConfig) -> str:
    """Checks that the FLOPs and the parameters that an objective says are those of a step of training."""
    task, batch = _built(case)
    data, batch = task.data, _rows(batch, 0)  # tables of distances are made once for all rows
    if isinstance(batch, RowBatch):
        data = replace(cast("RowDescription", data), predictions=int((batch.targets != IGNORED).sum(dim=1).max()))
    elif isinstance(batch, StringBatch):
        batch = batch._replace(targets=batch.targets.masked_fill(batch.targets == IGNORED, 1))
    carried = case.build(task.model_config, data, TrainingConfig()).carried()
    for _ in range(math.ceil(carried.tokens / data.length)):
        _loss(task, batch)
    cost = case.cost(task.model_config, data)
    _, length = case.counted_lengths(data)
    length *= math.prod(batch.inputs.shape[1:-1])  # an example may have a row for each of its choices
    counted = count_flops(lambda: _loss(task, batch))
    error = compare_flops(cost.flops_per_token * length, counted, f"a row of {length} tokens")
    _loss(task, batch).backward()
    reached = sum(parameter.numel() for parameter in task.parameters() if parameter.grad is not None)
    frozen = {id(p) for p in task.parameters() if not p.requires_grad} - {id(p) for p in task.unused()}
    used = reached + sum(p.numel() for p in task.parameters() if id(p) in frozen)
    if used != cost.parameters:
        raise Broken(f"it says {cost.parameters:,} parameters, and {used:,} are used; name the others in unused")
    return f"{cost.parameters:,} parameters, FLOPs within {error:.1%}"


def batches_of_an_update_add_up(case: TaskConfig) -> str:
    """Checks that the gradient of two rows in one batch is that of two batches of an update, each with one of them."""
    task, batch = _built(case)
    if any(head.whole_batch for head in task.heads.values()):
        return "not asked: rows are compared with those of their batch"
    gradients = [_gradient(task, batches) for batches in ([batch], [_rows(batch, 0), _rows(batch, 1)])]
    worst = largest(*(one - two for one, two in zip(*gradients, strict=True)))
    if not is_small(worst, TOLERANCE * max(float(gradient.abs().max()) for gradient in gradients[0])):
        raise Broken(
            f"in two batches of an update the gradient differs by {worst:.3g}; return sums over targets as losses, and "
            "their number from targets"
        )
    return f"largest difference {worst:.1g}"


def _gradient(task: Task, batches: list[Any]) -> list[Tensor]:
    """Returns the gradient of an update, each of whose batches is read from an empty state."""
    totals = [torch.zeros_like(parameter) for parameter in task.parameters()]
    for batch in batches:
        fresh = copy.deepcopy(task).eval()
        fresh.begin_update(batches)
        _loss(fresh, batch).backward()
        for total, parameter in zip(totals, fresh.parameters(), strict=True):
            if parameter.grad is not None:
                total += parameter.grad
    return totals


def _padded(batch: Any, columns: int) -> Any:
    """Returns a batch whose rows have ``columns`` more columns of padding at their end."""
    values = batch._asdict()
    padded = {}
    for name, column in values.items():
        if not isinstance(column, Tensor):
            continue
        mask = values["source_padding_mask"] if name.startswith("source") else values["padding_mask"]
        if column.dim() >= 2 and column.shape == mask.shape:
            filling = IGNORED if name == "targets" else 0
            padded[name] = nn.functional.pad(column, (0, columns), value=filling)
    return batch._replace(**padded, **{name: True for name in ("padded", "source_padded") if name in values})


def padding_changes_nothing(case: TaskConfig) -> str:
    """Checks that the loss of rows is the same with padding behind them."""
    task, batch = _built(case)
    task.eval()
    with torch.no_grad():
        losses = [_loss(task, rows).item() for rows in (batch, _padded(batch, 3))]
    if not is_small(abs(losses[0] - losses[1]), TOLERANCE * max(abs(losses[0]), 1)):
        raise Broken(
            f"three columns of padding change the loss from {losses[0]:.6g} to {losses[1]:.6g}; hand padding_mask to "
            "the network, and leave out targets that are IGNORED"
        )
    return f"loss {losses[0]:.3g} with and without"


def _rows(batch: Any, number: int) -> Any:
    """Returns one row of a batch."""
    return batch._replace(
        **{
            name: column[number : number + 1]
            for name, column in batch._asdict().items()
            if isinstance(column, Tensor | tuple)
        }
    )


def _measured(task: Task, batches: list[Any]) -> list[list[float]]:
    """Returns the measures of all documents: a row of sums for each document."""
    task.eval().metric.reset()
    with torch.no_grad():
        for batch in batches:
            torch.manual_seed(0)
            task.begin_evaluation()
            task.validation_step(batch, 0)
    return [[float(number) for number in row] for row in task.metric.rows()]


def measures_add_up(case: TaskConfig) -> str:
    """Checks that rows that are measured in two batches, as by two ranks, have the measures of one batch."""
    task, batch = _built(case)
    if any(head.whole_batch for head in task.heads.values()):
        return "not asked: rows are compared with those of their batch"
    together, apart = _measured(task, [batch]), _measured(task, [_rows(batch, 0), _rows(batch, 1)])
    sums = [[sum(column) for column in zip(*rows, strict=True)][1:] for rows in (together, apart)]
    worst = largest(*(abs(one - two) for one, two in zip(*sums, strict=True))) if all(sums) else math.inf
    if not is_small(worst, TOLERANCE * max(map(abs, sums[0]), default=1)):
        raise Broken(
            f"two rows in one batch and in two have sums that differ by {worst:.3g}: two ranks would report other "
            "numbers than one; sum for each example alone, and where rows of a batch are compared set "
            "whole_batch of the head"
        )
    return f"{len(together)} examples"


def measures_name_its_metrics(case: TaskConfig) -> str:
    """Checks that ``measures`` names the metrics that are measured, which plans need before anything is trained."""
    task, batch = _built(case)
    measures = case.measures(task.data)
    if not measures:
        return "not asked: measures names none"
    for name, measure in measures.items():
        if not isinstance(measure, Measure):
            remedy = f"return Measure(unit, goal), as minimized({name!r}, per='symbol') does"
            raise Broken(f"measures has {measure!r} of {name}, which states no goal; {remedy}")
    batches = case.random_batches(task.data)
    if isinstance(batch, PairBatch):  # random pairs have no text to be compared with
        batches = [batch._replace(references=(("1 2",),) * len(batch.source))]
    _measured(task, batches)
    measured = {name.partition("@")[0] for name in task.metric.compute()}
    if measured != measures.keys():
        missing, others = (
            ", ".join(sorted(names)) or "nothing" for names in (measured - measures.keys(), measures.keys() - measured)
        )
        reason = f"measures lacks {missing}, and names {others} that is not measured"
        raise Broken(f"{reason}; name the metrics that compute returns")
    return f"{len(measures)} metrics"


def _other_labels(labels: Tensor) -> Tensor:
    """Returns labels of which each is another one."""
    return labels.flip(0) + (labels == labels.flip(0))


def targets_are_not_read(case: TaskConfig) -> str:
    """Checks that the outputs of the network for a batch do not change with the targets or labels of the batch."""
    task, batch = _built(case)
    other: Any
    if isinstance(batch, RowBatch):
        return "not asked: targets of rows say which symbols are predicted"
    if isinstance(batch, LabelledBatch):
        columns = {name: _other_labels(labels) for name, labels in (batch.columns or {}).items()}
        other = batch._replace(labels=_other_labels(batch.labels), columns=columns or None)
    elif isinstance(batch, RetrievalBatch):
        other = batch._replace(answer=batch.answer + 1, passage=batch.passage.flip(0))
    else:
        targets = batch.targets
        other = batch._replace(targets=torch.where(targets == IGNORED, targets, (targets + 1) % VOCABULARY))
    outputs = []
    task.eval()
    with torch.no_grad():
        for rows in (batch, other):
            torch.manual_seed(0)
            task.begin_evaluation()
            outputs.append(task.evaluation_output(rows))
    if torch.isnan(outputs[0]).any():
        raise Broken("the network's output is no number; keep divisors away from 0")
    difference = torch.where(outputs[0] == outputs[1], 0.0, (outputs[0] - outputs[1]).abs()).max().item()
    if not is_small(difference, 0.0):
        raise Broken(
            f"with other targets the network's output changes by {difference:.3g}: it reads the answer; hand it inputs "
            "alone"
        )
    return "no change with other targets"


def is_read_from_a_checkpoint(case: TaskConfig) -> str:
    """Checks that ``load_from_checkpoint`` gives a task whose loss is that of the one that was saved."""
    task, batch = _built(case)
    file = io.BytesIO()
    contents = {"state_dict": task.state_dict(), Task.CHECKPOINT_HYPER_PARAMS_KEY: dict(task.hparams)}
    torch.save(contents | {DESCRIPTION: task.data.to_dict()}, file)
    file.seek(0)
    loaded = type(task).load_from_checkpoint(file).double()
    with torch.no_grad():
        losses = [_loss(each.eval(), batch).item() for each in (task, loaded)]
    if not is_small(abs(losses[0] - losses[1]), TOLERANCE * max(abs(losses[0]), 1)):
        raise Broken(
            f"loaded from a checkpoint its loss is {losses[1]:.6g} and not {losses[0]:.6g}; hold all that is drawn or "
            "learned as parameters or buffers"
        )
    return f"loss {losses[1]:.3g} before and after"


def _objectives_alike(part: TaskConfig, case: TaskConfig) -> bool:
    """Whether two objectives train and measure alike; one that is refused is another one."""
    data = next((data for _, known, data in objectives() if known.reads is case.reads), None)
    if data is None:
        raise Broken(f"no data are described as {case.reads.__name__}; name another description in reads")
    model = _built(case)[0].model_config
    try:
        return changes_nothing(*(RunConfig(model=model, task=task, data=data()) for task in (part, case)))
    except ConfigError:
        return False
