"""``python -m lit_transformers generate | translate | predict | encode | answer | serve ...``: use of a trained run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lit_transformers.cli.allow_option import AllowedModules
from lit_transformers.startup.quick_imports import quick_imports

if TYPE_CHECKING:
    from lit_transformers.inference.lines import LineWriter, ReportLines

__all__ = ["answer", "encode", "generate", "predict", "serve", "summarize", "translate"]

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
WritesTexts = Annotated[Path, typer.Argument(help="The checkpoint.ckpt of a run of the task seq2seq.")]
Beams = Annotated[
    int | None,
    typer.Option(min=1, help="Hypotheses of a beam search; 1: greedy.", show_default="as in the evaluation of the run"),
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        help="Length penalty of a beam search: 0 prefers short lines, 0.6 is usual.",
        show_default="as in the evaluation of the run",
    ),
]
LongLines = Annotated[
    Literal["cut", "refuse"],
    typer.Option(help="Lines longer than in training: cut them, or leave their output empty and exit with 1."),
]
From = Annotated[str | None, typer.Option("--from", help="Required language of the input.")]
To = Annotated[str | None, typer.Option("--to", help="Required language of the output.")]


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


def translate(
    checkpoint: WritesTexts,
    beams: Beams = None,
    length_penalty: LengthPenalty = None,
    batch_tokens: BatchTokens = 4096,
    window: LineWindow = None,
    overlong: LongLines = "cut",
    source: From = None,
    target: To = None,
    draft: Draft = None,
    draft_symbols: DraftSymbols = 4,
    precision: InPrecision = "float32",
    allowed: AllowedModules = None,
) -> None:
    """Translate standard input line by line, in order.

    A summary on standard error counts the lines that were empty, cut or refused, and those with unknown symbols.

    With --draft and --beams 1, a smaller run drafts symbols, and the model accepts or replaces several in one pass.
    Lines are the same as without it. They are written one by one, so that it pays for few lines at a time.

    Example: python -m lit_transformers translate runs/KEY/checkpoint.ckpt --from en --to fr < in.txt > out.txt
    """
    search, lines = (beams, length_penalty), (batch_tokens, window or usual_window(), overlong)
    write_lines(checkpoint, *search, *lines, source, target, "translate", precision, draft, draft_symbols)


def summarize(
    checkpoint: WritesTexts,
    beams: Beams = None,
    length_penalty: LengthPenalty = None,
    batch_tokens: BatchTokens = 4096,
    window: LineWindow = None,
    overlong: LongLines = "cut",
    source: From = None,
    target: To = None,
    draft: Draft = None,
    draft_symbols: DraftSymbols = 4,
    precision: InPrecision = "float32",
    allowed: AllowedModules = None,
) -> None:
    """Summarize standard input: one document per line, one summary per line, in order.

    Join the lines of a document first. A summary on standard error counts the documents that were empty, cut or
    refused, and those with unknown symbols. --draft works as in translate.

    Example: python -m lit_transformers summarize runs/KEY/checkpoint.ckpt < documents.txt > summaries.txt
    """
    search, lines = (beams, length_penalty), (batch_tokens, window or usual_window(), overlong)
    write_lines(checkpoint, *search, *lines, source, target, "summarize", precision, draft, draft_symbols)


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


def write_lines(checkpoint: Path, *fields: Any) -> None:
    """Writes the output of the model for every line of standard input to standard output. fields: those of
    TranslationOptions."""
    from lit_transformers.machine.cores import limit_threads

    with quick_imports():
        from lit_transformers.inference.translate import TranslationOptions, Translator

    limit_threads()
    write_all(Translator(checkpoint, TranslationOptions(*fields)))


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
