"""Distillation: the loss equals its formula, the teacher is constant, and stops, ranks and layouts change nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from forked import Forked
from stopped_runs import stop_run
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from datamodules import ListOpsConfig
from lit_transformers.batch import ClassSetLabels, LabelledBatch, LabelledDescription, NumberLabels, Vocabulary
from lit_transformers.config import ConfigError
from lit_transformers.gates.inert_fields import changes_nothing
from lit_transformers.models import ModelConfig
from lit_transformers.observable import recorded_calls
from lit_transformers.records.files import CHECKPOINT
from lit_transformers.runs import RunConfig, describe, fit, load, run_key
from lit_transformers.runs.runner import RUNNER
from lit_transformers.runs.stages import stages_within
from lit_transformers.runs.starting_weights import load_teacher, position_tables, read_weights, write_weights
from lit_transformers.tasks import TaskConfig
from lit_transformers.tasks.classification import Classification
from lit_transformers.tasks.distillation import Compared, contiguous, states
from lit_transformers.tasks.labelled import LabelledTask
from lit_transformers.tasks.layer_attention import attention_flops, attention_weights, mixers_of
from lit_transformers.tasks.question_answering import QuestionAnswering
from lit_transformers.tasks.relations import relation_difference, relation_flops, relations_of
from lit_transformers.training.config import TrainingConfig

SMALL = {"kind": "encoder", "dim": 8, "heads": 2, "depth": 2, "positions": "sinusoidal", "norm": "post"}
FACTORS = {"temperature": 3.0, "labels": 0.7, "logits": 1.3, "hidden": 0.9, "attention": 1.1}
FACTORS |= {"cosine": 0.8, "relations": 0.6}
LENGTH = 10
EXTRA = {"classification": {"pooling": "mean"}, "multi_label": {"pooling": "mean"}, "regression": {"pooling": "mean"}}


def task_of(
    kind: str, model: dict[str, Any], distillation: dict[str, Any] | None, question_width: int | None = None
) -> LabelledTask:
    config = TaskConfig.from_dict({"kind": kind, **EXTRA.get(kind, {}), "distillation": distillation})
    vocabulary = Vocabulary(size=23, boundary=0, unit="byte", byte_lengths=None)
    data = cast("LabelledDescription", config.probe_data(vocabulary, LENGTH))
    labels = {"multi_label": ClassSetLabels(count=3), "regression": NumberLabels()}.get(kind, data.labels)
    data = replace(data, labels=labels, question_width=question_width)
    task = config.build(ModelConfig.from_dict(model), data, TrainingConfig())
    assert isinstance(task, LabelledTask)
    for parameter in task.double().parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return task


def taught(
    kind: str,
    student: dict[str, Any] = SMALL,
    teacher: dict[str, Any] = SMALL,
    question_width: int | None = None,
    **fields: Any,
) -> LabelledTask:
    torch.manual_seed(0)
    task = task_of(kind, student, FACTORS | fields, question_width)
    task.learn_from(task_of(kind, teacher, None, None if fields.get("rows") == "contiguous" else question_width))
    return task


def padded(task: LabelledTask, places: tuple[int, ...] = (8, 9)) -> LabelledBatch:
    """Two rows of random symbols, the second with padding at these places."""
    batch = task.config.random_batch(task.data)
    real = batch.padding_mask.clone()
    real[1, ..., list(places)] = False
    inputs = batch.inputs.masked_fill(~real, 0)
    segments = None if batch.segments is None else batch.segments.masked_fill(~real, 0)
    words = None if batch.words is None else batch.words.masked_fill(~real, 0)
    return batch._replace(inputs=inputs, padding_mask=real, padded=True, segments=segments, words=words)


def teacher_of(task: LabelledTask) -> LabelledTask:
    assert task.distillation is not None
    return task.distillation.teacher_on(task.device)


def by_hand(task: LabelledTask, batch: LabelledBatch) -> Tensor:
    """The loss, written from the formula with a loop over rows, tokens and layers."""
    fields, teacher = task.config.distillation, teacher_of(task)
    assert fields is not None and task.distillation is not None
    (name, head), t = next(iter(task.heads.items())), fields.temperature
    readings = [one.read(one.network, batch) for one in (task, teacher)]
    heads: list[Any] = [one.heads[name] for one in (task, teacher)]
    own, wanted = (one.outputs(reading, batch) for one, reading in zip(heads, readings, strict=True))
    targets, of_labels = head.targets(batch), head.loss(readings[0], batch).nats
    divergence = torch.zeros((), dtype=torch.float64)
    for row in range(len(own)):
        kind = task.config.kind
        if kind == "regression":
            divergence += 0.5 * (own[row, 0] / t - wanted[row, 0] / t) ** 2
        elif kind == "multi_label":
            for a, b in zip(own[row], wanted[row], strict=True):
                p, q = torch.sigmoid(b / t), torch.sigmoid(a / t)
                divergence += p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
        else:
            pairs = {"question_answering": (own[row].mT, wanted[row].mT)} if kind == "question_answering" else {}
            pairs |= {"tagging": (own[row], wanted[row])}
            for place, (a, b) in enumerate(zip(*pairs.get(kind, (own[row][None], wanted[row][None])), strict=True)):
                counts = kind != "tagging" or bool((batch.words[row] == place + 1).any())  # type: ignore[index]
                seen = b > -torch.inf
                p, q = (b[seen] / t).softmax(0), (a[seen] / t).softmax(0)
                share = 0.5 if kind == "question_answering" else 1.0
                divergence += counts * share * (p * (p / q).log()).sum()
    loss = fields.labels * of_labels / targets + fields.logits * t**2 * divergence / targets
    rows = task.rows_read(batch)
    layers = [one.every_layer(one.network, batch)[1].layers for one in (task, teacher)]
    pairs_of_layers = list(zip(task.distillation.layers, task.distillation.teacher_layers, strict=True))
    real = rows.padding_mask.sum()
    for number, other in pairs_of_layers:
        states = layers[0][number] if task.distillation.map is None else task.distillation.map(layers[0][number])
        for row, column in rows.padding_mask.nonzero().tolist():
            difference = (states[row, column] - layers[1][other][row, column]).square().mean()
            loss = loss + fields.hidden * difference / real / len(pairs_of_layers)
            a, b = states[row, column], layers[1][other][row, column]
            cosine = (a * b).sum() / ((a * a).sum() * (b * b).sum()).sqrt()
            loss = loss + fields.cosine * (1 - cosine) / real / len(pairs_of_layers)
        if not fields.attention:
            continue
        compared = zip((task, teacher), layers, (number, other), strict=True)
        weights = [attention(one, layer[n - 1], n, rows) for one, layer, n in compared]
        for row, column in rows.padding_mask.nonzero().tolist():
            keys = rows.padding_mask[row]
            difference = (weights[0][row, :, column, keys] - weights[1][row, :, column, keys]).square().mean()
            loss = loss + fields.attention * difference / real / len(pairs_of_layers)
    return loss + fields.relations * of_relations(task, teacher, layers, rows)


def of_relations(task: LabelledTask, teacher: LabelledTask, layers: list[Any], rows: LabelledBatch) -> Tensor:
    """The loss of relations, token by token and head by head (arXiv:2002.10957, equations 5 to 8)."""
    fields, total = task.config.distillation, torch.zeros((), dtype=torch.float64)
    assert fields is not None
    numbers = fields.relation_layers or (len(layers[0]) - 1, len(layers[1]) - 1)
    for row, column in rows.padding_mask.nonzero().tolist():
        keys = rows.padding_mask[row].nonzero().flatten().tolist()
        for kind in fields.relation_of:
            of_heads: list[list[Tensor]] = []
            for one, of_network, number in zip((task, teacher), layers, numbers, strict=True):
                below = of_network[number - 1]
                mixer: Any = one.network.layers()["stack"][number - 1].mixer
                if kind == "attention":
                    of_heads.append([*attention(one, below, number, rows)[row, :, column, keys]])
                    continue
                vectors, count = getattr(mixer, kind)(below)[row], fields.relation_heads or mixer.heads
                width = vectors.size(1) // count
                heads = [vectors[:, head * width : (head + 1) * width] for head in range(count)]
                products = [torch.stack([one[column] @ one[key] for key in keys]) / width**0.5 for one in heads]
                of_heads.append([(scores.exp() / scores.exp().sum()) for scores in products])
            for q, p in zip(*of_heads, strict=True):
                total = total + (p * (p / q).log()).sum() / len(of_heads[0])
    return total / rows.padding_mask.sum()


def attention(task: LabelledTask, below: Tensor, number: int, rows: LabelledBatch) -> Tensor:
    """The probabilities of attention of a layer of a post-norm encoder, whose positions were added below it."""
    mixer: Any = task.network.layers()["stack"][number - 1].mixer
    q, k = (layer(below).unflatten(-1, (mixer.heads, -1)).transpose(1, 2) for layer in (mixer.query, mixer.key))
    scores = q @ k.mT / mixer.head_dim**0.5
    return scores.masked_fill(~rows.padding_mask[:, None, None], -torch.inf).softmax(dim=-1)


KINDS = ("question_answering", "classification", "multi_label", "regression", "tagging", "multiple_choice")


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_formula(kind: str) -> None:
    task = taught(kind)
    batch = padded(task)
    assert batch.padding_mask.sum() < batch.padding_mask.numel()
    loss = task.train().training_step(batch, 0)["loss"]
    expected = by_hand(task, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    parameters = [parameter for parameter in task.parameters() if parameter.requires_grad]
    gradients = (torch.autograd.grad(one, parameters, allow_unused=True) for one in (loss, expected))
    for own, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(own, wanted, rtol=1e-8, atol=1e-9)


def test_a_teacher_of_another_width_and_depth_is_compared_by_a_learned_map() -> None:
    teacher = SMALL | {"dim": 12, "depth": 4}
    task = taught("question_answering", teacher=teacher, teacher_width=12)
    assert task.distillation is not None and task.distillation.teacher_layers == (2, 4)
    batch = padded(task)
    torch.testing.assert_close(task.training_step(batch, 0)["loss"], by_hand(task, batch), rtol=1e-10, atol=1e-10)
    named = taught("question_answering", teacher=teacher, teacher_width=12, layers=(1,), teacher_layers=(3,))
    assert named.distillation is not None and named.distillation.map is not None
    loss, expected = named.training_step(batch, 0)["loss"], by_hand(named, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    gradients = [torch.autograd.grad(one, named.distillation.map.weight)[0] for one in (loss, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-9)
    assert gradients[0].any(), "the map learns"


V2: dict[str, Any] = {"relation_of": ["query", "key", "value"], "attention": 0.0}


def test_networks_with_other_heads_and_mixers_are_compared_by_relations_of_as_many_heads() -> None:
    """MiniLMv2 (arXiv:2012.15828); the student is wider than its teacher, and its mixer is no plain attention."""
    student = SMALL | {"dim": 12, "heads": 4, "mixer": {"kind": "window", "window": 2}}
    fields: dict[str, Any] = V2 | {"relation_heads": 2, "hidden": 0.0, "cosine": 0.0}
    task = taught("classification", student, SMALL | {"depth": 3}, **fields, relation_layers=(1, 2))
    assert task.distillation is not None and not task.distillation.layers
    batch = padded(task)
    loss, expected = task.training_step(batch, 0)["loss"], by_hand(task, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    value = task.network.layers()["stack"][0].mixer.value.weight
    gradients = [torch.autograd.grad(one, value)[0] for one in (loss, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-9)
    with pytest.raises(ConfigError, match="the layers of the teacher have 8 channels, and the student's have 12; set"):
        taught("classification", student, SMALL, **V2, relation_heads=2)
    wider = taught("classification", student, SMALL, **V2, relation_heads=2, teacher_width=8)
    torch.testing.assert_close(wider.training_step(batch, 0)["loss"], by_hand(wider, batch), rtol=1e-10, atol=1e-10)


def test_a_row_of_padding_alone_has_no_relations_and_finite_gradients() -> None:
    task = taught("classification")
    batch = task.config.random_batch(task.data)
    real = batch.padding_mask & (torch.arange(2) == 0)[:, None]
    loss = task.training_step(batch._replace(padding_mask=real, padded=True), 0)["loss"]
    loss.backward()
    assert all(p.grad.isfinite().all() for p in task.parameters() if p.grad is not None) and loss.isfinite()


@pytest.mark.parametrize("kinds", [["attention", "value"], ["query", "key", "value"]])
def test_relations_are_counted(kinds: list[str]) -> None:
    task = taught("classification", relation_of=kinds, attention=0.0)
    mixer = task.network.layers()["stack"][1].mixer
    with recorded_calls({"mixer": mixer}) as calls:
        task.read(task.network, padded(task))
    of_kinds: Any = kinds
    real = torch.ones(2, LENGTH, dtype=torch.bool)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        relation_difference(*(relations_of(calls[0], of_kinds, LENGTH) for _ in range(2)), None, real)
    assert counter.get_total_flops() == 4 * relation_flops(task.network, 2, of_kinds, LENGTH), "of two rows, twice"


DEFORMER = SMALL | {"kind": "deformer", "depth": 3, "apart": 1, "segments": 2}


def test_a_deformer_learns_the_upper_layers_of_its_network_without_a_division() -> None:
    task = taught("question_answering", DEFORMER, DEFORMER | {"apart": 0})
    assert task.distillation is not None and task.distillation.layers == (2, 3), "lower layers differ by definition"
    batch = padded(task)
    torch.testing.assert_close(task.training_step(batch, 0)["loss"], by_hand(task, batch), rtol=1e-10, atol=1e-10)
    with pytest.raises(
        ConfigError, match=r"layers: layer 1 reads two texts apart, and they do not attend to each other"
    ):
        taught("question_answering", DEFORMER, DEFORMER | {"apart": 0}, layers=(1, 2))
    with pytest.raises(ConfigError, match=r"layers: all 3 layers of the student read two texts apart, so none reads"):
        taught("question_answering", DEFORMER | {"apart": 3}, DEFORMER | {"apart": 0})
    apart = {"attention": 0.0, "relations": 0.0}
    lower = taught("question_answering", DEFORMER | {"apart": 3}, DEFORMER, layers=(1, 3), **apart)
    assert lower.training_step(batch, 0)["loss"] > 0


def test_a_block_that_is_several_layers_has_the_attention_of_each() -> None:
    model = DEFORMER | {"stack": "universal", "depth": 4, "apart": 2, "norm": "pre"}
    task = taught("question_answering", model, model | {"apart": 0})
    assert task.distillation is not None and task.distillation.layers == (3, 4)
    batch = padded(task)
    own = states(task, task.network, batch, Compared((3, 4), with_attention=True))
    again = states(task, task.network, batch, Compared((4,), with_attention=True))
    torch.testing.assert_close(own.attention[1], again.attention[0], rtol=0, atol=0)
    assert not torch.allclose(own.attention[0], own.attention[1])


def test_answers_are_compared_with_themselves_where_the_student_pads_questions_to_one_width() -> None:
    """The teacher reads [CLS] question [SEP] passage [SEP] in one piece, as it was trained."""
    encoder = SMALL | {"segments": 2, "depth": 3}
    task = taught("question_answering", DEFORMER, encoder, question_width=5, rows="contiguous")
    batch = task.config.random_batch(task.data)
    real, gap = batch.padding_mask.clone(), [0, 1, 2, 5, 6, 7, 8, 9, 3, 4]
    real[1, 3:5] = False
    batch = batch._replace(padding_mask=real, inputs=batch.inputs.masked_fill(~real, 0), padded=True)
    assert batch.segments is not None and batch.segments[1].tolist() == [0] * 5 + [1] * 5
    teacher, distillation = teacher_of(task), task.distillation
    assert distillation is not None and isinstance(teacher, QuestionAnswering)
    own = teacher.answer_head.outputs(distillation.taught(teacher, batch).reading, batch)
    row = batch._replace(
        inputs=batch.inputs[1:, gap], padding_mask=real[1:, gap], segments=batch.segments[1:, gap], marked=None
    )
    row = row._replace(segments=row.segments.masked_fill(~row.padding_mask, 0))  # type: ignore[union-attr]
    alone = teacher.answer_head.outputs(teacher.read(teacher.network, row), row)
    torch.testing.assert_close(own[1, gap], alone[0], rtol=1e-12, atol=1e-12)
    assert task.training_step(batch, 0)["loss"].isfinite()


def test_the_teacher_drops_nothing_learns_nothing_and_is_no_part_of_the_student() -> None:
    task = taught("classification", SMALL | {"dropout": 0.5}, SMALL | {"dropout": 0.5}).train()
    batch, teacher = padded(task), teacher_of(task)
    before = {name: weight.clone() for name, weight in teacher.state_dict().items()}
    assert task.distillation is not None
    reads = [task.distillation.taught(teacher_of(task.train()), batch).reading.hidden for _ in range(2)]
    torch.testing.assert_close(reads[0], reads[1], rtol=0, atol=0)
    optimizer = torch.optim.SGD(task.parameters(), 0.1)
    task.training_step(batch, 0)["loss"].backward()
    optimizer.step()
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in teacher.parameters())
    torch.testing.assert_close(teacher.state_dict(), before, rtol=0, atol=0)
    assert not any(module.training for module in teacher.modules()) and task.training
    assert not {*map(id, task.parameters())} & {*map(id, teacher.parameters())}
    assert task.state_dict().keys() == task_of("classification", SMALL, FACTORS).state_dict().keys()


@pytest.mark.parametrize("kind", ["classification", "multiple_choice"])
def test_tokens_are_compared_with_themselves_where_the_teacher_reads_another_layout(kind: str) -> None:
    task = taught(kind, rows="contiguous")
    batch, gap = padded(task, (3, 4)), [0, 1, 2, 5, 6, 7, 8, 9, 3, 4]
    assert task.distillation is not None and batch.marked is not None
    rows = {"inputs": batch.inputs, "padding_mask": batch.padding_mask, "marked": batch.marked}
    moved = {name: part.clone() for name, part in rows.items()}
    for part in moved.values():
        part[1] = part[1][..., gap]
    read = task.distillation.taught(teacher_of(task), batch)
    alone = taught(kind)
    assert alone.distillation is not None
    expected = alone.distillation.taught(teacher_of(task), batch._replace(**moved))
    real, back = task.rows_read(batch).padding_mask, torch.tensor(gap).argsort()
    second = torch.arange(len(real)) >= len(real) // 2
    for own, wanted in zip(read.layers, expected.layers, strict=True):
        there = torch.where(second[:, None, None], wanted[:, back], wanted)
        torch.testing.assert_close(own[real], there[real], rtol=1e-12, atol=1e-12)
    for own, wanted in zip(read.attention, expected.attention, strict=True):
        there = torch.where(second[:, None, None, None], wanted[:, :, back][..., back], wanted)
        pairs = (real[:, :, None] & real[:, None])[:, None].expand_as(own)
        torch.testing.assert_close(own[pairs], there[pairs], rtol=1e-12, atol=1e-12)
    (own_relations,), (wanted_relations,) = read.relations, expected.relations
    assert own_relations.attention is not None and [*own_relations.projections] == ["value"]
    torch.testing.assert_close(own_relations.attention, read.attention[-1], rtol=0, atol=0)
    values, wanted = own_relations.projections["value"], wanted_relations.projections["value"]
    there = torch.where(second[:, None, None], wanted[:, back], wanted)
    torch.testing.assert_close(values[real], there[real], rtol=1e-12, atol=1e-12)
    same = padded(task)
    assert torch.equal(contiguous(same)[0].inputs, same.inputs), "padding at the end stays there"


@pytest.mark.parametrize("mixer", [{"kind": "top_k", "kept": 3}, {"kind": "attention", "encoding": "xl"}])
def test_attention_sums_to_one_whatever_the_mixer(mixer: dict[str, Any]) -> None:
    task = taught("classification", SMALL | {"mixer": mixer}, SMALL | {"mixer": mixer}, relations=0.0)
    assert task.distillation is not None
    weights = task.distillation.taught(teacher_of(task), padded(task)).attention
    for layer in weights:
        torch.testing.assert_close(layer.sum(dim=-1), torch.ones_like(layer[..., 0]))


TEACHER: dict[str, Any] = {
    "model": {**SMALL, "dim": 16},
    "task": {"kind": "classification", "pooling": "mean"},
    "data": {
        "kind": "labelled",
        "source": ListOpsConfig(shortest=4, longest=24, train=64, validation=23, test=9).to_dict(),
        "batch_size": 8,
        "window": 3,
    },
    "training": {
        "steps": 2,
        "device": "cpu",
        "clip": None,
        "schedule": "constant",
        "optimizer": {"kind": "sgd", "learning_rate": 0.1, "momentum": 0.0},
    },
}
CONFIG = RunConfig.from_dict(
    {
        **TEACHER,
        "model": {**SMALL, "dropout": 0.2},
        "task": {**TEACHER["task"], "distillation": FACTORS | {"teacher_width": 16}},
        "training": {**TEACHER["training"], "steps": 5},
        "start": {"teacher": {"run": TEACHER}},
    }
)


def done(config: RunConfig, folder: Path) -> Path:
    """Does a run and those that it needs, and returns the folder of the run."""
    for source in RUNNER.sources(config).values():
        done(source, folder)
    directory = folder / run_key(config)
    record = fit(config, directory)
    assert record["outcome"] == "finished", record["reason"]
    return directory


def weights(directory: Path) -> dict[str, Tensor]:
    return {name: weight.detach() for name, weight in load(directory / CHECKPOINT)[0].named_parameters()}


@pytest.fixture(scope="module")
def distilled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return done(CONFIG, tmp_path_factory.mktemp("runs"))


def test_a_run_that_teaches_is_a_source_of_the_run_that_learns(distilled: Path) -> None:
    (field, teacher), *others = RUNNER.sources(CONFIG).items()
    assert field == "start.teacher" and not others and teacher.seed == CONFIG.seed
    record = fit(CONFIG, distilled)
    assert record["measured"]["start"]["teacher"]["run"] == run_key(teacher)
    before = fit(teacher, distilled.parent / run_key(teacher))["cost"]["train_flops"]
    assert record["cost"]["chain_train_flops"] == record["cost"]["train_flops"] + before
    contents = torch.load(distilled / CHECKPOINT, weights_only=True)
    assert not [name for name in contents["state_dict"] if "teacher" in name]
    assert "distillation.map.weight" in contents["state_dict"], "the map has learned"
    longer = CONFIG.override({"start.teacher.run.training.steps": 3})
    assert run_key(longer) != run_key(CONFIG)
    assert [prefix for prefix, _ in stages_within(CONFIG)] == ["", "start.teacher.run."], "its texts are no secret"
    with pytest.raises(ConfigError, match=r"start\.teacher: its run \w+ is not done yet"):
        fit(CONFIG, distilled.parent / "elsewhere" / "run")


def test_a_stopped_run_resumes_with_its_teacher_as_if_it_had_not_stopped(distilled: Path) -> None:
    config = CONFIG.override({"training.validate_every": 5})  # which does not take over the weights of the other run
    directory = distilled.parent / run_key(config)
    stop_run(config, directory, Classification, steps=3)
    fit(config, directory)
    torch.testing.assert_close(weights(directory), weights(distilled), rtol=0, atol=0)


def test_layers_that_are_computed_again_change_nothing(distilled: Path) -> None:
    again = done(CONFIG.override({"training.recompute": True}), distilled.parent)
    torch.testing.assert_close(weights(again), weights(distilled), rtol=0, atol=0)


def test_the_batches_of_an_update_count_as_one() -> None:
    task = taught("classification")
    joined = padded(task)
    names = ("inputs", "padding_mask", "labels", "marked", "example")
    rows = [joined._replace(**{name: getattr(joined, name)[[row]] for name in names}, columns=None) for row in (0, 1)]
    whole = task.training_step(joined, 0)["loss"]
    task.begin_update(rows)
    torch.testing.assert_close(sum(task.training_step(row, 0)["loss"] for row in rows), whole, rtol=1e-10, atol=1e-10)


def fit_here(config: RunConfig, directory: Path) -> None:
    """For ``Forked``."""
    fit(config, directory)


@pytest.mark.slow
def test_two_ranks_learn_what_one_process_does(distilled: Path, tmp_path: Path) -> None:
    config = CONFIG.override({"model.dropout": 0.0, "training.validate_every": 5})
    alone = weights(done(config, distilled.parent))
    folder = tmp_path / "runs"
    done(RUNNER.sources(config)["start.teacher"], folder)
    directory = folder / run_key(config)
    Forked(tmp_path / "output.txt", fit_here, config.override({"training.devices": 2}), directory, ranks=2).finish()
    torch.testing.assert_close(weights(directory), alone, rtol=1e-4, atol=1e-5)


def test_a_file_teaches_as_its_run_does(distilled: Path) -> None:
    teacher = RUNNER.sources(CONFIG)["start.teacher"]
    checkpoint = distilled.parent / run_key(teacher) / CHECKPOINT
    config = CONFIG.override({"start.teacher": str(checkpoint)})
    assert run_key(config) != run_key(CONFIG)
    torch.testing.assert_close(weights(done(config, distilled.parent)), weights(distilled), rtol=0, atol=0)


def test_a_deformer_starts_from_the_network_that_teaches_it(tmp_path: Path) -> None:
    """The full model is fine-tuned first, once: the student starts from its weights, and learns from its outputs."""
    lines = [f"{n % 2},words {n} of one,{'some' if n % 2 else 'no'} words of another" for n in range(40)]
    (tmp_path / "pairs.csv").write_text("\n".join(["label,text,second", *lines]))
    source = {"kind": "labelled_texts", "path": str(tmp_path / "pairs.csv"), "splits": "hash", "validation": 0.2}
    data = {
        "kind": "labelled",
        "batch_size": 4,
        "source": source | {"second": "second", "labels": ["0", "1"], "length": 64},
    }
    full = TEACHER | {"model": DEFORMER | {"apart": 0}, "data": data}
    student: dict[str, Any] = {"model": DEFORMER, "start": {part: {"run": full} for part in ("network", "teacher")}}
    student["start"]["heads"] = "network"
    config = RunConfig.from_dict(full | student | {"task": {**TEACHER["task"], "distillation": FACTORS}})
    sources = RUNNER.sources(config)
    assert [*sources] == ["start.network", "start.heads", "start.teacher"] and len({*sources.values()}) == 1
    directory = done(config, tmp_path / "runs")
    own, taught_by = weights(directory), weights(tmp_path / "runs" / run_key(sources["start.teacher"]))
    assert own.keys() == taught_by.keys() and any(not torch.equal(own[name], taught_by[name]) for name in own)


def test_a_teacher_has_nothing_that_starts_anew(distilled: Path, tmp_path: Path) -> None:
    checkpoint = distilled.parent / run_key(RUNNER.sources(CONFIG)["start.teacher"]) / CHECKPOINT
    weights = read_weights(checkpoint)
    shared = "network.tokens.logits.weight"
    names = [name for name in weights.tensors if name.startswith("network.") and name != shared]
    tensors = {name: weights.tensors[name] for name in names}
    path = tmp_path / "weights.safetensors"
    write_weights(path, weights._replace(tensors=tensors))
    config = CONFIG.override({"start.teacher": str(path), "training.steps": 1})
    with pytest.raises(ConfigError, match=r"start\.teacher: .*lacks heads\.label\.map\.1\.bias, .*logits to 0"):
        fit(config, tmp_path / "refused")
    assert fit(config.override({"task.distillation.logits": 0.0}), tmp_path / "states")["outcome"] == "finished"
    teacher = task_of("classification", SMALL | {"positions": "learned"}, None)
    ((table, dimension),) = position_tables(teacher).items()
    cut = teacher.state_dict()
    cut[table] = cut[table].narrow(dimension, 0, 6)
    with pytest.raises(
        ConfigError, match=r"start\.teacher: .*rows here have up to 10 tokens, and it knows 6 positions"
    ):
        load_teacher(teacher, weights._replace(model=teacher.model_config, tensors=cut), with_heads=True)


def test_classes_have_the_numbers_that_they_have_for_the_teacher(tmp_path: Path) -> None:
    names, data = ["good", "dull"], {"kind": "labelled", "batch_size": 4}
    (tmp_path / "moods.csv").write_text("\n".join(["label,text", *(f"{names[n % 2]},text {n}" for n in range(60))]))
    source = {"kind": "labelled_texts", "path": str(tmp_path / "moods.csv"), "splits": "hash", "validation": 0.2}
    teacher = RunConfig.from_dict(TEACHER | {"data": data | {"source": source | {"labels": names}}})
    own = {"data": data | {"source": source | {"labels": names[::-1]}}, "start.teacher": {"run": teacher.to_dict()}}
    config = CONFIG.override(own)
    assert config.build_data().trained_symbols().labels == names
    other = RunConfig.from_dict(TEACHER | {"model": SMALL, "data": data | {"source": source | {"labels": names[::-1]}}})
    with pytest.raises(ConfigError, match=r"start\.teacher: has other labels than start\.heads, or in another order"):
        config.override({"start.heads": {"run": other.to_dict()}}).build_data()
    of_states = config.override({"task.distillation.logits": 0.0, "start.heads": {"run": other.to_dict()}})
    assert of_states.build_data().trained_symbols().labels == names[::-1]


def test_the_attention_of_a_layer_is_counted_and_nothing_of_it_is_dropped() -> None:
    model = SMALL | {"mixer": {"kind": "attention", "dropout": 0.5}}
    task = taught("classification", model, model)
    batch = padded(task)
    in_training, measured = (
        states(task.train(mode), task.network, batch, Compared((1,), with_attention=True)).attention[0]
        for mode in (True, False)
    )
    torch.testing.assert_close(in_training, measured, rtol=0, atol=0)
    mixer, _ = mixers_of(task.network, (1,), "attention")[0]
    with recorded_calls({"mixer": mixer}) as calls:
        task.read(task.network, batch)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        attention_weights(calls[0], LENGTH)
    assert counter.get_total_flops() == 2 * attention_flops(task.network, (1,), LENGTH), "of two rows"


def test_the_teacher_costs_a_forward_pass() -> None:
    same = CONFIG.override({"start.teacher.run.model.dim": 8, "task.distillation": {"hidden": 0.0}})
    plain = same.override({"task.distillation": None, "start.teacher": None})
    costs = [describe(config) for config in (plain, same)]
    assert costs[1].flops_per_token == pytest.approx(costs[0].flops_per_token * 4 / 3)
    assert costs[1].parameters == costs[0].parameters
    mapped = describe(CONFIG)
    assert mapped.parameters == costs[0].parameters + 8 * 16 + 16


@pytest.mark.slow
def test_no_field_of_distillation_is_ignored() -> None:
    values: dict[str, Any] = {"temperature": 1.0, "labels": 1.0, "logits": 1.0, "hidden": 1.0, "attention": 0.0}
    values |= {"layers": [2], "teacher_width": None, "cosine": 0.0, "relations": 0.0, "relation_of": ["attention"]}
    values |= {"relation_layers": [1, 1], "relation_heads": 4}
    assert changes_nothing(CONFIG, CONFIG)
    for field, value in values.items():
        assert not changes_nothing(CONFIG.override({f"task.distillation.{field}": value}), CONFIG), field


BAD: list[tuple[dict[str, Any], str]] = [
    ({"start.teacher": None}, "task.distillation learns from start.teacher, which is null; set start.teacher"),
    ({"task.distillation": None}, "start.teacher teaches nothing; set task.distillation"),
    ({"task.distillation.logits": 0.0, "task.distillation.hidden": 0.0, "task.distillation.attention": 0.0,
      "task.distillation.cosine": 0.0, "task.distillation.relations": 0.0, "task.distillation.teacher_width": None},
     r"learns nothing from the teacher; set task\.distill"),
    ({"task.distillation.teacher_width": None}, "teacher_width: the layers of the teacher have 16 channels, and the "
     "student's have 8; set it to 16, or hidden and cosine to 0"),
    ({"start.teacher.run.model.depth": 3}, r"teacher_layers: the teacher of 3 layers has none at the depths of layers "
     r"\[1, 2\] of 2"),
    ({"task.distillation.layers": [3]}, "layers: there is no layer 3; there are 0 to 2"),
    ({"task.distillation.layers": [0]}, "embeddings have no attention; remove 0 from layers"),
    ({"start.teacher.run.model.heads": 4}, "attention: compares heads one by one, and the student has 2 and the "
     "teacher 4; set it to 0, or model.heads to 4"),
    ({"model.mixer": "linear"}, "attention: a Linear has no attention probabilities by heads; set it to 0"),
    ({"model.stack": "reversible", "model.norm": "pre"}, "attention: a reversible stack does not keep the inputs of "
     "its mixers"),
    ({"training.compile": True}, "attention: needs the inputs of single mixers, which a compiled network"),
    ({"task.self_distillation": {}}, "self_distillation and distillation each need a teacher"),
    ({"start.teacher.run.task": {"kind": "multi_label"}}, "start.teacher"),
    ({"start.teacher.run.model.heads": 4, "task.distillation.attention": 0.0}, r"relations: compare heads one by one, "
     r"and the student has 2 and the teacher 4; set relation_of to \[query, key, value\], and relation_heads to"),
    ({"task.distillation.relation_of": ["value"], "task.distillation.relation_heads": 3}, "relation_heads: 3 heads do "
     "not divide the 8 channels of the student's queries, keys and values"),
    ({"task.distillation.relation_layers": [2, 3]}, "relation_layers: the teacher has no layer 3; its layers are 1 to "
     "2"),
    ({"model.mixer": {"kind": "window"}}, "relation_of: the student's Window hides tokens that the teacher may attend"),
    ({"model.causal": True, "task.pooling": "mean"}, "relation_of: the student's Attention hides tokens that the"),
    ({"task.distillation.relation_of": []}, "relation_of names each relation once"),
    ({"task.distillation.relation_of": ["attention"], "task.distillation.relation_heads": 2}, "attention has the heads "
     r"of its mixers; drop task\.distillation\.relation_heads"),
    ({"task.distillation.relations": 0.0, "task.distillation.relation_heads": 2}, "relation_heads and relation_layers "
     "are of the loss relations, which is 0"),
    ({"model.mixer": "linear", "task.distillation.attention": 0.0}, "relations: a Linear has no attention"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), BAD)
def test_what_cannot_be_learned_from_is_refused_in_a_line(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        describe(CONFIG.override(changes))
