"""Two traces kernel by kernel, or operator by operator: their difference as parts that add up to the nanosecond."""
