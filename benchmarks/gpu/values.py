"""Every kind of mixer on a device, forward and backward, against numbers of a CPU in float64 that are carried along.

    python -m benchmarks.gpu.values write .gpu/values.npz                  # at home
    python -m benchmarks.gpu.values compare .gpu/values.npz --json FILE    # there, on CUDA where there is one

The file holds inputs, weights, outputs and gradients, so that no number there depends on a generator of random numbers,
a version of torch or another processor. A line is printed and the result is written after each comparison.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import typer
from torch import Tensor

from lit_transformers.mixer import Context, Mixer, MixerConfig, Mode, Shape, Tape
from lit_transformers.mixers import MIXERS
from lit_transformers.mixers.top_k import TopK
from lit_transformers.precision import tf32
from lit_transformers.records.files import replace_file, write_json

LENGTH, HEADS = 200, 4
NARROW, WIDE = 12, 16
"""Channels of a head: FlexAttention, which is compiled for each pattern, does not run on the first number."""
MODES: tuple[Mode, ...] = ("causal", "bidirectional")
SIZES: Mapping[str, Mapping[str, Any]] = {
    "local": {"block": 16},
    "window": {"window": 24},
    "sparse": {"block": 16},
    "big_bird": {"block": 16},
    "lsh": {"rounds": 2, "chunk_length": 20, "buckets": 10, "seed": 0},
    "adaptive_span": {"span": 50, "ramp": 16},
    "top_k": {"kept": 8},
    "linformer": {"rank": 16},
    "convolution": {"kernel": 5},
    "compressive": {"memory": 32, "compressed_memory": 16, "rate": 4},
}
"""The fields in which a kind differs from its defaults, which are for longer rows."""
COMPILED = ("window", "sparse", "diet", "big_bird")
"""The kinds whose patterns FlexAttention runs on CUDA."""
SELECTING = ("top_k", "lsh")
"""The kinds that select keys by comparing rounded numbers. They are given the selection of the float64 pass."""
Precision = Literal["float32", "bf16"]
TOLERANCES: Mapping[Precision, float] = {"float32": 1e-4, "bf16": 2e-2}
"""The largest ||x - y|| / ||y|| of outputs, of the gradient of the inputs, and of all gradients together."""
WIDER: Mapping[tuple[str, Precision], float] = {("star", "bf16"): 0.2}
"""Star-Transformer has a ReLU in each round, which rounding opens and closes: on a CPU its gradients differ by 0.1."""
Arrays = dict[str, npt.NDArray[Any]]


class ValueCase(NamedTuple):
    """A kind in a mode, with the channels of a head as ``width``. masked: all rows but the first end with padding."""

    kind: str
    mode: Mode
    width: int
    masked: bool

    @property
    def name(self) -> str:
        """How lines and the file call it."""
        return f"{self.kind} {self.mode} {self.width}{' masked' if self.masked else ''}"

    def config(self) -> MixerConfig:
        """Returns the config of the kind for short rows."""
        return MIXERS[self.kind](**SIZES.get(self.kind, {}))

    def build(self) -> Mixer:
        """Builds the mixer, with random weights of torch's generator."""
        return self.config().build(Shape(HEADS * self.width, HEADS, LENGTH))


class KeySelection:
    """The selections of a pass, in order, which a later pass with other numbers repeats."""

    def __init__(self, recorded: Sequence[Tensor] | None = None) -> None:
        self.recorded: list[Tensor] = [] if recorded is None else [*recorded]
        self.is_given = recorded is not None

    def take(self, choose: Callable[[], Tensor], device: torch.device) -> Tensor:
        """Returns the next selection. Raises IndexError where the recorded pass selected fewer times."""
        if self.is_given:
            return self.recorded.pop(0).to(device)
        self.recorded.append(choose().detach().clone())
        return self.recorded[-1]


class KeySelectionTape(Tape):
    """Records or gives the buckets of hashing."""

    def __init__(self, selection: KeySelection, device: torch.device) -> None:
        super().__init__()
        self.selection, self.device = selection, device

    def take(self, choose: Callable[[], Tensor]) -> Tensor:
        return self.selection.take(choose, self.device)


def select_keys(mixer: TopK, selection: KeySelection) -> None:
    """Has top-k attention keep the keys of a selection, or record those that it keeps."""
    own = mixer.weights

    def weights(logits: Tensor, i: Tensor, j: Tensor) -> Tensor:
        kept = selection.take(lambda: own(logits.clone(), i, j) > 0, logits.device)
        return logits.masked_fill(~kept, float("-inf")).softmax(dim=-1)

    mixer.weights = weights  # type: ignore[method-assign]


