"""Jobs over topics, which `seaweedq spark` runs: what each does, and the session that it runs in."""
