"""Principals and tokens of the cluster: each broker's view, and changes."""

from seaweedq.broker.access.callers import MAX_BYTES as MAX_BYTES
from seaweedq.broker.access.callers import Callers as Callers
from seaweedq.broker.access.certificates import ClientCertificate as ClientCertificate
from seaweedq.broker.access.grants import InvalidGrant as InvalidGrant
from seaweedq.broker.access.grants import check_grants as check_grants
from seaweedq.broker.access.jwt_rules import REFUSED as REFUSED
from seaweedq.broker.access.principals import DenialSpec as DenialSpec
from seaweedq.broker.access.principals import Principals as Principals
from seaweedq.broker.access.principals import TokenSpec as TokenSpec
from seaweedq.broker.access.view import Touched as Touched
