"""The child process that reads uploaded files for imports, and trusts none of them."""
