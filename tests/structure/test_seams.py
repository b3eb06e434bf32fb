"""What the simulation decides comes in through seams: time, randomness, ids, threads, files, sockets (simulation.md).

So code of these rooms asks the system for none of them, but at the named places. Brokers of one process share no state
of a module, and nothing that is decided follows the order of a set, which differs from process to process.
"""

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache

import pytest

from tests.support import set_order
from tests.support.paths import ROOT

ROOMS = ("api", "broker", "segments", "coordination", "journal", "concurrency", "rows", "access", "balancer")
MODULES = {
    *(
        "concurrent.futures",
        "fcntl",
        "multiprocessing",
        "queue",
        "random",
        "resource",
        "secrets",
        "select",
        "selectors",
    ),
    *("shutil", "signal", "socket", "sqlite3", "subprocess", "tempfile", "threading", "time"),
}
CALLS = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
FILES = {"read_bytes", "read_text", "write_bytes", "write_text", "mkdir", "unlink", "rmdir", "iterdir", "glob"}
PURE = {
    *("os.PathLike", "os.fspath", "os.path", "os.strerror", "os.SEEK_END", "os.SEEK_CUR", "os.SEEK_SET"),
    *("uuid.UUID", "uuid.uuid3", "uuid.uuid5"),
}
OF_PROCESS = {"hash", "id"}  # of texts and objects they are others in each process
SEAMS: Mapping[str, str] = {
    "api/console/pages.py": ".read_bytes",  # the package's own files
    "api/grpc/relay.py": ".unlink os.unlink socket",  # to gRPC in this process
    "api/grpc/server.py": "socket tempfile",  # the folder of that socket
    "broker/access/callers.py": "os.stat",  # of the file of the administrator's token
    "broker/access/issuer_keys.py": ".read_text",  # the token of this broker, for the issuer
    "broker/imports/reader_process.py": (
        "concurrent.futures fcntl os.close os.dup os.environ os.readv socket subprocess"
    ),
    "broker/imports/runner.py": "os.close os.dup os.fstat os.pwrite shutil tempfile",  # the copy that a reader gets
    "broker/log/memory_budget.py": ".read_text os.sysconf",  # the memory of the process
    "broker/rpc/peer_tls.py": ".unlink open os.unlink tempfile",  # which OpenSSL reads from files alone
    "concurrency/pools.py": "concurrent.futures os.cpu_count threading",
    "concurrency/futures.py": "id",  # which is asked for equality alone
    "coordination/etcd.py": "threading",
    "coordination/etcd_transport.py": ".read_bytes .read_text",
    "coordination/membership.py": "threading",  # `background` of a broker's ProcessContext replaces it
    "coordination/sqlite.py": (
        ".read_text os.O_CLOEXEC os.O_CREAT os.O_EXCL os.O_RDWR os.chmod os.close os.open sqlite3"
    ),
    "journal/home_folder.py": "time",  # `sleep` is passed in
    "rows/typed_values.py": "id",  # of the key of a cache, which is never run over
    "segments/evolution.py": "hash",  # of a shape, which is asked for equality alone
}
"""What these modules ask for, and a simulation replaces or need not: all but journal/disk, whose calls are a seam."""
STATE: Mapping[str, str] = {
    "api/handlers/internal.py": "_CALLS",  # routes, known once the module is imported
    # A record that a version cannot read is unreadable to all brokers of that version. If each of them held its own,
    # every read of a key, in more than thirty modules, would need it as an argument.
    "coordination/keys.py": "UNREADABLE_RECORDS",
}
MEMOS: Mapping[str, str] = {
    "api/console/pages.py": "_documentation _places _read",
    "api/openapi.py": "_shared_route",
    "api/request.py": "_encoded",
    "broker/load.py": "_places",
    "rows/json_values.py": "_decoders",
    "rows/message_json.py": "_moment",
    "rows/typed_values.py": "_decoders",
    "balancer/load.py": "_kept",
}
"""What is kept follows from the arguments alone."""
CHANGES = {"append", "add", "update", "setdefault", "pop", "clear", "extend", "remove", "discard", "insert", "popleft"}


@cache
def sources() -> list[tuple[str, ast.Module]]:
    package = ROOT / "seaweedq"
    paths = [path for room in ROOMS for path in sorted((package / room).rglob("*.py"))]
    return [(str(path.relative_to(package)), ast.parse(path.read_text())) for path in paths]


def asked(tree: ast.Module) -> Iterator[str]:
    """What a module asks the system for."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (one.name for one in names if one.name in MODULES)
            case ast.ImportFrom(module=str(module)) if module in MODULES:
                yield module
            case ast.ImportFrom(module="os" | "uuid" as module, names=names):
                yield from {f"{module}.{one.name}" for one in names} - PURE
            case ast.Attribute(value=ast.Name(id="os" | "uuid" as module), attr=name):
                yield from {f"{module}.{name}"} - PURE
            case ast.Call(func=ast.Name(id="open")):
                yield "open"
            case ast.Call(func=ast.Name(id=name)) | ast.keyword(arg="key", value=ast.Name(id=name)) if (
                name in OF_PROCESS
            ):
                yield name
            case ast.Call(func=ast.Attribute() as called):
                text = ".".join(ast.unparse(called).split(".")[-2:])
                if text in CALLS:
                    yield text
                elif called.attr in FILES:
                    yield f".{called.attr}"


def changed(tree: ast.Module) -> Iterator[str]:
    """The names of a module that its functions change, also what it imports by a name of capitals."""
    own = {
        target.id
        for node in tree.body
        for target in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
        if isinstance(target, ast.Name)
    }
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    shared = own | {name for node in imports for one in node.names if (name := one.asname or one.name).isupper()}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                match node:
                    case ast.Global(names=names):
                        yield from names
                    case ast.Call(func=ast.Attribute(value=holder, attr=attr)) if attr in CHANGES:
                        yield from held_by_module(holder, shared)
                    case (
                        ast.Subscript(value=holder, ctx=ast.Store() | ast.Del())
                        | ast.Attribute(value=holder, ctx=ast.Store() | ast.Del())
                    ):
                        yield from held_by_module(holder, shared)


def held_by_module(node: ast.AST, shared: Collection[str]) -> Iterator[str]:
    """The name of a value, if a module or a class has it: `one`, or `module.ONE`."""
    match node:
        case ast.Name(id=name) if name in shared:
            yield name
        case ast.Attribute(attr=name) if name.isupper():
            yield name


def remembered(tree: ast.Module) -> Iterator[str]:
    """The functions whose results all brokers share."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(is_memo(one) for one in node.decorator_list):
            yield node.name


