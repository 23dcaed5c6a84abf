"""`molprof doctor`: checks of this machine, and a fix for each failure."""
