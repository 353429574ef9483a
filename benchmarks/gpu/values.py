"""Every kind of mixer on a device, forward and backward, against numbers of a CPU in float64 that are carried along.

    python -m benchmarks.gpu.values write .gpu/values.npz                  # at home
    python -m benchmarks.gpu.values compare .gpu/values.npz --json FILE    # there, on CUDA where there is one

The file holds inputs, weights, outputs and gradients, so that no number there depends on a generator of random numbers,
a version of torch or another processor. A line is printed and the result is written after each comparison.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import typer
from torch import Tensor

from lit_transformers.mixer import Context, Mixer, MixerConfig, Mode, Shape
from lit_transformers.mixers import MIXERS
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
CHOOSING = ("lsh", "top_k")
"""The kinds that choose keys by comparing rounded numbers."""
Precision = Literal["float32", "bf16"]


class Tolerance(NamedTuple):
    """The largest difference of outputs and of gradients, as a share of the largest number. chosen: the share of the
    rows in which a kind that chooses may choose other keys; its gradients are not judged."""

    outputs: float
    gradients: float
    chosen: float


TOLERANCES: Mapping[Precision, Tolerance] = {
    "float32": Tolerance(2e-4, 2e-4, 0.02), "bf16": Tolerance(5e-2, 1e-1, 0.5)
}  # fmt: skip
"""On a CPU the largest differences are 6e-7 in float32, and in bfloat16 1e-2 and 8e-2, these of a star; a quarter of
the rows of top-k choose other keys in bfloat16."""
Arrays = dict[str, npt.NDArray[np.float32]]


class ValueCase(NamedTuple):
    """A kind in a mode, with heads of so many channels. All rows but the first end with padding."""

    kind: str
    mode: Mode
    width: int

    @property
    def name(self) -> str:
        """How lines and the file call it."""
        return f"{self.kind} {self.mode} {self.width}"

    def config(self) -> MixerConfig:
        """Returns the config of the kind for short rows."""
        return MIXERS[self.kind](**SIZES.get(self.kind, {}))

    def build(self) -> Mixer:
        """Builds the mixer, with random weights of torch's generator."""
        return self.config().build(Shape(HEADS * self.width, HEADS, LENGTH))


class Passed(NamedTuple):
    """The outputs of a pass, and its gradients by name, that of the inputs first."""

    outputs: Tensor
    gradients: dict[str, Tensor]


def cases() -> Iterator[ValueCase]:
    """Yields every kind in each of its modes, and last those that are compiled, in one mode."""
    for width, kinds in ((NARROW, [*MIXERS]), (WIDE, [*COMPILED])):
        for kind in kinds:
            both = (ValueCase(kind, mode, width) for mode in MODES)
            promised = [case for case in both if case.mode in case.config().promises().modes]
            yield from promised[: 1 if width == WIDE else 2]


def inputs_of(number: int, width: int) -> dict[str, Tensor]:
    """Returns inputs and the direction in which outputs are summed, from a generator of numpy."""
    draw = np.random.default_rng(number)
    size = (2, LENGTH, HEADS * width)
    return {name: torch.from_numpy(draw.standard_normal(size, np.float32)) for name in ("x", "direction")}


def passed(case: ValueCase, mixer: Mixer, given: Mapping[str, Tensor], precision: Precision | None) -> Passed:
    """Runs a mixer forward and backward where its weights are, in two segments where it carries a state from one to the
    next; None as precision: in float64."""
    first = next(mixer.parameters())
    x = given["x"].to(first).requires_grad_()
    positions = torch.arange(LENGTH, device=first.device).expand(2, LENGTH)
    real = positions < torch.tensor([[LENGTH], [LENGTH - 37]], device=first.device)
    causal = case.mode == "causal"
    segments = 2 if causal and case.config().promises().streams else 1
    half: AbstractContextManager[Any] = nullcontext()
    if precision == "bf16":
        half = torch.autocast(first.device.type, torch.bfloat16)
    state, parts, losses = None, list[Tensor](), list[Tensor]()
    for part, place, mask in zip(*(whole.chunk(segments, 1) for whole in (x, positions, real)), strict=True):
        with half:
            output = mixer(part, Context(place, causal, mask), state)
        state = output.state
        parts.append(output.y)
        losses += output.aux.values()
    outputs = torch.cat(parts, dim=1).to(first.dtype) * real[..., None]
    loss = torch.stack([(outputs * given["direction"].to(first)).sum(), *losses]).sum()
    names = {"x": x} | {name: weight for name, weight in mixer.named_parameters() if weight.requires_grad}
    gradients = torch.autograd.grad(loss, [*names.values()], allow_unused=True)
    by_name = {name: gradient for name, gradient in zip(names, gradients, strict=True) if gradient is not None}
    return Passed(outputs.detach(), by_name)


