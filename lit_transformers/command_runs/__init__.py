"""Runs of any command: a program in any language that takes options and prints numbers."""

from lit_transformers.command_runs.config import CommandRunConfig

__all__ = ["CommandRunConfig"]
