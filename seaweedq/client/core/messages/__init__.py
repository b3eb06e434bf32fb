"""Messages and batches as clients see them, their answers, and names of leases."""
