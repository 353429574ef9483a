"""Scores of texts are those of the packages that define them, on the whole corpus, each example once."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import sacrebleu
import torch
from forked import Forked
from rouge_score.rouge_scorer import RougeScorer

from lit_transformers.batch import IGNORED, PairBatch
from lit_transformers.config import ConfigError
from lit_transformers.heads.answer_symbols import AnswerSymbols, AnswerSymbolsConfig
from lit_transformers.heads.head import Representation
from lit_transformers.runs import RunConfig, describe
from lit_transformers.runs.fit import protocol
from lit_transformers.scores import bleu_tokenizer
from lit_transformers.tasks import Seq2SeqConfig
from lit_transformers.tasks.text_metric import Scores, TextMetric, Written, corpus_scores, signatures

HYPOTHESES = [
    "The cat sat on the mat .",
    "A dog runs, fast.",
    "",
    "Two birds \u2028 fly\nover us",
    "nothing alike here at all",
]
REFERENCES = [
    ("The cat sat on a mat .", "On the mat sat the cat ."),
    ("A dog running fast.",),
    ("A line that was not translated.",),
    ("Two birds fly over us.", "Birds are flying over us", "Two birds above"),
    ("quite another sentence in these words",),
]
ALL: tuple[Scores, ...] = ("bleu", "chrf", "rouge", "accuracy")
NETWORK = SimpleNamespace(tokens=SimpleNamespace(flops=None, log_probabilities=lambda hidden: hidden))
"""A network whose output is log probabilities."""


def metric_of(scores: Sequence[Scores]) -> TextMetric:
    return TextMetric({"targets": AnswerSymbols(AnswerSymbolsConfig(), NETWORK)}, scores)  # type: ignore[arg-type]


def batch_of(examples: Sequence[int], requested_lengths: Sequence[int] | None = None) -> PairBatch:
    """Rows of two symbols each, of which only the texts matter."""
    rows, count = torch.tensor(examples, dtype=torch.long), len(examples)
    targets = torch.tensor([[1, 2, IGNORED]]).repeat(count, 1)
    padding_mask = targets != IGNORED
    lengths = torch.tensor(requested_lengths or [0] * count, dtype=torch.long)
    references = tuple(REFERENCES[example] for example in examples)
    return PairBatch(
        targets * padding_mask,
        padding_mask,
        targets * padding_mask,
        targets,
        padding_mask,
        rows,
        lengths,
        references,
        "",
    )


def update_metric(metric: TextMetric, examples: Sequence[int], requested_lengths: Sequence[int] | None = None) -> None:
    """Updates with the hypotheses of some examples, each said with probability 1/4 a symbol."""
    batch = batch_of(examples, requested_lengths)
    uniform = torch.full((len(examples), 3, 4), math.log(1 / 4))
    metric.update(batch.example, {"targets": metric.heads["targets"].sums(Representation(NETWORK, uniform), batch)})
    metric.add_texts(batch, [HYPOTHESES[example] for example in examples])


def padded() -> list[list[str | None]]:
    return [[references[n] if n < len(references) else None for references in REFERENCES] for n in range(3)]


def expected_score(name: str) -> float:
    """The score as its package gives it."""
    if name == "bleu":
        return sacrebleu.corpus_bleu(HYPOTHESES, padded(), force=True).score  # type: ignore[arg-type]
    if name == "chrf":
        return sacrebleu.corpus_chrf(HYPOTHESES, padded()).score  # type: ignore[arg-type]
    scorer = RougeScorer([name], use_stemmer=True)
    best_scores = [
        max(scorer.score(reference, hypothesis)[name].fmeasure for reference in references)
        for hypothesis, references in zip(HYPOTHESES, REFERENCES, strict=True)
    ]
    return 100 * sum(best_scores) / len(best_scores)


@pytest.mark.parametrize("name", ["bleu", "chrf", "rouge1", "rouge2", "rougeL"])
def test_a_score_is_that_of_its_package_with_several_references(name: str) -> None:
    metric = metric_of(ALL)
    update_metric(metric, range(5))
    assert 0 < metric.compute()[name] == pytest.approx(expected_score(name), rel=1e-12)


def test_scores_are_of_the_corpus_however_it_is_batched_and_ordered() -> None:
    whole_metric, batched_metric = metric_of(ALL), metric_of(ALL)
    update_metric(whole_metric, range(5))
    for examples in ([4, 1], [3], [0, 2]):
        update_metric(batched_metric, examples)
    assert batched_metric.compute() == whole_metric.compute()
    assert batched_metric.outputs() == whole_metric.outputs()


def test_an_example_that_comes_twice_counts_once_as_a_text() -> None:
    metric = metric_of(("bleu",))
    update_metric(metric, range(5))
    update_metric(metric, [1, 3])
    assert metric.compute()["bleu"] == pytest.approx(expected_score("bleu"))
    assert [output["id"] for output in metric.outputs()] == [0, 1, 2, 3, 4]


def test_outputs_hold_the_texts_as_they_are() -> None:
    metric = metric_of(ALL)
    update_metric(metric, [3, 2])
    assert metric.outputs() == [
        {"id": index, "hypothesis": HYPOTHESES[index], "references": [*REFERENCES[index]]} for index in (2, 3)
    ]
    metric.reset()
    assert metric.outputs() == [] and metric.compute() == {}


def test_lengths_that_were_asked_for_are_told_apart() -> None:
    metric = metric_of(("bleu", "accuracy"))
    update_metric(metric, [0, 1, 4], [7, 7, 0])
    scores = metric.compute()
    subset_metric = metric_of(("bleu", "accuracy"))
    update_metric(subset_metric, [0, 1])
    assert {name: scores[f"{name}@7"] for name in subset_metric.compute()} == subset_metric.compute()
    assert not [name for name in scores if name.endswith("@0")]


def test_only_what_is_asked_for_is_told() -> None:
    metric = metric_of(("rouge",))
    update_metric(metric, range(5))
    assert metric.compute().keys() == {"nats", "rouge1", "rouge2", "rougeL"}
    assert metric.compute()["nats"] == pytest.approx(math.log(4))


def test_the_signature_is_the_package_s_own() -> None:
    signature_by_name = signatures(ALL)
    metric = sacrebleu.metrics.bleu.BLEU()
    metric.corpus_score(HYPOTHESES[:1], [["The cat sat"]])
    assert f"nrefs:1|{signature_by_name['bleu']}" == str(metric.get_signature())
    assert signature_by_name["rouge"] == "F-measure, stems, best reference|rouge-score:0.1.2"
    assert signatures(("accuracy",)) == {}


LANGUAGES = ("zh", "ja", "ko", "de", "en", "ru", "th")


def choice(language: str) -> str:
    """The tokenizer that sacreBLEU's own command chooses; those that need a package are not built for it."""
    return sacrebleu.metrics.bleu.BLEU._TOKENIZER_MAP.get(language, sacrebleu.metrics.bleu.BLEU.TOKENIZER_DEFAULT)


