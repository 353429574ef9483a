"""python -m lit_transformers fit | evaluate | generate | translate | predict | encode | answer | import | config ..."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

import lit_transformers.startup.search_path  # noqa: F401  # isort: split
from lit_transformers.cli.allow_option import AllowedModules
from lit_transformers.cli.callback_options import Callbacks, Loggers, callback_assignments, chosen_loggers
from lit_transformers.cli.commands import run_command
from lit_transformers.cli.program import is_script, program_name
from lit_transformers.config_command import config, schema
from lit_transformers.startup.quick_imports import quick_imports

if TYPE_CHECKING:
    from lit_transformers.inference.lines import LineWriter, ReportLines
    from lit_transformers.template.fine_tuning import Purpose

app = typer.Typer(
    help="Train, evaluate and use one model at a time, and exchange weights with other libraries.",
    no_args_is_help=True,
    add_completion=is_script("lit_transformers"),
    pretty_exceptions_enable=False,
)

READING = ("config", "import", "init", "kinds", "schema")
"""The commands that only read, and import no plug-in that is not typed."""
Assignments = Annotated[
    list[str] | None, typer.Option("--set", help="Override a path of the run's config, e.g. model.dim=64. Repeatable.")
]
BatchTokens = Annotated[int, typer.Option(min=1, help="Symbols per batch. Fewer take less memory.")]
UsualBatchTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Symbols per batch. Fewer take less memory.", show_default="4096 on a GPU; 1024 on a CPU"),
]
InPrecision = Annotated[
    Literal["float32", "bfloat16", "int8"],
    typer.Option(help="Compute in this precision. int8 quantises the linear maps of layers; it needs AVX-512 VNNI."),
]
Draft = Annotated[Path | None, typer.Option(help="Draft symbols with the checkpoint.ckpt of a smaller run.")]
DraftSymbols = Annotated[int, typer.Option(min=1, help="Symbols to draft for a pass of the model.")]
LineWindow = Annotated[
    int | None, typer.Option(min=1, help="Lines to read before writing.", show_default="1000; 1 from a terminal")
]


@app.command()
def fit(
    run: Annotated[Path, typer.Argument(help="The run.yaml of a run, or your own.")],
    directory: Annotated[
        Path | None,
        typer.Option("--to", help="An empty folder, or the folder of the run.", show_default="the folder of RUN"),
    ] = None,
    changes: Assignments = None,
    callbacks: Callbacks = None,
    loggers: Loggers = None,
    allowed: AllowedModules = None,
) -> None:
    """Train the run that RUN describes, or resume it from its checkpoint. With a class_path, RUN may train any
    LightningModule.

    RUN may name classes of this library, torch and Lightning. Allow other modules with --allow-module.

    Example: python -m lit_transformers fit runs/3f2a9c0e11d2b470/run.yaml --to /tmp/again
    """
    from lit_transformers.cli.console import SteadyConsole

    with quick_imports():
        from lit_transformers.run_file import read_run
        from lit_transformers.runs.loggers import LoggerConfig
        from lit_transformers.runs.wandb_logging import WandbConfig
    from lit_transformers.cli.progress import shown
    from lit_transformers.config import ConfigError, parse_assignments
    from lit_transformers.machine.cores import limit_threads
    from lit_transformers.records.files import LOG
    from lit_transformers.runner import load_runner, runner_of
    from lit_transformers.training.loader_processes import set_loaders_apart
    from lit_transformers.training.ranks import is_first_rank
    from lit_transformers.training.stopping import ProcessKilled
    from lit_transformers.trust import remember
    from lit_transformers.wandb_target import wandb_target

    limit_threads()
    set_loaders_apart()
    changes = [*(changes or ()), *callback_assignments(callbacks or ())]
    values, chosen = parse_assignments(changes), chosen_loggers(loggers)
    remember(values)
    config = read_run(run).override(values)
    runner = load_runner(runner_of(config))
    wandb_config = WandbConfig.at(wandb_target(chosen.wandb))
    with shown(SteadyConsole(stderr=True)) as report:
        try:
            progress, logger_config = report if is_first_rank() else None, LoggerConfig(chosen.names)
            folder = directory or run.parent
            for stage in runner.earlier(config):
                record = runner.fit(stage, folder.parent / runner.run_key(stage), progress)
                if record["outcome"] != "finished":
                    raise ConfigError(f"its source {record['key']} {record['outcome']}: {record['reason']}", "start")
            record = runner.fit(config, folder, progress, wandb_config=wandb_config, logger_config=logger_config)
        except runner.interrupted as stop:
            print(stop, file=sys.stderr)
            raise SystemExit(143) from None
        except ProcessKilled as death:
            print(f"{death}; run again to resume", file=sys.stderr)
            raise SystemExit(1) from None
    if not is_first_rank():
        raise SystemExit(record["outcome"] != "finished")
    for name, value in record["metrics"].items():
        print(f"{name} {value:.6f}")
    if record["outcome"] != "finished":
        see = f"; see {(directory or run.parent) / LOG}" if record["outcome"] == "failed" else ""
        print(f"{record['outcome']}: {record['reason']}{see}", file=sys.stderr)
        raise SystemExit(1)


@app.command()
def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help="The checkpoint.ckpt of a run.")],
    changes: Assignments = None,
    allowed: AllowedModules = None,
) -> None:
    """Evaluate a trained model, with its own or another protocol.

    Example: python -m lit_transformers evaluate runs/KEY/checkpoint.ckpt --set 'task.evaluation={mixer.memory: 512}'
    """
    with quick_imports():
        from lit_transformers import runs
    from lit_transformers.config import parse_assignments
    from lit_transformers.machine.cores import limit_threads

    limit_threads()
    for name, value in runs.evaluate(checkpoint, parse_assignments(changes or [])).items():
        print(f"{name} {value:.6f}")


@app.command()
def generate(
    checkpoint: Annotated[Path, typer.Argument(help="The checkpoint.ckpt of a run.")],
    prompt: Annotated[str, typer.Option(help="First words of the text.")] = "",
    length: Annotated[int, typer.Option(min=1, help="Symbols to generate.")] = 256,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Sampling temperature; 0 takes the likeliest symbol.")
    ] = 0.8,
    top_k: Annotated[int, typer.Option(min=0, help="Sample among the K likeliest symbols; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Sample among the likeliest symbols of this total probability.")] = 1.0,
    beams: Annotated[int, typer.Option(min=1, help="Hypotheses of a beam search; 1: sample instead.")] = 1,
    memory: Annotated[
        int | None, typer.Option(min=0, help="Tokens of memory.", show_default="memory and segment")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of sampling.")] = 0,
    draft: Draft = None,
    draft_symbols: DraftSymbols = 4,
    precision: InPrecision = "float32",
    allowed: AllowedModules = None,
) -> None:
    """Continue a prompt; by a run of the task strings on prompts, write the answer to it.

    With --draft, a smaller run drafts symbols, and the model accepts or replaces several in one pass. Texts have the
    distribution that they have without it, and at temperature 0 they are the same.

    Example: python -m lit_transformers generate runs/KEY/checkpoint.ckpt --prompt "def "
    """
    from lit_transformers.machine.cores import limit_threads

    with quick_imports():
        from lit_transformers.decoding.sampling import SamplingConfig
        from lit_transformers.inference.write import TextWriter

    limit_threads()
    sampling = SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    writer = TextWriter(checkpoint, memory, draft, precision)
    for text in writer.write(prompt, length, sampling, beams, draft_symbols):
        sys.stdout.write(text)
        sys.stdout.flush()
    print()
    if draft is not None:
        print(writer.acceptance.message(), file=sys.stderr)


def write_lines(
    context: typer.Context,
    checkpoint: Annotated[Path, typer.Argument(help="The checkpoint.ckpt of a run of the task seq2seq.")],
    beams: Annotated[
        int | None,
        typer.Option(
            min=1, help="Hypotheses of a beam search; 1: greedy.", show_default="as in the evaluation of the run"
        ),
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Length penalty of a beam search: 0 prefers short lines, 0.6 is usual.",
            show_default="as in the evaluation of the run",
        ),
    ] = None,
    batch_tokens: BatchTokens = 4096,
    window: LineWindow = None,
    overlong: Annotated[
        Literal["cut", "refuse"],
        typer.Option(help="Lines longer than in training: cut them, or leave their output empty and exit with 1."),
    ] = "cut",
    source: Annotated[str | None, typer.Option("--from", help="Required language of the input.")] = None,
    target: Annotated[str | None, typer.Option("--to", help="Required language of the output.")] = None,
    draft: Draft = None,
    draft_symbols: DraftSymbols = 4,
    precision: InPrecision = "float32",
    allowed: AllowedModules = None,
) -> None:
    """Writes the output of the model for every line of standard input to standard output."""
    from lit_transformers.machine.cores import limit_threads

    with quick_imports():
        from lit_transformers.inference.translate import TranslationOptions, Translator

    limit_threads()
    purpose: Any = context.command.name  # it is the name of either command
    lines = (batch_tokens, window or usual_window(), overlong)
    options = TranslationOptions(beams, length_penalty, *lines, source, target, purpose, precision)
    options = options._replace(draft=draft, draft_symbols=draft_symbols)
    write_all(Translator(checkpoint, options))


def usual_window() -> int:
    """Returns how many lines are read before any is written: a person who types waits for none."""
    return 1 if sys.stdin.isatty() else 1000


@contextmanager
def lines_shown(noun: str, size: int | None) -> Iterator[ReportLines]:
    """Shows a progress bar of processed lines. Yields the function that receives the number and bytes of new lines.
    noun: the word for lines. size: the bytes of all lines; None if unknown."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    counted = TextColumn(f"{{task.fields[lines]:,}} {noun}")
    columns = (counted, BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, disable=not console.is_terminal) as bar:
        task, done = bar.add_task(noun, total=size, lines=0), 0

        def advance_bar(lines: int, size: int) -> None:
            nonlocal done
            done += lines
            bar.update(task, advance=size, lines=done)

        yield advance_bar


