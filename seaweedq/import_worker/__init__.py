"""The child process that reads uploaded files for imports; it trusts none of them."""
