"""Models: presets, or any causal language model of transformers."""
