"""The databases that a ledger may be kept in; tests of one that is not installed are skipped and say so."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from databases import SCRIPT, Server, proxy
from ports import free_port


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    pytest.importorskip("psycopg", reason="the PostgreSQL driver is not installed")
    folder = Path(tempfile.mkdtemp(prefix="ledger-"))
    folder.chmod(0o755)  # started by root, the server runs as another user
    try:
        words = [SCRIPT, "start", folder, str(free_port())]
        completed = subprocess.run(words, capture_output=True, text=True, timeout=90)
        if completed.returncode == 3:
            pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
        assert completed.returncode == 0, completed.stderr
        yield Server(folder, completed.stdout.strip())
        subprocess.run([SCRIPT, "stop", folder], check=True, timeout=90)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgres", "proxy to sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of an empty ledger, for every kind of database, and through a proxy.

    A proxy in front of PostgreSQL, with workers that are killed, is in ``test_workers.py``.
    """
    if request.param == "postgres":
        server: Server = request.getfixturevalue("postgres")
        url = server.database()
    else:
        url = f"sqlite:///{tmp_path}/shared.db"
    if "proxy" in request.param:
        with proxy(url, tmp_path / "served") as address:
            yield address
    else:
        yield url
