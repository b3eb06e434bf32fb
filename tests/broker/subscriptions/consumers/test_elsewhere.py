"""What other brokers tell of the pulls that queue there: the last report of each, for a while."""

from seaweedq.broker.subscriptions.pull_queue import KEPT_S, RemotePulls


def test_the_last_report_of_each_broker_counts_for_a_while() -> None:
    elsewhere = RemotePulls()
    elsewhere.update("a", 3, ["x", "y"], 0.0)
    elsewhere.update("b", 2, ["y", ""], 1.0)
    assert (elsewhere.pulls(1.0), elsewhere.consumers(1.0)) == (5, {"x", "y", ""})
    elsewhere.update("a", 1, ["z"], 2.0)
    assert (elsewhere.pulls(2.0), elsewhere.consumers(2.0)) == (3, {"z", "y", ""})
    assert (elsewhere.pulls(1.0 + KEPT_S), elsewhere.consumers(1.0 + KEPT_S)) == (1, {"z"}), "b has died"
    elsewhere.update("a", 0, [], 3.0)
    assert (elsewhere.pulls(3.0), elsewhere.consumers(3.0)) == (0, set())
