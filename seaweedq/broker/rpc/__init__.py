"""Calls between brokers: the client, bounded fields, and the frames of forwarded rows."""

from seaweedq.broker.rpc.client import Peers as Peers
from seaweedq.broker.rpc.messages import BrokerStatus as BrokerStatus
from seaweedq.broker.rpc.messages import EndsCall as EndsCall
from seaweedq.broker.rpc.messages import ErrorMessage as ErrorMessage
from seaweedq.broker.rpc.messages import GiveCall as GiveCall
from seaweedq.broker.rpc.messages import Heartbeat as Heartbeat
from seaweedq.broker.rpc.messages import HeartbeatCall as HeartbeatCall
from seaweedq.broker.rpc.messages import HistoryCall as HistoryCall
from seaweedq.broker.rpc.messages import MarkCall as MarkCall
from seaweedq.broker.rpc.messages import RecoverCall as RecoverCall
from seaweedq.broker.rpc.messages import SegmentCall as SegmentCall
from seaweedq.broker.rpc.messages import ShareCall as ShareCall
from seaweedq.broker.rpc.messages import StreamCall as StreamCall
from seaweedq.broker.rpc.messages import TopicCall as TopicCall
from seaweedq.broker.rpc.messages import UseReport as UseReport
from seaweedq.broker.rpc.messages import WaitsCall as WaitsCall
from seaweedq.broker.rpc.messages import decode_forward as decode_forward
from seaweedq.broker.rpc.peer_keyring import PeerVerifier as PeerVerifier
from seaweedq.broker.rpc.peer_sessions import HELLO_HEADER as HELLO_HEADER
from seaweedq.broker.rpc.peer_sessions import STAMP_HEADER as STAMP_HEADER
from seaweedq.broker.rpc.peer_sessions import USUAL as USUAL
from seaweedq.broker.rpc.peer_sessions import Covered as Covered
from seaweedq.broker.rpc.peer_sessions import Refusal as Refusal
from seaweedq.broker.rpc.peer_sessions import Welcome as Welcome
from seaweedq.broker.rpc.peer_sessions import refused as refused
