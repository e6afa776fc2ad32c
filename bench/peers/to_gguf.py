"""llama.cpp's own converter, told which pre-tokenizer our tokenizers have: it knows them by a hash
of what they give for a long text, which a small vocabulary, or a filled-up one, does not match.

usage: to_gguf.py LLAMA_CPP MODEL_DIR --outtype bf16|q8_0 --outfile FILE
"""
import sys

sys.path.insert(0, sys.argv.pop(1))
import convert_hf_to_gguf  # noqa: E402
from conversion.base import TextModel  # noqa: E402

TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen35"
convert_hf_to_gguf.main()
