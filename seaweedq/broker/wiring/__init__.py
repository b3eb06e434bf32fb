"""Building the services of a broker, a phase at a time. It only makes objects; broker/broker has the order.

A phase needs what an earlier one has found out: a member the cluster's id and the id of its data folder, what serves a
journal, which must not exist before the journals of earlier lives are recovered.
"""

from seaweedq.broker.wiring.core import build_core as build_core
from seaweedq.broker.wiring.joined import build_joined as build_joined
from seaweedq.broker.wiring.joined import identity_of as identity_of
from seaweedq.broker.wiring.serving import build_serving as build_serving