def references(case: ValueCase, number: int) -> Arrays:
    """Returns weights, outputs and gradients of a case, computed in float64 on the CPU."""
    torch.manual_seed(number)
    mixer = case.build().double()
    outputs, gradients = passed(case, mixer, inputs_of(number, case.width), None)
    tensors = {f"weight {name}": tensor for name, tensor in mixer.state_dict().items()}
    tensors |= {"outputs": outputs} | {f"gradient {name}": tensor for name, tensor in gradients.items()}
    return {name: tensor.detach().numpy().astype(np.float32) for name, tensor in tensors.items()}


def compared(
    case: ValueCase, number: int, expected: Mapping[str, npt.NDArray[np.float32]], device: str, precision: Precision
) -> dict[str, Any]:
    """Returns the largest differences of a case on a device, as shares of the largest number, and whether they are
    within the tolerances: of a kind that chooses, the share of its rows that are not."""
    mixer = case.build()
    stored = {name.removeprefix("weight "): array for name, array in expected.items() if name.startswith("weight ")}
    mixer.load_state_dict({name: torch.from_numpy(array) for name, array in stored.items()})
    begun = time.monotonic()
    outputs, gradients = passed(case, mixer.to(device), inputs_of(number, case.width), precision)
    seconds = time.monotonic() - begun
    reference = torch.from_numpy(expected["outputs"])
    errors = (outputs.cpu().float() - reference).abs().amax(dim=-1) / reference.abs().max()
    known = {name: torch.from_numpy(expected[f"gradient {name}"]) for name in gradients}
    largest = max(float(gradient.abs().max()) for gradient in known.values())
    of_gradients = max(float((gradients[name].cpu().float() - known[name]).abs().max()) for name in known) / largest
    tolerance = TOLERANCES[precision]
    share = float((errors > tolerance.outputs).float().mean())
    agrees = share == 0 and of_gradients <= tolerance.gradients
    if case.kind in CHOOSING:
        agrees = share <= tolerance.chosen
    is_finite = bool(outputs.isfinite().all()) and all(bool(part.isfinite().all()) for part in gradients.values())
    return {
        "kind": case.kind, "mode": case.mode, "width": case.width, "precision": precision,
        "outputs": float(errors.max()), "gradients": of_gradients, "rows": share, "seconds": round(seconds, 3),
        "agrees": agrees and is_finite,
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
    every: Annotated[int, typer.Option(help="Compare one in so many cases.")] = 1,
) -> None:
    """Compares every kind in float32 and bfloat16 with the numbers of a file, which is made where it is missing. Exits
    with 1 where one disagrees."""
    torch.backends.cudnn.allow_tf32 = False  # which rounds the factors of LSTMs to ten bits
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if not file.exists():
        write(file)
    rows: list[dict[str, Any]] = []
    with np.load(file) as arrays:
        for number, case in [*enumerate(cases())][::every]:
            expected = {
                name.partition("/")[2]: arrays[name] for name in arrays.files if name.startswith(f"{case.name}/")
            }
            for precision in TOLERANCES:
                try:
                    row = compared(case, number, expected, where, precision)
                except Exception as error:  # the others are worth measuring whatever this one does
                    row = {"kind": case.kind, "mode": case.mode, "width": case.width, "precision": precision}
                    row |= {"agrees": False, "error": f"{type(error).__name__}: {error}"[:300]}
                rows.append(row)
                print(line_of(row), flush=True)
                if json_file is not None:
                    write_json(json_file, {"device": where, "rows": rows})
    raise SystemExit(int(not all(row["agrees"] for row in rows)))


def line_of(row: Mapping[str, Any]) -> str:
    """Returns the line that is printed of a comparison."""
    name = f"{row['kind']} {row['mode']} {row['precision']}, heads of {row['width']}"
    if "error" in row:
        return f"FAILED {name}: {row['error']}"
    errors = f"outputs {row['outputs']:.1e}, gradients {row['gradients']:.1e}, rows {row['rows']:.1%}"
    return f"{'agrees' if row['agrees'] else 'DIFFERS'} {name}: {errors}, {row['seconds']:.2f} s"


if __name__ == "__main__":
    app()
