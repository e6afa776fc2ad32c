"""Writes the demonstration model with wide feed-forward layers: its tokens and its draft head, on
weights that do not fit a cache. What was added has zeros where its results are summed up.

usage: wide_model.py DEMO_DIR OUT_DIR WIDTH
"""
import json
import os
import shutil
import struct
import sys


def widen(name, shape, data, old, width):
    """Tensors are bf16. Rows of gate and up come again, columns of down are zero."""
    if name.endswith(("gate_proj.weight", "up_proj.weight")):
        assert shape[0] == old, name
        row = shape[1] * 2
        return [width, shape[1]], (data * -(-width // old))[:width * row]
    if name.endswith("down_proj.weight"):
        assert shape[1] == old, name
        row, zeros = old * 2, bytes((width - old) * 2)
        rows = (data[i * row:(i + 1) * row] + zeros for i in range(shape[0]))
        return [shape[0], width], b"".join(rows)
    return shape, data


def main(source, out, width):
    os.makedirs(out)
    for name in os.listdir(source):
        if name not in ("config.json", "model.safetensors"):
            shutil.copy(os.path.join(source, name), out)
    with open(os.path.join(source, "config.json")) as f:
        config = json.load(f)
    old = config["text_config"]["intermediate_size"]
    config["text_config"]["intermediate_size"] = width
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(config, f, indent=1)
    with open(os.path.join(source, "model.safetensors"), "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        body = f.read()
    header.pop("__metadata__", None)
    tensors, at = [], 0
    for name, t in header.items():
        first, end = t["data_offsets"]
        t["shape"], data = widen(name, t["shape"], body[first:end], old, width)
        t["data_offsets"] = [at, at + len(data)]
        at += len(data)
        tensors.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(out, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.writelines(tensors)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
