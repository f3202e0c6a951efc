"""Is the tree that sizes itself as fast as the best fixed one? Try many fixed trees and the automatic one on the same prompts.

    python scripts/tree_sweep.py [FILE ...] --dtype float32 --limit 1

Two rounds, trees taking turns prompt by prompt: all trees once, then the five fastest fixed trees and the automatic ones
`--repeats` times, of which the middle counts. Prints Markdown tables; speed is tokens a second after the prefill, over all prompts.
"""
import argparse
import itertools
from pathlib import Path
from statistics import median

import torch

from eagle2_nb.bench import run_own, shuffled
from eagle2_nb.decode import load_costs
from eagle2_nb.expand import TreeConfig
from eagle2_nb.rerank import Eagle2Drafter
from eagle2_nb.target import encode_prompt, environment, in_words, load_default, read_questions
from eagle2_nb.verify import Sampling

FIXED = [TreeConfig(*sizes) for sizes in itertools.product((2, 3, 4, 6), (4, 8), (6, 10, 16, 24))]
AUTOMATIC = [TreeConfig("auto", top_k, "auto") for top_k in (4, 8)]


def tree_of(text):
    "depth/top_k/total_tokens"
    return TreeConfig(*(part if part == "auto" else int(part) for part in text.split("/")))


def run(target, drafters, prompts, sampling, tokens, repeats):
    "Tree -> tokens a second and tau"
    records = {}
    for number, ids in enumerate(prompts):
        for repeat in range(repeats):
            for tree in shuffled(list(drafters), number, repeat):
                torch.manual_seed(number)
                records.setdefault(tree, {}).setdefault(number, []).append(run_own(target, drafters[tree], ids, sampling.choose(), tokens, target.stop))
    found = {}
    for tree, answers in records.items():
        seconds = sum(median(r["seconds"] - r["prefill"] for r in same) for same in answers.values())
        lengths = [n for same in answers.values() for n in same[0]["lengths"]]
        found[tree] = sum(lengths) / seconds, sum(lengths) / len(lengths)
    return found


def show(title, found):
    "A table, the fastest first"
    print(f"\n{title}\n\n| tree | tokens/s | tau | to the fastest fixed |\n|---|---|---|---|")
    best = max((speed for tree, (speed, _) in found.items() if "auto" not in str(tree)), default=max(speed for speed, _ in found.values()))
    for tree, (speed, tau) in sorted(found.items(), key=lambda item: -item[1][0]):
        print(f"| {tree} | {speed:.1f} | {tau:.2f} | {speed / best:.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="question files; default: the shipped prompts")
    parser.add_argument("--limit", type=int, help="questions of each file, default: all")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--trees", nargs="+", type=tree_of, help="only these, such as auto/4/auto 3/8/6, in one round")
    args = parser.parse_args()
    target, tokenizer, head = load_default(getattr(torch, args.dtype), pack="auto")
    costs, sampling = load_costs(target, head), Sampling(args.temperature)
    prompts = [encode_prompt(tokenizer, question["turns"][0]) for file in args.files or [None] for question in read_questions(file)[: args.limit]]
    drafters = {tree: Eagle2Drafter(head, tree, costs) for tree in args.trees or FIXED + AUTOMATIC}
    run(target, drafters, prompts[:1], sampling, 8, 1)  # the cost of first calls is nobody's
    finalists = args.trees
    if not finalists:
        all_once = run(target, drafters, prompts, sampling, args.max_new_tokens, 1)
        show(f"All {len(drafters)} trees, once", all_once)
        finalists = sorted(FIXED, key=lambda tree: -all_once[tree][0])[:5] + AUTOMATIC
    show(f"{'These' if args.trees else 'The fastest again'}, {args.repeats} times", run(target, {tree: drafters[tree] for tree in finalists}, prompts, sampling, args.max_new_tokens, args.repeats))
    print(f"\n{len(prompts)} prompts, at most {args.max_new_tokens} new tokens, temperature {args.temperature}; {in_words(environment(target))}")


if __name__ == "__main__":
    main()
