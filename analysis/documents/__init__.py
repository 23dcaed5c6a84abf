"""Documents: each subject as sections that every format can render."""
