"""Scores of texts against references, by the packages that define the scores and with fixed settings, and of classes.

Used by tasks, which score their outputs, and by reports, which read outputs from disk; so nothing here needs torch.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from lit_transformers.config import ConfigError

__all__ = [
    "ENTITY_COLUMNS",
    "ENTITY_SCORES",
    "ROUGES",
    "UNSPACED",
    "ScoreWords",
    "WordTokenizer",
    "bleu_tokenizer",
    "class_columns",
    "class_counts",
    "entity_counts",
    "entity_ratio",
    "entity_score",
    "exact_sets",
    "macro_f1",
    "matthews",
    "metric_of",
    "micro_f1",
    "moments",
    "pearson",
    "rouge_of_each",
    "rouge_signature",
    "rouge_tokenizer",
    "script_of",
    "set_counts",
    "spearman",
    "spearman_values",
    "streams",
]

ROUGES = ("rouge1", "rouge2", "rougeL")
WordTokenizer = Literal["13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "flores101", "flores200", "none"]
"""The names of sacreBLEU's tokenizers: 13a of mteval, intl for words between spaces and punctuation of any script, char
for every character, zh for Chinese characters and 13a between them; two need MeCab, and two SentencePiece."""

PACKAGES = {
    "ja-mecab": "sacrebleu[ja]",
    "ko-mecab": "sacrebleu[ko]",
    "flores101": "sentencepiece",
    "flores200": "sentencepiece",
}
"""The package to install for a tokenizer."""

TARGETS: dict[str, WordTokenizer] = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
"""The tokenizer that sacreBLEU chooses for a target language; 13a for all others."""

LONG_CODES = {"zho": "zh", "chi": "zh", "cmn": "zh", "jpn": "ja", "kor": "ko"}
"""Codes of three letters, and those of two that sacreBLEU knows."""

SCRIPTS = {
    "Hans": ("zh",),
    "Jpan": ("ja",),
    "Hang": ("ko",),
    "Thai": ("th",),
    "Laoo": ("lo",),
    "Khmr": ("km",),
    "Mymr": ("my",),
    "Tibt": ("bo", "dz"),
    "Cyrl": ("ru", "uk", "be", "bg", "mk", "kk", "ky", "tg", "mn", "tt", "ba", "cv"),
    "Grek": ("el",),
    "Arab": ("ar", "fa", "ur", "ps", "ug", "sd"),
    "Hebr": ("he", "iw", "yi"),
    "Deva": ("hi", "mr", "ne", "sa"),
    "Beng": ("bn", "as"),
    "Guru": ("pa",),
    "Gujr": ("gu",),
    "Orya": ("or",),
    "Taml": ("ta",),
    "Telu": ("te",),
    "Knda": ("kn",),
    "Mlym": ("ml",),
    "Sinh": ("si",),
    "Ethi": ("am", "ti"),
    "Armn": ("hy",),
    "Geor": ("ka",),
}
"""The scripts (ISO 15924) of languages (ISO 639) that are not written in Latin letters."""

UNSPACED = frozenset({"Hans", "Hant", "Jpan", "Thai", "Laoo", "Khmr", "Mymr", "Tibt"})
"""The scripts that have no spaces between words."""


class ScoreWords(NamedTuple):
    """The tokenizers by which BLEU and ROUGE know words; None for that of rouge-score."""

    bleu: WordTokenizer = "13a"
    rouge: WordTokenizer | None = None


def script_of(language: str | None) -> str | None:
    """Returns the script of a language by its code, such as ``ru``, ``zh-CN`` or ``rus_Cyrl``: as the code says, or the
    one that the language is written in. None where that is Latin, or not known."""
    first, *others = (language or "").replace("_", "-").split("-")
    named = next((part.title() for part in others if len(part) == 4), None)
    if named is not None:
        return None if named == "Latn" else named
    code = LONG_CODES.get(first.lower(), first.lower())
    return next((script for script, languages in SCRIPTS.items() if code in languages), None)


def bleu_tokenizer(language: str | None) -> WordTokenizer:
    """Returns the tokenizer that sacreBLEU chooses for BLEU of texts in a language. Region and script are ignored."""
    code = (language or "").replace("_", "-").partition("-")[0].lower()
    return TARGETS.get(LONG_CODES.get(code, code), "13a")


def rouge_tokenizer(language: str | None) -> WordTokenizer | None:
    """Returns the tokenizer for ROUGE of texts in a language; None for that of rouge-score, which knows Latin letters
    and digits alone."""
    match script_of(language):
        case None:
            return None
        case "Hans" | "Hant":
            return "zh"
        case script:
            return "char" if script in UNSPACED else "intl"


def metric_of(name: str, tokenizer: WordTokenizer = "13a") -> Any:
    """Returns sacreBLEU's ``bleu`` or ``chrf`` with its defaults, BLEU cased and with this tokenizer.

    Raises ConfigError where a package is missing that the tokenizer needs.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    if name != "bleu":
        return CHRF()
    try:
        return BLEU(force=True, tokenize=tokenizer)
    except Exception as error:  # packages and files that are missing, each with a separate error
        if tokenizer not in PACKAGES:
            raise
        reason = f'the tokenizer {tokenizer} of BLEU cannot be had; pip install "{PACKAGES[tokenizer]}"'
        raise ConfigError(f"{reason}, or set another one", "task.bleu_tokenizer") from error


