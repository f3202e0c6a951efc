"""Carry the embedded target to a machine without a network: as pieces of less than 60 MB, and back.

    python benchmarks/pieces.py split FOLDER            here: target-1.safetensors, target-2.safetensors, ...
    python benchmarks/pieces.py join FOLDER MODEL       there: a `transformers` folder

The target was dequantised from 4 and 8 bits, so each 32 neighbours of a matrix lie on a grid: a lowest value, a step, and
numbers of 4 or 8 bits. A matrix that lies on none is carried in float16.
"""
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

MOST = 55 * 2**20  # bytes of a piece


def shrink(weight):
    "A matrix as its parts: lowest value and step of each 32 neighbours, and numbers of 4 or 8 bits; or as it is, in half precision"
    if weight.dim() < 2 or weight.numel() % 32:
        return {"plain": weight}
    blocks = weight.reshape(-1, 32)
    low, span = blocks.amin(1, keepdim=True), blocks.amax(1, keepdim=True) - blocks.amin(1, keepdim=True)
    step, found = span / 15, torch.zeros(len(blocks), 1, dtype=torch.bool)
    for levels in range(1, 16):  # the coarsest grid that holds the block
        trial = (span / levels).clamp(min=1e-12)
        fits = ((blocks - low - ((blocks - low) / trial).round() * trial).abs().amax(1, keepdim=True) <= 1e-5 * span) & ~found
        step, found = torch.where(fits, trial, step), found | fits
    if found.all():
        numbers = ((blocks - low) / step.clamp(min=1e-12)).round().to(torch.uint8)
        return {"low": low[:, 0], "step": step[:, 0], "half bytes": numbers[:, ::2] | numbers[:, 1::2] << 4}
    step = blocks.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
    numbers = (blocks / step).round()
    if ((numbers * step - blocks).abs() <= 1e-5 * step * 127).all():
        return {"step": step[:, 0], "bytes": numbers.to(torch.int8)}
    return {"plain": weight.half()}


def grow(parts, shape):
    "The matrix again, in float32"
    if "plain" in parts:
        return parts["plain"].float()
    if "bytes" in parts:
        return (parts["bytes"].float() * parts["step"][:, None]).reshape(shape)
    numbers = torch.stack([parts["half bytes"] & 15, parts["half bytes"] >> 4], 2).flatten(1)
    return (numbers.float() * parts["step"][:, None] + parts["low"][:, None]).reshape(shape)


def split(folder):
    "Write the pieces, and beside them what else the model needs"
    from eagle2_nb.target import default_model_folder

    folder.mkdir(parents=True, exist_ok=True)
    source, pieces, size = default_model_folder(), [{}], 0
    weights = load_file(source / "model.safetensors")
    for name, weight in weights.items():
        for part, tensor in shrink(weight).items():
            bytes_ = tensor.numel() * tensor.element_size()
            if size + bytes_ > MOST:
                pieces, size = [*pieces, {}], 0
            pieces[-1][f"{name}|{part}"], size = tensor.contiguous(), size + bytes_
    for number, piece in enumerate(pieces, 1):
        save_file(piece, folder / f"target-{number}.safetensors")
    others = {file.name: file.read_text(encoding="utf-8") for file in source.iterdir() if file.suffix in (".json", ".jinja", ".txt")}
    shapes = {name: list(weight.shape) for name, weight in weights.items()}
    (folder / "target.json").write_text(json.dumps({"shapes": shapes, "files": others}), encoding="utf-8")
    print(f"{len(pieces)} pieces and target.json in {folder}")


def join(folder, model):
    "Write the model's folder from its pieces"
    about, parts = json.loads((folder / "target.json").read_text(encoding="utf-8")), {}
    for file in folder.glob("target-*.safetensors"):
        for key, tensor in load_file(file).items():
            name, part = key.split("|")
            parts.setdefault(name, {})[part] = tensor
    missing = set(about["shapes"]) - set(parts)
    if missing:
        sys.exit(f"{folder}: {len(missing)} matrices are missing, {sorted(missing)[0]} among them; are all pieces there?")
    model.mkdir(parents=True, exist_ok=True)
    save_file({name: grow(parts[name], shape) for name, shape in about["shapes"].items()}, model / "model.safetensors", metadata={"format": "pt"})
    for name, text in about["files"].items():
        (model / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("split", "join") or len(sys.argv) != (3 if sys.argv[1] == "split" else 4):
        sys.exit(__doc__)
    (split if sys.argv[1] == "split" else join)(*map(Path, sys.argv[2:]))
