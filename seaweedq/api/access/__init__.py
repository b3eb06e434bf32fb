"""The judgement of requests: callers, rules, rates, hosts and origins; and what the audit and metrics hear of them."""
