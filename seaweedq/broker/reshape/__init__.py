"""Splits, merges and rolls: planned, carried out, counted."""

from seaweedq.broker.reshape.change_requests import ChangeRequests as ChangeRequests
from seaweedq.broker.reshape.reshaper import KINDS as KINDS
from seaweedq.broker.reshape.reshaper import Reshaper as Reshaper
