"""How fast recorded work could be: FLOPs and least bytes of operators, peaks of devices, and what separates them."""
