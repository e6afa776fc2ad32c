"""Writes a checkpoint of Qwen3.5-0.8B's shape with random weights: the size of the real model, so
its speed, and nothing to download. Both programs are measured on it.

usage: random_model.py OUT_DIR TOKENIZER_JSON

A tokenizer with fewer than 248,320 entries (the demonstration model's, say) is filled up with
entries that no text gives. Needs numpy.
"""
import json
import math
import os
import sys

import numpy as np

LAYERS, DIM, WIDTH, VOCAB = 24, 1024, 3584, 248320
HEADS, KV_HEADS, HEAD_DIM = 8, 2, 256
LINEAR_HEADS, LINEAR_DIM, CONV = 16, 128, 4
FULL_EVERY = 4
CHUNK = 1 << 22  # values made at a time


def is_full(layer):
    return layer % FULL_EVERY == FULL_EVERY - 1


def config(eos):
    text = {
        "model_type": "qwen3_5_text", "dtype": "bfloat16", "hidden_act": "silu",
        "hidden_size": DIM, "intermediate_size": WIDTH, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "linear_num_key_heads": LINEAR_HEADS, "linear_num_value_heads": LINEAR_HEADS,
        "linear_key_head_dim": LINEAR_DIM, "linear_value_head_dim": LINEAR_DIM,
        "linear_conv_kernel_dim": CONV, "full_attention_interval": FULL_EVERY,
        "layer_types": ["full_attention" if is_full(i) else "linear_attention"
                        for i in range(LAYERS)],
        "vocab_size": VOCAB, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6,
        "attn_output_gate": True, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
        "tie_word_embeddings": True, "eos_token_id": eos,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7,
                            "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10],
                            "mrope_interleaved": True},
    }
    return {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
            "tie_word_embeddings": True, "text_config": text}


# ---- tensors: name, shape, how far values spread, around what ----

def matrix(name, rows, cols):
    return name + ".weight", (rows, cols), 1 / math.sqrt(cols), 0


def norm(name, n, middle=0):
    return name + ".weight", (n,), 0.1, middle


def block(at):
    """What every layer has."""
    return [norm(at + "input_layernorm", DIM), norm(at + "post_attention_layernorm", DIM),
            matrix(at + "mlp.gate_proj", WIDTH, DIM), matrix(at + "mlp.up_proj", WIDTH, DIM),
            matrix(at + "mlp.down_proj", DIM, WIDTH)]


def attention(at):
    at += "self_attn."
    return [matrix(at + "q_proj", 2 * HEADS * HEAD_DIM, DIM),  # queries and gates
            matrix(at + "k_proj", KV_HEADS * HEAD_DIM, DIM),
            matrix(at + "v_proj", KV_HEADS * HEAD_DIM, DIM),
            matrix(at + "o_proj", DIM, HEADS * HEAD_DIM),
            norm(at + "q_norm", HEAD_DIM), norm(at + "k_norm", HEAD_DIM)]


def recurrence(at):
    at += "linear_attn."
    inner = LINEAR_HEADS * LINEAR_DIM
    return [matrix(at + "in_proj_qkv", 3 * inner, DIM), matrix(at + "in_proj_z", inner, DIM),
            matrix(at + "in_proj_b", LINEAR_HEADS, DIM),
            matrix(at + "in_proj_a", LINEAR_HEADS, DIM),
            (at + "conv1d.weight", (3 * inner, 1, CONV), 0.4, 0),
            matrix(at + "out_proj", DIM, inner), norm(at + "norm", LINEAR_DIM, 1),
            (at + "dt_bias", (LINEAR_HEADS,), 0.5, 0), (at + "A_log", (LINEAR_HEADS,), 0.5, 2)]


def tensors():
    trunk = "model.language_model."
    out = [(trunk + "embed_tokens.weight", (VOCAB, DIM), 0.02, 0), norm(trunk + "norm", DIM)]
    for i in range(LAYERS):
        at = "%slayers.%d." % (trunk, i)
        out += block(at) + (attention(at) if is_full(i) else recurrence(at))
    out += block("mtp.layers.0.") + attention("mtp.layers.0.")
    out += [matrix("mtp.fc", DIM, 2 * DIM), norm("mtp.norm", DIM),
            norm("mtp.pre_fc_norm_hidden", DIM), norm("mtp.pre_fc_norm_embedding", DIM)]
    return out


# ---- files ----

def bf16(values):
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def write_weights(path):
    """safetensors: the header's length, the header as JSON, the values one after another."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, _, _ in tensors():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.Generator(np.random.SFC64(1))
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, shape, spread, middle in tensors():
            left = math.prod(shape)
            while left:
                n = min(left, CHUNK)
                f.write(bf16(random.standard_normal(n, np.float32) * np.float32(spread)
                             + np.float32(middle)))
                left -= n


def read_tokenizer(path):
    """The tokenizer, filled up, and the id that ends an answer."""
    with open(path, encoding="utf-8") as f:
        tokenizer = json.load(f)
    vocab = tokenizer["model"]["vocab"]
    added = {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    taken = set(vocab.values()) | set(added.values())
    for i in range(VOCAB):
        if i not in taken:
            vocab["unused%d" % i] = i
    return tokenizer, added["<|im_end|>"]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    out = sys.argv[1]
    tokenizer, eos = read_tokenizer(sys.argv[2])
    os.makedirs(out, exist_ok=True)
    named = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>",
             "pad_token": "<|endoftext|>", "bos_token": None, "unk_token": None}
    for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", named),
                          ("config.json", config(eos))):
        with open(os.path.join(out, name), "w", encoding="utf-8") as f:
            json.dump(content, f, ensure_ascii=False)
    write_weights(os.path.join(out, "model.safetensors"))


if __name__ == "__main__":
    main()
