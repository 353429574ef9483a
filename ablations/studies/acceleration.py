"""The time of an encoder's passes without padding, in other precisions, and by other kernels (the question of
FasterTransformer and of TurboTransformers, Fang et al. 2021, arXiv:2010.05680)."""

from __future__ import annotations

from dataclasses import replace

from ablations.ablation import Ablation, Contrast, Margin, Metric, Published, Scale, Source
from ablations.compression import COMPRESSED, SINGLE
from ablations.fine_tuning import FETCH, SENTIMENT_NATS
from lit_transformers.compression import QuantiseActivationsConfig, QuantiseWeightsConfig

BATCH = Metric(
    "measured/time_ratio",
    goal="minimize",
    label="time of a batch, as a share of that of the network it starts from",
    compare="ratio",
    margin=Margin(1.05, "two measurements of one network differ by as much on a machine that does nothing else"),
)
TEXT = Metric(
    "measured/latency_ratio",
    goal="minimize",
    label="time of the longest text of a batch, alone, as such a share",
    compare="ratio",
)
NO_PADDING = {"model.unpadded": True}
BFLOAT16 = {"training.precision": "bf16"}
COMPILED = {"training.compile": True}
INT8 = {
    "compression": (
        QuantiseWeightsConfig(parameters=("layers",), bits=8),
        QuantiseActivationsConfig(parameters=("layers",), execution="int8"),
    )
}
"""Of processors with AVX-512 VNNI; on others these runs fail and say so."""
OF_CPU = dict.fromkeys(("changed=int8", "changed=no_padding_int8"), "the int8 product is of the CPU")

ABLATION = Ablation(
    question="What makes the passes of an encoder faster, and do its outputs stay the same?",
    answer=["no padding"],
    source=Source("Fang et al. 2021", arxiv="2010.05680"),
    baseline=COMPRESSED.override({"timed": True}),
    factors={
        "changed": {
            "nothing": {},
            "no_padding": NO_PADDING,
            "bf16": BFLOAT16,
            "no_padding_bf16": {**NO_PADDING, **BFLOAT16},
            "int8": INT8,
            "no_padding_int8": {**NO_PADDING, **INT8},
            "math_kernel": {"training.attention_kernel": "math"},
            "compiled": COMPILED,
            "compiled_bf16": {**COMPILED, **BFLOAT16},
        }
    },
    design="one_factor",
    seeds=3,
    metric=BATCH,
    also=[TEXT, replace(SENTIMENT_NATS, margin=None)],
    contrasts=[
        Contrast("no padding", "changed=no_padding", "baseline"),
        Contrast("bfloat16", "changed=bf16", "baseline"),
        Contrast("no padding and bfloat16", "changed=no_padding_bf16", "baseline"),
        Contrast("int8", "changed=int8", "baseline"),
        Contrast("no padding and int8", "changed=no_padding_int8", "baseline"),
        Contrast("attention without a fused kernel", "changed=math_kernel", "baseline"),
        Contrast("compiled", "changed=compiled", "baseline"),
        Contrast("compiled and bfloat16", "changed=compiled_bf16", "baseline"),
    ],
    published=Published(
        protocol="BERT on a GPU in half precision, 32 sentences of 32 tokens (the guide of FasterTransformer). Here a "
        "run times passes of its network on batches of its validation. Threads, batches by length, ONNX Runtime, CUDA "
        "graphs, decoders and translators are not passes of such a run: benchmarks.acceleration, benchmarks.decoding "
        "and benchmarks.gpu measure them",
        metric="milliseconds",
        claims=["TensorFlow takes 12.27 ms, FasterTransformer 8.59 ms, and without padding 4.98 ms."],
    ),
    scales={
        "demo": Scale(),
        "gpu": Scale(overrides=SINGLE, leave_out=OF_CPU),
        "paper": Scale(overrides=SINGLE, seeds=1, leave_out=OF_CPU),
    },
    preparation=FETCH,
)
