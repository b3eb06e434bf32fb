"""Measured load of segments and brokers."""

from seaweedq.broker.load.histories import FoundHistory as FoundHistory
from seaweedq.broker.load.histories import Histories as Histories
from seaweedq.broker.load.meters import LoadReport as LoadReport
from seaweedq.broker.load.meters import SegmentRates as SegmentRates
from seaweedq.broker.load.meters import policy_of as policy_of
