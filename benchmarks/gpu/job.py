"""The work of the kit: parts in order of importance, each of which consists of jobs, which are separate processes."""

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
"""The job of these tests. The job of the executors adds to the same log, for its tests are some of them."""
GPU_TESTS = ("tests/contracts/test_compile.py", EXECUTORS_ON_CUDA, RUN_ON_CUDA)
"""The files with tests marked gpu. Other files are not collected, for they import packages that a GPU machine lacks."""
MARKED = ("-m", "gpu", *GPU_TESTS)
CHOSEN = ("-m", "gpu", EXECUTORS_ON_CUDA, "-k", "is_fused or drop_the_same")
FAR_MIXERS = "attention,window 512,linear,xl"
FAR_PEERS = "SDPA flash,SDPA cuDNN"
"""Kernels that need not be compiled: FlexAttention took half a minute for one length, and part j measures it."""
CACHED_DECODING = "tests/contracts/test_cached_decoding.py"
TASK_CONTRACTS = (
    "tests/contracts/test_classifiers.py",
    "tests/contracts/test_masked_lm.py",
    "tests/contracts/test_span_boundary.py",
    "tests/contracts/test_phrase_detection.py",
    "tests/contracts/test_row_orders.py",
    "tests/contracts/test_contrastive.py",
    "tests/contracts/test_denoising_contracts.py",
    "tests/contracts/test_permutation_lm.py",
    "tests/contracts/test_bilm.py",
    "tests/contracts/test_multiple_choice.py",
    "tests/contracts/test_retrieval.py",
)
CONTRACTS = (
    "tests/contracts/test_promises.py",
    "tests/contracts/test_blocks.py",
    "tests/contracts/test_unpadded.py",
    "tests/contracts/test_first_tokens.py",
    CACHED_DECODING,
    *TASK_CONTRACTS,
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
    "c": "the executors of attention: FlexAttention is fused, dropout is repeated",
    "d": "a run in bf16, killed and resumed",
    "e": "training of Transformer-XL base, eager, with and without a mask",
    "f": "attention, window, linear and XL at 4k, 16k and 64k next to flash and cuDNN",
    "g": "xl_recurrence at gpu scale: one run and two on the device",
    "h": "the contract tests in float32 and bf16, and the other tests marked gpu",
    "i": "training of Transformer-XL base: CUDA graphs, compiled",
    "j": "every mixer, forward and backward, at 4k, 16k and 64k next to its peers",
    "k": "the study xl_recurrence at gpu scale, with its report",
    "l": "two ranks on one device by gloo, and one by NCCL: equal records",
    "m": "throughput of training through the suite, and of decoding",
    "n": "further studies at gpu scale, while time lasts",
}
FIRST_CALL = "abcdefg"
"""The parts that a call of the default length has time for, each until its limit."""


def jobs() -> list[KitJob]:
    """All jobs in order, at full size on a CUDA device."""
    return [
        benchmark("a", "gpu.environment", "environment", 20, limit=35),
        values_job(VALUES, 15, 45),
        pytest_job("c", "executors on CUDA", 50, 80, *CHOSEN, "-n", "4", "--dist", "worksteal", "-v", log=OF_GPU),
        on_device("d", "resumed", "a run that is killed", 15, 35),
        transformer_xl("eager", 20, "--masked", "--repeats", "3", part="e", limit=40),
        far_rows("64k", "65536", 40, 80, "--device", "cuda", "--rounds", "5", "--patience", "0.5"),
        far_rows("4k and 16k", "4096,16384", 40, 80, "--device", "cuda", "--rounds", "5", "--patience", "0.5"),
        on_device("g", "shared", "runs that share the device", 65, 90),
        *(contract_tests(precision, *CONTRACTS, "--device", "cuda", "-n", "12") for precision in PRECISIONS),
        pytest_job("h", OF_GPU, 240, 540, *MARKED, "--dist", "worksteal", "-n", "6"),
        transformer_xl("graphs", 70, "--check"),
        transformer_xl("compiled-graphs", 270, "--check"),
        transformer_xl("compiled", 270, "--check"),
        *(layer_job(number, names) for number, names in enumerate(LAYERS, start=1)),
        study_job("k", "xl_recurrence", 400, "--workers", "6"),
        pytest_job("l", "ranks on one device", 60, 540, RANKS),
        throughput("overhead", "training through the suite", 120, "--device", "cuda", "--chunks", "15"),
        throughput("translation", "decoding, small", 40, "--device", "cuda", "--size", "small"),
        throughput("translation", "decoding, base", 70, "--device", "cuda", "--size", "base", "--rows", "256"),
        *(study_job("n", name, 400, "--workers", "6") for name in FURTHER_STUDIES),
    ]


