"""HTTP for both shells."""
