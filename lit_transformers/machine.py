"""What a machine's processor is called in records. Imports nothing heavy: plans compare it without torch."""

from __future__ import annotations

import os
import platform

__all__ = ["processor"]


def processor() -> str:
    """The kind of the CPU, and how many cores there are."""
    return f"{platform.machine()} CPU, {os.cpu_count()} cores"
