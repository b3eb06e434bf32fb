"""The documentation and the code name the same routes, errors, settings, commands, metrics and fail points."""

import re

import msgspec
import pytest
import typer
from prometheus_client.parser import text_string_to_metric_families

from seaweedq.api.app import Application
from seaweedq.api.problems import STATUS
from seaweedq.balancer.policy import scaling_policy
from seaweedq.broker.broker import Broker
from seaweedq.broker.rpc.peer_sessions import Refusal
from seaweedq.cli import main
from seaweedq.clock import SystemClock
from seaweedq.coordination.keys import CATALOGUE
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.errors import ClientError, SeaweedqError, by_slug
from seaweedq.segments.producers import GUARDS, Kind
from seaweedq.settings import Settings
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers.environments import environment
from tests.support.paths import ROOT
from tests.support.prometheus import alerts

NEVER_SENT = {"bad-request", "unfit-store", "level-mismatch", "data-folder-in-use"}  # bases, and what ends a start


def unstarted(settings: Settings) -> Broker:
    """A broker in memory."""
    return Broker(environment(settings, MemoryStore(), MemoryCoordination(SystemClock())))


@pytest.fixture
async def broker(tmp_path):
    made = unstarted(Settings(data_dir=tmp_path))
    made.lock()
    await made.start()
    yield made
    await made.stop()


def page(name: str) -> str:
    return next((ROOT / "docs").rglob(name)).read_text()


@pytest.fixture
def operations(tmp_path):
    """What OpenAPI says of each route, by method and path."""
    broker = unstarted(Settings(data_dir=tmp_path))
    paths = Application(broker).fastapi.openapi()["paths"]
    return {f"{method.upper()} {path}": said for path, methods in paths.items() for method, said in methods.items()}


def listed():
    """The line of each route, by method and path."""
    return dict(re.findall(r"^- `([A-Z]+ /\S*)` — (.*)$", page("http.md"), re.MULTILINE))


def test_routes(operations):
    assert listed().keys() == operations.keys()


def test_routes_that_take_a_json_body_declare_its_errors(operations):
    statuses = {"400", "408", "413", "415"}
    for route, said in operations.items():
        may_have_one = not route.startswith(("GET", "DELETE")) and not route.endswith("/content")
        assert may_have_one == (said["responses"].keys() >= statuses), route


def test_query_parameters_and_headers(operations):
    for said in operations.values():
        for parameter in said.get("parameters", []):
            assert parameter["in"] == "path" or parameter["description"], parameter["name"]


def errors_on_the_page():
    part = page("http.md").partition("<!-- errors:")[2].partition("<!-- end -->")[0]
    return [(slug, int(status)) for status, slug in re.findall(r"\b(\d{3}) `([a-z-]+)`", part)]


def test_errors_and_their_status():
    documented = errors_on_the_page()
    sent = {
        (slug, STATUS[kind])
        for slug, kind in by_slug().items()
        if slug not in NEVER_SENT and not issubclass(kind, ClientError)
    }
    assert len(documented) == len(sent)
    assert {*documented} == sent


def test_every_status_that_openapi_names_is_in_the_list_of_errors():
    statuses = {status for kind, status in STATUS.items() if not issubclass(kind, ClientError)}
    assert {status for _, status in errors_on_the_page()} == statuses
    assert SeaweedqError in STATUS


def test_errors_that_pages_name_are_sent_with_the_status_that_they_say():
    """`route-not-found` was on a page, and no broker sent it."""
    kinds, pages = by_slug(), [ROOT / "README.md", ROOT / "helm/README.md", *(ROOT / "docs").rglob("*.md")]
    named = {
        (path.name, int(status), slug)
        for path in pages
        for status, slug in re.findall(r"\b([45]\d\d):? `([a-z]+(?:-[a-z]+)*)`", path.read_text())
    }
    assert len({slug for _, _, slug in named}) > 20
    between_brokers = {("security.md", 403, reason.value) for reason in Refusal}
    wrong = {one for one in named if one[2] not in kinds or STATUS.get(kinds[one[2]]) != one[1]}
    assert not wrong - between_brokers


def test_how_long_imports_are_remembered():
    days = round(GUARDS[Kind.IMPORT].lifetime_s / 86_400)
    assert f"newest {GUARDS[Kind.IMPORT].limit:,} imports, each for {days} days" in page("by-reference.md")
    assert f"idle for {days} days" in page("decisions/0005-an-import-is-a-producer.md")
    assert f"{GUARDS[Kind.CLIENT].lifetime_s // 3600} hours after the producer's last request" in page("http.md")


