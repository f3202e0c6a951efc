"""Compare EAGLE-2 with the model's own `generate`, id by id, on the questions of any FastChat question file.

    python scripts/exactness.py [FILE ...] --limit 5 --max-new-tokens 96

Every question's first turn is answered four times: by `generate` and by the decode loop, greedy and sampled with the
same seed. Prints one line a question and a Markdown table a task; exit status 1 if any id differs. Where ids differ, the
first position is shown with the margin of the target's two largest logits there, which tells a near-tie of float
rounding from a fault. Times are of single runs, one after the other: a ratio over many questions, not a benchmark.
"""
import argparse
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch
import transformers

from eagle2_nb.decode import collect, decode, first_difference, plain_generate
from eagle2_nb.expand import TreeConfig
from eagle2_nb.rerank import Eagle2Drafter
from eagle2_nb.target import encode_prompt, hardware, load_default, read_questions
from eagle2_nb.verify import Sampling


class Tally:
    "Sums over the questions of one task and mode"

    def __init__(self):
        self.questions = self.equal = self.tokens = self.steps = 0
        self.generate = self.ours = 0.0

    def add(self, equal, accept_lengths, generate, ours):
        self.questions, self.equal = self.questions + 1, self.equal + equal
        self.tokens, self.steps = self.tokens + sum(accept_lengths), self.steps + len(accept_lengths)
        self.generate, self.ours = self.generate + generate, self.ours + ours

    def columns(self):
        return f"{self.equal} of {self.questions} | {self.tokens / max(1, self.steps):.2f} | {self.generate / self.ours:.2f}"


def timed(run, seed):
    torch.manual_seed(seed)
    began = time.perf_counter()
    result = run()
    return result, time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="question files; default: the shipped prompts")
    parser.add_argument("--limit", type=int, default=None, help="questions of each file, default: all")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.7, help="of the sampled half")
    parser.add_argument("--top-p", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tree", default="6/10/60", help="depth/top_k/total_tokens")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pack", action="store_true", help="packed matrices in the decode loop, never in `generate`")
    args = parser.parse_args()

    target, tokenizer, head = load_default(getattr(torch, args.dtype), args.device, args.pack)
    drafter = Eagle2Drafter(head, TreeConfig(*map(int, args.tree.split("/"))))
    settings = dict(stop=[tokenizer.eos_token_id], max_new_tokens=args.max_new_tokens)
    modes = {"greedy": Sampling(), "sampled": Sampling(args.temperature, 0, args.top_p)}
    tallies = defaultdict(Tally)
    for file in args.files or [None]:
        for question in read_questions(file)[: args.limit]:
            task, ids, line = file.stem if file else question["category"], encode_prompt(tokenizer, question["turns"][0]).to(target.device), []
            for mode, sampling in modes.items():
                (theirs,), generate = timed(lambda: plain_generate(target, ids, sampling=sampling, **settings), args.seed)
                ((ours,), statistics), seconds = timed(lambda: collect(decode(target, drafter, ids, choose=sampling.choose(), **settings)), args.seed)
                for name in (task, "all"):
                    tallies[name, mode].add(ours == theirs, statistics.accept_lengths.get(0, []), generate, seconds)
                verdict = "equal" if ours == theirs else f"DIFFERENT {first_difference(target, ids, ours, theirs)}"
                line.append(f"{mode} {verdict} ({len(ours)} tokens, tau {statistics.tau or 0:.2f})")
            print(f"{task} {question.get('question_id', '?')}: {'; '.join(line)}", flush=True)

    print("\n| task | greedy: ids equal | tau | time ratio | sampled: ids equal | tau | time ratio |\n|---|---|---|---|---|---|---|")
    for task in dict.fromkeys(name for name, _ in tallies):
        if task != "all":
            print(f"| {task} | {tallies[task, 'greedy'].columns()} | {tallies[task, 'sampled'].columns()} |")
    print(f"| **all** | {tallies['all', 'greedy'].columns()} | {tallies['all', 'sampled'].columns()} |")
    print(f"\nTree {drafter.config}, {args.max_new_tokens} new tokens, {args.dtype}{', packed' if args.pack else ''}, sampled at temperature {args.temperature} and top-p {args.top_p}, seed {args.seed}; "
          f"time ratio: `generate` over EAGLE-2, prefill included; {hardware(target.device)}, {torch.get_num_threads()} threads, "
          f"torch {torch.__version__}, transformers {transformers.__version__}.")
    return 0 if all(tallies["all", mode].equal == tallies["all", mode].questions for mode in modes) else 1


if __name__ == "__main__":
    sys.exit(main())
