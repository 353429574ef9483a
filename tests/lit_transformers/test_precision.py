"""Lines are read in float32, bfloat16 or int8, and a network that cannot be is refused."""

from __future__ import annotations

import copy
import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_predict import TEXTS, of, over_texts, predicted, saved
from torch import Tensor

from lit_transformers import onednn
from lit_transformers.checked_files import Precision
from lit_transformers.config import ConfigError
from lit_transformers.decoding.sampling import SamplingConfig
from lit_transformers.inference import precision as module
from lit_transformers.inference.precision import quantise_network
from lit_transformers.inference.write import TextWriter
from lit_transformers.maps import LinearMap
from lit_transformers.runs import RunConfig, load

LINES = [*TEXTS, *(f"{one} {other} {one}" for one in TEXTS for other in TEXTS)]


@pytest.fixture(autouse=True)
def vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product is computed on every processor, on some of them slowly."""
    monkeypatch.setattr(module, "has_int8_product", lambda: True)


def probabilities(checkpoint: Path, precision: Precision, *lines: str, **options: Any) -> list[list[float]]:
    outputs = predicted(of(checkpoint, precision=precision, **options), *lines)
    return [[*output["probabilities"].values()] for output in outputs]


def nearest_levels(rows: Tensor) -> Tensor:
    """Each number of a row as a multiple of the row's largest magnitude over 127."""
    scales = rows.abs().amax(dim=-1, keepdim=True) / 127
    return (rows / scales).round() * scales


def test_int8_reads_weights_and_inputs_of_8_bits(tmp_path: Path) -> None:
    """Next to a network whose linear maps round both themselves. Scales of weights have 12 bits: 1 part in 4,096."""
    checkpoint, task = saved(over_texts(tmp_path, "classification"), tmp_path)
    slow = copy.deepcopy(task)
    for linear in slow.modules():
        if isinstance(linear, LinearMap):
            linear.weight.data.copy_(nearest_levels(linear.weight.detach()))
            linear.register_forward_pre_hook(lambda _, inputs: (nearest_levels(inputs[0]),))
    predictor = of(checkpoint)
    predictor.task = slow  # type: ignore[attr-defined]
    expected = [[*json.loads(line)["probabilities"].values()] for line in predictor.write(map(str.encode, LINES))]
    read, exact = (torch.tensor(probabilities(checkpoint, one, *LINES)) for one in ("int8", "float32"))
    error = (torch.tensor(expected) - exact).abs().max()
    assert (read - torch.tensor(expected)).abs().max() < 0.2 * error
    assert (read - exact).abs().max() < 3 * error


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_a_text_is_the_same_alone_and_with_others(precision: Precision, tmp_path: Path) -> None:
    """Each input has its own scale."""
    checkpoint, _ = saved(over_texts(tmp_path, "classification"), tmp_path)
    together = probabilities(checkpoint, precision, *LINES)
    alone = [probabilities(checkpoint, precision, line)[0] for line in LINES]
    for own, other in zip(together, alone, strict=True):
        assert own == pytest.approx(other, abs=2e-6)


def test_bfloat16_is_computed_by_autocast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "is_faster", lambda: False)
    checkpoint, _ = saved(over_texts(tmp_path, "classification"), tmp_path)
    predictor = of(checkpoint)
    predictor.arithmetic = lambda: torch.autocast("cpu", torch.bfloat16)  # type: ignore[method-assign]
    expected = [[*one["probabilities"].values()] for one in predicted(predictor, *LINES)]
    assert probabilities(checkpoint, "bfloat16", *LINES) == expected != probabilities(checkpoint, "float32", *LINES)


