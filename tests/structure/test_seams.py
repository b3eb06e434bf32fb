"""What the simulation decides comes in through seams: time, randomness, ids, threads, files, sockets (simulation.md).

So code of these rooms asks the system for none of them, but at the named places. Brokers of one process share no state
of a module, and nothing that is decided follows the order of a set, which differs from process to process.
"""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache

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
PURE = {"os.PathLike", "os.fspath", "os.path", "os.strerror", "os.SEEK_END", "os.SEEK_CUR", "os.SEEK_SET"}
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
    "coordination/etcd.py": "threading",
    "coordination/etcd_transport.py": ".read_bytes .read_text",
    "coordination/membership.py": "threading",  # `background` of a broker's ProcessContext replaces it
    "coordination/sqlite.py": (
        ".read_text os.O_CLOEXEC os.O_CREAT os.O_EXCL os.O_RDWR os.chmod os.close os.open sqlite3"
    ),
    "journal/home_folder.py": "time",  # `sleep` is passed in
}
"""What these modules ask for, and a simulation replaces or need not: all but journal/disk, whose calls are a seam."""
STATE: Mapping[str, str] = {"api/handlers/internal.py": "_CALLS"}  # routes, known once the module is imported
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
SETS: Mapping[str, str] = {
    # of numbers, whose order is the same everywhere
    "broker/read/positions.py": "TopicPositions._ask_all",
    "broker/read/readable_segments.py": "ReadableSegments._remote",
    "broker/retention/segment_removal.py": "near_ancestors",
    "broker/streams/topic_streams.py": "TopicReader._name",
    "broker/subscriptions/subscription.py": "Subscription.__init__ Subscription.forget",
    "broker/topics/invariants.py": "broken_in_topic",
    "coordination/memory.py": "MemoryEngine._end",
    # what is made of them has no order, or one of its own
    "api/openapi.py": "_operation",
    "broker/cluster/leader.py": "Leader._free",
    "broker/rebuild/journals.py": "JournalSearch.search",
    "broker/topics/segment_index.py": "SegmentIndex.promised",
    "coordination/etcd.py": "EtcdCoordination.close",
    "coordination/view.py": "View._raise_floor",
    "broker/rebuild/plan.py": "losses",  # a tuple, in spite of another class's set of the same name
}
CHANGES = {"append", "add", "update", "setdefault", "pop", "clear", "extend", "remove", "discard", "insert", "popleft"}
INDIFFERENT = {"sorted", "set", "frozenset", "len", "sum", "min", "max", "any", "all", "bool", "Counter"}


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
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if f"os.{name}" not in PURE:
                yield f"os.{name}"
            case ast.Call(func=ast.Name(id="open")):
                yield "open"
            case ast.Call(func=ast.Attribute() as called):
                text = ast.unparse(called)
                if text in CALLS:
                    yield text
                elif called.attr in FILES:
                    yield f".{called.attr}"


def changed(tree: ast.Module) -> Iterator[str]:
    """The names of a module that its functions change."""
    own = {
        target.id
        for node in tree.body
        for target in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
        if isinstance(target, ast.Name)
    }
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                match node:
                    case ast.Global(names=names):
                        yield from names
                    case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if attr in CHANGES:
                        yield from {name} & own
                    case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
                        yield from {name} & own


def remembered(tree: ast.Module) -> Iterator[str]:
    """The functions whose results all brokers share."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(is_memo(one) for one in node.decorator_list):
            yield node.name


class Sets(ast.NodeVisitor):
    """The places of a module that run over a set in its order. A set is what is built, or annotated, as one."""

    def __init__(self, tree: ast.Module) -> None:
        self.found: list[str] = []
        self._place: list[str] = []
        self._fields = {
            named(node.target)
            for node in ast.walk(tree)
            if isinstance(node, ast.AnnAssign) and is_set_kind(node.annotation)
        }
        self._names: set[str] = set()
        self.visit(tree)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._place.append(node.name)
        before = set(self._names)
        for one in ast.walk(node):
            match one:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if self.is_set(value):
                    self._names.add(name)
                case ast.AnnAssign(target=ast.Name(id=name), annotation=kind) if is_set_kind(kind):
                    self._names.add(name)
                case ast.arg(arg=name, annotation=kind) if kind is not None and is_set_kind(kind):
                    self._names.add(name)
        self.generic_visit(node)
        self._names = before
        self._place.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._place.append(node.name)
        self.generic_visit(node)
        self._place.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_For(self, node: ast.For) -> None:
        self._run(node.iter)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Some calls do not care for an order; others make a list of what they get."""
        name = named(node.func)
        for one in node.args:
            if name in INDIFFERENT and isinstance(one, ast.GeneratorExp | ast.ListComp):
                self.visit(one.elt)
            else:
                if name in ("list", "tuple", "iter", "enumerate", "join", "fromiter", "array", "map", "gather"):
                    self._run(one)
                self.visit(one)
        for word in node.keywords:
            self.visit(word)
        self.visit(node.func)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "pop" and not node.args:
            self._run(node.func.value)

    def visit_ListComp(self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp) -> None:
        for one in node.generators:
            self._run(one.iter)
        self.generic_visit(node)

    visit_GeneratorExp = visit_DictComp = visit_ListComp

    def visit_Starred(self, node: ast.Starred) -> None:
        self._run(node.value)
        self.generic_visit(node)

    def visit_Set(self, node: ast.Set) -> None:
        """What is a set again has no order."""

    def is_set(self, node: ast.AST) -> bool:
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Call(func=ast.Name(id="set" | "frozenset")):
                return True
            case ast.Call(func=ast.Attribute(attr="union" | "intersection" | "difference")):
                return True
            case ast.BinOp(left=left, right=right, op=ast.Sub() | ast.BitAnd() | ast.BitOr() | ast.BitXor()):
                return self.is_set(left) or self.is_set(right) or is_keys(left) or is_keys(right)
            case ast.Name(id=name):
                return name in self._names
            case ast.Attribute(attr=name):
                return name in self._fields
        return False

    def _run(self, node: ast.AST) -> None:
        if self.is_set(node):
            self.found.append(".".join(self._place))


def is_memo(node: ast.AST) -> bool:
    return ast.unparse(node).partition("(")[0].rpartition(".")[2] in ("cache", "lru_cache")


def is_set_kind(node: ast.AST) -> bool:
    kind = ast.unparse(node).strip("'\"")
    return kind.partition("[")[0] in ("set", "frozenset", "AbstractSet", "Set")


def is_keys(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("keys", "items")


def named(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


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
    """One of ids or texts goes by `sorted`, or is a dict; another one is named above."""
    assert found(lambda tree: Sets(tree).found) == SETS


SAMPLE = """
import time
from datetime import datetime
known = {}
noted: set[str] = set()
class Place:
    held: set[str]
    def go(self, names: set[str], numbers: list[int]):
        known[1] = 2
        noted.add("x")
        for name in names: print(name)
        first = [one for one in self.held]
        made = set(numbers)
        last = list(made) + [*made] + [next(iter(made))]
        path.write_text(str(datetime.now()) + os.getcwd())
        return sorted(names), len([one for one in self.held]), any(one for one in made), {one for one in names}
"""


def test_each_of_them_is_found() -> None:
    tree = ast.parse(SAMPLE)
    assert sorted(asked(tree)) == [".write_text", "datetime.now", "os.getcwd", "time"]
    assert sorted(changed(tree)) == ["known", "noted"]
    assert Sets(tree).found == ["Place.go"] * 5
