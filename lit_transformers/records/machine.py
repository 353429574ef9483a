"""The description of a machine's processor in records. Imports nothing heavy: plans compare it without torch."""

from __future__ import annotations

import os
import platform

__all__ = ["processor"]


def processor() -> str:
    """Returns the architecture of the CPU and the number of its cores."""
    return f"{platform.machine()} CPU, {os.cpu_count()} cores"
