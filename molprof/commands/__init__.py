"""Commands, one module each: parse, call a library function, print its result."""
