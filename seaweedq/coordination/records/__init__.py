"""The records in the values of coordination's keys, and the forms in which they are stored.

Later versions may add members (`versioned` says which ones); an earlier one keeps them.
"""
