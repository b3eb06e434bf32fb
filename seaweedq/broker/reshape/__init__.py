"""Splits, merges, rolls and moves of segments: planned, carried out, counted."""

from seaweedq.broker.reshape.intents import MAX_SUCCESSORS as MAX_SUCCESSORS
from seaweedq.broker.reshape.planning import ChangeRequests as ChangeRequests
from seaweedq.broker.reshape.reshaper import KINDS as KINDS
from seaweedq.broker.reshape.reshaper import Reshaper as Reshaper
