"""The knobs of a run: settings, and constants of the package, drawn so small that their bounds are met.

A constant is named by its module and its name. It is set there and in every module that imports it; what was derived
from it when its module was imported, such as a default, stays as it was.
"""

import random
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

SETTINGS: dict[str, tuple[Any, ...]] = {
    "lease_s": (3.0, 5.0, 8.0),
    "checkpoint_s": (1.0, 3.0, 10.0),
    "journal_window": (1, 2, 4, 8),
    "journal_file_bytes": (65_536, 1 << 26),
    "journal_puts_per_s": (0, 0, 20),
    "flush_max_age_s": (1.0, 3.0, 30.0),
    "flush_max_bytes": (65_536, 1 << 20),
    "flush_min_bytes": (0, 1 << 20),
    "memory_cache_bytes": (0, 20_000, 1 << 27),
    "snapshot_s": (2.0, 10.0),  # the checker lets acks of the last 30 s before a loss of coordination be forgotten
    "retention_grace_s": (60.0, 3600.0),
    "publish_timeout_s": (15.0,),
}
MIRRORS: dict[str, tuple[Any, ...]] = {"journal_exposure_s": (1.0, 3.0, 10.0), "mirror_patience_s": (0.2, 0.5, 3.0)}
"""Settings of mirrored journals alone."""
WINDOW = "broker.subscriptions.window.WINDOW"
CURSOR_BYTES = "coordination.packed_forms.CURSOR_MAX_BYTES"
PACKED_BYTES = "coordination.packed_forms._PACKED_BYTES"
CONSTANTS: dict[str, tuple[int, ...]] = {
    "broker.log.group_commit.COMMIT_BYTES": (2_000, 30_000),
    "broker.log.flusher.ENTRY_BYTES": (5_000, 50_000),
    "journal.object_journal.MOST_SLOTS": (3, 30),
    "broker.publish.forwarder.FLIGHTS": (1,),
    "broker.publish.forwarder.FORWARD_BYTES": (2_000,),
    "broker.publish.publisher.INLINE_ROWS": (2,),
    "broker.recovery.replay.BATCH_BYTES": (3_000, 30_000),
    "broker.recovery.replay.SEGMENTS": (1, 2),
    "broker.recovery.journal_recovery.REPLAYS": (1,),
    "broker.reshape.reshaper.FLUSHES": (1,),
    "broker.subscriptions.open_subscriptions.PAGE": (1, 3),
    "broker.subscriptions.pull_rounds.KEYS_AHEAD": (5, 50),
    "broker.subscriptions.pull_rounds.PULL_BYTES": (3_000, 30_000),
    "broker.subscriptions.pull_rounds.SPAN_GAP": (2,),
    "broker.subscriptions.shares.ACTIVE_S": (0.3,),
    "broker.subscriptions.window.FIRST_SIZE": (4, 32),
    WINDOW: (10, 100),
    "broker.subscriptions.admin.PAGE": (1, 3),
    "broker.imports.records.PAGE": (1,),
    "broker.retention.files.SEGMENTS": (1,),
    "broker.retention.segment_removal.PAGE": (1,),
    "broker.topics.topic_admin.PAGE": (1,),
    "broker.topics.ownership.OPENINGS": (1,),
    CURSOR_BYTES: (7_500,),
    PACKED_BYTES: (60, 300),
    "journal.file_recovery.READ_BYTES": (2_000,),
    "journal.interface.AHEAD_BYTES": (4_000,),
    "journal.object_format.BATCH": (1, 3),
    "journal.object_format.PAGE": (2, 7),
    "journal.object_recovery.INDEX_BYTES": (300,),
    "journal.object_recovery.READ_AHEAD": (1, 3),
    "segments.chain.MARKS": (2, 10),
    "segments.chain.PAGE": (2, 7),
    "segments.entry.ROW_GROUP_ROWS": (3, 50),
}
RETENTION: dict[str, tuple[Any, ...]] = {
    "broker.cluster.leadership.RETENTION_S": (3.0, 15.0),
    "broker.retention.due.SLACK_US": (1_000_000, 5_000_000),
    "broker.retention.rounds.MAX_SKEW_US": (2_000_000, 10_000_000),
}
"""Constants of retention, drawn where a topic has it: else none would be due within a run."""
BUDGET = "budget_bytes"
"""The memory of a broker, below what its settings take."""
SMALL = 0.25  # the part of constants that are drawn


def draw(rng: random.Random) -> dict[str, Any]:
    """The knobs of a plan: all settings, and some of the constants."""
    found = {name: rng.choice(values) for name, values in SETTINGS.items()}
    if rng.random() < SMALL:
        found[BUDGET] = rng.choice([1 << 19, 1 << 22])
    for name, values in CONSTANTS.items():
        chosen, value = rng.random(), rng.choice(values)
        if chosen < SMALL:
            found[name] = value
    if CURSOR_BYTES in found:  # a batch of dead letters has room beside acks and attempts
        found.setdefault(PACKED_BYTES, 300)
    return found


def settings_of(knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are settings of a broker."""
    return {name: value for name, value in knobs.items() if "." not in name and name != BUDGET}


@cache
def _source(path: str) -> str:
    return Path(path).read_text()


@contextmanager
def turned(knobs: Mapping[str, Any]) -> Iterator[None]:
    """The constants have their values meanwhile."""
    with ExitStack() as stack:
        for path, value in knobs.items():
            if "." in path:
                module, _, name = f"seaweedq.{path}".rpartition(".")
                stack.enter_context(mock.patch.object(import_module(module), name, value))
                imports = re.compile(rf"from {re.escape(module)} import (\([^)]*|[^\n(]*)\b{name}\b")
                for other in [one for key, one in sys.modules.items() if key.startswith("seaweedq.")]:
                    if hasattr(other, name) and imports.search(_source(other.__file__ or "")):
                        stack.enter_context(mock.patch.object(other, name, value))
        yield
