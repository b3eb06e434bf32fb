"""Messages that come in, and reads without a subscription."""
