"""Finds what runs over a set in its order, over all modules together: a set of texts has another order in each process.

A set is what is built, annotated, returned or passed as one, and what comes out of a dict of them. A name means the
member of the class that an annotation tells, else one of the own module, else that of all classes, if they agree. A
set of numbers has the same order everywhere. Nothing here knows what a callback gets, or a package returns.
"""

import ast
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

Kind = str
"""SET, NUMBERS, NUMBER, "is Name" for a class; or what holds one: "of set" for a dict's values, "each set" for a list's
items or a dict's keys, "0 set", "1 set" for a tuple's items."""
SET, NUMBERS, NUMBER = "set", "numbers", "number"
SETS = {"set", "frozenset", "Set", "AbstractSet", "MutableSet"}
DICTS = {"dict", "Mapping", "MutableMapping", "defaultdict", "OrderedDict"}
LISTS = {"list", "tuple", "Sequence", "Collection", "Iterable", "Iterator", "AsyncIterator"}
OPEN = {"Collection", "Iterable", "Container", "Sized", "Any", "object"}  # may be a set
MAKES_SETS = {"union", "intersection", "difference", "symmetric_difference"}
OF_BUILTINS = {"get", "pop", "setdefault", "keys", "values", "items", "copy", "append", "add", "update"}
LAZY = {"map", "filter", "chain", "from_iterable"}  # has the order of what it gets
INDIFFERENT = {
    *("sorted", "set", "frozenset", "len", "sum", "min", "max", "any", "all", "bool", "Counter", "nsmallest"),
}
IN_ORDER = {
    *("list", "tuple", "iter", "enumerate", "join", "fromiter", "array", "gather", "zip", "extend", "fromkeys"),
    *("deque", "islice", "str", "repr", "choice", "sample"),
}
Function = ast.FunctionDef | ast.AsyncFunctionDef
BINDING = (ast.Assign, ast.NamedExpr, ast.For, ast.AsyncFor, ast.comprehension)


def found(sources: Iterable[tuple[str, ast.Module]]) -> dict[str, list[str]]:
    """The places, by module."""
    program = Program(sources)
    readers = {path: Reader(program, path) for path, _ in program.sources}
    for path, tree in program.sources:
        readers[path].visit(tree)
    return {path: reader.found for path, reader in readers.items() if reader.found}


class Member(NamedTuple):
    """A function, and the class that has it."""

    path: str
    owner: str
    function: Function


