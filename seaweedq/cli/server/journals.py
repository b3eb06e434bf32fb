"""Opens the journals that the settings name. No other module chooses a journal's kind and its pace.

This is separate from `backends`, because `seaweedq doctor` opens the other backends, and journals import pyarrow."""

import logging
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from seaweedq.clock import Clock, Ids
from seaweedq.formats import Level
from seaweedq.journal.backends import (
    FILE,
    MIRRORED,
    OBJECT,
    FileJournals,
    JournalKinds,
    MirroredJournals,
    ObjectJournals,
)
from seaweedq.journal.disk import Disk
from seaweedq.journal.holdings import Holdings
from seaweedq.journal.home_folder import HomeFolder
from seaweedq.journal.interface import Journals, JournalSetup, Mirrors, SeenNow
from seaweedq.journal.mirrored_journal import MirrorRules
from seaweedq.journal.pacing import Pace
from seaweedq.settings import Settings
from seaweedq.storage.interface import ObjectStore

CHARGED_PER_S = 8.0
LINGER_S, LINGER_MAX_S = 0.02, 0.25  # of each, if the other alone is set
# Domains of stores that charge for each put.
CHARGING = (
    "amazonaws.com",
    "amazonaws.com.cn",
    "storage.googleapis.com",
    "r2.cloudflarestorage.com",
    "aliyuncs.com",
    "myqcloud.com",
    "oraclecloud.com",
    "appdomain.cloud",
)
logger = logging.getLogger(__name__)


def journal_setup(
    settings: Settings,
    clock: Clock,
    ids: Ids,
    environ: Mapping[str, str],
    disk: Disk | None = None,
    sleep: Callable[[float], None] = time.sleep,
    holdings: Holdings | None = None,
) -> JournalSetup:
    """Returns a broker's home folder and its journals. The broker writes the kind of journal that the settings name,
    and recovers all kinds. `sleep` waits for an earlier holder of the folder; `environ` has AWS's variables,
    `holdings` what earlier lives of the process hold for other brokers."""
    disk = disk or Disk()
    home = HomeFolder(settings.home, disk, ids, sleep)
    pace, why = object_pace(settings, environ)
    rules = MirrorRules(
        settings.journal_mirrors,
        settings.journal_least_mirrors,
        settings.journal_exposure_s,
        settings.mirror_patience_s,
    )
    if settings.journal_kind != FILE:
        logger.info("the journal writes objects to the store at most at this rate: %s", why)

    def open_journals(store: ObjectStore, level: Level, seen: SeenNow, mirrors: Mirrors) -> Journals:
        files = FileJournals(home, disk, ids, settings.journal_file_bytes, level, seen)
        objects = ObjectJournals(home, store, clock, ids, pace, level, seen)
        mirrored = MirroredJournals(objects, mirrors, rules)
        return JournalKinds({FILE: files, OBJECT: objects, MIRRORED: mirrored}, settings.journal_kind)

    return JournalSetup(home, open_journals, new_holdings(settings, ids) if holdings is None else holdings)


def new_holdings(settings: Settings, ids: Ids) -> Holdings:
    """Returns what a process that begins holds of other brokers' journals: nothing."""
    return Holdings(settings.mirror_memory_bytes, ids)


def object_pace(settings: Settings, environ: Mapping[str, str]) -> tuple[Pace, str]:
    """Returns the pace of an object journal's puts, and describes the reason."""
    window, low_s, high_s = settings.journal_window, settings.journal_linger_s, settings.journal_linger_max_s
    per_s, why = settings.journal_puts_per_s, "as journal_puts_per_s says"
    if low_s is not None or high_s is not None:
        low_s, high_s = LINGER_S if low_s is None else low_s, LINGER_MAX_S if high_s is None else high_s
        bound = f", and {_bound(per_s)}, {why}" if per_s else ""
        apart = f"{low_s:g} to {high_s:g} s apart, as journal_linger_s says{bound}"
        return Pace(window, low_s, high_s, per_s or 0), apart
    if per_s is None:
        charges = is_charging(settings, environ)
        per_s = CHARGED_PER_S if charges else 0
        why = "because this store charges for puts" if charges else "because this store does not charge for puts"
        why += "; to change this, set journal_puts_per_s"
    return Pace(window, puts_per_s=per_s), f"{_bound(per_s)}, {why}"


def is_charging(settings: Settings, environ: Mapping[str, str]) -> bool:
    """Guesses from the store's URL and endpoints whether the store charges for each put."""
    if not settings.store_path.startswith("s3://"):
        return False
    named = settings.s3_endpoints or environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or ""
    hosts = [urlsplit(one.strip()).hostname or "" for one in named.split(",") if one.strip()]
    return not hosts or any(host == domain or host.endswith(f".{domain}") for host in hosts for domain in CHARGING)


def _bound(per_s: float) -> str:
    return f"at most {per_s:g} per second in the long run" if per_s else "without a limit"
