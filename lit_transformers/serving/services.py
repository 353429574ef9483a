"""The services of a trained network in a server: it answers lines as the commands predict, answer and translate do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from datamodules import DataError
from lit_transformers.config import ConfigError, shortened
from lit_transformers.inference.answer_passages import passage_answer_predictor_of
from lit_transformers.inference.embed import embedder_of
from lit_transformers.inference.lines import Counts, LineOptions, LineWriter, SourceLine
from lit_transformers.inference.passages import passage_finder_of, passages_in
from lit_transformers.inference.predict import predictor_of
from lit_transformers.inference.predict_symbols import HIDDEN
from lit_transformers.inference.predictor import Predictor, load_for_lines, require_writable
from lit_transformers.inference.translate import LINE_ENDS, TranslationOptions, Translator
from lit_transformers.inference.write import TextWriter
from lit_transformers.runs.evaluate import shared_networks
from lit_transformers.serving.messages import BAD, FAULT, LineAnswer, ServingOptions
from lit_transformers.tasks.causal_lm import CausalLM
from lit_transformers.tasks.question_answering import QuestionAnswering
from lit_transformers.tasks.retrieval import Retrieval
from lit_transformers.tasks.seq2seq import Seq2Seq
from lit_transformers.tasks.strings import Strings

__all__ = ["LineService", "Services", "services_of"]

SENTENCES = (
    "Yes.",
    "The river rises in the north of the country.",
    "It was not a good film, but nobody who left before the end will ever know why.",
    "She asked where the letter had come from, and he said that it had been found under the floor of the old "
    "house, between two boards, together with a key that fitted no door.",
    "No one answered",
    "In 1905 three papers changed what was known of light, of atoms and of time.",
)
"""The texts by which a server is checked before it starts, of different lengths."""


class LineService:
    """Answers lines by a writer of lines. A line that is bad, or that the network fails on, spoils no other."""

    def __init__(self, writer: LineWriter) -> None:
        self.writer = writer
        self.is_json = isinstance(writer, Predictor)

    def answers(self, lines: Sequence[bytes]) -> Iterator[LineAnswer]:
        """Yields the answer to each line, short lines first."""
        read = list[tuple[int, SourceLine]]()
        for place, line in enumerate(lines):
            own = self.read(place, line)
            if isinstance(own, LineAnswer):
                yield own
            elif own.rows:
                read.append((place, own))
            else:
                yield LineAnswer(place, 200, self.body(self.writer.empty))
        for group in self.groups(read):
            yield from self.computed(group)

    def read(self, place: int, line: bytes) -> SourceLine | LineAnswer:
        """Returns a line with its rows, or the answer that says why it has none."""
        self.writer.counts = Counts()
        try:
            read = self.writer.read(1, line if self.is_json else text_of(line))
        except (ConfigError, DataError) as error:
            return LineAnswer(place, BAD, detail(str(error).removeprefix("line 1: ")))
        except Exception as error:
            return failed(place, error)
        if self.writer.counts.refused:
            reason = f"has {self.writer.counts.symbols} symbols, and the longest text of training {self.writer.longest}"
            return LineAnswer(place, BAD, detail(f"{reason}; shorten it, or serve with --overlong cut"))
        return read

    def groups(self, read: Sequence[tuple[int, SourceLine]]) -> Iterator[list[tuple[int, SourceLine]]]:
        """Yields lines of similar length, at most ``batch_tokens`` symbols together, the shortest first."""
        group, size = list[tuple[int, SourceLine]](), 0
        for place, line in sorted(read, key=lambda pair: symbols_of(pair[1])):
            if group and size + symbols_of(line) > self.writer.batch_tokens:
                yield group
                group, size = [], 0
            group.append((place, line))
            size += symbols_of(line)
        if group:
            yield group

    def computed(self, group: Sequence[tuple[int, SourceLine]]) -> Iterator[LineAnswer]:
        """Yields the answers to lines. If the network fails on them together, each is read alone."""
        try:
            outputs = self.writer.of_window([line for _, line in group], None)
        except Exception as error:
            if len(group) > 1:
                for one in group:
                    yield from self.computed([one])
            else:
                yield failed(group[0][0], error)
            return
        for (place, _), output in zip(group, outputs, strict=True):
            yield LineAnswer(place, 200, self.body(output))

    def body(self, output: str) -> str:
        """Returns an output as JSON."""
        return output if self.is_json else json.dumps({"text": output}, ensure_ascii=False)

    def offline(self, lines: Sequence[str]) -> Iterator[str]:
        """Yields the output of the command for lines, as JSON."""
        read = (line.encode() if self.is_json else text_of(line.encode()) for line in lines)
        return (self.body(output) for output in self.writer.write(read))

    def examples(self) -> list[str]:
        """Returns lines that the service answers, as JSON, of different lengths."""
        return [self.example(number) for number in range(len(SENTENCES))]

    def example(self, number: int) -> str:
        text, other = SENTENCES[number], SENTENCES[(number + 3) % len(SENTENCES)]
        if not isinstance(self.writer, Predictor):
            return json.dumps({"text": text})
        names, ability = self.writer.line_texts.names, self.writer.ability
        if ability == "choose":
            return json.dumps({"question": text, "choices": [other, *SENTENCES[:2]]})
        texts = (f"{text} {HIDDEN}" if ability == "fill" else text, other)
        return json.dumps(dict(zip(names, texts, strict=False)))


class Services(NamedTuple):
    """The services of a checkpoint: of lines, by their abilities, and a writer of texts; None if it writes none."""

    lines: Mapping[str, LineService]
    writer: TextWriter | None = None


def services_of(options: ServingOptions) -> Services:
    """Returns the services of the checkpoint of a server. They share a network. Raises ConfigError if there is no
    service of texts, or an option does not fit the checkpoint."""
    with shared_networks():
        return services_of_one(options)


def services_of_one(options: ServingOptions) -> Services:
    """Returns the services as ``services_of`` does, with a network for each ability unless they are shared."""
    task, _, _ = load_for_lines(options.checkpoint)
    lines = LineOptions(options.batch_tokens, overlong=options.overlong, precision=options.precision)
    if options.passages is not None and not isinstance(task, QuestionAnswering | Retrieval):
        raise ConfigError(f"a run of the task {task.config.kind} reads no passages; omit it", "--passages")
    if isinstance(task, CausalLM | Strings):
        return Services({}, TextWriter(options.checkpoint, precision=options.precision))
    writers = list[LineWriter]()
    if isinstance(task, Seq2Seq):
        wanted = TranslationOptions(overlong=options.overlong, precision=options.precision)
        if options.batch_tokens is not None:
            wanted = wanted._replace(batch_tokens=options.batch_tokens)
        writers.append(Translator(options.checkpoint, wanted))
    elif isinstance(task, Retrieval):
        if options.passages is not None:
            passages = [*passages_in(options.passages)]
            writers.append(passage_finder_of(options.checkpoint, passages, lines, "json", options.top))
    elif isinstance(task, QuestionAnswering) and options.passages is not None:
        more = (options.retriever, options.top)
        writers.append(passage_answer_predictor_of(options.checkpoint, options.passages, lines, "json", *more))
    else:
        writers.append(predictor_of(options.checkpoint, lines, "json", head=options.head))
    if not isinstance(task, Seq2Seq):
        with suppress(ConfigError):  # it may read no single texts
            writers.append(embedder_of(options.checkpoint, lines, "json", options.head))
    if not writers:
        raise ConfigError("finds passages, and none are given; name a file with --passages", str(options.checkpoint))
    return Services({writer.ability: LineService(writer) for writer in writers})


def text_of(line: bytes) -> bytes:
    """Returns the text of a line of JSON, as one line. Raises ConfigError if it has none."""
    try:
        plain: Any = json.loads(line)
    except (ValueError, RecursionError):
        plain = None
    text = plain.get("text") if isinstance(plain, Mapping) else plain
    if not isinstance(text, str):
        raise ConfigError('has another form; give {"text": "..."}')
    require_writable([text])
    return LINE_ENDS.sub(" ", text).encode()


def symbols_of(line: SourceLine) -> int:
    """Returns the symbols of all rows of a line."""
    return sum(map(len, line.rows))


def failed(place: int, error: Exception) -> LineAnswer:
    """Returns the answer to a line that the network failed on."""
    return LineAnswer(place, FAULT, detail(f"the network failed on this text: {error}"))


def detail(reason: str) -> str:
    """Returns a reason, in one line, as the JSON of an error."""
    return json.dumps({"detail": shortened(reason)})