class Program:
    """Modules, and what their names are."""

    def __init__(self, sources: Iterable[tuple[str, ast.Module]]) -> None:
        self.sources = list(sources)
        self.aliases: dict[str, ast.expr] = {}
        self.functions: dict[str, list[Member]] = {}
        self.fields: dict[str, dict[tuple[str, str], set[Kind]]] = {}  # by name, then by module and class
        self.told: set[tuple[str, str, str]] = set()  # fields with an annotation
        self.classes: set[str] = set()
        self.kinds: dict[ast.AST, set[Kind]] = {}  # of functions: what they return; of their arguments: what they get
        for _, tree in self.sources:
            self.aliases.update(aliases_in(tree))
            self.classes |= {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        for path, tree in self.sources:
            self._note_members(path, "", tree)
        outer = [(path, owner, Parts(node)) for path, tree in self.sources for owner, node in outer_functions(tree)]
        self._has_changed = True
        while self._has_changed:
            self._has_changed = False
            for path, owner, parts in outer:
                Reader(self, path, owner).learn(parts)

    def functions_named(self, name: str, path: str, owners: Collection[str]) -> list[Function]:
        """Those that a call may mean: of these classes, else of the module, else all."""
        there = self.functions.get(name, [])
        own = [one for one in there if one.owner in owners] or [one for one in there if one.path == path]
        return [one.function for one in own or there]

    def field_kinds(self, name: str, path: str, owners: Collection[str]) -> set[Kind]:
        """What a field is: of these classes, else of the module, else of all classes, if they agree."""
        there = self.fields.get(name, {})
        for chosen in (
            [kinds for (_, owner), kinds in there.items() if owner in owners],
            [kinds for (where, _), kinds in there.items() if where == path],
        ):
            if chosen:
                return set().union(*chosen)
        return set().union(*there.values()) if all(there.values()) else set()

    def note(self, of: ast.AST, kinds: Iterable[Kind]) -> None:
        """Notes what a function returns, or an argument gets."""
        known = self.kinds.setdefault(of, set())
        if more := {*kinds} - known:
            known |= more
            self._has_changed = True

    def note_field(self, name: str, path: str, owner: str, kinds: Iterable[Kind]) -> None:
        """Notes what a field is."""
        known = self.fields.setdefault(name, {}).setdefault((path, owner), set())
        if more := {*kinds} - known:
            known |= more
            self._has_changed = True

    def annotated(self, node: ast.AST | None) -> set[Kind]:
        """What an annotation says."""
        match node:
            case ast.Constant(value=str(text)):
                return self.annotated(ast.parse(text, mode="eval").body)
            case ast.BinOp(op=ast.BitOr(), left=left, right=right):
                return self.annotated(left) | self.annotated(right)
            case ast.Name(id=name) if name in self.classes:
                return {f"is {name}"}
            case ast.Name(id=name) if name in self.aliases:
                return self.annotated(self.aliases[name])
            case ast.Name(id="int"):
                return {NUMBER}
            case ast.Name() | ast.Attribute() if last_name(node) in SETS:
                return {SET}
            case ast.Subscript(value=base, slice=inner) if last_name(base) in SETS:
                return {NUMBERS if self._is_of_numbers(inner) else SET}
            case ast.Subscript(value=base, slice=ast.Tuple(elts=[key, value])) if last_name(base) in DICTS:
                values = {f"of {one}" for one in self.annotated(value)}
                return values | {f"each {NUMBER}" for one in self.annotated(key) if one == NUMBER}
            case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[item, ast.Constant()])):
                return {f"each {one}" for one in self.annotated(item)}
            case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=items)):
                return {f"{at} {one}" for at, item in enumerate(items) for one in self.annotated(item)}
            case ast.Subscript(value=base, slice=item) if last_name(base) in LISTS:
                return {f"each {one}" for one in self.annotated(item)}
        return set()

    def is_open(self, node: ast.AST | None) -> bool:
        """Tells whether an annotation leaves open whether it is a set."""
        match node:
            case None:
                return True
            case ast.Name(id=name) if name in self.aliases:
                return self.is_open(self.aliases[name])
            case ast.BinOp(op=ast.BitOr(), left=left, right=right):
                return self.is_open(left) or self.is_open(right)
            case ast.Subscript(value=base):
                return last_name(base) in OPEN
        return last_name(node) in OPEN

    def _is_of_numbers(self, node: ast.AST) -> bool:
        names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        return all(
            self._is_of_numbers(self.aliases[one]) if one in self.aliases else one in ("int", "tuple") for one in names
        )

    def _note_members(self, path: str, owner: str, tree: ast.AST) -> None:
        for node in ast.iter_child_nodes(tree):
            match node:
                case ast.ClassDef(name=name):
                    self._note_members(path, name, node)
                    continue
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    self.functions.setdefault(owner if name == "__init__" else name, []).append(
                        Member(path, owner, node)
                    )
                    self.kinds[node] = self.annotated(node.returns)
                    if any("property" in ast.unparse(one) for one in node.decorator_list):
                        self.note_field(name, path, owner, self.kinds[node])
                case ast.AnnAssign(target=target, annotation=kind):
                    self.told.add((last_name(target), path, owner))
                    self.note_field(last_name(target), path, owner, self.annotated(kind))
            if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
                self._note_members(path, owner, node)