@pytest.mark.parametrize("mixer", ["attention", "linear"])
def test_products_of_onednn_are_those_of_torch(mixer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They differ in nothing but rounding, and every linear map of a layer is one."""
    checkpoint, _ = saved(over_texts(tmp_path, "classification").override({"model.mixer": mixer}), tmp_path)
    results, packed = [], []
    for is_faster in (True, False):
        monkeypatch.setattr(onednn, "is_faster", lambda is_faster=is_faster: is_faster)
        predictor = of(checkpoint)
        results.append(torch.tensor([[*one["probabilities"].values()] for one in predicted(predictor, *LINES)]))
        maps = [m for m in predictor.task.modules() if isinstance(m, LinearMap)]  # type: ignore[attr-defined]
        packed.append([one.packed is not None for one in maps])
    torch.testing.assert_close(*results, rtol=0, atol=2e-6)
    assert all(packed[0]) and len(packed[0]) == 6 and not any(packed[1])


READ_ALL_LENGTHS = """
import ctypes, psutil, sys, torch
from lit_transformers import onednn
from lit_transformers.inference.precision import prepare

class Task(torch.nn.Module):
    def evaluator(self):
        return self

@torch.no_grad()
def memory_after(lengths):
    for length in lengths:
        x = torch.randn(length, 384)
        if sys.argv[1] == "float32":
            onednn.product(x, packed, None)
        else:
            with torch.autocast("cpu", torch.bfloat16):
                torch.nn.functional.linear(x, weight)
    ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss / 2**20

torch.set_num_threads(1)
prepare(Task(), sys.argv[1], torch.device("cpu"))
weight = torch.randn(768, 384)
packed = onednn.packed(weight)
print(-memory_after([400, *range(1, 10)]) + memory_after(range(10, 400)))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs the allocator of glibc")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_products_of_all_lengths_keep_little_memory(precision: str) -> None:
    """Without a limit they take more than 200 MiB."""
    words = [sys.executable, "-c", READ_ALL_LENGTHS, precision]
    environment = {name: value for name, value in os.environ.items() if name not in onednn.CACHES}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert float(done.stdout) < 100, done.stderr


def test_a_network_of_quantised_weights_keeps_them(tmp_path: Path) -> None:
    checkpoint, _ = saved(over_texts(tmp_path, "classification"), tmp_path)
    task, _, _ = load(checkpoint)
    quantise_network(task, torch.device("cpu"))
    before = copy.deepcopy(task.state_dict())
    for linear in task.modules():
        if isinstance(linear, LinearMap):
            assert linear.quantiser is not None
            linear.quantiser.execution = "simulated"
    quantise_network(task, torch.device("cpu"))
    assert all(torch.equal(tensor, before[name]) for name, tensor in task.state_dict().items())
    assert all(m.quantiser.execution == "int8" for m in task.modules() if isinstance(m, LinearMap) and m.quantiser)


@pytest.mark.parametrize(
    ("mixer", "has_product", "reason"),
    [
        ("attention", False, "needs a CPU with AVX-512 VNNI"),
        ({"kind": "attention", "encoding": "xl"}, True, "no linear map of a sublayer"),
    ],
)
def test_int8_is_refused_where_it_cannot_be(
    mixer: Any, has_product: bool, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "has_int8_product", lambda: has_product)
    checkpoint, _ = saved(over_texts(tmp_path, "classification").override({"model.mixer": mixer}), tmp_path)
    with pytest.raises(ConfigError, match=f"--precision: .*{reason}.*; use .*float32"):
        of(checkpoint, precision="int8")


def test_inputs_of_fewer_bits_are_refused(tmp_path: Path) -> None:
    checkpoint, _ = saved(over_texts(tmp_path, "classification"), tmp_path)
    task, _, _ = load(checkpoint)
    quantise_network(task, torch.device("cpu"))
    first = next(m for m in task.modules() if isinstance(m, LinearMap))
    assert first.quantiser is not None
    first.quantiser.bits = 4
    with pytest.raises(ConfigError, match="have 4 bits, and those of int8 have 8; use float32"):
        quantise_network(task, torch.device("cpu"))


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_a_text_is_written_in_a_precision(precision: Precision, tmp_path: Path) -> None:
    """With the network of its evaluation, whose memory is longer than that of training."""
    model = {"kind": "language_model", "dim": 8, "heads": 2, "depth": 1, "mixer": {"kind": "attention", "memory": 8}}
    (tmp_path / "texts").mkdir()
    for number in range(4):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"a text of few words, of which there are {number}. " * 20)
    source = {"kind": "files", "path": str(tmp_path / "texts"), "piece": 64}
    data = {"source": source, "segment_length": 8, "batch_size": 2}
    training = {"steps": 1, "device": "cpu"}
    checkpoint, _ = saved(RunConfig.from_dict({"model": model, "data": data, "training": training}), tmp_path)
    writer = TextWriter(checkpoint, precision=precision)
    dtypes, products = set[torch.dtype](), list[int]()
    network = writer.task.evaluator()
    assert network is not writer.task.network
    for linear in network.modules():
        if isinstance(linear, LinearMap):
            linear.register_forward_hook(lambda _, __, output: dtypes.add(output.dtype))
            products.append(linear.quantiser is not None and linear.quantiser.execution == "int8")
    assert len("".join(writer.write("a", 4, SamplingConfig(temperature=0.0)))) >= 1
    assert dtypes == {torch.bfloat16 if precision == "bfloat16" else torch.float32}
    assert products == [precision == "int8"] * 6
