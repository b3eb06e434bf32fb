"""The audit: changes and denials, as log lines and as rows of the topic `seaweedq.audit`."""
