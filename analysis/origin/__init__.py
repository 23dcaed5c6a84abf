"""Where GPU work comes from: trees by module, Python function, operator or kernel, whose parts add up."""
