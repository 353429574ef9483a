"""The error of everything that reads data."""

from __future__ import annotations

__all__ = ["DataError"]


class DataError(ValueError):
    """Data that cannot be used. The message is one line that names the place and a remedy."""
