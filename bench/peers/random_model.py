"""Writes a checkpoint of a Qwen3.5 model's shape with random weights: the size of the real layers, so
their speed, and nothing to download. Both programs are measured on it.

usage: random_model.py SHAPE OUT_DIR TOKENIZER_JSON

SHAPE is 0.8b, or a3b: a fifth of Qwen3.5-35B-A3B, 8 of its 40 layers and a fifth of its entries,
so that the head's part of a pass is the real model's. A tokenizer with fewer entries (the
demonstration model's, say) is filled up with entries that no text gives. Needs numpy.
"""
import json
import math
import os
import sys

import numpy as np

DENSE = {
    "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24,
    "num_attention_heads": 8, "num_key_value_heads": 2, "linear_num_key_heads": 16,
    "linear_num_value_heads": 16, "vocab_size": 248320, "tie_word_embeddings": True,
}
MOE = {
    "hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16,
    "num_key_value_heads": 2, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "vocab_size": 49664, "tie_word_embeddings": False,
}
SHAPES = {"0.8b": ("Qwen3_5", "qwen3_5", DENSE), "a3b": ("Qwen3_5Moe", "qwen3_5_moe", MOE)}
HEAD_DIM, LINEAR_DIM, CONV = 256, 128, 4
FULL_EVERY = 4
CHUNK = 1 << 22  # values made at a time


def is_full(layer):
    return layer % FULL_EVERY == FULL_EVERY - 1


def config(shape, eos):
    name, kind, sizes = SHAPES[shape]
    tied = sizes["tie_word_embeddings"]
    text = dict(sizes)
    text.update({
        "model_type": kind + "_text", "dtype": "bfloat16", "hidden_act": "silu",
        "head_dim": HEAD_DIM, "linear_key_head_dim": LINEAR_DIM,
        "linear_value_head_dim": LINEAR_DIM, "linear_conv_kernel_dim": CONV,
        "full_attention_interval": FULL_EVERY,
        "layer_types": ["full_attention" if is_full(i) else "linear_attention"
                        for i in range(sizes["num_hidden_layers"])],
        "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "attn_output_gate": True,
        "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1, "eos_token_id": eos,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7,
                            "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10],
                            "mrope_interleaved": True},
    })
    return {"architectures": [name + "ForConditionalGeneration"], "model_type": kind,
            "tie_word_embeddings": tied, "text_config": text}


# ---- tensors: name, shape, how far values spread, around what ----

def matrix(name, rows, cols):
    return name + ".weight", (rows, cols), 1 / math.sqrt(cols), 0


def norm(name, n, middle=0):
    return name + ".weight", (n,), 0.1, middle


def gated(at, dim, width):
    """A feed-forward layer, or a shared expert."""
    return [matrix(at + "gate_proj", width, dim), matrix(at + "up_proj", width, dim),
            matrix(at + "down_proj", dim, width)]


def experts(at, sizes):
    dim, n, width = sizes["hidden_size"], sizes["num_experts"], sizes["moe_intermediate_size"]
    return [matrix(at + "gate", n, dim), matrix(at + "shared_expert_gate", 1, dim),
            (at + "experts.gate_up_proj", (n, 2 * width, dim), 1 / math.sqrt(dim), 0),
            (at + "experts.down_proj", (n, dim, width), 1 / math.sqrt(width), 0)
            ] + gated(at + "shared_expert.", dim, sizes["shared_expert_intermediate_size"])


def block(at, sizes):
    """What every layer has."""
    dim = sizes["hidden_size"]
    norms = [norm(at + "input_layernorm", dim), norm(at + "post_attention_layernorm", dim)]
    if "num_experts" in sizes:
        return norms + experts(at + "mlp.", sizes)
    return norms + gated(at + "mlp.", dim, sizes["intermediate_size"])


def attention(at, sizes):
    at += "self_attn."
    dim, inner = sizes["hidden_size"], sizes["num_attention_heads"] * HEAD_DIM
    kv = sizes["num_key_value_heads"] * HEAD_DIM
    return [matrix(at + "q_proj", 2 * inner, dim),  # queries and gates
            matrix(at + "k_proj", kv, dim), matrix(at + "v_proj", kv, dim),
            matrix(at + "o_proj", dim, inner),
            norm(at + "q_norm", HEAD_DIM), norm(at + "k_norm", HEAD_DIM)]


def recurrence(at, sizes):
    at += "linear_attn."
    dim, heads = sizes["hidden_size"], sizes["linear_num_value_heads"]
    inner = heads * LINEAR_DIM
    qkv = 2 * sizes["linear_num_key_heads"] * LINEAR_DIM + inner
    return [matrix(at + "in_proj_qkv", qkv, dim), matrix(at + "in_proj_z", inner, dim),
            matrix(at + "in_proj_b", heads, dim), matrix(at + "in_proj_a", heads, dim),
            (at + "conv1d.weight", (qkv, 1, CONV), 0.4, 0),
            matrix(at + "out_proj", dim, inner), norm(at + "norm", LINEAR_DIM, 1),
            (at + "dt_bias", (heads,), 0.5, 0), (at + "A_log", (heads,), 0.5, 2)]


def tensors(sizes):
    trunk = "model.language_model."
    dim, vocab = sizes["hidden_size"], sizes["vocab_size"]
    out = [(trunk + "embed_tokens.weight", (vocab, dim), 0.02, 0), norm(trunk + "norm", dim)]
    if not sizes["tie_word_embeddings"]:
        out.append(("lm_head.weight", (vocab, dim), 0.02, 0))
    for i in range(sizes["num_hidden_layers"]):
        at = "%slayers.%d." % (trunk, i)
        out += block(at, sizes) + (attention if is_full(i) else recurrence)(at, sizes)
    out += block("mtp.layers.0.", sizes) + attention("mtp.layers.0.", sizes)
    return out + [matrix("mtp.fc", dim, 2 * dim), norm("mtp.norm", dim),
                  norm("mtp.pre_fc_norm_hidden", dim), norm("mtp.pre_fc_norm_embedding", dim)]


# ---- files ----

def bf16(values):
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def write_weights(path, sizes):
    """safetensors: the header's length, the header as JSON, the values one after another."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, _, _ in tensors(sizes):
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.Generator(np.random.SFC64(1))
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, shape, spread, middle in tensors(sizes):
            left = math.prod(shape)
            while left:
                n = min(left, CHUNK)
                f.write(bf16(random.standard_normal(n, np.float32) * np.float32(spread)
                             + np.float32(middle)))
                left -= n


def read_tokenizer(path, vocab_size):
    """The tokenizer, filled up, and the id that ends an answer."""
    with open(path, encoding="utf-8") as f:
        tokenizer = json.load(f)
    vocab = tokenizer["model"]["vocab"]
    added = {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    taken = set(vocab.values()) | set(added.values())
    for i in range(vocab_size):
        if i not in taken:
            vocab["unused%d" % i] = i
    return tokenizer, added["<|im_end|>"]


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in SHAPES:
        sys.exit(__doc__)
    shape, out = sys.argv[1:3]
    sizes = SHAPES[shape][2]
    tokenizer, eos = read_tokenizer(sys.argv[3], sizes["vocab_size"])
    os.makedirs(out, exist_ok=True)
    named = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>",
             "pad_token": "<|endoftext|>", "bos_token": None, "unk_token": None}
    for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", named),
                          ("config.json", config(shape, eos))):
        with open(os.path.join(out, name), "w", encoding="utf-8") as f:
            json.dump(content, f, ensure_ascii=False)
    write_weights(os.path.join(out, "model.safetensors"), sizes)


if __name__ == "__main__":
    main()
