"""Peak memory of one long answer, by the model's own `generate` and by the decode loop.

    python scripts/memory.py --tokens 2000
    python scripts/memory.py --tokens 64 --prompt 600 --rows 1 8 32 --dtypes float32

Every method runs in a process of its own, whose largest resident set is read at the end; answers are not stopped by an end
token, and the rows of a batch are copies of one prompt. Prints a Markdown table; the ratio is to `generate` with as many rows.
"""
import argparse
import itertools
import resource
import subprocess
import sys

import torch

from eagle2_nb.decode import collect, decode, load_costs, plain_generate
from eagle2_nb.expand import TreeConfig
from eagle2_nb.rerank import Eagle2Drafter
from eagle2_nb.target import encode_prompt, environment, load_default

METHODS = ("generate", "eagle2", "eagle2, packed")


def measure(method, dtype, tokens, prompt, rows):
    "Run one method and print tokens and peak memory in MiB"
    target, tokenizer, head = load_default(getattr(torch, dtype), pack=method.endswith("packed"))
    ids = encode_prompt(tokenizer, "Tell me everything about rainbows.")
    ids = ids.repeat(1, -(-prompt // ids.shape[1]))[:, :prompt].repeat(rows, 1) if prompt else ids.repeat(rows, 1)
    if method == "generate":
        new = plain_generate(target, ids, max_new_tokens=tokens, stop=[])
    else:
        drafter = Eagle2Drafter(head, TreeConfig("auto", 8, "auto"), load_costs(target, head))
        new, _ = collect(decode(target, drafter, ids, max_new_tokens=tokens, stop=[]), rows)
    print(len(new[0]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--prompt", type=int, default=0, help="tokens of the prompt, default: a short question")
    parser.add_argument("--rows", type=int, nargs="+", default=[1], help="sizes of the batch")
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    parser.add_argument("--only", nargs=2, metavar=("METHOD", "DTYPE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        return measure(*args.only, args.tokens, args.prompt, *args.rows)
    print("| dtype | rows | method | new tokens | peak MiB | ratio |\n|---|---|---|---|---|---|")
    for dtype, rows in itertools.product(args.dtypes, args.rows):
        peaks, sizes = {}, ["--tokens", args.tokens, "--prompt", args.prompt, "--rows", rows]
        for method in METHODS:
            command = [sys.executable, __file__, *map(str, sizes), "--only", method, dtype]
            tokens, peaks[method] = map(int, subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split())
            print(f"| {dtype} | {rows} | {method} | {tokens} | {peaks[method]} | {peaks[method] / peaks['generate']:.2f} |", flush=True)
    facts = environment(load_default()[0])
    print(f"\n{facts['hardware']}, {facts['threads']} threads, torch {facts['versions']['torch']}, transformers {facts['versions']['transformers']}")


if __name__ == "__main__":
    main()
