"""Peak memory of one long answer, by the model's own `generate` and by the decode loop.

    python scripts/memory.py --tokens 2000

Every method runs in a process of its own, whose largest resident set is read at the end; the answer is not stopped by an
end token. Prints a Markdown table; the ratio is to `generate`.
"""
import argparse
import resource
import subprocess
import sys

import torch

from eagle2_nb.decode import collect, decode, load_costs, plain_generate
from eagle2_nb.expand import TreeConfig
from eagle2_nb.rerank import Eagle2Drafter
from eagle2_nb.target import encode_prompt, environment, load_default

METHODS = ("generate", "eagle2", "eagle2, packed")


def measure(method, dtype, tokens):
    "Run one method and print tokens and peak memory in MiB"
    target, tokenizer, head = load_default(getattr(torch, dtype), pack=method.endswith("packed"))
    ids = encode_prompt(tokenizer, "Tell me everything about rainbows.")
    if method == "generate":
        new = plain_generate(target, ids, max_new_tokens=tokens, stop=[])
    else:
        drafter = Eagle2Drafter(head, TreeConfig("auto", 8, "auto"), load_costs(target, head))
        new, _ = collect(decode(target, drafter, ids, max_new_tokens=tokens, stop=[]))
    print(len(new[0]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    parser.add_argument("--only", nargs=2, metavar=("METHOD", "DTYPE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        return measure(*args.only, args.tokens)
    print("| dtype | method | new tokens | peak MiB | ratio |\n|---|---|---|---|---|")
    for dtype in args.dtypes:
        peaks = {}
        for method in METHODS:
            command = [sys.executable, __file__, "--tokens", str(args.tokens), "--only", method, dtype]
            tokens, peaks[method] = map(int, subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split())
            print(f"| {dtype} | {method} | {tokens} | {peaks[method]} | {peaks[method] / peaks['generate']:.2f} |", flush=True)
    facts = environment(load_default()[0])
    print(f"\n{facts['hardware']}, {facts['threads']} threads, torch {facts['versions']['torch']}, transformers {facts['versions']['transformers']}")


if __name__ == "__main__":
    main()
