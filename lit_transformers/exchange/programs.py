"""Writes a trained network with its head as a program for ONNX Runtime or for torch without this suite.

One trace, whose number and length of rows stay open, becomes either file. Before the folder has its name, the file is
read and run at several shapes, and its outputs are compared with those of the network.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from lit_transformers.config import ConfigError, Plain
from lit_transformers.exchange.fine_tuned import FineTunedHead
from lit_transformers.exchange.folders import fresh_folder, write_fields
from lit_transformers.exchange.licences import write_licences
from lit_transformers.exchange.standalone import ProgramInputs, Standalone, standalone_of
from lit_transformers.exchange.transfer import Exchanged, add_tokenizer, fine_tuned_head_of, mapped, weights_of
from lit_transformers.printing.error_lines import first_line
from lit_transformers.runs.starting_weights import StartingWeights

__all__ = ["INSTALL", "ProgramForm", "check", "export_program", "trace", "write_program"]

ProgramForm = Literal["onnx", "torch"]
FILES: Mapping[ProgramForm, str] = {"onnx": "model.onnx", "torch": "model.pt2"}
LIBRARIES: Mapping[ProgramForm, str] = {"onnx": "onnx", "torch": "pytorch"}
"""What the hub calls the programs that read the files."""
INSTALL = "pip install 'lit-transformers[onnx]'"
NOT_CHECKED = f"check: omitted, for onnxruntime is not installed; {INSTALL}"
SHAPES = ((1, 2), (1, 40), (7, 33), (2, 512), (32, 64))
"""The numbers and lengths of rows at which a file is checked; the longest length stands for longer ones."""
TOLERANCE = 1e-5
"""The largest norm of the difference of outputs, divided by the norm of the outputs."""
TRACED = (3, 11)
"""The shape of the rows that a trace reads."""
AXES = {0: "batch", 1: "length"}
"""The names of the open dimensions."""
Progress = Callable[[str], None]
Run = Callable[..., tuple[Tensor, ...]]
"""A program: it takes the inputs of a network in their order and returns its outputs."""


def export_program(
    source: Path, directory: Path, form: ProgramForm, progress: Progress = lambda step: None
) -> Exchanged:
    """Writes a folder with a program, the config.json and the tokenizer's files that transformers reads, and the
    licences of weights and data.

    source: the checkpoint of a run, or an import. progress: is called with each step. Raises ConfigError, in one line
    and with nothing written, where the network cannot be a program, its package is not installed, or the outputs of the
    file differ from those of the network.
    """
    if form == "onnx" and (missing := [name for name in ("onnx", "onnxscript") if find_spec(name) is None]):
        raise ConfigError(f"needs {' and '.join(missing)}: {INSTALL}", "--to onnx")
    with fresh_folder(directory) as fresh:
        progress("reading")
        weights, head = weights_of(source), fine_tuned_head_of(source)
        try:
            network, notes = standalone_of(source, weights)
            progress("tracing")
            program = trace(network)
            progress(f"writing {FILES[form]}")
            file = fresh / FILES[form]
            write_program(program, network, file, form)
            notes += [check(network, reader(file, form), progress) if is_checked(form) else NOT_CHECKED]
        except ConfigError as error:
            raise ConfigError(str(error), "" if str(error).startswith(str(source)) else str(source)) from None
        fields, more = config_fields(source, weights, head, network)
        write_fields(fresh, fields)
        write_licences(fresh, weights.licences, LIBRARIES[form])
        notes += [*more, *add_tokenizer(source, fresh, network.symbols, weights)]
        size = sum(part.stat().st_size for part in fresh.glob(f"{FILES[form]}*"))
    signature = f"{FILES[form]}: {', '.join(network.inputs)} to {', '.join(network.outputs)}; {size:,} bytes"
    return Exchanged(weights.model.kind or "", sum(p.numel() for p in network.parameters()), [signature, *notes])


def is_checked(form: ProgramForm) -> bool:
    """Whether what runs a file is installed."""
    return form == "torch" or find_spec("onnxruntime") is not None


def trace(network: Standalone) -> ExportedProgram:
    """Returns the program of a network, for any number of rows of any length. Raises ConfigError where its computation
    depends on one of these, or on the values of inputs, beyond what a program can state."""
    rows = random_rows(network, *TRACED)
    shapes = tuple(dict.fromkeys(AXES, Dim.DYNAMIC) for _ in rows.given())
    try:
        with silent(), torch.no_grad():
            program = torch.export.export(network, rows.given(), dynamic_shapes=shapes, strict=False)
    except Exception as error:  # of many types
        reason = "its computation follows from the length of rows or from their values, which a program leaves open"
        raise ConfigError(f"{reason} ({first_line(error)}); choose --to safetensors", "model") from None
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # the paths of this machine
    return program


def write_program(program: ExportedProgram, network: Standalone, file: Path, form: ProgramForm) -> None:
    """Writes a program into a file. Raises ConfigError where ONNX has no operator for a part of it."""
    if form == "torch":
        torch.export.save(program, file)
        return
    try:
        with silent():
            written: Any = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                input_names=[*network.inputs],
                output_names=[*network.outputs],
            )
    except Exception as error:  # of many types
        raise ConfigError(f"ONNX has no operator for a part of it ({first_line(error)})", "model") from None
    for value in (*written.model.graph.inputs, *written.model.graph.outputs):
        for axis in AXES if value in written.model.graph.inputs else (0, *([1] if network.per_token else [])):
            value.shape[axis] = AXES[axis]
    with silent():
        written.save(file)


def reader(file: Path, form: ProgramForm) -> Run:
    """Returns the program in a file."""
    if form == "torch":
        module = torch.export.load(file).module()
        return lambda *inputs: module(*inputs)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # an error is raised too
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [own.name for own in session.get_inputs()]

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(names, (own.numpy() for own in inputs), strict=True))
        return tuple(map(torch.from_numpy, session.run(None, given)))

    return run


@torch.no_grad()
def check(network: Standalone, run: Run, progress: Progress = lambda step: None) -> str:
    """Compares a program with its network at ``SHAPES``, on random rows with padding. Returns a line with the largest
    difference. Raises ConfigError, which names the shape, where outputs differ or the program does not run."""
    shapes = dict.fromkeys((count, min(length, network.longest)) for count, length in SHAPES)
    worst = 0.0
    for shape in shapes:
        progress(f"checking at {shape}")
        rows = random_rows(network, *shape)
        expected = network(*rows.given())
        try:
            outputs = run(*rows.given())
            pairs = [*zip(network.compared(expected, rows), network.compared(outputs, rows), strict=True)]
            difference = max(float((one - other).norm() / one.norm().clamp(min=1e-30)) for one, other in pairs)
        except Exception as error:  # of a shape that is refused, in the words of each runtime
            raise ConfigError(f"its file does not run at the shape {shape} ({first_line(error)})", "model") from None
        if not difference <= TOLERANCE:
            reason = f"its file gives other outputs at the shape {shape}, by {difference:.1e} of their norm"
            raise ConfigError(f"{reason}; at most {TOLERANCE:.0e} is allowed", "model")
        worst = max(worst, difference)
    return f"check: at {', '.join(map(str, shapes))} outputs differ by at most {worst:.1e} of their norm"


def random_rows(network: Standalone, count: int, length: int) -> ProgramInputs:
    """Returns rows of random symbols and segments: the first as long as the shape, the others padded by random
    symbols, which a program has to ignore."""
    generator = torch.Generator().manual_seed(length)
    symbols = torch.randint(network.symbols, (count, length), generator=generator)
    lengths = torch.randint(1, length + 1, (count, 1), generator=generator)
    lengths[0] = length
    places = torch.arange(length)
    real = (places < lengths).long()
    segments = ((places >= (lengths + 1) // 2) & (places < lengths)).long()
    return ProgramInputs(symbols, real, segments if len(network.inputs) > 2 else None)


def config_fields(
    source: Path, weights: StartingWeights, head: FineTunedHead | None, network: Standalone
) -> tuple[dict[str, Plain], list[str]]:
    """Returns the fields of config.json: those of the architecture of transformers that computes the same, and names of
    labels; without such an architecture the names alone, and a line for that."""
    own: dict[str, Plain] = {"vocab_size": network.symbols, **({} if head is None else head.fields())}
    try:
        fields = mapped(source, weights, head).fields
        del fields["architectures"]  # a class of transformers, whose weights are not there
    except ConfigError as error:
        return own, [f"config.json: with labels alone, for no architecture of transformers computes the same: {error}"]
    return fields | own, []


@contextmanager
def silent() -> Iterator[None]:
    """Hides what torch prints of its own code during a trace."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(before)
