"""Administration: creation and deletion of subscriptions, where they begin, seeks, lag."""
