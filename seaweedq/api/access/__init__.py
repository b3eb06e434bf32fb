"""The judgement of requests: senders, rates, hosts and origins; and its audit."""
