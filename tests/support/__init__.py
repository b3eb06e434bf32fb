"""What tests share: fakes, processes, histories and their checker, fixtures (`tests/support/fixtures`)."""
