"""Credentials that a broker shows and checks: the secret of the cluster, the first token, certificates."""
