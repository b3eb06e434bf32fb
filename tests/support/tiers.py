"""Marks each test by what it needs, and chooses those of a tier: `--tier fast`, `default` or `long`.

What a test needs follows from its fixtures and from the helpers that it, or they, call: whatever names a function that
starts a process needs one. `SEAWEEDQ_TEST_EXAMPLES` is a factor for how many examples a property has.

`fast` is all that needs nothing, with few examples of each property; `default` everything but what asks for the
fixture `long_run`; `long` is the rest, and the properties again with more examples. Several brokers in one loop,
simulated hours, and what asks for `default_run` are too long for `fast`: they take a tenth of a second of CPU or more.

`fast` and `default` have the same examples in each run. `long` draws new ones from a seed, and prints the command that
repeats them.
"""

import gc
import inspect
import os
import random
import subprocess
import sys
from collections.abc import Generator, Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings

from seaweedq import import_worker
from seaweedq.broker.imports import reader_process
from seaweedq.cli.demo.demo_tables import missing_for_spark
from tests.support.processes import s3_service
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.etcd_service import EtcdServer

MARKS = {
    "process": "starts processes",
    "service": "starts a server of others: etcd, moto, MinIO or SeaweedFS",
    "spark": "runs Spark, which needs Java",
    "brokers": "runs several brokers in the test's own loop",
    "simulation": "simulates a cluster's hours",
    "default": "takes too long for `make test-fast`",
    "long": "is deliberately long: `make test-all` runs it",
}
EXAMPLES = {"fast": 0.1, "default": 0.3, "long": 1.5}  # of what a property asks for
NAMED = {
    "pyspark": "spark",
    "InLoop": "brokers",
    "Live": "simulation",  # a segment of tests/support/balancer/simulated.py
    "check_helm": "process",
    "create_subprocess_exec": "process",
    "create_subprocess_shell": "process",
}
STARTED: dict[Any, str] = {subprocess: "process", BrokerProcess: "process", EtcdServer: "service"}
STARTED[s3_service.running] = "service"
STARTED |= dict.fromkeys((import_worker, reader_process.ReaderProcess, missing_for_spark), "process")
# What a parameter of a fixture over several backends stands for.
PARAMETERS = {
    "etcd": "service",
    "spark": "spark",
    "object on S3": "service",
    "object astray": "service",
    "s3-yours": "service",
    "yours_server": "service",
} | {name: "service" for kind in s3_service.SERVERS for name in (f"s3-{kind}", f"{kind}_server")}
_factor = 1.0
_started: list[str] = []


def examples(count: int) -> int:
    """So many examples of a property, by the tier."""
    return max(2, int(count * _factor))


def later(*values: Any) -> Any:
    """A parameter whose test is one of the tier `long`: the same with another parameter is in `default`."""
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.fixture
def long_run() -> None:
    """Makes a test one of the tier `long`."""


@pytest.fixture
def default_run() -> None:
    """Makes a test one of the tier `default`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--tier`."""
    parser.addoption("--tier", choices=EXAMPLES, help="which tests run; without it all, with the default's examples")