class Passed(NamedTuple):
    """The outputs of a pass, and its gradients by name, that of the inputs first."""

    outputs: Tensor
    gradients: dict[str, Tensor]


def cases() -> Iterator[ValueCase]:
    """Yields every kind in each of its modes, with and without a mask, and last those that are compiled, in one mode.
    Each kind is there once before any has a second case, so that a call that is cut short has seen all."""
    for number in range(len(MODES)):
        for masked in (True, False):
            for kind in MIXERS:
                promised = [mode for mode in MODES if mode in MIXERS[kind](**SIZES.get(kind, {})).promises().modes]
                if number < len(promised):
                    yield ValueCase(kind, promised[number], NARROW, masked)
        if number == 0:
            for kind in COMPILED:
                modes = MIXERS[kind](**SIZES.get(kind, {})).promises().modes
                yield ValueCase(kind, next(mode for mode in MODES if mode in modes), WIDE, masked=kind == "window")


def inputs_of(number: int, width: int) -> dict[str, Tensor]:
    """Returns inputs and the direction in which outputs are summed, from a generator of numpy."""
    draw = np.random.default_rng(number)
    size = (2, LENGTH, HEADS * width)
    return {name: torch.from_numpy(draw.standard_normal(size, np.float32)) for name in ("x", "direction")}


def passed(
    case: ValueCase, mixer: Mixer, given: Mapping[str, Tensor], precision: Precision | None, selection: KeySelection
) -> Passed:
    """Runs a mixer forward and backward where its weights are, in two segments where it carries a state from one to the
    next; None as precision: in float64. selection: is given, or recorded."""
    first = next(mixer.parameters())
    x = given["x"].to(first).requires_grad_()
    positions = torch.arange(LENGTH, device=first.device).expand(2, LENGTH)
    real = positions < torch.tensor([[LENGTH], [LENGTH - 37]], device=first.device)
    causal = case.mode == "causal"
    segments = 2 if causal and case.config().promises().streams else 1
    half: AbstractContextManager[Any] = nullcontext()
    if precision == "bf16":
        half = torch.autocast(first.device.type, torch.bfloat16)
    if isinstance(mixer, TopK):
        select_keys(mixer, selection)
    tape = KeySelectionTape(selection, first.device) if case.kind in SELECTING else None
    state, parts, losses = None, list[Tensor](), list[Tensor]()
    for part, place, mask in zip(*(whole.chunk(segments, 1) for whole in (x, positions, real)), strict=True):
        with half:
            output = mixer(part, Context(place, causal, mask if case.masked else None, tape=tape), state)
        state = output.state
        parts.append(output.y)
        losses += output.aux.values()
    outputs = torch.cat(parts, dim=1).to(first.dtype)
    if case.masked:
        outputs = outputs * real[..., None]
    loss = torch.stack([(outputs * given["direction"].to(first)).sum(), *losses]).sum()
    names = {"x": x} | {name: weight for name, weight in mixer.named_parameters() if weight.requires_grad}
    gradients = torch.autograd.grad(loss, [*names.values()], allow_unused=True)
    by_name = {name: gradient for name, gradient in zip(names, gradients, strict=True) if gradient is not None}
    return Passed(outputs.detach(), by_name)


def references(case: ValueCase, number: int) -> Arrays:
    """Returns weights, outputs and gradients of a case, computed in float64 on the CPU."""
    torch.manual_seed(number)
    mixer = case.build().double()
    selection = KeySelection()
    outputs, gradients = passed(case, mixer, inputs_of(number, case.width), None, selection)
    tensors = {f"weight {name}": tensor for name, tensor in mixer.state_dict().items()}
    tensors |= {"outputs": outputs} | {f"gradient {name}": tensor for name, tensor in gradients.items()}
    arrays = {name: tensor.detach().numpy().astype(np.float32) for name, tensor in tensors.items()}
    return arrays | {f"selected {place:04}": part.numpy() for place, part in enumerate(selection.recorded)}


def distance(tensors: Iterable[Tensor], exact: Iterable[Tensor]) -> float:
    """||x - y|| / ||y|| over all tensors together; infinite where it is not a finite number."""
    x, y = (torch.cat([part.detach().cpu().double().flatten() for part in parts]) for parts in (tensors, exact))
    relative = float((x - y).norm() / y.norm())
    return relative if math.isfinite(relative) else math.inf


