"""One end of a connection between two sandboxes: the program in one, its tests in the other.

The tests never come to the program: what they call is called over there, and only plain values return, which are
compared here. So a program cannot pass by ending early, by printing what a judge waits for, by changing what `==` or
`assert` mean, or by reading the tests.

The source of this module is what runs at both ends, with `serve` or `check` called behind it; the standard library
alone is there. Messages are lines of JSON: requests as {do, on, args, named}, answers as {value, args} or {raised}.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import json
import operator
import os
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:  # without the time that importing typing takes
    from typing import Any

DO: dict[str, Any] = {
    "call": lambda what, *args, **named: what(*args, **named),
    "getattr": getattr,
    "setattr": setattr,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "isinstance": lambda kind, value: isinstance(value, kind),
    "eq": operator.eq,
    "bool": bool,
    "len": len,
    "iter": iter,
    "next": next,
    "str": str,
    "repr": repr,
    "hash": hash,
}
LONGEST = 16 << 20  # bytes of a message
SETUP_FAILS = "!"


class Remote:
    """Something at the other end that is no plain value."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.__dict__["_connection"], self.__dict__["_number"] = connection, number

    def _do(self, what: str, *args: Any, **named: Any) -> Any:
        return self._connection.ask(what, self._number, args, named)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Calls it over there."""
        return self._do("call", *args, **named)

    def __getattr__(self, name: str) -> Any:
        return self._do("getattr", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._do("setattr", name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._do("getitem", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._do("setitem", key, value)

    def __instancecheck__(self, value: Any) -> bool:
        return bool(self._do("isinstance", value)) if isinstance(value, Remote) else False

    def __eq__(self, other: object) -> bool:
        # Never equal to a value of ours, whatever it says of itself.
        return isinstance(other, Remote) and (self._number == other._number or self._do("eq", other) is True)

    def __hash__(self) -> int:
        return int(self._do("hash"))

    def __bool__(self) -> bool:
        return self._do("bool") is True

    def __len__(self) -> int:
        return int(self._do("len"))

    def __iter__(self) -> Any:
        return self._do("iter")

    def __next__(self) -> Any:
        return self._do("next")

    def __str__(self) -> str:
        return str(self._do("str"))

    def __repr__(self) -> str:
        return str(self._do("repr"))


class Connection:
    """Asks the other end, and answers it meanwhile. What was not handed over cannot be asked for by number."""

    def __init__(self, doing: dict[str, Any]) -> None:
        """Takes what the other end may do with what it was handed."""
        self._doing = doing
        self._handed: dict[int, Any] = {}
        self.asked = 0
        self._reads, self._writes = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)

    def send(self, message: dict[str, Any]) -> None:
        """Writes a message."""
        self._writes.write(json.dumps(message).encode() + b"\n")
        self._writes.flush()

    def receive(self) -> dict[str, Any] | None:
        """Returns the next answer; requests before it are answered. None: there is no other end."""
        while True:
            line = self._reads.readline(LONGEST)
            if not line:
                return None
            message: dict[str, Any] = json.loads(line)
            if "do" not in message:
                return message
            self.send(self._answer(message))

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            if message["do"] not in self._doing:
                raise TypeError(f"{message['do']} is not for the other end")
            what = self._handed[message["on"]]
            args = [self.decode(one) for one in message["args"]]
            named = {name: self.decode(one) for name, one in message["named"].items()}
            value = self.encode(DO[message["do"]](what, *args, **named))
            changed = [self.encode(one) if isinstance(one, (list, dict, set)) else None for one in args]
            return {"value": value, "args": changed}
        except Exception as error:
            return {"raised": type(error).__name__, "text": str(error)}

    def ask(self, what: str, number: int, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Has the other end do something; changes our lists, dicts and sets as it has changed its copies."""
        self.asked += 1
        encoded = [self.encode(one) for one in args]
        self.send({"do": what, "on": number, "args": encoded, "named": {n: self.encode(o) for n, o in named.items()}})
        answer = self.receive()
        if answer is None:
            raise EOFError("the program has ended")
        if "raised" in answer:
            kind = getattr(builtins, str(answer["raised"]), None)
            text = str(answer.get("text"))
            if not (isinstance(kind, type) and issubclass(kind, Exception)):
                raise RuntimeError(text)
            if what != "next" and issubclass(kind, StopIteration | StopAsyncIteration):
                # as it is it would end the loop of whoever asks, as if all had been looked at (PEP 479)
                raise RuntimeError(text)
            raise kind(text)
        for mine, now in zip(args, answer["args"], strict=False):
            if now is not None:
                assign(mine, self.decode(now))
        return self.decode(answer["value"])

    def encode(self, value: Any) -> list[Any]:
        """Returns a value as JSON; what is not plain is kept here, and named by a number."""
        if isinstance(value, Remote):
            return ["yours", value._number]
        if value is None or isinstance(value, (bool, int, float, str)):
            return ["plain", value]
        for name, kind in (("list", list), ("tuple", tuple), ("set", set), ("frozenset", frozenset)):
            if isinstance(value, kind):
                return [name, [self.encode(one) for one in value]]
        if isinstance(value, dict):
            return ["dict", [[self.encode(key), self.encode(one)] for key, one in value.items()]]
        if isinstance(value, (bytes, bytearray)):
            return ["bytes", bytes(value).hex()]
        if isinstance(value, complex):
            return ["complex", [value.real, value.imag]]
        if isinstance(value, range):
            return ["range", [value.start, value.stop, value.step]]
        self._handed[id(value)] = value
        return ["mine", id(value)]

    def decode(self, message: Any) -> Any:
        """Returns what `encode` made; what is kept at the other end as a `Remote`."""
        name, value = message
        if name == "plain" and (value is None or isinstance(value, (bool, int, float, str))):
            return value
        if name in ("list", "tuple", "set", "frozenset"):
            return getattr(builtins, name)([self.decode(one) for one in value])
        if name == "dict":
            return {self.decode(key): self.decode(one) for key, one in value}
        if name == "bytes":
            return bytes.fromhex(value)
        if name in ("complex", "range"):
            return getattr(builtins, name)(*value)
        if name == "mine":
            return Remote(self, value)
        if name == "yours":
            return self._handed[value]
        raise TypeError(f"no value: {name}")


