"""Answers of a JSON schema, by XGrammar's own processor for transformers."""

import json

import xgrammar
from xgrammar.contrib.hf import LogitsProcessor


class Json:
    fixed_length = False

    def __init__(self, tokenizer, vocab_size, schema):
        tokens = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size)
        compiler = xgrammar.GrammarCompiler(tokens)
        self.grammar = compiler.compile_json_schema(json.dumps(schema), any_whitespace=False)

    def start(self, rows):
        return LogitsProcessor(self.grammar)
