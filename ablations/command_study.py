"""Writes the study of a command from the line that starts it: the words that are parameters, the further parameters in
its ``--help`` and, if it may be run once, the numbers that it prints and their format."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lit_transformers.config import ConfigError, Plain, parse_assignments

__all__ = ["study_of_command"]

HELP_SECONDS = 60
SEEDS = ("seed", "random_seed", "random_state", "manual_seed", "rng_seed")
STEPS = ("max_iters", "max_steps", "num_steps", "train_steps", "steps", "iterations", "max_iter")
MAXIMIZED = re.compile(r"acc|f1|bleu|rouge|score|reward|auc|precision|recall|mrr|ndcg|(^|_)map($|_)", re.IGNORECASE)
MEASURED = (re.compile(r"^(val|eval|test|dev)", re.IGNORECASE), re.compile(r"loss|acc|error|ppl|f1|bpb", re.IGNORECASE))
"""Patterns of the names of metrics: of the split that is measured, and of the score."""
OPTION = re.compile(r"^\s{1,8}(?:-\w(?: [A-Z]\w*)?, )?(?P<flag>--[A-Za-z][\w-]*)(?P<value>[ =]\S+)?(?P<rest>.*)$")
DEFAULT = re.compile(r"\(?default(?:s to|:|=| is)?\s*(?P<default>[^\s),]+)", re.IGNORECASE)
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
PAIR = re.compile(rf"(?P<name>[A-Za-z][A-Za-z_/ ]*[A-Za-z_]|[A-Za-z])(?P<between>\s*[:=]\s*|\s+)(?P<number>{NUMBER})\b")
ASSIGNMENT = re.compile(r"^(?P<flag>[A-Za-z_][\w.]*)=(?P<value>.+)$")


class FlagHelp(NamedTuple):
    """An option as the help of a program describes it. default: empty where that is not stated."""

    flag: str
    default: str
    text: str


@dataclass
class ParsedCommand:
    """A command with placeholders in place of values. words: its words with placeholders; params: the values."""

    words: list[str] = field(default_factory=list)
    params: dict[str, Plain] = field(default_factory=dict)
    steps: int | None = None
    has_seed: bool = False
    flags: set[str] = field(default_factory=set)

    def take(self, flag: str, text: str) -> str:
        """Takes the value of an option and returns the placeholder that stands for it."""
        name = re.sub(r"\W", "_", flag.lstrip("-"))
        self.flags.add(flag)
        if name.lower() in SEEDS:
            self.has_seed = True
            return "{seed}"
        value = parse_assignments([f"value={text}"])["value"]
        if name.lower() in STEPS and isinstance(value, int) and not isinstance(value, bool) and value > 0:
            self.steps = value
            return "{steps}"
        name = f"{name}_value" if name in ("seed", "steps", "split", "folder", "source", "python") else name
        self.params[name] = value
        return f"{{{name}}}"


class PrintedNumbers(NamedTuple):
    """How a program prints its numbers: the text of a config, and the name of the one that looks like its metric."""

    values: str
    metric: str
    names: list[str]


def study_of_command(line: str, *, run: bool = False) -> str:
    """Returns the text of a study of a command. run: whether to run it once, in a copy of the working folder, to see
    which numbers it prints. Raises ConfigError for a command without an option for its seed, or that fails."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise ConfigError(f"cannot be split into words: {error}", "--command") from None
    if not words:
        raise ConfigError('is empty; write it as in a shell: --command "python train.py --seed 0"', "--command")
    helped = [*_flags_of(words)]
    parsed = parse_words(words)
    if not parsed.has_seed:
        seed = next((one.flag for one in helped if one.flag.strip("-").replace("-", "_") in SEEDS), None)
        if seed is None:
            reason = "names no seed, and neither does its --help; add the option that sets it, such as --seed 0"
            raise ConfigError(reason, "--command")
        parsed.words += [seed, "{seed}"]
        parsed.flags.add(seed)
    printed = _tried(parsed) if run else PrintedNumbers("JsonLinesConfig()", "val_loss", [])
    return _text(parsed, [one for one in helped if one.flag not in parsed.flags], printed, tried=run)


