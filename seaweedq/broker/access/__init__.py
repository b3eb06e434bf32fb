"""Principals and tokens of the cluster: what each broker knows of them, and how they change."""

from seaweedq.broker.access.callers import MAX_BYTES as MAX_BYTES
from seaweedq.broker.access.callers import Callers as Callers
from seaweedq.broker.access.principals import Principals as Principals
from seaweedq.broker.access.principals import TokenSpec as TokenSpec
from seaweedq.broker.access.view import Touched as Touched
