"""Who may ask for what, and how much: the gate, its rules, rates, origins, and what the audit and metrics hear."""
