"""The ledger's storage: SQLite next to the runs, PostgreSQL for many machines, or a proxy for hundreds of workers.

An address may hold a password, so messages about a storage name its host and database and never repeat the address. A
server that restarts, or a file that another process writes to, is waited for.
"""

from __future__ import annotations

import sqlite3
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sqlalchemy import create_engine, event
from sqlalchemy.engine import Engine, ExceptionContext, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from sweeps.addresses import without_secrets

if TYPE_CHECKING:  # Optuna and the migrations of its tables take most of a second, and most ledgers need neither
    from optuna.storages import BaseStorage, GrpcStorageProxy, RDBStorage
    from optuna.trial import FrozenTrial

__all__ = [
    "SEARCH",
    "Address",
    "LedgerError",
    "Opened",
    "StorageConnection",
    "damage",
    "find_address",
    "find_search_address",
    "open_storage",
    "trial_id",
]

LOCK_SECONDS = 60.0
"""How many seconds a writer waits for another one's transaction on SQLite."""
BUSY_SECONDS = 5
"""After how many seconds of waiting a message says so."""
RETRY_SECONDS = 0.5
FIRST_SECONDS = 10.0
"""How long a server may take to answer for the first time: it may be starting at the same time as the worker."""
READ_ONLY = "25006"
"""PostgreSQL's code of the error by which a server refuses to write: since a failover it follows another one."""
TABLE_RACES = 20
"""How often opening is tried again while another worker creates the tables."""

IN_CLUSTER_EXTRA = ("postgresql+psycopg", "grpc")
"""Schemes of addresses whose drivers the extra ``cluster`` installs."""

SEARCH = "tune"
"""How the name of every search begins."""

Answer = TypeVar("Answer")


class LedgerError(ValueError):
    """The ledger cannot be used; the message names it and the remedy."""


class Address(NamedTuple):
    """A storage: its full address, which is never printed, its name in messages, and its SQLite file if any."""

    url: str
    name: str
    path: Path | None = None

    @property
    def is_proxy(self) -> bool:
        """Whether the address is that of a proxy in front of the database."""
        return self.url.startswith("grpc://")

    @property
    def has_statements(self) -> bool:
        """Whether the ledger has its own statements for the database."""
        return self.path is not None or self.url.startswith("postgresql+psycopg:")


def find_address(url: str | None, runs: Path) -> Address:
    """Returns the address of the storage that ``--storage`` names, by default ``ledger.db`` in the folder of runs.

    Raises LedgerError for an invalid address, and for a file in a folder that does not exist.
    """
    if url is None:
        path = runs / "ledger.db"
        return Address(f"sqlite:///{path.resolve()}", f"ledger {path}", path)
    try:
        url.encode()  # raises ValueError for text that no URL can hold
        parts = make_url(url)
        server = f"{parts.host or 'this machine'}{f':{parts.port}' if parts.port else ''}"
    except (ArgumentError, ValueError):
        raise LedgerError(
            "--storage: not an address; write postgresql+psycopg://user@host/database, grpc://host:port "
            "or sqlite:////path/file.db"
        ) from None
    if parts.drivername == "grpc":
        if not parts.host or not parts.port:
            raise LedgerError("--storage: a proxy needs host and port, grpc://host:port")
        return Address(url, f"ledger proxy {server}")
    if parts.drivername.startswith("sqlite"):
        if not parts.database or parts.database == ":memory:":
            raise LedgerError("--storage: sqlite needs a file, sqlite:////path/file.db")
        path = Path(parts.database)
        if not path.parent.is_dir() and path.parent.resolve() != runs.resolve():
            raise LedgerError(f"--storage: there is no folder {path.parent}; make it, or correct the address")
        return Address(url, f"ledger {path}", path)
    if parts.drivername == "postgresql":  # SQLAlchemy's default driver is not installed here
        url = parts.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    return Address(url, f"ledger {parts.get_backend_name()} {server}/{parts.database or ''}")


def find_search_address(url: str | None, runs: Path) -> Address:
    """Returns the address of the searches' storage. For a ledger in a file it is the file ``NAME-searches.db`` next to
    it, so that optuna-dashboard lists the searches alone; otherwise it is the ledger's own address. Searches that an
    earlier version began in the ledger's file stay there. Raises the errors of ``find_address``."""
    ledger = find_address(url, runs)
    if ledger.path is None:
        return ledger
    path = ledger.path.with_name(f"{ledger.path.stem}-searches.db")
    if not path.exists() and _holds_searches(ledger.path):
        return ledger
    return Address(f"sqlite:///{path.resolve()}", f"searches {path}", path)


