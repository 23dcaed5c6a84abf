"""What a run would be on a GPU that is not here: launches, times and what limits it, with the error of such figures."""
