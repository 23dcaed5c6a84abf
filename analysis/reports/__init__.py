"""Reports stored as JSON, and what a user says of foreign traces."""
