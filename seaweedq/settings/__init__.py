"""The settings of a broker, a file each group."""

from seaweedq.settings.settings import GROUPS as GROUPS
from seaweedq.settings.settings import Settings as Settings
from seaweedq.settings.sizes import KIB as KIB
from seaweedq.settings.sizes import MIB as MIB