def pytest_configure(config: pytest.Config) -> None:
    """Names the marks, and sets how many examples there are."""
    global _factor
    for mark, text in MARKS.items():
        config.addinivalue_line("markers", f"{mark}: {text}")
    tier = config.getoption("--tier") or "default"
    _factor = EXAMPLES[tier] * float(os.environ.get("SEAWEEDQ_TEST_EXAMPLES", "1"))
    # How long an example takes says more of the machine than of the code.
    settings.register_profile(tier, deadline=None, max_examples=examples(100), derandomize=tier != "long")
    settings.load_profile(tier)
    sys.addaudithook(_note)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Draws the seed of the tier `long`, before the processes of pytest-xdist take the options."""
    if config.getoption("--tier") == "long" and config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(10**9))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Says how the same examples come again."""
    if config.getoption("--tier") != "long" or not config.getoption("--hypothesis-seed"):
        return
    failed = sorted({report.nodeid.partition("::")[0] for report in terminalreporter.stats.get("failed", ())})
    which = f"TESTS='{' '.join(failed)}' " if failed else ""
    again = f"make test-all {which}SEED={config.getoption('--hypothesis-seed')}"
    terminalreporter.write_line(f"the same examples again: {again}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects no garbage meanwhile, and none of what was collected afterwards: all of it stays."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks all, keeps those of the tier, and puts first what takes long: then both cores are busy to the end."""
    for item in items:
        for mark in needs(item):
            item.add_marker(mark)
    tier = config.getoption("--tier")
    kept = [item for item in items if tier is None or _in_tier(item, tier)]
    left = set(kept)
    if gone := [item for item in items if item not in left]:
        config.hook.pytest_deselected(items=gone)
    weights = {name: weight for weight, name in enumerate(("spark", "service", "process"), 1)}
    heaviest: dict[Any, int] = {}
    for item in kept:
        weight = max((weights.get(mark.name, 0) for mark in item.iter_markers()), default=0)
        heaviest[item.path] = max(weight, heaviest.get(item.path, 0))
    items[:] = sorted(kept, key=lambda item: -heaviest[item.path])


def needs(item: pytest.Item) -> set[str]:
    """The marks of a test."""
    if not isinstance(item, pytest.Function):
        return set()
    definitions = item._fixtureinfo.name2fixturedefs
    found = {mark for mark in ("default", "long") if f"{mark}_run" in definitions}
    for function in [item.function, *(chosen[-1].func for chosen in definitions.values())]:
        found |= _needs_of(function)
    if callspec := getattr(item, "callspec", None):
        values = [value for value in callspec.params.values() if isinstance(value, str)]
        found |= {PARAMETERS[value] for value in values if value in PARAMETERS}
    return found


@cache
def _needs_of(first: Any) -> set[str]:
    """What a function needs, with all functions and classes of the tests that it names, and that those name."""
    seen, left, found = {first}, [first], set()
    while left:
        marks, named = _direct(left.pop())
        found |= marks
        left += named - seen
        seen |= named
    return found


@cache
def _direct(thing: Any) -> tuple[set[str], set[Any]]:
    """(marks that follow from the names in a function or class, the functions and classes that it names)."""
    found, others = {NAMED[one.__name__] for one in getattr(thing, "__mro__", ()) if one.__name__ in NAMED}, set()
    for function in _functions(thing):
        names = set(_names(function.__code__))
        found |= {NAMED[name] for name in names & NAMED.keys()}
        named = [function.__globals__.get(name) for name in names]
        for module in [one for one in named if isinstance(one, ModuleType) and one.__name__.startswith("tests.")]:
            named += [getattr(module, name, None) for name in names]
        named = [one for one in named if isinstance(one, FunctionType | type | ModuleType)]
        found |= {STARTED[one] for one in named if one in STARTED}
        others |= {one for one in named if one not in STARTED and not isinstance(one, ModuleType)}
    return found, others


def _functions(thing: Any) -> Iterator[FunctionType]:
    if hypothesis := getattr(thing, "hypothesis", None):
        thing = hypothesis.inner_test
    thing = inspect.unwrap(thing) if callable(thing) else thing
    if not getattr(thing, "__module__", "").startswith("tests."):
        return
    if isinstance(thing, FunctionType):
        yield thing
    elif isinstance(thing, type):
        for value in [value for one in thing.__mro__ for value in vars(one).values()]:
            value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            yield from _functions(value) if isinstance(value, FunctionType) else ()


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _in_tier(item: pytest.Item, tier: str) -> bool:
    marks = {mark.name for mark in item.iter_markers()}
    if tier == "fast":
        return not marks & MARKS.keys()
    return "long" not in marks if tier == "default" else "long" in marks or is_hypothesis_test(item.obj)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Forgets what tests before this one have started."""
    _started.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fails a test that starts a process and has no mark that says so."""
    result = yield
    marks = {mark.name for mark in item.iter_markers()}
    assert not _started or marks & {"process", "service", "spark"}, f"no mark says that it starts {_started}"
    return result


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen":
        _started.append(str(arguments[1]))
