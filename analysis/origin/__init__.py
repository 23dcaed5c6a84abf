"""Origin of GPU work: trees by module, Python function, operator or kernel, whose parts add up."""
