"""The standing of every claim and published study, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rich.console import Group
from rich.table import Table
from rich.text import Text

from claims.claim import Claim
from claims.published import PublishedStanding
from sweeps.status import plain_table

__all__ = ["standing_table"]


def standing_table(claims: Iterable[Claim], older: Collection[Claim], studies: Iterable[PublishedStanding]) -> Group:
    """Returns a table of claims with commit, date and standing, and one of the published studies below it.

    older: the claims that are older than their code.
    """
    return Group(_claims(claims, older), Text(), _studies(studies))


def _claims(claims: Iterable[Claim], older: Collection[Claim]) -> Table:
    table = plain_table("Numbers in README and docs", "Commit", "Date", "Standing")
    for claim in claims:
        result = claim.read()
        commit, date = (result["commit"], result["date"]) if result else ("-", "-")
        standing = "older than the code" if claim in older else "of today's code"
        table.add_row(claim.name, commit, date, standing if result else "not measured")
    return table


def _studies(studies: Iterable[PublishedStanding]) -> Table:
    table = plain_table("Published study", "Commits", "Arms older than the code", "Repeated")
    for study in studies:
        table.add_row(
            study.study, ", ".join(study.commits), f"{study.older} of {study.arms}", "; ".join(study.repeated)
        )
    return table