def class_counts(labels: npt.ArrayLike, predicted: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Returns counts (examples, 3 c + 1) of examples with one class each, for c classes up to the highest that is a
    label or predicted: for each class whether it is predicted and right, predicted, and the label; then 1.
    """
    true, guessed = np.asarray(labels, np.int64), np.asarray(predicted, np.int64)
    classes = np.arange(max(true.max(initial=-1), guessed.max(initial=-1)) + 1)
    return _counts(true[:, None] == classes, guessed[:, None] == classes)


def class_columns(classes: int) -> list[str]:
    """Returns the names of the columns of classes. A column is 1 if the example has the class, plus 2 if the class is
    predicted."""
    return [f"class_{number}" for number in range(classes)]


def set_counts(codes: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Returns the counts of ``class_counts`` for sets of classes, given the columns of ``class_columns`` (examples,
    classes)."""
    numbers = np.asarray(codes, np.int64)
    return _counts(numbers % 2 == 1, numbers >= 2)


def exact_sets(codes: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Returns whether all classes of each example are predicted right, given the columns of ``class_columns``."""
    numbers = np.asarray(codes, np.int64)
    exact: npt.NDArray[np.bool_] = ((numbers == 0) | (numbers == 3)).all(axis=1)
    return exact


def _counts(true: npt.NDArray[np.bool_], guessed: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    parts = [true & guessed, guessed, true, np.ones((len(true), 1), np.bool_)]
    return np.concatenate(parts, axis=1).astype(np.float64)


def micro_f1(totals: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns F1 over all classes together [...], from 0 to 1, of totals [..., 3 c + 1] of ``set_counts``."""
    hits, guessed, true = (part.sum(axis=-1) for part in _by_class(totals))
    return _f1(hits, guessed, true)


def macro_f1(totals: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns the mean F1 [...] over the classes that occur in the labels, of totals [..., 3 c + 1] of ``class_counts``
    or ``set_counts``."""
    hits, guessed, true = _by_class(totals)
    occurs = true > 0
    mean: npt.NDArray[np.float64] = (_f1(hits, guessed, true) * occurs).sum(axis=-1) / occurs.sum(axis=-1).clip(min=1)
    return mean


def matthews(totals: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns the Matthews correlation [...], from -1 to 1, of totals [..., 3 c + 1] of ``class_counts``: for two
    classes that of Matthews 1975, for more R_K of Gorodkin 2004 (doi:10.1016/j.compbiolchem.2004.09.006, equation 8).

    It is 0, as of chance, if all labels, or all predictions, are of one class.
    """
    hits, guessed, true = _by_class(totals)
    count = totals[..., -1]
    spread = np.sqrt((count**2 - (guessed**2).sum(axis=-1)) * (count**2 - (true**2).sum(axis=-1)))
    covariance = count * hits.sum(axis=-1) - (guessed * true).sum(axis=-1)
    correlation: npt.NDArray[np.float64] = covariance / np.where(spread > 0, spread, 1.0)
    return np.where(spread > 0, correlation, 0.0)


def _by_class(totals: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], ...]:
    return tuple(np.split(totals[..., :-1], 3, axis=-1))


def _f1(
    hits: npt.NDArray[np.float64], guessed: npt.NDArray[np.float64], true: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Returns the harmonic mean of precision and recall; 0 if a class is neither predicted nor a label."""
    both = guessed + true
    return 2 * hits / np.where(both > 0, both, 1.0)


def moments(numbers: npt.ArrayLike, predicted: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Returns the first two moments of each example's number and prediction, and 1 [examples, 6]. Both are counted
    from their means, so that large numbers lose no digits."""
    x, y = (np.asarray(values, np.float64) for values in (numbers, predicted))
    x, y = x - x.mean(), y - y.mean()
    return np.column_stack([x, y, x * x, y * y, x * y, np.ones_like(x)])


def pearson(totals: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns Pearson's correlation [...], of totals [..., 6] of ``moments``; 0, as for chance, if one side is
    constant."""
    x, y, xx, yy, xy, count = np.moveaxis(totals, -1, 0)
    spread = (xx - x * x / count) * (yy - y * y / count)
    correlation: npt.NDArray[np.float64] = (xy - x * y / count) / np.sqrt(np.where(spread > 0, spread, 1.0))
    return np.where(spread > 0, correlation, 0.0)


def spearman(numbers: npt.ArrayLike, predicted: npt.ArrayLike) -> float:
    """Returns Spearman's rank correlation; equal values share their mean rank. 0, as for chance, if one side is
    constant."""
    return float(pearson(moments(_ranks(numbers), _ranks(predicted)).sum(axis=0)))


def spearman_values(numbers: npt.ArrayLike, predicted: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Returns a number for each example (examples,): Spearman's correlation plus the influence of the example on it,
    directly and through the ranks of all others (Croux and Dehon 2010, section 2).

    The mean of the numbers is the correlation. Their mean over resampled examples is, to first order, the correlation
    of these examples.
    """
    x, y = np.asarray(numbers, np.float64), np.asarray(predicted, np.float64)
    rank = spearman(x, y)
    a, b = (ranks - ranks.mean() for ranks in (_ranks(x), _ranks(y)))
    of_x, of_y, of_both = a @ a, b @ b, a @ b
    if not (of_x > 0 and of_y > 0):
        return np.full(len(x), rank)
    both = a * b + _ranked_below(x, b) + _ranked_below(y, a)
    spreads = (a * a + 2 * _ranked_below(x, a)) / of_x + (b * b + 2 * _ranked_below(y, b)) / of_y
    influence = (both - of_both * spreads / 2) / np.sqrt(of_x * of_y)
    return rank + len(x) * (influence - influence.mean())


def _ranks(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Returns the rank of each value from 1; equal values share their mean rank."""
    _, place, count = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    ranks: npt.NDArray[np.float64] = (np.cumsum(count) - (count - 1) / 2)[place]
    return ranks


def _ranked_below(values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns for each example the sum of the weights of the examples whose rank it raises: the weights of all examples
    above it, and half of the weights of equal examples."""
    _, place = np.unique(values, return_inverse=True)
    each = np.bincount(place, weights)
    sums: npt.NDArray[np.float64] = (weights.sum() - np.cumsum(each) + each / 2)[place]
    return sums


ENTITY_COLUMNS = ("right_entities", "predicted_entities", "entities", "right_unseen", "predicted_unseen", "unseen")
"""The counts of each example from which scores of entities are computed."""
ENTITY_SCORES = ("f1", "precision", "recall", "unseen_f1", "unseen_recall", "seen_f1", "seen_recall")


def entity_counts(name: str, sums: Mapping[str, npt.ArrayLike]) -> npt.NDArray[np.float64]:
    """Returns counts (examples, 4) of right, predicted and labelled entities, and 1. The name of the score selects the
    entities: all, ``unseen`` in training, or ``seen`` in training."""
    right, predicted, there, *unseen = (np.asarray(sums[column], np.float64) for column in ENTITY_COLUMNS)
    counts = np.stack([right, predicted, there])
    counts = np.stack(unseen) if name.startswith("unseen_") else counts - unseen if name.startswith("seen_") else counts
    return np.column_stack([*counts, np.ones_like(right)])


def entity_ratio(name: str, totals: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns a score [...], from 0 to 1, of totals [..., 4] of ``entity_counts``. It is 0 where it has no divisor, as
    for seqeval."""
    right, predicted, there, _ = np.moveaxis(totals, -1, 0)
    match name.rpartition("_")[2]:
        case "precision":
            divisor = predicted
        case "recall":
            divisor = there
        case _:
            divisor = (predicted + there) / 2
    ratio: npt.NDArray[np.float64] = right / np.where(divisor > 0, divisor, 1.0)
    return ratio


def entity_score(name: str, sums: Mapping[str, npt.ArrayLike]) -> npt.NDArray[np.float64]:
    """Returns a score over all examples, given its name and the columns of the examples."""
    return entity_ratio(name, entity_counts(name, sums).sum(axis=0))


def streams(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """Returns a list of the n-th references of all examples, for each n; None where an example has fewer."""
    count = max(map(len, references))
    return [[texts[n] if n < len(texts) else None for texts in references] for n in range(count)]


class RougeWords:
    """The words of a text for ROUGE, in lower case, by a tokenizer of sacreBLEU. Punctuation alone is no word, as it is
    none for rouge-score."""

    def __init__(self, tokenizer: WordTokenizer) -> None:
        self.split = metric_of("bleu", tokenizer).tokenizer

    def tokenize(self, text: str) -> list[str]:
        """Returns the tokens that hold a letter, a mark or a digit."""
        tokens = str(self.split(text.lower())).split()
        return [token for token in tokens if any(unicodedata.category(sign)[0] in "LMN" for sign in token)]


def rouge_of_each(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], tokenizer: WordTokenizer | None = None
) -> list[dict[str, float]]:
    """Returns ROUGE F-measures (0 to 100) of each example, with its best reference (Lin 2004).

    tokenizer: splits texts into words; None for the tokenizer of rouge-score, with stemming. Raises ConfigError where a
    package is missing that it needs.
    """
    from rouge_score.rouge_scorer import RougeScorer

    words = None if tokenizer is None else RougeWords(tokenizer)
    scorer = RougeScorer([*ROUGES], use_stemmer=True, tokenizer=words)
    scores = (scorer.score_multi(texts, hypothesis) for hypothesis, texts in zip(hypotheses, references, strict=True))
    return [{name: 100.0 * score[name].fmeasure for name in ROUGES} for score in scores]


def rouge_signature(tokenizer: WordTokenizer | None = None) -> str:
    """Returns the settings of ``rouge_of_each`` in one line."""
    package = f"rouge-score:{version('rouge-score')}"
    if tokenizer is None:
        return f"F-measure, stems, best reference|{package}"
    tok = metric_of("bleu", tokenizer).tokenizer.signature()
    return f"F-measure, words in lower case, best reference|tok:{tok}|{package}|sacrebleu:{version('sacrebleu')}"