def parse_words(words: Sequence[str]) -> ParsedCommand:
    """Returns a command with placeholders in place of the values of its options: --lr 0.1, --lr=0.1 and lr=0.1."""
    parsed, pending = ParsedCommand(), [*words]
    while pending:
        word = pending.pop(0)
        flag, equals, value = word.partition("=")
        assignment = ASSIGNMENT.match(word)
        if word in ("-m", "-c") and len(parsed.words) == 1 and pending:  # of an interpreter
            parsed.words += [word, pending.pop(0)]
        elif word.startswith("--") and equals:
            parsed.words.append(f"{flag}={parsed.take(flag, value)}")
        elif re.match(r"--?[A-Za-z]", word) and pending and not re.match(r"--?[A-Za-z]", pending[0]):
            parsed.words += [word, parsed.take(word, pending.pop(0))]
        elif assignment and parsed.words:  # as Hydra has it
            parsed.words.append(f"{assignment['flag']}={parsed.take(assignment['flag'], assignment['value'])}")
        else:
            parsed.words.append(word)
    return parsed


def _flags_of(words: Sequence[str]) -> Iterator[FlagHelp]:
    """Yields the options that the help of a program describes; none where it has no help."""
    end = next((number for number, word in enumerate(words) if word.startswith("-") or "=" in word), len(words))
    program = words[: max(1, min(end, 2))]
    try:
        ended = subprocess.run(
            [*program, "--help"], capture_output=True, text=True, timeout=HELP_SECONDS, stdin=subprocess.DEVNULL,
            errors="replace",
        )  # fmt: skip
    except OSError as error:
        raise ConfigError(f"{program[0]} cannot be started: {error.strerror}", "--command") from None
    except subprocess.TimeoutExpired:
        return
    lines = ended.stdout.splitlines()
    for number, line in enumerate(lines):
        if (match := OPTION.match(line)) and match["flag"] != "--help":
            more = []
            for following in lines[number + 1 :]:  # a description that stands below its option
                if OPTION.match(following) or not following.startswith(" " * 9):
                    break
                more.append(following.strip())
            text = " ".join([match["rest"].strip(), *more]).strip()
            default = DEFAULT.search(text)
            yield FlagHelp(match["flag"], default["default"] if default else "", text)


def _tried(parsed: ParsedCommand) -> PrintedNumbers:
    """Runs a command once and returns how it prints its numbers. Raises ConfigError where it fails, or prints none."""
    from lit_transformers.command_runs import CommandRunConfig
    from lit_transformers.command_runs.attempt import attempt, require_success
    from lit_transformers.command_runs.config import CommandTrainingConfig
    from lit_transformers.records.files import COMMAND_OUTPUT

    config = CommandRunConfig(
        command=tuple(parsed.words),
        params=parsed.params,
        metrics={"loss": "minimize"},
        training=CommandTrainingConfig(steps=parsed.steps),
    )
    with tempfile.TemporaryDirectory(prefix="lit-command-") as folder:
        end, numbers = attempt(config, Path(folder), lambda: False, lambda points: False)
        try:
            require_success(end, numbers, Path(folder))
        except RuntimeError as error:
            raise ConfigError(f"the command failed: {str(error).splitlines()[0]}", "--try") from None
        output = (Path(folder) / COMMAND_OUTPUT).read_text(encoding="utf-8", errors="replace")
    return printed_numbers(output.replace("\r", "\n").splitlines())


def printed_numbers(lines: Sequence[str]) -> PrintedNumbers:
    """Returns how lines of output hold numbers: as JSON objects, or in the form of the last line with a number that is
    called like a metric. Raises ConfigError where none does."""
    objects = [entries for line in lines if isinstance(entries := _json(line), dict)]
    names = [*dict.fromkeys(name for entries in objects for name, value in entries.items() if isinstance(value, float))]
    if names:
        return PrintedNumbers("JsonLinesConfig()", _likeliest(names), names)
    best_first = sorted(enumerate(lines), key=lambda numbered: (_metric_rank(numbered[1]), numbered[0]), reverse=True)
    for _, line in best_first:
        pairs = [*PAIR.finditer(line)]
        if pairs:
            groups = [_group_name(pair["name"]) for pair in pairs]
            if len({*groups}) == len(groups):
                pattern = _pattern(line, pairs, groups)
                measured = [name for name in groups if name != "step"] or groups
                text = f"PatternConfig(patterns=(r{json.dumps(pattern, ensure_ascii=False)},))".replace("\\\\", "\\")
                return PrintedNumbers(text, _likeliest(measured), measured)
    raise ConfigError("no number stands after a name in its output; omit --try, and state values and metrics", "--try")


def _json(line: str) -> Plain:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _group_name(name: str) -> str:
    group = re.sub(r"\W+", "_", name.strip())
    return "step" if group.lower() in ("step", "iter", "iteration", "steps") else group