@pytest.mark.parametrize("form", ["{}", "{}-XX", "{}_Latn"])
def test_bleu_is_of_the_tokenizer_that_sacrebleu_chooses_for_the_target_language(form: str) -> None:
    assert {code: bleu_tokenizer(form.format(code)) for code in LANGUAGES} == {code: choice(code) for code in LANGUAGES}
    assert [bleu_tokenizer(code) for code in (None, "ZH", "zho_Hant", "cmn", "jpn_Jpan", "kor")] == [
        "13a", "zh", "zh", "zh", "ja-mecab", "ko-mecab",
    ]  # fmt: skip


CHINESE = ("他昨天买了三本新书,今天都看完了。", "他昨天买了两本新书,今天全看完了。")


def translation(target: str, **task: object) -> RunConfig:
    source = {"kind": "parallel", "path": "nowhere", "target": target}
    model = {"kind": "encoder_decoder", "dim": 8, "heads": 2, "depth": 1}
    data = {"kind": "pairs", "source": source}
    return RunConfig.from_dict({"model": model, "task": {"kind": "seq2seq", **task}, "data": data})


def scored(config: RunConfig, hypothesis: str, reference: str) -> dict[str, float]:
    task = config.measured_task
    assert isinstance(task, Seq2SeqConfig)
    return corpus_scores([Written(0, hypothesis, (reference,))], task.scores, task.words)


def test_the_language_of_the_data_chooses_the_words_and_a_setting_another() -> None:
    expected = sacrebleu.corpus_bleu([CHINESE[0]], [[CHINESE[1]]], force=True, tokenize="zh").score
    chinese = translation("zh")
    assert scored(chinese, *CHINESE)["bleu"] == pytest.approx(expected) and expected > 20
    assert "|tok:zh|" in protocol(chinese)["scores"]["bleu"]
    assert "|tok:13a|" in protocol(chinese.override({"data.source.target": "de"}))["scores"]["bleu"]
    assert "|tok:char|" in protocol(translation("zh", bleu_tokenizer="char"))["scores"]["bleu"]
    assert translation("fr").task == Seq2SeqConfig(metrics=("bleu", "chrf")), "nothing is kept in the config"


