"""The audit: changes and denials, as log lines and as rows of the topic `seaweedq.audit`."""

from seaweedq.broker.audit.audit import Audit as Audit
from seaweedq.broker.audit.events import LOOKED_AT as LOOKED_AT
from seaweedq.broker.audit.events import Event as Event
from seaweedq.broker.audit.events import shown as shown