def test_settings():
    documented = re.findall(r"^\| `(\w+)`", page("settings.md"), re.MULTILINE)
    assert documented == list(Settings.model_fields)


def test_settings_that_the_pages_mention_are_there():
    names = set(Settings.model_fields)
    table = page("operations.md").partition("## Settings that matter")[2].partition("\n## ")[0]
    mentioned = re.findall(r"^\| `(\w+)`", table, re.MULTILINE)
    assert mentioned
    assert set(mentioned) <= names


def test_each_alert_has_a_row():
    table = page("operations.md").partition("\n| alert |")[2].partition("\n\n")[0]
    first_cells = "".join(line.split("|")[1] for line in table.splitlines()[2:])
    assert sorted(re.findall(r"`(\w+)`", first_cells)) == sorted(alert.place for alert in alerts())


def test_the_scaling_policy():
    table = page("scaling.md").partition("## The policy")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)`[^|]*\| (\S+)", table, re.MULTILINE)
    policy = msgspec.to_builtins(scaling_policy({}, 1))
    assert [field for field, _ in rows] == list(policy)
    defaults = {field: f"{value:,.0f}" for field, value in policy.items()} | {"enabled": "true"}
    stated = {field: default.rstrip(",") for field, default in rows}
    assert stated == defaults | {"min_segments": "`initial_segments`"}


def commands():
    """Every command with its options, as (words, options)."""
    group = typer.main.get_command(main.app)
    for name, placeholder in group.commands.items():
        command = placeholder if name == "serve" else main.load_command(name)  # settings are in a page of their own
        for words, one in {f"{name} {sub}": c for sub, c in getattr(command, "commands", {}).items()}.items() or [
            (name, command)
        ]:
            yield words, [option for p in one.params for option in p.opts if option.startswith("--")]


def test_commands_and_their_options():
    text = page("cli.md")
    found = dict(commands())
    assert "topic create" in found
    for words, options in found.items():
        heading = rf"(?:##+ `seaweedq {words}`$|- `seaweedq {words}[ `])"
        section = re.search(rf"^{heading}(.*?)(?=^##|^- `seaweedq|\Z)", text, re.MULTILINE | re.DOTALL)
        assert section, words
        missing = {option for option in options if not re.search(rf"[`, ]{option}\b", section[1])}
        missing -= {"--url", "--output", "--help", "--yes"}  # the same for all
        assert not missing, words


def test_no_section_of_a_command_that_is_not_there():
    first = {words.split()[0] for words, _ in commands()}
    assert set(re.findall(r"^## `seaweedq ([\w-]+)`$", page("cli.md"), re.MULTILINE)) == first


async def test_metrics(broker):
    families = text_string_to_metric_families(Application(broker).metrics().decode())
    served = {family.name + "_total" * (family.type == "counter"): family.type for family in families}
    rows = re.findall(r"^\| `(\w+)`(?: \((histogram)?)?", page("metrics.md"), re.MULTILINE)
    assert served == {name: "counter" if name.endswith("_total") else said or "gauge" for name, said in rows}


def test_fail_points():
    sources = (ROOT / "seaweedq").rglob("*.py")
    texts = [path.read_text() for path in sources]
    placed = {name for text in texts for name in re.findall(r'\breach\("([\w.]+)"\)', text)}
    both = {step for text in texts for step in re.findall(r'\bself\._reach\("(\w+)"\)', text)}
    placed |= {f"{kind}.{step}" for kind in ("import", "write") for step in both}  # one runner has both
    names = ("protocol", "by-reference", "lost-coordination", "object-journal", "mirrored-journal", "scaling")
    pages = [line for name in names for line in page(f"{name}.md").splitlines()]
    tables = "\n".join(line for line in pages if line.startswith("|"))
    named = set(re.findall(r"`([a-z]+\.[a-z]+)`", tables))
    assert placed
    assert named == placed


def test_kinds_of_keys_and_their_backups():
    text = page("protocol.md").partition("## Backups of coordination")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\w+) \| (`.*`) \|$", text, re.MULTILINE)
    listed = {backup: re.findall(r"`([\w-]+)`", kinds) for backup, kinds in rows}
    assert listed == {backup: [kind.name for kind in CATALOGUE if kind.backup == backup] for backup in listed}
    assert sum(map(len, listed.values())) == len(CATALOGUE)
