"""The cases that the ghost runs: every mixer, encoding, task, optimizer and precision, and networks under
``torch.compile``.

A case returns its results, by name. Its text has no number that depends on the machine.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import lightning as L
import torch
from contract_cases import KINDS, MAX_LENGTH, Case, dropouts_of, name, variants
from test_task_waits import CASES, VOCABULARY
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_leaves, tree_map

from lit_transformers.decoding.generate import sample
from lit_transformers.decoding.sampling import SamplingConfig
from lit_transformers.encodings import RotaryConfig, XLConfig
from lit_transformers.gates.miniature import probe_data
from lit_transformers.mixer import Context, Shape, detach
from lit_transformers.mixers import (
    AttentionConfig,
    CompressiveConfig,
    ConvolutionConfig,
    DietConfig,
    LinearConfig,
    LocalConfig,
    LSHConfig,
    SparseConfig,
    SynthesizerConfig,
    TopKConfig,
    WindowConfig,
)
from lit_transformers.mixers.waits import most_waits as mixer_waits
from lit_transformers.models import LanguageModelConfig, ModelConfig
from lit_transformers.runs import Interrupted, RunConfig, fit, train
from lit_transformers.runs.train import make_trainer
from lit_transformers.stacks import ReversibleConfig, SharedConfig
from lit_transformers.tasks import TASKS
from lit_transformers.tasks.waits import most_waits as task_waits
from lit_transformers.training.callbacks import DivergenceCheck
from lit_transformers.training.config import OPTIMIZERS, TrainingConfig
from tests.ghost.watch import Watch

DEVICE = torch.device("cuda", 0)
DIM, HEADS = 64, 4
"""Heads of 16 channels, the fewest that FlexAttention takes."""
PRECISIONS: Mapping[str, torch.dtype | None] = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
Findings = dict[str, str]


class GhostCase(NamedTuple):
    """quick: it is among the few that the tests of the suite run."""

    name: str
    run: Callable[[Watch], Findings]
    quick: bool = False


def precise(precision: str) -> AbstractContextManager[Any]:
    """The autocast of a precision."""
    dtype = PRECISIONS[precision]
    return torch.autocast("cuda", dtype) if dtype else nullcontext()


def on_device(tree: Any) -> Any:
    """A tree of tensors, a batch for example, on the device."""
    return tree_map(lambda leaf: leaf.to(DEVICE) if isinstance(leaf, Tensor) else leaf, tree)


def types(tree: Any) -> str:
    """The dtypes of the tensors of a tree, with the device where that is another."""
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    named = {str(t.dtype).removeprefix("torch.") + ("" if t.device == DEVICE else f"@{t.device}") for t in tensors}
    return ",".join(sorted(named)) or "-"


def gradients(module: nn.Module) -> str:
    """Which trainable parameters have no gradient, or one of another type; "all" where all is well."""
    faults = []
    for path, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.grad is None:
            faults.append(f"none:{path}")
        elif parameter.grad is not None and types(parameter.grad) != types(parameter):
            faults.append(f"{types(parameter.grad)}:{path}")
        elif types(parameter) != str(parameter.dtype).removeprefix("torch."):
            faults.append(f"{types(parameter)}:{path}")
    return ",".join(faults) or "all"


def counted(watch: Watch, phases: Sequence[str], allowed: float = 0) -> Findings:
    """The findings of a watch. More waits in a phase than are declared are above the goal, and marked by "!"."""
    waits = {phase: watch.waits_of(phase) for phase in phases}
    limits = {phase: 0 if phase == "backward" else allowed for phase in phases}
    listed = [f"{phase}:{n}{'!' if n > limits[phase] else ''}" for phase, n in waits.items() if n]
    named = {"sdpa": watch.backends, "kernels": watch.kernels, "runs": watch.runs}
    counts = {key: ",".join(f"{part}:{count}" for part, count in sorted(of.items())) for key, of in named.items()}
    return {"waits": ",".join(listed) or "0", **{key: text for key, text in counts.items() if text}}


def mixer_cases() -> Iterator[GhostCase]:
    """Every mixer in every mode that it promises: forward, with its state where it streams, and backward; evaluation,
    and one token after the state."""
    passes = [
        ("float32", 300, True),
        ("float32", 9, False),
        ("bf16", 300, False),
        ("bf16", 9, True),
        ("fp16", 9, True),
    ]
    for case in variants("with every mixer"):
        crossed = ["cross"] if "cross" in case.config.promises().modes else []
        for mode in (*case.modes, *crossed):
            for precision, length, padded in passes:
                label = f"mixer {name(case.config)} {mode} {precision} {length} {'padded' if padded else 'full'}"
                run = partial(mix, case, mode, precision, length, padded)
                first = case in KINDS.values() and mode == case.mode
                yield GhostCase(label, run, first and (precision, length) in (("float32", 300), ("bf16", 9)))


def mixer_context(length: int, mode: str, padded: bool) -> Context:
    padding_mask = on_device(torch.arange(length) < torch.tensor([[length], [length - 2]])) if padded else None
    ctx = Context(torch.arange(length, device=DEVICE).expand(2, length), mode == "causal", padding_mask)
    if mode != "cross":
        return ctx
    source_mask = torch.ones(2, length + 3, dtype=torch.bool, device=DEVICE) if padded else None
    return ctx._replace(source=torch.randn(2, length + 3, DIM, device=DEVICE), source_padding_mask=source_mask)


def mix(case: Case, mode: str, precision: str, length: int, padded: bool, watch: Watch) -> Findings:
    config = case.config.override(dict.fromkeys(dropouts_of(case.config), 0.1))
    streams = mode == "causal" and case.config.promises().streams
    mixer = config.build(Shape(DIM, HEADS, MAX_LENGTH, shared={})).to(DEVICE)
    found = mixed(mixer, mixer_context(length, mode, padded), streams, precision, watch)
    phases = ("forward", "continue", "backward", "evaluate", "stream")
    return found | counted(watch, phases, mixer_waits(case.config, padded))


def mixed(mixer: Any, ctx: Context, streams: bool, precision: str, watch: Watch) -> Findings:
    """The types of the outputs of a mixer in a context, and of gradients."""
    x = torch.randn(*ctx.positions.shape, DIM, device=DEVICE, requires_grad=True)
    with precise(precision):
        with watch.phase("forward"):
            output = mixer(x, ctx)
            y = output.y
        with watch.phase("continue"):
            y = y + mixer(x, ctx, output.state).y if streams else y
        loss = y.float().square().sum() + sum(output.aux.values())
    with watch.phase("backward"):
        loss.backward()
    found = {"y": types(y), "state": types(output.state), "grads": gradients(mixer)}
    mixer.eval()
    with torch.no_grad(), precise(precision):
        with watch.phase("evaluate"):
            output = mixer(x, ctx)
        with watch.phase("stream"):
            if streams:
                mixer(x[:, :1], ctx._replace(positions=ctx.positions[:, :1], padding_mask=None), output.state)
    return found


def task_cases() -> Iterator[GhostCase]:
    """Every task in every precision; every optimizer; stacks and token embeddings of which tasks ask something."""
    cases = {label: LearningCase(*parts) for label, parts in CASES.items()}
    small = cases["causal_lm"]
    for stack in (SharedConfig(), ReversibleConfig()):
        cases[f"causal_lm, {name(stack)}"] = small._replace(model=small.model.override({"stack": stack}))
    for label, case in cases.items():
        for precision in PRECISIONS:
            for optimizer in OPTIMIZERS if label == "causal_lm" else ["adamw"]:
                run = partial(learn, label.partition(",")[0], case, precision, optimizer)
                quick = label in TASKS and precision == "bf16" and optimizer == "adamw"
                yield GhostCase(f"task {label} {precision} {optimizer}", run, quick)


class LearningCase(NamedTuple):
    """A model, changes of the config of its task, and changes of the description of its data."""

    model: ModelConfig
    changes: Mapping[str, Any]
    of_data: Mapping[str, Any]


def learn(kind: str, case: LearningCase, precision: str, optimizer: str, watch: Watch) -> Findings:
    """Two steps of training, as Lightning does them, and one of validation."""
    config = TASKS[kind]().override(case.changes)
    model = case.model.override({"dim": DIM, "heads": HEADS})
    data = replace(config.probe_data(VOCABULARY, 9), **case.of_data)
    training = TrainingConfig(device="cpu", optimizer=OPTIMIZERS[optimizer]())
    task = config.build(model, data, training).to(DEVICE)
    optimizing = training.optimizer.build(task)
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16")
    for step in range(2):
        batch = on_device(config.random_batch(data))
        with watch.phase(f"train{step}"):
            with precise(precision):
                loss = task.training_step(batch, step)["loss"]
            scaler.scale(loss).backward()
        found = {"loss": types(loss), "grads": gradients(task)}
        with watch.phase(f"step{step}"):
            scaler.unscale_(optimizing)
            nn.utils.clip_grad_norm_(task.parameters(), 1.0)
        if precision != "fp16":  # a scaler reads whether gradients are finite, once a step
            with watch.phase(f"step{step}"):
                optimizing.step()
        else:
            scaler.step(optimizing)
            scaler.update()
        with watch.phase(f"step{step}"):
            optimizing.zero_grad()
            task.after_step()
    task.eval().evaluator().eval()
    batch = on_device(config.random_batch(data))
    with watch.phase("validate"), torch.no_grad(), precise(precision):
        task.validation_step(batch, 0)
    found["rows"] = str(len(task.metric.rows()))
    declared = max(task_waits(config, model, data, is_training) for is_training in (True, False))
    return found | counted(watch, ("train0", "step0", "train1", "step1", "validate"), declared)


COMPILED = {
    "attention": (AttentionConfig(), 64),
    "attention rotary memory": (AttentionConfig(encoding=RotaryConfig(), memory=16), 64),
    "attention xl memory": (AttentionConfig(encoding=XLConfig(), memory=16), 64),
    "attention xl memory long": (AttentionConfig(encoding=XLConfig(), memory=16), 300),
    "attention dropout long": (AttentionConfig(dropout=0.1), 300),
    "window": (WindowConfig(window=8), 64),
    "linear": (LinearConfig(), 64),
    "sparse": (SparseConfig(block=8), 64),
    "lsh": (LSHConfig(rounds=2, chunk_length=8, buckets=4, seed=0), 64),
    "top_k": (TopKConfig(kept=8), 64),
    "compressive": (CompressiveConfig(memory=16, compressed_memory=8, rate=2), 64),
    "local": (LocalConfig(block=8), 64),
    "synthesizer": (SynthesizerConfig(), 64),
    "diet": (DietConfig(), 64),
    "convolution": (ConvolutionConfig(kernel=3), 64),
}
"""The mixers of language models that are compiled whole, and the lengths that they read."""


def compile_cases() -> Iterator[GhostCase]:
    for label, (mixer, length) in COMPILED.items():
        for padded in (True, False):
            run = partial(compile_network, mixer, length, padded)
            quick = label in ("attention", "attention xl memory") and not padded
            yield GhostCase(f"compile {label} {length} {'padded' if padded else 'full'}", run, quick)


def compile_network(mixer: Any, length: int, padded: bool, watch: Watch) -> Findings:
    """A language model under ``torch.compile``, four steps with the state of the one before, in bf16."""
    model = LanguageModelConfig(mixer=mixer, dim=DIM, heads=HEADS, depth=2).build(probe_data(11, length)).to(DEVICE)
    state: Any = None

    def step() -> Tensor:
        nonlocal state
        padding_mask = torch.ones(2, length, dtype=torch.bool, device=DEVICE) if padded else None
        output = model(torch.zeros(2, length, dtype=torch.long, device=DEVICE), state, padding_mask)
        state = detach(output.state)
        return model.tokens.logits(output.hidden)

    return compiled(model, step)


def compiled(module: nn.Module, step: Callable[[], Tensor]) -> Findings:
    """The graphs that Dynamo makes of a module in four steps. graphs: their number after each step; graphs that come
    after the second are recompilations. breaks: of graphs."""
    counters.clear()
    module.compile(backend="aot_eager")
    graphs = []
    for _ in range(4):
        with precise("bf16"):
            output = step()
        output.float().sum().backward()
        graphs.append(str(counters["stats"]["unique_graphs"]))
    return {
        "graphs": ",".join(graphs),
        "breaks": str(sum(counters["graph_break"].values())),
        "grads": gradients(module),
    }


def kernel_cases() -> Iterator[GhostCase]:
    """Cases of the kernels that a run compiles: training on rows of many lengths, and sampling symbol by symbol."""
    mixers = {"attention": AttentionConfig(), "window": WindowConfig(window=16), "local": LocalConfig(block=16)}
    for label, mixer in mixers.items():
        yield GhostCase(f"kernels train {label}", partial(train_on_lengths, mixer, range(20, 40, 4)), label == "window")
        long = range(600, 1600, 200)
        yield GhostCase(f"kernels train long {label}", partial(train_on_lengths, mixer, long), label == "window")
        remembering = mixer.override({"memory": 16}) if label != "local" else mixer
        yield GhostCase(f"kernels sample {label}", partial(draw_symbols, remembering), label == "attention")


def train_on_lengths(mixer: Any, lengths: Sequence[int], watch: Watch) -> Findings:
    """Forward and backward passes over padded batches of five lengths."""
    model = LanguageModelConfig(mixer=mixer, dim=DIM, heads=HEADS, depth=1).build(probe_data(11, 64)).to(DEVICE)
    for length in lengths:
        padding_mask = on_device(torch.arange(length) < torch.tensor([[length], [length - 2]]))
        output = model(torch.zeros(2, length, dtype=torch.long, device=DEVICE), None, padding_mask)
        output.hidden.sum().backward()
    return counted(watch, ())


def draw_symbols(mixer: Any, watch: Watch) -> Findings:
    """Eight symbols of a language model, each drawn after those before it."""
    model = LanguageModelConfig(mixer=mixer, dim=DIM, heads=HEADS, depth=1).build(probe_data(11, 64)).to(DEVICE).eval()
    symbols = list(sample(model, torch.tensor([10], device=DEVICE), 8, SamplingConfig()))
    return {"symbols": str(len(symbols)), **counted(watch, ())}


STEPS, STOP = 12, 8
"""Of the Lightning run: how many it has, and before which it is stopped."""


def train_stop_resume(watch: Watch) -> Findings:
    """A run with Lightning in bf16 on a small text: training, validation, a checkpoint at a stop, and the rest after
    it. Waits are those of three steps that neither log nor validate nor follow the start, with the loop and the way of
    data to the device."""
    with TemporaryDirectory() as folder:
        text = Path(folder, "text")
        text.mkdir()
        for number in range(10):
            Path(text, f"{number}.txt").write_text(f"the ghost of chapter {number} computes nothing at all\n" * 12)
        training = {"steps": STEPS, "device": "cuda", "precision": "bf16", "validate_every": 6, "log_every": 4}
        config = RunConfig.from_dict(
            {
                "model": {**CASES["causal_lm"][0].to_dict(), "dim": DIM, "heads": HEADS},
                "data": {"source": {"kind": "files", "path": str(text), "validation": 0.2}, "segment_length": 16},
                "training": training,
            }
        )
        run = Path(folder, "run")
        with observed_steps(watch, stop_before=STOP), suppress(Interrupted):
            fit(config, run)
        found = {"checkpoint": str((run / "checkpoint.ckpt").exists())}
        with observed_steps(watch):
            record = fit(config, run)
    found |= {"outcome": f"{record['outcome']} {record['reason']}", "steps": ",".join(f"{key}" for key in watch.steps)}
    return found | counted(watch, [f"step{step}" for step in (2, 4, 10)])


@contextmanager
def observed_steps(watch: Watch, stop_before: int | None = None) -> Iterator[None]:
    """Has every trainer within the block name its steps to the watch, and one of them receive SIGTERM."""

    class Steps(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
            watch.steps.append(trainer.global_step)
            watch.name = f"step{trainer.global_step}"
            torch.cuda.set_sync_debug_mode("warn")
            if trainer.global_step == stop_before:
                os.kill(os.getpid(), signal.SIGTERM)

    def make(training: Any, directory: Path, callbacks: list[L.Callback], loggers: Sequence[Any] = ()) -> L.Trainer:
        return make_trainer(training, directory, [*callbacks, Steps()], loggers)

    once = patch.object(DivergenceCheck.__init__, "__defaults__", (math.inf,))  # it looks by the clock
    with once, patch.object(train, "make_trainer", make):
        yield
    torch.cuda.set_sync_debug_mode("default")


def all_cases() -> list[GhostCase]:
    """All cases, in the order of their names."""
    runs = [GhostCase("run language_model bf16", train_stop_resume, quick=True)]
    return sorted([*mixer_cases(), *task_cases(), *compile_cases(), *kernel_cases(), *runs])
