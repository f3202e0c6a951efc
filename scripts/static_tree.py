"""Measure how often each position of a wide tree is accepted: what the trees of `static-fitted` and `medusa` are fitted to.

    python scripts/static_tree.py PROMPTS --skip 8000 --limit 60 --out eagle2_nb/heads/smollm2-135m/static_tree.json
    python scripts/static_tree.py PROMPTS --skip 8000 --limit 60 --medusa eagle2_nb/heads/smollm2-135m/medusa

The prompts should be none that a benchmark asks. Prints the fitted shapes of some sizes.
"""
import argparse
from itertools import islice
from pathlib import Path

import torch

from eagle2_nb.baselines import MedusaDrafter, MedusaHeads, StaticTreeDrafter, count_positions, fit_shape, wide_shape, write_positions
from eagle2_nb.decode import decode
from eagle2_nb.target import encode_prompt, load_default, read_questions


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path, help="question or chat file")
    parser.add_argument("--skip", type=int, default=0, help="first lines to leave out")
    parser.add_argument("--limit", type=int, default=60, help="prompts to answer, greedily")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--longest", type=int, default=600, help="tokens of a prompt; longer ones are left out")
    parser.add_argument("--depth", type=int, default=6, help="levels to try; Medusa: one for each block")
    parser.add_argument("--nodes", type=int, default=120, help="positions to try")
    parser.add_argument("--medusa", type=Path, help="folder of Medusa heads that draft instead of the embedded head")
    parser.add_argument("--out", type=Path, help="file to write; default with --medusa: static_tree.json beside the heads")
    args = parser.parse_args()
    if not args.out and not args.medusa:
        parser.error("name the file to write by --out")
    target, tokenizer, head = load_default(torch.float32, pack="auto")
    medusa = args.medusa and MedusaHeads.load(args.medusa)
    shape = wide_shape(len(medusa.blocks) if medusa else args.depth, args.nodes)
    drafter = MedusaDrafter(medusa, shape) if medusa else StaticTreeDrafter(head, shape)
    counts, steps = torch.zeros(len(shape) - 1, dtype=torch.long), 0
    texts = (encode_prompt(tokenizer, question["turns"][0]) for question in read_questions(args.prompts)[args.skip :])
    for number, ids in enumerate(islice((ids for ids in texts if ids.shape[1] <= args.longest), args.limit), 1):
        done = list(decode(target, drafter, ids, max_new_tokens=args.max_new_tokens, stop=target.stop))
        whole = [step for step in done if not step.prefill and len(step.tree) == len(shape)]
        counts, steps = counts + count_positions(whole, shape), steps + len(whole)
        print(f"{number} of {args.limit}: {steps} steps", end="\r", flush=True)
    write_positions(shape, counts, steps, args.out or args.medusa / "static_tree.json")
    print()
    for size in (16, 26, 60):
        fitted = fit_shape(shape, counts, size)
        print(f"{size} nodes: {[sum(len(path) == level for path in fitted.paths) for level in range(1, fitted.depth + 1)]} on its levels, "
              f"expected tau {1 + sum(counts[shape.paths.index(path)] for path in fitted.paths).item() / steps:.2f}")


if __name__ == "__main__":
    main()