@pytest.mark.parametrize(
    ("language", "tok", "text", "part"),
    [
        ("zh", "zh", CHINESE[0], CHINESE[1]),
        ("ja", "char", "昨日、新しい本を三冊買いました。", "昨日、本を二冊買った。"),
        ("ko", "intl", "어제 새 책 세 권을 샀다.", "어제 책 두 권을 샀다."),
        ("ru", "intl", "Вчера он купил три новые книги.", "вчера он купил две книги!"),
        ("el", "intl", "Χθες αγόρασε τρία νέα βιβλία.", "Χθες αγόρασε δύο βιβλία."),
        ("hi", "intl", "उसने कल तीन नई किताबें खरीदीं।", "उसने कल दो किताबें खरीदीं।"),
        ("th", "char", "เมื่อวานเขาซื้อหนังสือสามเล่ม", "เมื่อวานเขาซื้อหนังสือ"),
        ("srp_Cyrl", "intl", "Јуче је купио три нове књиге.", "Јуче је купио две књиге."),
    ],
    ids=lambda value: value if value.isascii() else "",
)
def test_rouge_of_equal_texts_is_a_hundred_in_every_script(language: str, tok: str, text: str, part: str) -> None:
    config = translation(language, metrics=["rouge"])
    assert scored(config, text, text) == {"rouge1": 100.0, "rouge2": 100.0, "rougeL": 100.0}
    assert 0 < scored(config, part, text)["rouge1"] < 100
    assert scored(config, "。,!", text)["rouge1"] == 0, "punctuation alone is no word"
    assert f"|tok:{tok}|" in protocol(config)["scores"]["rouge"]
    assert scored(translation("xx", metrics=["rouge"]), text, text)["rouge1"] == 0, "which is said before training"


def test_a_tokenizer_whose_package_is_missing_is_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise RuntimeError("Japanese tokenization requires extra dependencies")

    monkeypatch.setattr("sacrebleu.metrics.bleu._get_tokenizer", missing)
    with pytest.raises(ConfigError, match=r'task\.bleu_tokenizer: .*ja-mecab.*pip install "sacrebleu\[ja\]"'):
        describe(translation("ja"))
    translation("ja", metrics=["rouge"]).task.require_packages()


@pytest.mark.parametrize(
    ("metrics", "targets", "line"),
    [
        (["rouge"], ["Вчера.", "Сегодня.", "in 3 Tagen"], "task.rouge_tokenizer: 2 of 3 targets have no Latin letter"),
        (["bleu"], [*CHINESE, "ok"], "task.bleu_tokenizer: 2 of 3 targets are written without spaces"),
        (["rouge", "bleu"], ["Gestern.", "Über 中国 heute."], None),
        (["chrf"], CHINESE, None),
    ],
)
def test_texts_whose_words_no_score_would_know_are_told_before_training(
    metrics: list[str], targets: Sequence[str], line: str | None
) -> None:
    advice = translation("xx", metrics=metrics).measured_task.text_advice(targets)
    assert advice is None if line is None else advice is not None and advice.startswith(line)
    assert translation("zh", metrics=metrics).measured_task.text_advice(targets) is None


def score(folder: Path) -> None:
    """Writes the scores of one rank of two: with rows on both ranks, and with rows on the first rank alone."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    metric, one_rank_metric = metric_of(ALL), metric_of(ALL)
    update_metric(metric, [1, 3] if rank else [0, 2, 4])
    update_metric(one_rank_metric, [] if rank else range(5))
    results = [metric.compute(), metric.outputs(), one_rank_metric.compute(), one_rank_metric.outputs()]
    (folder / f"{rank}.json").write_text(json.dumps(results))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_score_what_one_process_does_also_where_one_has_nothing(tmp_path: Path) -> None:
    Forked(tmp_path / "output.txt", score, tmp_path, ranks=2).finish()
    metric = metric_of(ALL)
    update_metric(metric, range(5))
    scores, outputs, one_rank_scores, one_rank_outputs = json.loads((tmp_path / "0.json").read_text())
    assert scores == one_rank_scores == metric.compute()
    assert outputs == one_rank_outputs == metric.outputs()
