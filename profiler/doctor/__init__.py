"""`molprof doctor`: what works on this machine, and a fix for what does not."""
