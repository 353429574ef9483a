"""A run in a process of its own, for tests that end it: python training_process.py RUN.yaml DIRECTORY KEEP_EVERY."""

import sys
from pathlib import Path

import torch

from lit_transformers.run import Interrupted, RunConfig, fit

if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        record = fit(RunConfig.from_yaml(sys.argv[1]), Path(sys.argv[2]), keep_every=float(sys.argv[3]))
    except Interrupted as stop:
        print(stop)
        raise SystemExit(143) from None
    print(record["outcome"], record["reason"])
