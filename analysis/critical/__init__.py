"""Which work and host time decide how long a trace takes, and how long it would take if some of it were faster."""
