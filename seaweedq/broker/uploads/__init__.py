"""Uploads and payloads by reference: records, rules, checks, links."""

from seaweedq.broker.uploads.digest_check import pieces as pieces
from seaweedq.broker.uploads.message_payloads import PIECE_BYTES as PIECE_BYTES
from seaweedq.broker.uploads.message_payloads import REFUSALS as REFUSALS
from seaweedq.broker.uploads.message_payloads import Payloads as Payloads
from seaweedq.broker.uploads.message_payloads import names_uploads as names_uploads
from seaweedq.broker.uploads.rules import incarnation_of as incarnation_of
from seaweedq.broker.uploads.rules import object_name as object_name
from seaweedq.broker.uploads.rules import part_count as part_count
from seaweedq.broker.uploads.service import Uploads as Uploads