def assign(mine: Any, now: Any) -> None:
    """Makes a list, dict or set of ours what its copy has become."""
    if isinstance(mine, list) and isinstance(now, list):
        mine[:] = now
    elif isinstance(mine, (dict, set)) and type(now) is type(mine):
        mine.clear()
        mine.update(now)


def serve(source: str, prelude: str) -> None:
    """Runs the program, hands its names over, and answers."""
    connection = Connection(DO)
    module = types.ModuleType("solution")
    sys.modules["solution"] = module  # where dataclasses look for the names of annotations
    names = module.__dict__
    try:
        exec(compile(prelude, "prelude", "exec", dont_inherit=True), names)
        usual = dict(names)
        exec(compile(source, "program.py", "exec", dont_inherit=True), names)
    except BaseException as error:
        connection.send({"raised": type(error).__name__, "text": str(error)})
        return
    own = {name: value for name, value in names.items() if name not in usual or usual[name] is not value}
    mine = {name: value for name, value in own.items() if not name.startswith("__")}
    connection.send({"value": connection.encode(list(mine)), "args": []})
    for value in mine.values():
        connection.send({"value": connection.encode(value), "args": []})
    connection.receive()


def taken(sources: list[str], usual: set[str]) -> set[str]:
    """Returns the names that a program cannot take from its tests: with an ``abs`` of its own it would judge itself.

    Those of builtins; modules of the standard library that have all the attributes that the tests read of the name, as
    ``math`` has ``isclose``: a ``queue`` of which they read ``push`` is the program's; and
    the ``usual`` ones of the prelude, unless the tests ask for no other: then the program's function is one of these.
    """
    nodes: list[ast.AST] = []
    for source in sources:
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):  # such a test fails when it is run
            nodes += ast.walk(ast.parse(source))
    reads: set[str] = set()
    binds: set[str] = set()
    attributes: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            attributes.setdefault(node.value.id, set()).add(node.attr)
        if isinstance(node, ast.Name):
            (reads if isinstance(node.ctx, ast.Load) else binds).add(node.id)
        elif isinstance(node, ast.arg):
            binds.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            binds.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            binds.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
            binds.discard("solution")
            named = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            reads.update(name for name in named if name == "solution")
    modules = {name for name in attributes.keys() & sys.stdlib_module_names - binds if has(name, attributes[name])}
    known = set(dir(builtins)) | modules
    return known | usual if reads - binds - known - usual else known


def has(module: str, attributes: set[str]) -> bool:
    """Returns whether a module of the standard library has all of these."""
    try:
        return attributes <= set(dir(importlib.import_module(module)))
    except ImportError:
        return False


def check(setup: str, tests: list[str], entry_point: str, prelude: str) -> None:
    """Runs the tests on what the program hands over; writes 1 or 0 for each to standard error.

    They find it among their names, but for those that they have without it (`taken`), and whole in a module
    ``solution``.

    Where the setup raises before it has asked the program for anything, it writes `SETUP_FAILS` and why: the row is
    bad. A name that is not there may be one that the program should have had.
    """
    verdicts = os.dup(2)
    connection = Connection({"call": DO["call"]})  # a function of the tests may be called, and nothing else
    try:
        names: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
        exec(compile(prelude, "prelude", "exec", dont_inherit=True), names)
        kept = taken([setup, *tests], set(names)) - {entry_point}
        for module in kept & sys.stdlib_module_names - names.keys():
            with contextlib.suppress(ImportError):  # then the test that reads it fails
                names[module] = importlib.import_module(module)
        solution = types.ModuleType("solution")
        for name in connection.decode((connection.receive() or {})["value"]):
            solution.__dict__[str(name)] = connection.decode((connection.receive() or {})["value"])
        own = {name: value for name, value in solution.__dict__.items() if not name.startswith("__")}
        names.update({name: value for name, value in own.items() if name not in kept})
        solution.__dict__["__all__"] = [name for name in own if name not in kept]
        sys.modules["solution"] = solution
        if entry_point:
            names["candidate"] = own[entry_point]
    except Exception:
        return  # it is the program's
    asked = connection.asked
    try:
        exec(compile(setup, "setup", "exec", dont_inherit=True), names)
    except Exception as error:
        lacks = isinstance(error, NameError) or getattr(error, "name", "") == "solution"  # what the program should have
        if connection.asked == asked and not lacks:  # the program had no part in it
            os.write(verdicts, f"{SETUP_FAILS}{type(error).__name__}: {error}".encode(errors="replace"))
        return
    for number, test in enumerate(tests):
        try:
            exec(compile(test, f"test {number}", "exec", dont_inherit=True), names)
        except BaseException:
            os.write(verdicts, b"0")
        else:
            os.write(verdicts, b"1")


sys.setrecursionlimit(20_000)
