"""How fast recorded work could be: FLOPs and least bytes of operators, peaks of devices, and the losses between."""