class Reader(ast.NodeVisitor):
    """Notes the kinds of one module, and finds its places."""

    def __init__(self, program: Program, path: str, owner: str = "") -> None:
        self.found: list[str] = []
        self._program = program
        self._path = path
        self._place: list[str] = []
        self._owner = owner
        self._names: dict[str, set[Kind]] = {}
        self._bound: dict[str, set[Kind]] = {}

    def learn(self, parts: "Parts") -> None:
        """Notes what a function and those inside it return and pass on."""
        self._bind_all(parts)
        for function in parts.functions:
            if self._program.is_open(function.returns):
                for one in returned(function):
                    self._program.note(function, self.kinds(one))
        for call in parts.calls:
            self._pass_on(call)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        before, self._owner = self._owner, node.name
        self._place.append(node.name)
        self.generic_visit(node)
        self._place.pop()
        self._owner = before

    def visit_FunctionDef(self, node: Function) -> None:
        self._place.append(node.name)
        before = dict(self._names)
        self._bind_all(Parts(node))
        self.generic_visit(node)
        self._names = before
        self._place.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_For(self, node: ast.For) -> None:
        self._run(node.iter)
        self.generic_visit(node)

    def visit_YieldFrom(self, node: ast.YieldFrom) -> None:
        self._run(node.value)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.targets[0], ast.Tuple | ast.List):
            self._run(node.value)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.op, ast.Add):
            self._run(node.value)
        self.generic_visit(node)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> None:
        self._run(node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Some calls do not care for an order; others make a list of what they get."""
        name = last_name(node.func)
        for one in node.args:
            if name in INDIFFERENT and isinstance(one, ast.GeneratorExp | ast.ListComp):
                for part in (one.elt, *one.generators):
                    self.visit(part)
            else:
                if name in IN_ORDER:
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
        for one in node.elts:
            self.visit(one.value if isinstance(one, ast.Starred) else one)

    def kinds(self, node: ast.AST | None) -> set[Kind]:
        """What a value may be."""
        match node:
            case ast.Set(elts=items):
                return {NUMBERS if all(self._is_number(one) for one in items) else SET}
            case ast.Constant(value=int()):
                return {NUMBER}
            case ast.SetComp(elt=item):
                return {NUMBERS if NUMBER in self.kinds(item) else SET}
            case ast.DictComp(value=value):
                return {f"of {one}" for one in self.kinds(value)}
            case ast.Await(value=value) | ast.NamedExpr(value=value):
                return self.kinds(value)
            case ast.BoolOp(values=values):
                return {kind for one in values for kind in self.kinds(one)}
            case ast.IfExp(body=body, orelse=other):
                return self.kinds(body) | self.kinds(other)
            case ast.BinOp(left=left, op=operator, right=right):
                return self._combined(left, operator, right)
            case ast.Name(id=name):
                return self._names.get(name, set())
            case ast.Attribute(value=value, attr=name):
                return self._program.field_kinds(name, self._path, self._owners_of(value))
            case ast.Subscript(value=value, slice=ast.Constant(value=int(at))) if at >= 0:
                return within(self.kinds(value), "of") | within(self.kinds(value), str(at))
            case ast.Subscript(value=value):
                return within(self.kinds(value), "of")
            case ast.Call():
                return self._returned(node)
        return set()

    def _returned(self, node: ast.Call) -> set[Kind]:
        match node.func:
            case ast.Name(id="set" | "frozenset"):
                given = {kind for one in node.args for kind in self.kinds(one)}
                return {NUMBERS} if given & {NUMBERS, f"each {NUMBER}"} else {SET}
            case ast.Name(id="defaultdict") if node.args and last_name(node.args[0]) in SETS:
                return {f"of {SET}"}
            case ast.Subscript():
                return self._program.annotated(node.func)
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in LAZY:
                return {SET} if any(SET in self.kinds(one) for one in node.args) else set()
            case ast.Attribute(value=value, attr=name) if name in MAKES_SETS:
                return self.kinds(value) & {SET, NUMBERS} or {SET}
            case ast.Attribute(value=value, attr="get" | "pop" | "setdefault") if node.args:
                return within(self.kinds(value), "of")
            case ast.Attribute(value=value, attr="copy"):
                return self.kinds(value)
        if (name := last_name(node.func)) in self._program.classes:
            return {f"is {name}"}
        each = [self._program.kinds[one] for one in self._called(node)]
        return set().union(*each) if all(each) else set()

    def _called(self, node: ast.Call) -> list[Function]:
        name, value = last_name(node.func), getattr(node.func, "value", None)
        if name in OF_BUILTINS and value is not None and not is_self(value):
            return []
        return self._program.functions_named(name, self._path, self._owners_of(value))

    def _combined(self, left: ast.expr, operator: ast.operator, right: ast.expr) -> set[Kind]:
        if not isinstance(operator, ast.Sub | ast.BitAnd | ast.BitOr | ast.BitXor):
            return set()
        one, other = self._operand(left), self._operand(right)
        of_numbers = NUMBERS in one, NUMBERS in other
        if any(of_numbers) if isinstance(operator, ast.Sub | ast.BitAnd) else all(of_numbers):
            return {NUMBERS}
        return {SET} if one or other else set()

    def _operand(self, node: ast.expr) -> set[Kind]:
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr="keys")):
                return {NUMBERS if f"each {NUMBER}" in self.kinds(value) else SET}
            case ast.Call(func=ast.Attribute(attr="items")):
                return {SET}
        return self.kinds(node) & {SET, NUMBERS}

    def _is_number(self, node: ast.expr) -> bool:
        kinds = self.kinds(node.value) if isinstance(node, ast.Starred) else self.kinds(node)
        return bool(kinds & {NUMBER, NUMBERS, f"each {NUMBER}"})

    def _owners_of(self, value: ast.AST | None) -> set[str]:
        return {self._owner} if is_self(value) else within(self.kinds(value), "is")

    def _bind_all(self, parts: "Parts") -> None:
        known = self._program.kinds
        given = {one.arg: self._program.annotated(one.annotation) | known.get(one, set()) for one in parts.arguments}
        told = {one.target.id: self._program.annotated(one.annotation) for one in parts.annotated}
        for _ in range(3):  # some follow from those further below
            self._bound = dict(given)
            for each in parts.bindings:
                self._bind(each)
            self._names = {**self._names, **self._bound, **told}

    def _bind(self, node: ast.AST) -> None:
        """Notes what the names are that a statement binds."""
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                for target, value in zip(targets, values, strict=False):
                    self._bind_target(target, self.kinds(value))
            case ast.Assign(targets=[target], value=value) | ast.NamedExpr(target=target, value=value):
                self._bind_target(target, self.kinds(value))
            case (
                ast.For(target=target, iter=run)
                | ast.AsyncFor(target=target, iter=run)
                | ast.comprehension(target=target, iter=run)
            ):
                self._bind_target(target, set(self._each(run)))

    def _bind_target(self, target: ast.AST, kinds: set[Kind]) -> None:
        match target:
            case ast.Name(id=name):
                self._bound[name] = self._bound.get(name, set()) | kinds
            case ast.Attribute(value=value, attr=name) if is_self(value):
                if (name, self._path, self._owner) not in self._program.told:
                    self._program.note_field(name, self._path, self._owner, kinds)
            case ast.Tuple(elts=items):
                for at, item in enumerate(items):
                    self._bind_target(item, within(kinds, str(at)))

    def _each(self, run: ast.AST) -> Iterator[Kind]:
        """What a run over a value gives."""
        match run:
            case ast.Call(func=ast.Attribute(value=value, attr="values")):
                yield from within(self.kinds(value), "of")
            case ast.Call(func=ast.Attribute(value=value, attr="items")):
                yield from (f"1 {one}" for one in within(self.kinds(value), "of"))
                yield from (f"0 {one}" for one in within(self.kinds(value), "each"))
            case ast.Call(func=ast.Name(id="list" | "sorted" | "tuple"), args=[inner]):
                yield from self._each(inner)
            case _:
                kinds = self.kinds(run)
                yield from within(kinds, "each")
                if NUMBERS in kinds:
                    yield NUMBER

    def _pass_on(self, node: ast.Call) -> None:
        """Notes what the arguments of functions get that leave it open."""
        for function in self._called(node):
            declared = [*function.args.posonlyargs, *function.args.args]
            given = declared[bool(declared and declared[0].arg in ("self", "cls")) :]
            named = {one.arg: one for one in (*declared, *function.args.kwonlyargs)}
            pairs = [*zip(given, node.args, strict=False)]
            pairs += [(named[word.arg], word.value) for word in node.keywords if word.arg in named]
            for one, value in pairs:
                if one.annotation is not None and self._program.is_open(one.annotation):
                    self._program.note(one, self.kinds(value) & {SET, NUMBERS})

    def _run(self, node: ast.AST) -> None:
        if SET in self.kinds(node):
            self.found.append(".".join(self._place))


class Parts:
    """The parts of a function, and of those inside it, that say what its names are."""

    def __init__(self, function: Function) -> None:
        nodes = [*ast.walk(function)]
        self.arguments = [one for one in nodes if isinstance(one, ast.arg)]
        self.bindings = [one for one in nodes if isinstance(one, BINDING)]
        self.annotated = [one for one in nodes if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
        self.calls = [one for one in nodes if isinstance(one, ast.Call)]
        self.functions = [one for one in nodes if isinstance(one, Function)]


def outer_functions(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, Function]]:
    """The functions that are inside of no other, with their classes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield owner, node
        elif isinstance(node, ast.stmt):
            yield from outer_functions(node, node.name if isinstance(node, ast.ClassDef) else owner)


def aliases_in(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """The names of a module that stand for types."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() | ast.BinOp() as value):
                yield name, value
            case ast.AnnAssign(
                target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias"), value=ast.expr() as value
            ):
                yield name, value


def returned(function: Function) -> Iterator[ast.expr]:
    """What a function returns; not what those inside it return."""
    left: list[ast.AST] = [*function.body]
    while left:
        node = left.pop()
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            left += ast.iter_child_nodes(node)


def within(kinds: Iterable[Kind], where: str) -> set[Kind]:
    """What is inside of these."""
    return {one.removeprefix(f"{where} ") for one in kinds if one.startswith(f"{where} ")}


def last_name(node: ast.AST | None) -> str:
    """The name, or the last of several with dots."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_self(node: ast.AST | None) -> bool:
    """Tells whether that is the object itself."""
    return isinstance(node, ast.Name) and node.id in ("self", "cls")