def write_all(writer: LineWriter) -> None:
    """Writes the output for every line of standard input, then a summary to standard error. Exits with status 1 if
    lines were refused."""
    from datamodules.core.reading import lines_in
    from lit_transformers.inference.lines import size_of

    with lines_shown("lines", size_of(sys.stdin.buffer)) as report:
        try:
            for text in writer.write(lines_in(sys.stdin.buffer, "standard input"), report):
                sys.stdout.buffer.write(f"{text}\n".encode())
                sys.stdout.buffer.flush()
        finally:
            for sentence in writer.messages():
                print(sentence, file=sys.stderr)
    raise SystemExit(1 if writer.counts.refused else 0)


TRANSLATE = """Translate standard input line by line, in order.

A summary on standard error counts the lines that were empty, cut or refused, and those with unknown symbols.

With --draft and --beams 1, a smaller run drafts symbols, and the model accepts or replaces several in one pass. Lines
are the same as without it. They are written one by one, so that it pays for few lines at a time.

Example: python -m lit_transformers translate runs/KEY/checkpoint.ckpt --from en --to fr < in.txt > out.txt
"""
SUMMARIZE = """Summarize standard input: one document per line, one summary per line, in order.

Join the lines of a document first. A summary on standard error counts the documents that were empty, cut or refused,
and those with unknown symbols. --draft works as in translate.

Example: python -m lit_transformers summarize runs/KEY/checkpoint.ckpt < documents.txt > summaries.txt
"""
app.command("translate", help=TRANSLATE)(write_lines)
app.command("summarize", help=SUMMARIZE)(write_lines)