def _holds_searches(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as database:
            names = database.execute("SELECT study_name FROM studies WHERE study_name LIKE ?", (f"{SEARCH} %",))
            return names.fetchone() is not None
    except sqlite3.DatabaseError:  # a damaged one, or one that another worker is about to make
        return False


class StorageConnection:
    """A connection to a storage, which retries operations as long as waiting may help, and explains other errors."""

    def __init__(self, address: Address, patience: float) -> None:
        """``patience``: the seconds that a server may be unavailable."""
        self.address, self.patience = address, patience
        self.say: Callable[[str], None] = lambda message: print(message, file=sys.stderr)
        self.wanted: Callable[[], bool] = lambda: True
        """Returns whether to keep waiting; False once the command is to stop."""
        self._was_reached = False

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """Calls an operation and returns its result. After a failure it is repeated from its start, which must be safe.

        Raises LedgerError with one line that names the fault and the remedy.
        """
        start = time.monotonic()
        is_reported = False
        while True:
            try:
                answer = question()
            except Exception as error:
                if not is_trouble(error):
                    raise
                limit = self._wait_limit(error)
                if time.monotonic() - start >= limit or not self.wanted():
                    raise LedgerError(self._explain(error)) from None
                if not is_reported:
                    self.say(f"{self.address.name}: {self._message(error)}; waiting for it, up to {limit:.0f} s")
                    is_reported = True
                time.sleep(RETRY_SECONDS)
            else:
                if is_reported:
                    self.say(f"{self.address.name}: is back after {time.monotonic() - start:.0f} s")
                self._was_reached = True
                return answer

    def _wait_limit(self, error: BaseException) -> float:
        """Returns for how many seconds to retry after this error."""
        cause = _innermost_cause(error)
        if isinstance(cause, sqlite3.Error):
            return LOCK_SECONDS if "locked" in str(cause) or "busy" in str(cause) else 0.0
        if not any(_is_outage(link) for link in _cause_chain(error)):
            return 0.0
        if self._was_reached:
            return self.patience
        temporary_errors = ("starting up", "shutting down", "refused", "failed to connect", "read-only")
        return FIRST_SECONDS if any(phrase in str(cause).lower() for phrase in temporary_errors) else 0.0

    def _explain(self, error: BaseException) -> str:
        cause = _innermost_cause(error)
        if isinstance(cause, ImportError):
            return f"{self.address.name}: {_missing_driver(self.address, cause)}"
        advice = (
            "another program holds it"
            if "locked" in str(_innermost_cause(error))
            else "the records are safe, run again"
        )
        return f"{self.address.name}: {self._message(error)}; {advice}"

    def _message(self, error: BaseException) -> str:
        """Returns the innermost cause's message, which Optuna's own hides, in one line and without passwords."""
        cause = _innermost_cause(error)
        text = str(cause)
        if _is_remote(cause):
            text = f"{cause.code().name.lower()}: {cause.details()}"
        line = next((line.strip() for line in text.splitlines() if line.strip()), type(cause).__name__)
        return without_secrets(line, self.address.url)


def _missing_driver(address: Address, error: ImportError) -> str:
    """Returns a message about a driver that cannot be imported, with the remedy."""
    if make_url(address.url).drivername in IN_CLUSTER_EXTRA:
        return "its driver is not installed; pip install 'lit-transformers[cluster]'"
    return (
        f"its driver {error.name or ''} is not installed, and no extra of lit-transformers brings it: "
        "a ledger is tested on postgresql://, sqlite:/// and grpc:// alone; use one of these"
    )


def is_trouble(error: BaseException) -> bool:
    """Whether an error comes from the storage, and not from this program."""
    # ImportError: there is no driver for the database. IntegrityError: another worker made the same row first.
    return isinstance(error, SQLAlchemyError | ImportError) or _is_of_optuna(error) or _is_remote(error)


def _is_outage(error: Any) -> bool:
    if _is_remote(error):  # UNKNOWN: the proxy is available and its database is not
        return error.code().name in ("UNAVAILABLE", "UNKNOWN", "DEADLINE_EXCEEDED", "INTERNAL", "CANCELLED")
    is_connection_error = type(error).__name__ in ("OperationalError", "InterfaceError")
    is_read_only = getattr(getattr(error, "orig", None), "sqlstate", None) == READ_ONLY
    return isinstance(error, DBAPIError) and (is_connection_error or error.connection_invalidated or is_read_only)


def _is_of_optuna(error: Any) -> bool:
    """Whether an error comes from a storage of Optuna, which is imported only where it is used."""
    exceptions = sys.modules.get("optuna.exceptions")
    return exceptions is not None and isinstance(error, exceptions.StorageInternalError)


def _is_remote(error: Any) -> bool:
    """Whether an error comes from gRPC, which is imported only where it is used."""
    grpc = sys.modules.get("grpc")
    return grpc is not None and isinstance(error, grpc.RpcError)


def _cause_chain(error: BaseException) -> Iterator[BaseException]:
    while True:
        yield error
        if error.__cause__ is None:
            return
        error = error.__cause__


def _innermost_cause(error: BaseException) -> Any:
    *_, last = _cause_chain(error)
    return last


class Opened(NamedTuple):
    """An open storage, and the function that closes its connections."""

    storage: BaseStorage
    close: Callable[[], None]


def open_storage(address: Address) -> Opened:
    """Connects, and creates the tables where there are none. Finished trials that were read are cached in memory.

    Raises the storage's own errors; RuntimeError for tables of an incompatible version of Optuna.
    """
    import optuna
    from optuna.exceptions import ExperimentalWarning

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        if address.is_proxy:
            proxy = _open_proxy(address)
            return Opened(proxy, proxy.close)
        database = _open_database(address)
        return Opened(optuna.storages.get_storage(database), lambda: _close(database))


def trial_id(trial: FrozenTrial) -> int:
    """Returns the id by which a storage knows a trial. Optuna has no public name for it."""
    return int(trial._trial_id)


def _open_proxy(address: Address) -> GrpcStorageProxy:
    from optuna.storages import GrpcStorageProxy

    parts = make_url(address.url)
    assert parts.host and parts.port
    storage = GrpcStorageProxy(host=parts.host, port=parts.port)
    try:
        storage.wait_server_ready(timeout=FIRST_SECONDS)
    except ConnectionError:
        raise LedgerError(
            f"{address.name}: no answer; start one: python -m sweeps serve --storage URL --port {parts.port}"
        ) from None
    return storage


def open_engine(address: Address) -> Engine:
    """Returns the connections to a database, which are opened when they are used and begin no transactions."""
    engine = create_engine(address.url, isolation_level="AUTOCOMMIT", **_engine_options(address))
    event.listen(engine, "handle_error", _leave_read_only_server)
    return engine


def _engine_options(address: Address) -> dict[str, Any]:
    path = address.path
    return {"pool_pre_ping": True} if path is None else {"creator": lambda: _open_file(path)}


def _open_database(address: Address) -> RDBStorage:
    from optuna.exceptions import StorageInternalError
    from optuna.storages import RDBStorage

    options = _engine_options(address)
    template = address.url.replace("{", "{{").replace("}", "}}")  # Optuna formats it; a password may have braces
    for attempt in range(TABLE_RACES):
        try:
            database = RDBStorage(template, engine_kwargs=options)
            event.listen(database.engine, "handle_error", _leave_read_only_server)
            return database
        except NoSuchModuleError:
            raise LedgerError(f"{address.name}: not a kind of database that is known here") from None
        except (SQLAlchemyError, StorageInternalError, AssertionError) as error:
            # Another worker is creating the tables at this moment: all of them exist, or some.
            is_outage = any(_is_outage(link) for link in _cause_chain(error)) and "already exists" not in str(error)
            if is_outage or attempt == TABLE_RACES - 1:
                raise
            time.sleep(0.1 * (1 + attempt % 3))
    raise AssertionError("the last attempt returns or raises")


def _leave_read_only_server(context: ExceptionContext) -> None:
    """Drops all connections to a server that has become read-only: the next ones may reach the one that is not."""
    if getattr(context.original_exception, "sqlstate", None) == READ_ONLY:
        context.is_disconnect = True


def _open_file(path: Path) -> sqlite3.Connection:
    """Opens a connection that does not wait for the disk: a file that a power failure breaks is rebuilt from the
    records."""
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, check_same_thread=False)
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def _close(database: RDBStorage) -> None:
    database.remove_session()
    database.engine.dispose()


def damage(path: Path) -> str | None:
    """Returns the fault of an SQLite file; None for a sound, missing or busy one.

    Raises LedgerError where it cannot be opened.
    """
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as database:
            result = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            return None
        raise LedgerError(f"ledger {path}: {error}") from None
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if result == "ok" else str(result)
