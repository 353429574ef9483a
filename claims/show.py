"""The standing of every claim and published study, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group
from rich.table import Table
from rich.text import Text

from claims.claim import Claim
from claims.published import PublishedStanding

__all__ = ["standing_table"]


def standing_table(claims: Iterable[Claim], studies: Iterable[PublishedStanding]) -> Group:
    """Claims with commit, date and standing, and the published studies below them."""
    return Group(_claims(claims), Text(), _studies(studies))


def _claims(claims: Iterable[Claim]) -> Table:
    table = Table("Claim", "Commit", "Date", "Standing", title="Numbers in README and docs", title_justify="left")
    for claim in claims:
        result = claim.read()
        commit, date = (result["commit"], result["date"]) if result else ("-", "-")
        standing = "older than the code" if claim.is_older_than_code() else "of today's code"
        table.add_row(claim.name, commit, date, standing if result else "not measured")
    return table


def _studies(studies: Iterable[PublishedStanding]) -> Table:
    title = "Published studies: measure one again by ablations run and reports publish"
    table = Table("Study", "Commit", "Arms older than the code", title=title, title_justify="left")
    for study in studies:
        table.add_row(study.study, ", ".join(study.commits), f"{study.older} of {study.arms}")
    return table