@app.command()
def predict(
    checkpoint: Annotated[
        Path, typer.Argument(help="The checkpoint.ckpt of a run whose task makes predictions from texts.")
    ],
    lines: Annotated[
        Literal["text", "json"],
        typer.Option(
            help='Read lines as text (a tab separates two texts), or as JSON such as {"text": ...} or a list.'
        ),
    ] = "text",
    head: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Predict with the head of this source, for a run of several tasks."),
    ] = None,
    batch_tokens: UsualBatchTokens = None,
    window: LineWindow = None,
    overlong: Annotated[
        Literal["cut", "refuse"],
        typer.Option(help="Cut lines that are longer than in training, or refuse them: write null and exit with 1."),
    ] = "cut",
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Predict no answer if its score exceeds the score of the best span by more than this.",
            show_default="the threshold of the run",
        ),
    ] = None,
    passages: Annotated[
        Path | None,
        typer.Option(
            help="Search this file, which has a passage on each line, with a run of retrieval.", metavar="FILE"
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Write this many passages for each question.")] = 5,
    embed: Annotated[
        bool, typer.Option("--embed", help='Write the vector of each text, {"vector": [...]}, not its prediction.')
    ] = False,
    precision: InPrecision = "float32",
    allowed: AllowedModules = None,
) -> None:
    """Predict from every line of standard input, and write one line of JSON for each, in order.

    Classification reads a text and writes {"label": ..., "probabilities": {...}}, multi_label {"labels": [...],
    "probabilities": {...}}, regression {"value": ...}. A run on pairs of texts, or a masked_lm with data.relation,
    reads {"first": ..., "second": ...}. Probabilities are calibrated if the command calibrate has been run.

    Tagging reads a text or a JSON list of words, and writes {"words": [...], "tags": [...], "probabilities": [...],
    "entities": [...]}. question_answering reads {"question": ..., "context": ...}, a long context in windows, and
    writes {"answer": ..., "start": ..., "end": ..., "probability": ...} with places of characters in the context, or
    null for no answer. multiple_choice reads {"question": ..., "choices": [...]} and writes {"choice": ...,
    "probabilities": [...]}, with choices numbered from 0. Retrieval reads a question and writes {"passages": [{"line":
    ..., "score": ..., "passage": ...}]}. A masked_lm without data.relation reads a text with [MASK] in place of
    symbols, and writes {"hidden": [[{"text": ..., "probability": ...}]]} with five candidates for each.

    An empty line gives null. A summary on standard error counts empty, cut and refused lines, and unknown symbols.

    Example: python -m lit_transformers predict runs/KEY/checkpoint.ckpt < reviews.txt > labels.jsonl
    """
    from lit_transformers.machine.cores import limit_threads

    with quick_imports():
        from lit_transformers.inference.embed import embedder_of
        from lit_transformers.inference.lines import LineOptions
        from lit_transformers.inference.passages import passage_finder_of, passages_in
        from lit_transformers.inference.predict import predictor_of

    limit_threads()
    options = LineOptions(batch_tokens, window or usual_window(), overlong, precision)
    if embed:
        write_all(embedder_of(checkpoint, options, lines, head))
    elif passages is None:
        write_all(predictor_of(checkpoint, options, lines, threshold, head))
    else:
        write_all(passage_finder_of(checkpoint, [*passages_in(passages)], options, lines, top))


@app.command()
def encode(
    checkpoint: Annotated[
        Path, typer.Argument(help="The checkpoint.ckpt of a question_answering run with a deformer.")
    ],
    passages: Annotated[Path, typer.Argument(help="A file with one passage in each line.")],
    folder: Annotated[Path, typer.Option("--to", help="Write to this folder, or continue in it.", metavar="FOLDER")],
    precision: Annotated[
        Literal["float32", "bfloat16", "int8"],
        typer.Option(help="Write states in this precision. int8 has a scale for each channel of each window."),
    ] = "float32",
    batch_tokens: BatchTokens = 4096,
    allowed: AllowedModules = None,
) -> None:
    """Compute the lower states of passages once, so that answer computes only the upper layers.

    The lower layers of a deformer (model.apart) read a passage without its question. encode writes their states to
    FOLDER, and any number of answer processes can read them. If encode was killed, start it again: it continues. It
    also adds passages that were appended to the file. The states fit only the same weights, tokenizer and windows. The
    run needs data.source.question_width. At the end encode prints sizes.

    Example: python -m lit_transformers encode runs/KEY/checkpoint.ckpt passages.txt --to states --precision int8
    """
    from lit_transformers.machine.cores import limit_threads

    with quick_imports():
        from lit_transformers.inference.encode_passages import encode_passages
        from lit_transformers.inference.lines import size_of

    limit_threads()
    with passages.open("rb") as file:
        size = size_of(file)
    with lines_shown("passages", size) as report:
        manifest = encode_passages(checkpoint, passages, folder, precision, batch_tokens, report)
    for line in manifest.lines():
        print(line)


@app.command()
def answer(
    checkpoint: Annotated[Path, typer.Argument(help="The checkpoint.ckpt given to encode.")],
    passages: Annotated[
        Path, typer.Option("--passages", help="Read the states in this folder of encode.", metavar="FOLDER")
    ],
    retriever: Annotated[
        Path | None,
        typer.Option(
            help="Read only the most similar passages, by this checkpoint.ckpt of a retrieval run.",
            metavar="CHECKPOINT",
            show_default="read all",
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Read this many passages of the retriever for each question.")] = 5,
    lines: Annotated[
        Literal["text", "json"],
        typer.Option(help='Format of a line: a question, or JSON: {"question": ...}, optionally with "passage": LINE.'),
    ] = "text",
    batch_tokens: UsualBatchTokens = None,
    window: LineWindow = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Give no answer if its score exceeds the score of the best span by more than this.",
            show_default="the threshold of the run",
        ),
    ] = None,
    precision: InPrecision = "float32",
    allowed: AllowedModules = None,
) -> None:
    """Answer every question of standard input from encoded passages; write one JSON line for each, in order.

    An answer is {"answer": ..., "passage": LINE, "start": ..., "end": ..., "score": ..., "probability": ...}. LINE is
    the line of its passage in the file given to encode. Start and end are its characters in the passage. The score is
    the sum of the logits of its first and last token. The answer is the span with the largest score over all passages
    read, and its probability is its share among all their spans and no answer. Without an answer, answer, passage,
    start and end are null.

    Example: python -m lit_transformers answer runs/KEY/checkpoint.ckpt --passages states < questions.txt

    Example: python -m lit_transformers answer runs/KEY/checkpoint.ckpt --passages states
    --retriever runs/OTHER/checkpoint.ckpt --top 3 < questions.txt > answers.jsonl
    """
    from lit_transformers.machine.cores import limit_threads

    with quick_imports():
        from lit_transformers.inference.answer_passages import passage_answer_predictor_of
        from lit_transformers.inference.lines import LineOptions

    limit_threads()
    options = LineOptions(batch_tokens, window or usual_window(), precision=precision)
    write_all(passage_answer_predictor_of(checkpoint, passages, options, lines, retriever, top, threshold))


@app.command()
def serve(
    checkpoint: Annotated[Path, typer.Argument(help="The checkpoint.ckpt of a run that reads or writes texts.")],
    host: Annotated[str, typer.Option(help="Listen at this address; 0.0.0.0 for all networks.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Listen at this port; 0: any that is free.")] = 8000,
    key: Annotated[
        str | None,
        typer.Option(
            help="Require this key: Authorization: Bearer KEY. Other users of the machine cannot see the variable.",
            envvar="LIT_SERVING_KEY",
            show_envvar=True,
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Predict with the head of this source, for a run of several tasks."),
    ] = None,
    passages: Annotated[
        Path | None,
        typer.Option(help="Search this file of passages, or answer from this folder of encode.", metavar="PLACE"),
    ] = None,
    retriever: Annotated[
        Path | None,
        typer.Option(help="Find the passages to answer from by this checkpoint.ckpt.", metavar="CHECKPOINT"),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Find this many passages for each question.")] = 5,
    overlong: Annotated[
        Literal["cut", "refuse"], typer.Option(help="Cut texts that are longer than in training, or refuse them.")
    ] = "refuse",
    batch_tokens: UsualBatchTokens = None,
    precision: InPrecision = "float32",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Compute on this many threads.", show_default="one per core")
    ] = None,
    wait: Annotated[float, typer.Option(min=0.0, help="Milliseconds that a text waits for others.")] = 2.0,
    queue: Annotated[int, typer.Option(min=1, help="Texts that may wait. Further requests get status 429.")] = 256,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds until a request is given up: status 504.")] = 30.0,
    largest: Annotated[int, typer.Option(min=1, help="Kilobytes of a request at most. Status 413 beyond.")] = 1024,
    length: Annotated[int, typer.Option(min=1, help="Generate at most this many symbols for a request.")] = 1024,
    allowed: AllowedModules = None,
) -> None:
    """Serve a checkpoint by HTTP: classify, tag, answer, search, embed, fill, translate, generate, as its task can.

    Requests and answers are the lines of JSON of the command predict; generate sends server-sent events. Texts that
    wait are read together. Before it listens, the server checks that texts alone and together get the answers of the
    commands. /docs describes all addresses, /health says whether texts can be computed, and /metrics has measures for
    Prometheus. Ctrl-C stops the server after the requests that it has accepted.

    Example: python -m lit_transformers serve runs/KEY/checkpoint.ckpt --port 8000

    Example: curl http://127.0.0.1:8000/classify --json '{"text": "Well worth seeing."}'
    """
    from lit_transformers.config import ConfigError

    try:
        from lit_transformers.serving.app import Access
        from lit_transformers.serving.dispatcher import QueueLimits
        from lit_transformers.serving.messages import ServingOptions
        from lit_transformers.serving.server import ServerAddress
        from lit_transformers.serving.server import serve as serve_until_stopped
    except ModuleNotFoundError as missing:
        reason = f"needs {missing.name}, which is not installed; run: pip install 'lit-transformers[serve]'"
        raise ConfigError(reason, "serve") from None
    if key is not None and not (key.isascii() and key.isprintable() and key.strip() == key != ""):
        raise ConfigError("holds no characters, or others than a header can hold; choose ASCII letters", "--key")
    options = ServingOptions(checkpoint, head, passages, retriever, top, overlong, batch_tokens, precision, threads)
    access = Access(key, largest * 1024, most_lines=min(queue, Access().most_lines), most_symbols=length)
    serve_until_stopped(options, ServerAddress(host, port), QueueLimits(wait, queue, timeout=timeout), access)


@app.command()
def calibrate(
    checkpoint: Annotated[Path, typer.Argument(help="The checkpoint.ckpt of a classification or multi_label run.")],
    allowed: AllowedModules = None,
) -> None:
    """Calibrate the probabilities of predict by a temperature, and print the calibration error before and after.

    The temperature is fitted on a random half of the validation split, and measured on the other half. It is written to
    calibration.json next to the checkpoint, where predict reads it.

    Example: python -m lit_transformers calibrate runs/KEY/checkpoint.ckpt
    """
    from lit_transformers.machine.cores import limit_threads

    with quick_imports():
        from lit_transformers.inference import calibration

    limit_threads()
    for line in calibration.calibrate(checkpoint).lines():
        print(line)


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


@app.command("import")
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


Form = Literal["transformers", "packed", "safetensors", "onnx", "torch"]


@app.command("export")
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


@app.command("convert")
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


@app.command()
def kinds(
    path: Annotated[str | None, typer.Argument(help="A path of a run's config, such as data.generator.")] = None,
) -> None:
    """List the kinds of model, mixer, task, data and other parts, by their path in the config.

    Example: python -m lit_transformers kinds model.mixer
    """
    from lit_transformers.cli.plugin_option import without_plugins
    from lit_transformers.kinds import described
    from lit_transformers.runs import RunConfig

    if hint := without_plugins():
        print(hint, file=sys.stderr)
    for line in described(RunConfig, path):
        print(line)


app.command()(config)
app.command()(schema)


@app.command("check-plugin")
def check_plugin(
    plugin: Annotated[str, typer.Argument(help="The file or module of the plug-in.", metavar="FILE")],
) -> None:
    """Check every part of a plug-in as the parts of this library are checked: leaks, padding, segments, gradients,
    fields, FLOPs.

    Every kind of part has its checks; the line of a failed check says how to mend it. The checks use the defaults of a
    config, or the CASES of the plug-in. Exit status 1 if a check failed.

    Example: python -m lit_transformers check-plugin my_parts.py
    """
    from rich.console import Console

    with quick_imports():
        from lit_transformers.checks import contract
    from lit_transformers.cli.contract_view import contract_view

    parts = contract.check_plugin(plugin)
    Console().print(contract_view(parts))
    raise SystemExit(int(any(not check.passed for part in parts for check in part.checks)))


@app.command()
def init(
    directory: Annotated[
        Path, typer.Argument(help="The folder of the new files, which must not exist in it yet.")
    ] = Path(),
    classify: Annotated[str | None, typer.Option(help="Predict the classes of texts: a table.", metavar="FILE")] = None,
    score: Annotated[str | None, typer.Option(help="Predict numbers for texts: a table.", metavar="FILE")] = None,
    tag: Annotated[str | None, typer.Option(help="Predict the tag of each word: a CoNLL file.", metavar="FILE")] = None,
    answer: Annotated[
        str | None,
        typer.Option(help="Predict answers in passages: a table, JSON lines or SQuAD's JSON.", metavar="FILE"),
    ] = None,
    retrieve: Annotated[
        str | None,
        typer.Option(help="Find the passage that answers a question: a table or SQuAD's JSON.", metavar="FILE"),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Start from a folder in the format of transformers, or a model on the Hugging Face hub.",
            metavar="PATH|NAME",
            show_default="a small untrained network",
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Read texts from this column.", show_default="by its name")] = None,
    second: Annotated[str | None, typer.Option(help="Read the second texts of pairs from this column.")] = None,
    label: Annotated[str | None, typer.Option(help="Read labels from this column.", show_default="by its name")] = None,
) -> None:
    """Write a small project: a mixer, a data set, a study, a test and a README. With one of --classify, --score, --tag,
    --answer and --retrieve, write the run.yaml that fine-tunes a network on your own data.

    A table is CSV, TSV, JSON lines, JSON or parquet with column names; for --answer the columns question, context and
    answer; for --retrieve a question (--text) and the passage that answers it (--second). A tenth of a file is held out
    for validation and a tenth for the test; a folder is split by its file names (train, validation, test). The first
    run takes a few minutes: init prints its time, and the command of a longer run.

    Example: python -m lit_transformers init my_project

    Example: python -m lit_transformers init reviews --classify reviews.csv --weights models/bert
    """
    purposes: dict[Purpose, str | None] = {"classify": classify, "score": score, "tag": tag}
    purposes |= {"answer": answer, "retrieve": retrieve}
    given = {purpose: data for purpose, data in purposes.items() if data is not None}
    if len(given) > 1:
        raise typer.BadParameter(f"choose one of {', '.join(f'--{purpose}' for purpose in given)}")
    if not given:
        from lit_transformers.template import write_project

        for path in write_project(directory):
            print(path)
        return
    with quick_imports():
        from lit_transformers.template.fine_tuning import Columns, write_fine_tuning
    for purpose, data in given.items():
        for line in write_fine_tuning(purpose, data, directory, weights, Columns(text, second, label)):
            print(line)
    print(f"next: {program_name('lit_transformers')} fit {directory / 'run.yaml'}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    return run_command(app, program_name("lit_transformers"), arguments, load=True, reading=READING)


if __name__ == "__main__":
    sys.exit(main())
