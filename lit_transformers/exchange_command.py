"""``python -m lit_transformers import | export | convert``: trained weights in, out, and into other networks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from lit_transformers.cli.allow_option import AllowedModules
from lit_transformers.startup.quick_imports import quick_imports

__all__ = ["convert_weights", "export_weights", "import_weights"]

Architecture = Literal[
    "albert",
    "bert",
    "big_bird",
    "distilbert",
    "electra",
    "gpt2",
    "longformer",
    "marian",
    "modernbert",
    "roberta",
    "xlnet",
]
NAMES = ", ".join(get_args(Architecture))
Form = Literal["transformers", "packed", "safetensors", "onnx", "torch"]


def import_weights(
    source: Annotated[
        str,
        typer.Argument(
            help="A folder in the format of transformers, or a model on the Hugging Face hub.", metavar="PATH|NAME"
        ),
    ],
    directory: Annotated[Path, typer.Argument(help="A new folder.", metavar="DIR")],
    architecture: Annotated[
        Architecture | None,
        typer.Option(help=f"The architecture, if config.json does not name it: {NAMES}.", metavar="ARCHITECTURE"),
    ] = None,
) -> None:
    """Import weights from a folder of transformers, as the start of runs.

    DIR receives config.yaml (the fields model, task and start of a run.yaml), weights.safetensors and the files of the
    tokenizer. A line is printed for each part that starts anew or is omitted. Weights without a place in the model are
    refused by name, and nothing is written. Pickled weights are read without executing them.

    Example: python -m lit_transformers import google/electra-small-generator starts/electra

    Example: python -m lit_transformers import models/chemistry-bert starts/chemistry --architecture bert
    """
    with quick_imports():
        from lit_transformers.exchange import transfer

    for line in transfer.import_weights(source, directory, architecture).lines():
        print(line)


def export_weights(
    checkpoint: Annotated[
        Path, typer.Argument(help="The checkpoint.ckpt of a run, or the folder of an import.", metavar="CHECKPOINT")
    ],
    place: Annotated[Path, typer.Argument(help="A new folder; of the form packed, a new file.", metavar="PLACE")],
    to: Annotated[Form, typer.Option("--to", help="The form to write.")] = "transformers",
    architecture: Annotated[
        Architecture | None,
        typer.Option(
            help=f"The architecture of transformers to write: {NAMES}.",
            metavar="ARCHITECTURE",
            show_default="of the import, or one that fits the network",
        ),
    ] = None,
    allowed: AllowedModules = None,
) -> None:
    """Export a trained network to one of five forms.

    transformers: a folder for AutoModel.from_pretrained(PLACE). A network that differs from the architecture is
    refused, with the fields that differ. The config.json of an import is kept, and a line is printed for each field
    that had to change.

    onnx, torch: a folder with the network and its head as a program, model.onnx or model.pt2, for rows of any number
    and length. An encoder-decoder has two, encoder_model and decoder_model; the latter reads a target from its start.
    Export runs each file at several shapes, and refuses it if its outputs differ from those of the network.

    safetensors: a folder as import writes it, from which runs start: weights without the state of training.

    packed: one file with the weights of a run in as few bytes as they take without loss, which every command here
    reads: quantised weights in their bits, shared values by their numbers, and nothing for zeros.

    A folder also has the tokenizer, if it is a WordPiece, BPE or pretrained one, with the special symbols of the run's
    rows, and a README.md with the known licences.

    Example: python -m lit_transformers export runs/KEY/checkpoint.ckpt exported/bert --architecture bert

    Example: python -m lit_transformers export runs/KEY/checkpoint.ckpt exported/classifier --to onnx
    """
    if architecture is not None and to != "transformers":
        raise typer.BadParameter(f"--to {to} writes no architecture of transformers; drop one of the two")
    from rich.console import Console
    from rich.status import Status

    with Status(f"exporting to {to}", console=Console(stderr=True)) as status:
        with quick_imports():
            from lit_transformers.exchange import pack, programs, transfer
        match to:
            case "packed":
                lines: Iterable[str] = pack.pack_checkpoint(checkpoint, place, status.update)
            case "onnx" | "torch":
                lines = programs.export_program(checkpoint, place, to, status.update).lines()
            case "safetensors":
                lines = transfer.export_start(checkpoint, place).lines()
            case "transformers":
                lines = transfer.export_weights(checkpoint, place, architecture).lines()
    for line in lines:
        print(line)


def convert_weights(
    checkpoint: Annotated[
        Path, typer.Argument(help="The folder of an import, or the checkpoint.ckpt of a run.", metavar="CHECKPOINT")
    ],
    directory: Annotated[Path, typer.Argument(help="A new folder.", metavar="DIR")],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a path below model, e.g. model.mixer=window. Repeatable."),
    ] = None,
    length: Annotated[
        int | None, typer.Option(min=1, help="Symbols of the longest row.", show_default="unchanged")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of new weights.")] = 0,
    allowed: AllowedModules = None,
) -> None:
    """Convert a trained network into the start of another one: with another mixer, or for longer rows.

    Weights that both networks have are copied. The table of positions is repeated up to the new length, and projections
    of global tokens start as copies of the projections of all tokens. DIR has the format of an import. A line is
    printed for each part that starts anew, starts as a copy, or is omitted. A new mixer keeps the fields that both
    kinds have.

    Example: python -m lit_transformers convert starts/bert starts/long --set model.mixer=big_bird --length 4096

    Example: python -m lit_transformers convert starts/bert starts/long --length 4096
    --set 'model.mixer={kind: window, window: 256, global_tokens: marked, global_projections: separate}'
    """
    with quick_imports():
        from lit_transformers.exchange import changed_network
    from lit_transformers.config import parse_assignments

    assigned = parse_assignments(changes or [])
    for line in changed_network.convert_weights(checkpoint, directory, assigned, length, seed).lines():
        print(line)
