"""Subscriptions: their dispatchers, deliveries, pulls and acks, and cursors."""

from seaweedq.broker.subscriptions.acking import AckOutcome as AckOutcome
from seaweedq.broker.subscriptions.acking import Refusal as Refusal
from seaweedq.broker.subscriptions.acking import Selection as Selection
from seaweedq.broker.subscriptions.admin import AtOffsets as AtOffsets
from seaweedq.broker.subscriptions.admin import ListedSubscription as ListedSubscription
from seaweedq.broker.subscriptions.admin import Seeking as Seeking
from seaweedq.broker.subscriptions.admin import SeekPlace as SeekPlace
from seaweedq.broker.subscriptions.admin import SubscriptionAdmin as SubscriptionAdmin
from seaweedq.broker.subscriptions.dead_lettering import DeadLetters as DeadLetters
from seaweedq.broker.subscriptions.dead_lettering import DeadLetterTopics as DeadLetterTopics
from seaweedq.broker.subscriptions.dispatcher import Dispatcher as Dispatcher
from seaweedq.broker.subscriptions.lag import LagCounts as LagCounts
from seaweedq.broker.subscriptions.lag import LagMeter as LagMeter
from seaweedq.broker.subscriptions.lag import Stall as Stall
from seaweedq.broker.subscriptions.lag import total as total
from seaweedq.broker.subscriptions.leases import Position as Position
from seaweedq.broker.subscriptions.leases import parse_lease as parse_lease
from seaweedq.broker.subscriptions.pull_rounds import DeliveredRows as DeliveredRows
from seaweedq.broker.subscriptions.pull_rounds import Pull as Pull
from seaweedq.broker.subscriptions.pull_rounds import PullResult as PullResult
from seaweedq.broker.subscriptions.subscribing import WAITS as WAITS
from seaweedq.broker.subscriptions.subscribing import DispatcherFinder as DispatcherFinder
from seaweedq.broker.subscriptions.subscribing import RelayedWaits as RelayedWaits