def compared(
    case: ValueCase, number: int, expected: Mapping[str, npt.NDArray[Any]], device: str, precision: Precision
) -> dict[str, Any]:
    """Returns the distances of a case on a device from the numbers in float64, the seconds, and whether all distances
    are within the tolerance."""
    mixer = case.build()
    stored = {name.removeprefix("weight "): array for name, array in expected.items() if name.startswith("weight ")}
    mixer.load_state_dict({name: torch.from_numpy(array) for name, array in stored.items()})
    selection = KeySelection(
        [torch.from_numpy(expected[name]) for name in sorted(expected) if name.startswith("selected ")]
    )
    begun = time.monotonic()
    outputs, gradients = passed(case, mixer.to(device), inputs_of(number, case.width), precision, selection)
    exact = {name: torch.from_numpy(expected[f"gradient {name}"]) for name in gradients}
    distances = {
        "outputs": distance([outputs], [torch.from_numpy(expected["outputs"])]),
        "of inputs": distance([gradients["x"]], [exact["x"]]),
        "gradients": distance(gradients.values(), exact.values()),
    }
    return {
        **distances, "seconds": round(time.monotonic() - begun, 3),
        "agrees": max(distances.values()) <= WIDER.get((case.kind, precision), TOLERANCES[precision]),
    }  # fmt: skip


app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def write(file: Annotated[Path, typer.Argument(help="Where the numbers are written.")]) -> None:
    """Computes the numbers on this CPU in float64, and writes them to a file of a few MiB."""
    arrays: Arrays = {}
    for number, case in enumerate(cases()):
        arrays |= {f"{case.name}/{name}": array for name, array in references(case, number).items()}
    file.parent.mkdir(parents=True, exist_ok=True)

    def save(fresh: Path) -> None:
        with fresh.open("wb") as opened:
            np.savez_compressed(opened, **arrays)  # type: ignore[arg-type]

    replace_file(file, save)
    print(f"{len(arrays)} tensors, {file.stat().st_size / 2**20:.1f} MiB, written to {file}")


@app.command()
def compare(
    file: Annotated[Path, typer.Argument(help="The numbers that were carried along.")],
    json_file: Annotated[Path | None, typer.Option("--json", help="Where the result is written.")] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; CUDA where there is one by default.")] = None,
    every: Annotated[int, typer.Option(help="Compare one in n cases.")] = 1,
) -> None:
    """Compares every kind in float32 and bfloat16 with the numbers of a file, which is made where it is missing. Exits
    with 1 where one disagrees."""
    context = multiprocessing.get_context("fork")  # of a process that uses neither CUDA nor threads itself
    if not file.exists():
        writer = context.Process(target=write, args=(file,))
        writer.start()
        writer.join()
    waiting = [(number, case, precision) for number, case in [*enumerate(cases())][::every] for precision in TOLERANCES]
    rows: list[dict[str, Any]] = []
    while waiting:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=send_rows, args=(sender, file, device, waiting))
        process.start()
        sender.close()
        ended = False
        while waiting and not ended:
            try:
                row = receiver.recv()
            except EOFError:
                process.join()
                row = named(*waiting[0][1:]) | {"error": f"its process ended with status {process.exitcode}"}
            ended = "error" in row
            waiting.pop(0)
            rows.append(row)
            print(line_of(row), flush=True)
            if json_file is not None:
                write_json(json_file, {"rows": rows})
        receiver.close()
        process.join()
    raise SystemExit(int(not all(row["agrees"] for row in rows)))


def send_rows(
    sender: Connection, file: Path, device: str | None, waiting: Sequence[tuple[int, ValueCase, Precision]]
) -> None:
    """Compares cases, and sends a row of each until one fails: an error may leave the device unusable."""
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with sender, np.load(file) as arrays, tf32(is_allowed=False):
        for number, case, precision in waiting:
            row = named(case, precision)
            names = [name for name in arrays.files if name.startswith(f"{case.name}/")]
            try:
                expected = {name.partition("/")[2]: arrays[name] for name in names}
                row |= compared(case, number, expected, where, precision)
            except Exception as error:  # the other cases are worth measuring anyway
                row |= {"error": f"{type(error).__name__}: {error}"[:300]}
            sender.send(row)
            if "error" in row:
                return


def named(case: ValueCase, precision: Precision) -> dict[str, Any]:
    """Returns the row of a case that was not compared."""
    return {**case._asdict(), "precision": precision, "agrees": False}


def line_of(row: Mapping[str, Any]) -> str:
    """Returns the line that is printed of a comparison."""
    mask = "with a mask" if row["masked"] else "without a mask"
    name = f"{row['kind']} {row['mode']} {row['precision']}, heads of {row['width']}, {mask}"
    if "error" in row:
        return f"FAILED {name}: {row['error']}"
    errors = f"outputs {row['outputs']:.1e}, gradients {row['gradients']:.1e}, of inputs {row['of inputs']:.1e}"
    return f"{'agrees' if row['agrees'] else 'DIFFERS'} {name}: {errors}, {row['seconds']:.2f} s"


if __name__ == "__main__":
    app()
