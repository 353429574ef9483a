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
from lit_transformers.exchange.standalone import StandaloneModule, standalones_of
from lit_transformers.exchange.transfer import Exchanged, add_tokenizer, fine_tuned_head_of, mapped, weights_of
from lit_transformers.printing.error_lines import first_line
from lit_transformers.runs.starting_weights import StartingWeights

__all__ = ["INSTALL", "ProgramForm", "check", "export_program", "trace", "write_program"]

ProgramForm = Literal["onnx", "torch"]
SUFFIXES: Mapping[ProgramForm, str] = {"onnx": ".onnx", "torch": ".pt2"}
LIBRARIES: Mapping[ProgramForm, str] = {"onnx": "onnx", "torch": "pytorch"}
"""The names that the hub has for the libraries that read the files."""
INSTALL = "pip install 'lit-transformers[onnx]'"
NOT_CHECKED = f"check: omitted, for onnxruntime is not installed; {INSTALL}"
SHAPES = ((1, 2), (1, 40), (7, 33), (2, 512), (32, 64))
"""The numbers and lengths of rows at which a file is checked; the longest length stands for longer ones."""
TOLERANCE = 1e-5
"""The largest norm of the difference of outputs, divided by the norm of the outputs."""
TRACED = (3, 11)
"""The shape of the rows that a trace reads."""
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
            networks, notes = standalones_of(source, weights)
            for network in networks:
                file = fresh / f"{network.file}{SUFFIXES[form]}"
                progress(f"tracing {file.name}")
                program = trace(network)
                progress(f"writing {file.name}")
                write_program(program, network, file, form)
                size = sum(part.stat().st_size for part in fresh.glob(f"{file.name}*"))
                notes.append(
                    f"{file.name}: {', '.join(network.inputs)} to {', '.join(network.outputs)}; {size:,} bytes"
                )
                notes.append(check(network, reader(file, form), progress) if is_checked(form) else NOT_CHECKED)
        except ConfigError as error:
            raise ConfigError(str(error), "" if str(error).startswith(str(source)) else str(source)) from None
        symbols = networks[-1].symbols
        fields, more = config_fields(source, weights, head, symbols)
        write_fields(fresh, fields)
        write_licences(fresh, weights.licences, LIBRARIES[form])
        notes += [*more, *add_tokenizer(source, fresh, symbols, weights)]
    parameters = {id(p): p.numel() for network in networks for p in network.parameters()}
    return Exchanged(weights.model.kind or "", sum(parameters.values()), notes)


def is_checked(form: ProgramForm) -> bool:
    """Whether the library that runs files of this form is installed."""
    return form == "torch" or find_spec("onnxruntime") is not None


def trace(network: StandaloneModule) -> ExportedProgram:
    """Returns the program of a network, for any number of rows of any length. Raises ConfigError where its computation
    depends on this number, on the length, or on the values of inputs, in a way that a program cannot state."""
    given = network.random_inputs(*TRACED)
    shapes = tuple({0: Dim.DYNAMIC, 1: Dim.DYNAMIC} for _ in given)
    try:
        with silent(), torch.no_grad():
            program = torch.export.export(network, given, dynamic_shapes=shapes, strict=False)
    except Exception as error:  # of many types
        reason = "its computation follows from the length of rows or from their values, which a program leaves open"
        raise ConfigError(f"{reason} ({first_line(error)}); choose --to safetensors", "model") from None
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # the paths of this machine
    return program


def write_program(program: ExportedProgram, network: StandaloneModule, file: Path, form: ProgramForm) -> None:
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
    of_outputs = next(iter(network.inputs.values()))[: 2 if network.per_token else 1]
    graph, of_inputs = written.model.graph, network.inputs.values()
    for values, names in ((graph.inputs, of_inputs), (graph.outputs, [of_outputs] * len(network.outputs))):
        for value, axes in zip(values, names, strict=True):
            for axis, name in enumerate(axes):
                value.shape[axis] = name
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
def check(network: StandaloneModule, run: Run, progress: Progress = lambda step: None) -> str:
    """Compares a program with its network at ``SHAPES``, on random rows with padding. Returns a line with the largest
    difference. Raises ConfigError, which names the shape, where outputs differ or the program does not run."""
    shapes = dict.fromkeys((count, min(length, network.longest)) for count, length in SHAPES)
    worst = 0.0
    for shape in shapes:
        progress(f"checking at {shape}")
        given = network.random_inputs(*shape)
        expected = network(*given)
        try:
            outputs = run(*given)
            pairs = [*zip(network.compared(expected, given), network.compared(outputs, given), strict=True)]
            difference = max(float((one - other).norm() / one.norm().clamp(min=1e-30)) for one, other in pairs)
        except Exception as error:  # of a shape that is refused, in the words of each runtime
            raise ConfigError(f"its file does not run at the shape {shape} ({first_line(error)})", "model") from None
        if not difference <= TOLERANCE:
            reason = f"its file gives other outputs at the shape {shape}, by {difference:.1e} of their norm"
            raise ConfigError(f"{reason}; at most {TOLERANCE:.0e} is allowed", "model")
        worst = max(worst, difference)
    return f"check: at {', '.join(map(str, shapes))} outputs differ by at most {worst:.1e} of their norm"


def config_fields(
    source: Path, weights: StartingWeights, head: FineTunedHead | None, symbols: int
) -> tuple[dict[str, Plain], list[str]]:
    """Returns the fields of config.json: those of the architecture of transformers that computes the same, and names of
    labels; without such an architecture the names and the numbers of special symbols alone, and a line for that."""
    own: dict[str, Plain] = {"vocab_size": symbols, **({} if head is None else head.fields())}
    try:
        fields = mapped(source, weights, head).fields
        del fields["architectures"]  # a class of transformers, whose weights are not there
    except ConfigError as error:
        numbers = {name: number for name, number in weights.fields.items() if name.endswith("_token_id")}
        return numbers | own, [
            f"config.json: with labels alone, for no architecture of transformers computes the same: {error}"
        ]
    return fields | own, []


@contextmanager
def silent() -> Iterator[None]:
    """Hides the messages that torch prints about its code during a trace."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(before)
