"""What the kit runs: parts in order of importance, each of which consists of jobs, which are separate processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["PARTS", "KitJob", "jobs", "rehearsals"]

VALUES = ".gpu/values.npz"
"""Where the numbers of mixers are carried, below the checkout."""
RANKS = "tests/lit_transformers/test_ranks_on_one_device.py"
EXECUTORS_ON_CUDA = "tests/encodings/test_executors_on_cuda.py"
RUN_ON_CUDA = "tests/lit_transformers/test_run_on_cuda.py"
OF_GPU = "tests marked gpu"
"""The job of these, whose log the run on CUDA shares, for it is one of them."""
GPU_TESTS = ("tests/contracts/test_compile.py", EXECUTORS_ON_CUDA, RUN_ON_CUDA)
"""The files with tests marked gpu. Other files are not collected, for they import packages that a GPU machine lacks."""
MARKED = ("-m", "gpu", *GPU_TESTS)
CACHED_DECODING = "tests/contracts/test_cached_decoding.py"
CONTRACTS = (
    "tests/contracts/test_promises.py",
    "tests/contracts/test_blocks.py",
    CACHED_DECODING,
    "tests/contracts/test_classifiers.py",
    "tests/contracts/test_masked_lm.py",
    "tests/contracts/test_span_boundary.py",
    "tests/contracts/test_phrase_detection.py",
    "tests/contracts/test_row_orders.py",
    "tests/contracts/test_contrastive.py",
    "tests/contracts/test_denoising_contracts.py",
    "tests/contracts/test_permutation_lm.py",
    "tests/contracts/test_bilm.py",
    "tests/lit_transformers/test_counter_based.py",
    "tests/encodings/test_executors.py",
)
"""The files with tests that run on any device."""
PRECISIONS = ("float32", "bf16")
LAYERS = (
    ("attention", "window"),
    ("linear", "lsra", "lstm"),
    ("lsh", "big bird"),
    ("sparse strided", "sparse fixed", "adaptive span"),
    ("linformer", "local", "compressive", "star"),
    ("window both ways", "window dilated", "window global"),
    ("top-k", "entmax learned", "entmax 1.5"),
    ("diet", "synthesizer", "synthesizer random", "synthesizer factorised", "synthesizer mixture"),
)
"""The mixers that each process measures, so that a crash of one process does not affect the others."""
FURTHER_STUDIES = (
    "relative_positions", "xl_memory", "linear_feature_map", "hash_rounds", "sparse_pattern", "bigbird_components",
    "linformer_rank", "adaptive_span", "window_schedule", "compressive_function", "everything_text",
)  # fmt: skip


@dataclass(frozen=True)
class KitJob:
    """A process: ``python -m`` module with arguments, in which {out} and {work} stand for the folders of the kit.

    seconds: the expected duration. least: the seconds that must be left for the job to be begun; None for ``seconds``.
    limit: seconds after which the job is ended. resumable: whether a job that was ended continues where it stopped.
    writes: the JSON file with its result.
    """

    part: str
    name: str
    module: str
    arguments: tuple[str, ...]
    seconds: float
    limit: float
    least: float | None = None
    resumable: bool = False
    writes: str | None = None

    @property
    def command(self) -> str:
        """The command line of the job, with placeholders for the two folders."""
        return " ".join(["python -m", self.module, *self.arguments])

    @property
    def needed(self) -> float:
        """Seconds that have to be left for the job to be begun."""
        return self.seconds if self.least is None else self.least


PARTS: Mapping[str, str] = {
    "a": "the environment, and which kernel computes attention",
    "b": "every kind of mixer in float32 and bf16, forward and backward, against float64 of a CPU",
    "c": "a run: it learns, is stopped and resumed, and measured again",
    "d": "training of Transformer-XL base, eager",
    "e": "the contract tests in float32 and bf16, and the other tests marked gpu",
    "f": "training of Transformer-XL base: CUDA graphs, compiled",
    "g": "every mixer, forward and backward, at 4k, 16k and 64k beside its peers",
    "h": "xl_recurrence at gpu scale, several runs on one device",
    "i": "two ranks on one device by gloo, and one by NCCL: equal records",
    "j": "throughput of training through the suite, and of decoding",
    "k": "further studies at gpu scale, while time lasts",
}


def jobs() -> list[KitJob]:
    """All jobs in order, at full size on a CUDA device."""
    return [
        benchmark("a", "gpu.environment", "environment", 25),
        values_job(VALUES, 110),
        pytest_job("c", "a run on CUDA", 90, "-m", "gpu", RUN_ON_CUDA, log=OF_GPU),
        transformer_xl("eager", 45, part="d"),
        *(contract_tests(precision, *CONTRACTS, "--device", "cuda", "-n", "12") for precision in PRECISIONS),
        pytest_job("e", OF_GPU, 240, *MARKED, "--dist", "worksteal", "-n", "6"),
        transformer_xl("graphs", 70, "--check"),
        transformer_xl("compiled-graphs", 270, "--check"),
        transformer_xl("compiled", 270, "--check"),
        *(layer_job(number, names) for number, names in enumerate(LAYERS, start=1)),
        study_job("h", "xl_recurrence", 400, "--workers", "6"),
        pytest_job("i", "ranks on one device", 60, RANKS),
        throughput("overhead", "training through the suite", 120, "--device", "cuda", "--chunks", "15"),
        throughput("translation", "decoding, small", 40, "--device", "cuda", "--size", "small"),
        throughput("translation", "decoding, base", 70, "--device", "cuda", "--size", "base", "--rows", "256"),
        *(study_job("k", name, 400, "--workers", "6") for name in FURTHER_STUDIES),
    ]


def rehearsals() -> list[KitJob]:
    """The jobs at toy size on a CPU: some tests, one precision and mode, all layers together, one further study."""
    timing = ("--tiny", "--warm", "2", "--count", "2", "--repeats", "1")
    few = ("--set", "training.steps=3", "--set", "data.evaluation.bytes=4096", "--scale", "demo", "--workers", "2")
    mixers = ("--only", ",".join(name for names in LAYERS for name in names))
    once = ("--lengths", "64", "--rounds", "1", "--threads", "1", "--no-peaks")
    return [
        benchmark("a", "gpu.environment", "environment", 10, "--longest", "300"),
        values_job("{work}/values.npz", 20),
        pytest_job("c", "a run on CUDA", 20, RUN_ON_CUDA, log=OF_GPU),
        transformer_xl("eager", 10, *timing, part="d"),
        contract_tests("bf16", CACHED_DECODING, "-k", "beam or xl"),
        pytest_job("e", OF_GPU, 10, "-m", "gpu", EXECUTORS_ON_CUDA),
        transformer_xl("graphs", 10, "--check", *timing),
        benchmark("g", "layers", "layers 1", 12, *mixers, *once),
        study_job("h", "xl_recurrence", 240, "--seeds", "1", *few),
        pytest_job("i", "ranks on one device", 30, RANKS),
        throughput("overhead", "training through the suite", 10, "--tiny", "--chunks", "4"),
        throughput("translation", "decoding, small", 10, "--tiny", "--rows", "4", "--repeats", "1"),
        study_job("k", "shared_qk", 240, "--seeds", "1", *few),
    ]


def pytest_job(part: str, name: str, seconds: float, *arguments: str, log: str = "") -> KitJob:
    """A job of tests whose outcomes are appended to a log, so that those that passed are not run again. log: the job
    that it shares the log with; "" for none."""
    place = "{out}/" + f"{(log or name).replace(' ', '-')}.jsonl"
    fixed = ("--log", place, "--json", "{work}/tests.json", "--", *arguments)
    return KitJob(part, name, "benchmarks.gpu.pytests", fixed, seconds, 540, 45, resumable=True, writes="tests.json")


def contract_tests(precision: str, *arguments: str) -> KitJob:
    """The contract tests of all mixers in one precision."""
    return pytest_job("e", f"contract tests in {precision}", 180, *arguments, "--precision", precision)


def benchmark(part: str, module: str, name: str, seconds: float, *arguments: str) -> KitJob:
    """A benchmark that writes its numbers to a file of its own."""
    writes = f"{name.replace(' ', '-').replace(',', '')}.json"
    fixed = (*arguments, "--json", "{work}/" + writes)
    return KitJob(part, name, f"benchmarks.{module}", fixed, seconds, max(60, 3 * seconds), writes=writes)


def values_job(file: str, seconds: float) -> KitJob:
    """The numbers of all mixers, beside those of a file; a file that is missing is computed first."""
    arguments = ("compare", file, "--json", "{work}/values.json")
    return KitJob(
        "b", "values of mixers", "benchmarks.gpu.values", arguments, seconds, 3 * seconds, writes="values.json"
    )


def transformer_xl(mode: str, seconds: float, *arguments: str, part: str = "f") -> KitJob:
    """The speed of Transformer-XL base in one mode, with the kernels that take the most time."""
    return benchmark(part, "transformer_xl", f"transformer-xl {mode}", seconds, "--mode", mode, "--profile", *arguments)


def layer_job(number: int, names: Sequence[str]) -> KitJob:
    """Some mixers with their peers, which compile for each of three lengths."""
    sizes = ("--device", "cuda", "--lengths", "4096,16384,65536", "--rounds", "20", "--patience", "2")
    return benchmark("g", "layers", f"layers {number}", 45 * len(names), "--only", ",".join(names), *sizes)


def throughput(module: str, name: str, seconds: float, *arguments: str) -> KitJob:
    """A benchmark of the suite's throughput beside that of a peer or of a bare loop."""
    return benchmark("j", module, name, seconds, *arguments)


def study_job(part: str, study: str, limit: float, *arguments: str) -> KitJob:
    """A job of a study, which the next call continues where this one ended it."""
    writes = f"study-{study}.json"
    fixed = (study, "--runs", "{work}/runs", "--json", "{work}/" + writes, *arguments)
    return KitJob(part, study, "benchmarks.gpu.study", fixed, limit, limit, 60, resumable=True, writes=writes)