def _pattern(line: str, pairs: Sequence[re.Match[str]], groups: Sequence[str]) -> str:
    """Returns a regular expression for lines such as this one, from its first pair to its last."""
    parts, position = [], pairs[0].start()
    for pair, group in zip(pairs, groups, strict=True):
        parts.append(re.escape(line[position : pair.start("number")]).replace(r"\ ", " "))
        parts.append(f"(?P<{group}>[^ ,;]+)")
        position = pair.end("number")
    return re.sub(r" {2,}", " +", "".join(parts))


def _metric_rank(line: str) -> int:
    return max((_rank(_group_name(pair["name"])) for pair in PAIR.finditer(line)), default=-1)


def _rank(name: str) -> int:
    return 2 * bool(MEASURED[0].search(name)) + bool(MEASURED[1].search(name))


def _likeliest(names: Sequence[str]) -> str:
    return max(names, key=_rank)


def _text(parsed: ParsedCommand, further: Sequence[FlagHelp], printed: PrintedNumbers, *, tried: bool) -> str:
    """Returns the study's file."""
    goal = "maximize" if MAXIMIZED.search(printed.metric) else "minimize"
    reader = printed.values.partition("(")[0]
    note = (
        f"# Numbers that a run printed: {', '.join(printed.names)}. Check the goal: minimize or maximize."
        if tried
        else "# The name of the number that decides, as the command prints it: --try runs the command once to see."
    )
    factors = [*_factors(parsed.params)]
    first = factors[0] if factors else '# "name": {"a": {}, "b": {"params.name": "b"}},'
    others = [f"        # {line}" for line in factors[1:]]
    options = [f"    # {one.flag}{f' (default {one.default})' if one.default else ''}: {one.text}" for one in further]
    lines = [
        '"""One sentence on what this study asks."""',
        "",
        "from ablations.ablation import Ablation, Metric",
        "from lit_transformers.command_runs import CommandRunConfig",
        f"from lit_transformers.command_runs.values import {reader}",
        "",
        "BASELINE = CommandRunConfig(",
        "    # The words of the command. Each placeholder is one word, whatever its value holds; no shell reads it.",
        f"    command={_literal(_line(parsed.words))},",
        f"    params={_literal(parsed.params)},",
        f"    {note}",
        f"    metrics={{{_literal(printed.metric)}: {_literal(goal)}}},",
        "    # How numbers are read: JsonLinesConfig(), PatternConfig(patterns=...), CsvConfig(file=...) or",
        "    # JsonFileConfig(file=...), of lit_transformers.command_runs.values.",
        f"    values={printed.values},",
        "    # Each run works in a copy of this folder, whose content is part of its key. Leave out what is large.",
        '    folder={"path": ".", "ignore": []},',
        *([f"    training={_literal({'steps': parsed.steps})},"] if parsed.steps is not None else []),
        '    # What a stopped run begins with: "anew", or its old "folder", by the placeholder {resume_from}.',
        '    resume="anew",',
        *(["    # Further options of the command, by its --help:"] if options else []),
        *(line[:118].rstrip(" :") for line in options),
        ")",
        "",
        "ABLATION = Ablation(",
        '    question="Does another value help?",',
        "    baseline=BASELINE,",
        "    # A factor has levels, a level overrides parameters. The first level is the baseline's own: {}.",
        "    factors={",
        f"        {first}",
        *others,
        "    },",
        '    design="one_factor",',
        "    seeds=3,",
        f"    metric=Metric({_literal(printed.metric)}),",
        ")",
        "",
    ]
    return "\n".join(lines)


def _line(words: Sequence[str]) -> str | list[str]:
    """Returns words as a line with the placeholders as they are; the words themselves where quotes would hide them."""
    line = " ".join(word if re.fullmatch(r"[\w{}./=:,@%+-]+", word) else shlex.quote(word) for word in words)
    return line if shlex.split(line) == [*words] else [*words]


def _factors(params: Mapping[str, Plain]) -> Iterator[str]:
    """Yields a proposed factor for each parameter that is a number."""
    for name, value in params.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and value:
            other = value * 2 if isinstance(value, int) else float(f"{value / 3:.1g}")
            levels = {str(value): {}, str(other): {f"params.{name}": other}}
            yield f"{_literal(name)}: {_literal(levels)},"


def _literal(value: Plain) -> str:
    """Returns plain data as Python writes them, with double quotes."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
