"""Uploads and payloads by reference: records, rules, checks, links."""

from seaweedq.broker.uploads.payloads import PIECE_BYTES as PIECE_BYTES
from seaweedq.broker.uploads.payloads import REFUSALS as REFUSALS
from seaweedq.broker.uploads.payloads import Payloads as Payloads
from seaweedq.broker.uploads.payloads import read_pieces as read_pieces
from seaweedq.broker.uploads.rules import check_write as check_write
from seaweedq.broker.uploads.rules import incarnation_of as incarnation_of
from seaweedq.broker.uploads.rules import object_name as object_name
from seaweedq.broker.uploads.rules import part_count as part_count
from seaweedq.broker.uploads.uploads import Uploads as Uploads
