"""Chooses the tests of a tier by their marks: `--tier fast`, `default`, `long` or `soak`.

Marks stand in the files of tests, as `pytestmark` or above a test. A test that starts a process, a server or several
brokers without a mark for it fails: audit events tell. `SEAWEEDQ_TEST_EXAMPLES` is a factor for how many examples a
property has.

`fast` is all without a mark, with few examples of each property; `default` everything but `long` and `soak`; `long` is
what has this mark, and the properties again with more examples; `soak`, more of what shorter tiers show, is for
`make soak`. Several brokers in one loop, simulated hours, and tests marked `default` are too long for `fast`: they take
a tenth of a second of CPU or more.

`fast` and `default` have the same examples in each run. `long` draws new ones from a seed, and prints the command that
repeats them.
"""

import gc
import os
import random
import sys
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

MARKS = {
    "process": "starts processes",
    "service": "starts a server of others: etcd, moto, MinIO or SeaweedFS",
    "spark": "runs Spark, which needs Java",
    "brokers": "runs several brokers in the test's own loop",
    "simulation": "simulates a cluster's hours",
    "default": "takes too long for `make test-fast`",
    "long": "is deliberately long: `make test-all` runs it",
    "soak": "is more of what a test in a shorter tier shows: `make soak` runs it",
}
EXAMPLES = {"fast": 0.1, "default": 0.3, "long": 0.6, "soak": 0.6}  # of what a property asks for
# What a test may do only with a mark: audit events, the mark that each asks for, and the marks that say as much.
EVENTS = {
    "subprocess.Popen": "process",
    "tests.service": "service",
    "tests.brokers": "brokers",
    "tests.simulation": "simulation",
}
SAID_BY = {mark: {mark} for mark in EVENTS.values()} | {"process": {"process", "service", "spark"}}
_factor = 1.0
_started: list[tuple[str, str]] = []  # (mark, what)


def examples(count: int) -> int:
    """So many examples of a property, by the tier."""
    return max(2, int(count * _factor))


def later(*values: Any) -> Any:
    """A parameter whose test is one of the tier `long`: the same with another parameter is in `default`."""
    return pytest.param(*values, marks=pytest.mark.long)


def soaked(*values: Any) -> Any:
    """A parameter whose test is one of the tier `soak`: the same with other parameters is in a shorter one."""
    return pytest.param(*values, marks=pytest.mark.soak)


def marked(value: Any, *marks: str) -> Any:
    """A parameter whose test has these marks, beside those of all parameters."""
    return pytest.param(value, marks=[getattr(pytest.mark, mark) for mark in marks])


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
    settings.register_profile(
        tier,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        max_examples=examples(100),
        derandomize=tier != "long",
    )
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
    """Keeps those of the tier, and puts first what takes long: then both cores are busy to the end."""
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


SPARK_PAGE = "tests/docs/test_pages.py::test_every_block_runs_as_written[docs/do/spark.md]"
ONE_JVM = ("tests/readers/", "tests/spark/", "tests/examples/test_flights.py", SPARK_PAGE)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile` what shares Spark's session stays together as a file does: one JVM for all of it. So does
    Spark's page, whose blocks start a JVM each: beside another one they take minutes."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if nodeid.startswith(ONE_JVM) else str(super()._split_scope(nodeid))

    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


def _in_tier(item: pytest.Item, tier: str) -> bool:
    marks = {mark.name for mark in item.iter_markers()}
    if tier == "fast":
        return not marks & MARKS.keys()
    if tier == "default":
        return not marks & {"long", "soak"}
    if "soak" in marks:
        return tier == "soak"
    return tier in marks or (tier == "long" and is_hypothesis_test(item.obj))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Forgets what tests before this one have started."""
    _started.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fails a test that starts something and has no mark that says so."""
    result = yield
    marks = {mark.name for mark in item.iter_markers()}
    unmarked = [f"{mark}: {started}" for mark, started in _started if not marks & SAID_BY[mark]]
    assert not unmarked, f"no mark says that it starts {unmarked}"
    return result


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event in EVENTS:
        _started.append((EVENTS[event], str(arguments[1] if event == "subprocess.Popen" else arguments)))
