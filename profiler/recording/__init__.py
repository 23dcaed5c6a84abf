"""Marks, window and trace file: what records a program that generates tokens."""
