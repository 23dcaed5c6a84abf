"""Recording of a program that generates tokens: marks, window and trace file."""
