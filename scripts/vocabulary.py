"""What a draft vocabulary of some size covers, and what one draft level costs with it.

    python scripts/vocabulary.py ANSWERS ...

For each number of words, the most frequent in the answers: their share of the answer tokens, and the median time of one draft
level of ten nodes behind 128 tokens, scores and top-k included, with the shipped head in float32 and bfloat16.
"""
import argparse
import time
from statistics import median

import torch

from eagle2_nb.draft_head import DraftCache
from eagle2_nb.target import environment, load_default, scorer
from eagle2_nb.train import answer_counts, load_answers

SIZES = (4096, 8192, 16384, 24576, 32768, 49152)


@torch.no_grad()
def level_seconds(target, head, size):
    "Median time of a draft level of ten nodes"
    score, cache, ids = scorer(target, torch.arange(size)), DraftCache(1, target.device), torch.arange(128)[None]
    features = target.forward(ids)[0]
    cache.read(head, target.embed(ids), features, [128])
    seconds = []
    for _ in range(25):
        began = time.perf_counter()
        guess = cache.guess(head, target.embed(ids[:, :10]), features[:, :10], torch.eye(10, dtype=torch.bool)[None], 1)
        score(guess).float().log_softmax(-1).topk(10)
        seconds.append(time.perf_counter() - began)
    return median(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", nargs="+", help="files or folders of answers")
    args = parser.parse_args()
    rows = {}
    for dtype in (torch.float32, torch.bfloat16):
        target, _, head = load_default(dtype)
        rows[f"ms, {str(dtype).removeprefix('torch.')}"] = [f"{1000 * level_seconds(target, head, size):.1f}" for size in SIZES]
    counts = answer_counts(load_answers(args.answers, target.vocab_size), target.vocab_size).sort(descending=True).values
    rows = {"of the answers": [f"{counts[:size].sum() / counts.sum():.1%}" for size in SIZES]} | rows
    print("| words | " + " | ".join(f"{size:,}" for size in SIZES) + " |\n" + "|---" * (len(SIZES) + 1) + "|")
    for name, cells in rows.items():
        print(f"| {name} | " + " | ".join(cells) + " |")
    facts = environment(target)
    print(f"\n{facts['hardware']}, {facts['threads']} threads, torch {torch.__version__}; {int(counts.sum()):,} answer tokens")


if __name__ == "__main__":
    main()
