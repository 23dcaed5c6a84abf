"""The models that generate: presets, or any causal language model of transformers."""