def is_memo(node: ast.AST) -> bool:
    return ast.unparse(node).partition("(")[0].rpartition(".")[2] in ("cache", "lru_cache")


def found(look: Callable[[ast.Module], Iterable[str]]) -> dict[str, str]:
    """What a look finds, by module."""
    seen = {path: " ".join(sorted(set(look(tree)))) for path, tree in sources() if path != "journal/disk.py"}
    return {path: text for path, text in seen.items() if text}


def test_the_system_is_asked_at_seams_alone() -> None:
    assert found(asked) == SEAMS


def test_brokers_of_a_process_share_no_state() -> None:
    assert found(changed) == STATE
    assert found(remembered) == MEMOS


def test_nothing_follows_the_order_of_a_set() -> None:
    """One of ids or texts goes by `sorted`, or is a dict."""
    assert set_order.found(sources()) == {}


SAMPLE = """
import time, uuid
import datetime as dt
from os import getpid
from datetime import datetime
from seaweedq.coordination.versioned import KINDS, NAMES, ONE
known = {}
noted: set[str] = set()
class Place:
    SEEN = []
    def go(self, names: set[str]):
        known[1] = 2
        noted.add("x")
        NAMES.add("x")
        kinds.KNOWN.clear()
        self.SEEN.append(1)
        del KINDS["x"]
        ONE.value = 1
        names.add("x")
        path.write_text(str(datetime.now()) + os.getcwd() + str(dt.datetime.utcnow()))
        return uuid.uuid4(), uuid.UUID("x"), hash("x") % 3, id(self), sorted(names, key=hash), mmh3.hash("x"), self.id()
"""


def test_each_of_them_is_found() -> None:
    tree = ast.parse(SAMPLE)
    of_system = [".write_text", "datetime.now", "datetime.utcnow", "hash", "hash", "id", "os.getcwd", "os.getpid"]
    assert sorted(asked(tree)) == [*of_system, "time", "uuid.uuid4"]
    assert sorted(changed(tree)) == ["KINDS", "KNOWN", "NAMES", "ONE", "SEEN", "known", "noted"]


OTHER = """
class Index:
    _owners: dict[str, set[str]]
    numbers: set[int]
    def owned_by(self, owner: str) -> Collection[str]:
        return self._owners.get(owner, ())
class Catalog:
    def __init__(self, index: Index) -> None:
        self.index = index
        self._made = {"a", "b"}
    def owned_by(self, owner: str) -> Collection[str]:
        return self.index.owned_by(owner)
    def names(self) -> AbstractSet[str]: ...
    def known(self) -> frozenset[str] | None: ...
    def pair(self) -> tuple[list[str], set[str]]: ...
    def ids(self) -> set[int]: ...
    def shown(self, given: Iterable[str]) -> None:
        {RUN}
class Names:
    names: list[str]
"""
IN_ORDER = [
    "for one in given: print(one)",
    "for one in self.names(): print(one)",
    "for one in self.known() or (): print(one)",
    "for one in self.owned_by('x'): print(one)",
    "for one in other.owned_by('x'): print(one)",
    "for one in self.index._owners['x']: print(one)",
    "for one in self.index._owners.get('x', ()): print(one)",
    "for several in self.index._owners.values(): print(list(several))",
    "for name, several in self.index._owners.items(): print([*several])",
    "first, second = self.pair(); print({one: 1 for one in second})",
    "some = self._made; print(', '.join(some))",
    "print(self.names().pop())",
    "print(next(iter(self.names() - {'a'})))",
    "print(f'{self.names()}')",
    "yield from map(str, self.names())",
    "found = []; found += self.names()",
    "a, b = self.names()",
    "print(dict.fromkeys({one.name for one in given}))",
]
IN_NO_ORDER = [
    "for one in sorted(self.names()): print(one)",
    "print(len(self.names()), 'a' in self.names(), max(self.names()), set(self.names()), {*self.names()})",
    "print(any(one for one in self.names()), {one for one in self.names()}, self.names() <= {'a'})",
    "for one in self.ids() & self.index.numbers: print(one)",
    "for one in {one + 0 for one in ()} & self.ids(): print(one)",
    "for one in set(range(3)) - self.ids(): print(one)",
    "for one in self.index._owners: print(one)",
    "first, second = self.pair(); print(list(first))",
    "for one in Names().names: print(one)",
]


@pytest.mark.parametrize(("run", "places"), [*((one, 1) for one in IN_ORDER), *((one, 0) for one in IN_NO_ORDER)])
def test_a_run_over_a_set_is_found_behind_calls_and_dicts(run: str, places: int) -> None:
    given = "def told(catalog: Catalog): catalog.shown({'a', str()})"
    modules = [("index.py", ast.parse(OTHER.replace("{RUN}", run))), ("told.py", ast.parse(given))]
    assert set_order.found(modules) == ({"index.py": ["Catalog.shown"]} if places else {})
