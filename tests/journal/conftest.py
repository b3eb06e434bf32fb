"""An object journal on a store whose puts a test lets go on one by one."""

import pytest

from seaweedq.journal.object_journal import ObjectJournal
from tests.support.journal.held_store import Hands, HeldStore, journal_on


@pytest.fixture
def store() -> HeldStore:
    return HeldStore()


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def journal(store: HeldStore, hands: Hands) -> ObjectJournal:
    return journal_on(store, hands)
