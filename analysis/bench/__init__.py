"""Results of `molprof bench`: read, summed up, shown, drawn, and turned into advice. Nothing here needs torch."""
