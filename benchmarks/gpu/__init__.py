"""Everything that is worth measuring on a borrowed GPU, in calls of some minutes. See ``docs/gpu.md``."""

from __future__ import annotations

from pathlib import Path

__all__ = ["ROOT"]

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""