def rehearsals() -> list[KitJob]:
    """The jobs at toy size on a CPU: some tests, one precision and mode, all layers together, one further study."""
    timing = ("--tiny", "--warm", "2", "--count", "2", "--repeats", "1")
    changes = ("training.steps=3", "data.evaluation.bytes=512", "data.evaluation.last=cut")
    few = (*(word for change in changes for word in ("--set", change)), "--scale", "demo", "--workers", "2")
    mixers = ("--only", ",".join(name for names in LAYERS for name in names))
    once = ("--rounds", "1", "--threads", "1", "--no-peaks")
    return [
        benchmark("a", "gpu.environment", "environment", 10, "--longest", "300"),
        values_job("{work}/values.npz", 20, 60),
        pytest_job("c", "executors on CUDA", 10, 540, *CHOSEN, "-v", log=OF_GPU),
        on_device("d", "resumed", "a run that is killed", 20, 120, "--rehearse"),
        transformer_xl("eager", 10, "--masked", *timing, part="e"),
        far_rows("64k", "256", 10, 60, "--device", "auto", *once),
        far_rows("4k and 16k", "64,128", 10, 60, "--device", "auto", *once),
        on_device("g", "shared", "runs that share the device", 20, 120, "--rehearse"),
        contract_tests("bf16", CACHED_DECODING, *TASK_CONTRACTS, "-k", "beam or xl or definition or choices or lstm"),
        contract_tests("float64", *TASK_CONTRACTS, "--device", "pretended", "-k", "definition or choices or lstm"),
        pytest_job("h", OF_GPU, 20, 540, RUN_ON_CUDA),
        transformer_xl("graphs", 10, "--check", *timing),
        benchmark("j", "layers", "layers 1", 12, *mixers, "--lengths", "64", *once),
        study_job("k", "xl_recurrence", 240, "--seeds", "1", *few),
        pytest_job("l", "ranks on one device", 30, 540, RANKS),
        throughput("overhead", "training through the suite", 10, "--tiny", "--chunks", "4"),
        throughput("translation", "decoding, small", 10, "--tiny", "--rows", "4", "--repeats", "1"),
        study_job("n", "shared_qk", 240, "--seeds", "1", *few),
    ]


def pytest_job(part: str, name: str, seconds: float, limit: float, *arguments: str, log: str = "") -> KitJob:
    """A job of tests whose outcomes are appended to a log, so that those that passed are not run again. log: the job
    that it shares the log with; "" for none."""
    place = "{out}/" + f"{(log or name).replace(' ', '-')}.jsonl"
    fixed = ("--log", place, "--json", "{work}/tests.json", "--", *arguments)
    return KitJob(part, name, "benchmarks.gpu.pytests", fixed, seconds, limit, 45, resumable=True, writes="tests.json")


def contract_tests(precision: str, *arguments: str) -> KitJob:
    """The contract tests of all mixers in one precision."""
    return pytest_job("h", f"contract tests in {precision}", 180, 540, *arguments, "--precision", precision)


def on_device(part: str, command: str, name: str, seconds: float, limit: float, *arguments: str) -> KitJob:
    """A job of runs that are trained one after another or at the same time."""
    writes = f"{command}.json"
    fixed = (command, "--runs", "{work}/on-device", "--json", "{work}/" + writes, *arguments)
    return KitJob(part, name, "benchmarks.gpu.runs_on_device", fixed, seconds, limit, writes=writes)


def benchmark(part: str, module: str, name: str, seconds: float, *arguments: str, limit: float | None = None) -> KitJob:
    """A benchmark that writes its numbers to a separate file. limit: None for three times its expected duration."""
    writes = f"{name.replace(' ', '-').replace(',', '')}.json"
    fixed = (*arguments, "--json", "{work}/" + writes)
    limit = max(60, 3 * seconds) if limit is None else limit
    return KitJob(part, name, f"benchmarks.{module}", fixed, seconds, limit, writes=writes)


def values_job(file: str, seconds: float, limit: float) -> KitJob:
    """The numbers of all mixers, compared with those of a file; a file that is missing is computed first."""
    arguments = ("compare", file, "--json", "{work}/values.json")
    return KitJob("b", "values of mixers", "benchmarks.gpu.values", arguments, seconds, limit, writes="values.json")


def transformer_xl(mode: str, seconds: float, *arguments: str, part: str = "i", limit: float | None = None) -> KitJob:
    """The speed of Transformer-XL base in one mode, with the kernels that take the most time."""
    fixed = ("--mode", mode, "--profile", *arguments)
    return benchmark(part, "transformer_xl", f"transformer-xl {mode}", seconds, *fixed, limit=limit)


def layer_job(number: int, names: Sequence[str]) -> KitJob:
    """Some mixers with their peers, which compile for each of three lengths."""
    sizes = ("--device", "cuda", "--lengths", "4096,16384,65536", "--rounds", "20", "--patience", "2")
    return benchmark("j", "layers", f"layers {number}", 45 * len(names), "--only", ",".join(names), *sizes)


def far_rows(name: str, lengths: str, seconds: float, limit: float, *arguments: str) -> KitJob:
    """Mixers of long rows next to the kernels that compute plain attention or a window, which compile for each length.
    The longest rows are a separate job, which measures a goal."""
    fixed = ("--only", FAR_MIXERS, "--peers", FAR_PEERS, "--lengths", lengths, *arguments)
    return benchmark("f", "layers", f"rows of {name}", seconds, *fixed, limit=limit)


def throughput(module: str, name: str, seconds: float, *arguments: str) -> KitJob:
    """A benchmark of the suite's throughput next to that of a peer or a bare loop."""
    return benchmark("m", module, name, seconds, *arguments)


def study_job(part: str, study: str, limit: float, *arguments: str) -> KitJob:
    """A job of a study, which the next call continues where this one ended it."""
    writes = f"study-{study}.json"
    fixed = (study, "--runs", "{work}/runs", "--json", "{work}/" + writes, *arguments)
    return KitJob(part, study, "benchmarks.gpu.study", fixed, limit, limit, 60, resumable=True, writes=writes)
