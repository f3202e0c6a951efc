"""The tables of a machine with a GPU: methods on the embedded pair, then steps of an 8B-shaped random target.

    python benchmarks/gpu.py [--device cuda] [--tiny]

The random target has the sizes of Llama-3 8B and accepts nothing, so acceptances are replayed: a `Choose` follows the
draft's first child as often as the recorded lengths say. A draft without an opinion would grow trees too shallow for that, so
the target's LM head, which the draft shares, is made loud; what a pass costs does not depend on it. Kernels run one by one: there is no CUDA graph in this version.
"""
import argparse
import itertools
import time

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from eagle2_nb.bench import BenchConfig, bench, markdown_table
from eagle2_nb.decode import PlainDrafter, collect, decode, load_costs, measure_costs
from eagle2_nb.draft_head import DraftHead
from eagle2_nb.expand import TreeConfig
from eagle2_nb.rerank import Eagle2Drafter
from eagle2_nb.target import Target, environment, in_words, load_default, shipped_questions
from eagle2_nb.verify import Choose

SHAPE = dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256,
             max_position_embeddings=8192)
TINY = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=512, max_position_embeddings=2048)


class Replay(Choose):
    "Accepts as many drafts a step as it is told, whatever the logits are"

    sees_drafts = True

    def __init__(self, lengths):
        super().__init__(do_sample=True)
        self.lengths, self.left = itertools.cycle(lengths), 0  # tokens of the steps; the prefill's token belongs to none

    def pick(self, prefixes, logits, rows, times, offered):
        held, first = offered.amax(1) >= 0, offered.gather(1, (offered >= 0).long().argmax(1, keepdim=True))[:, 0]
        if self.left and bool(held):
            self.left -= 1
            return first
        self.left = next(self.lengths) - 1
        own = torch.ones_like(logits[0], dtype=torch.bool).index_fill_(0, offered[0].clamp(min=0), False)
        return own.long().argmax()[None]  # any token that was not drafted


def lengths_of(target, head, ids, tree):
    "Tokens a step of a real decode"
    return collect(decode(target, Eagle2Drafter(head, tree), ids, max_new_tokens=129))[1].accept_lengths[0]


def timed(target, drafter, ids, choose, tokens):
    "Seconds a token after the prefill, tokens a step"
    steps = decode(target, drafter, ids, choose=choose, max_new_tokens=tokens)
    first = next(steps)
    if target.device.type == "cuda":
        torch.cuda.synchronize()
    began, (new, statistics) = time.perf_counter(), collect([first, *steps])
    return (time.perf_counter() - began) / (len(new[0]) - 1), statistics.tau


def loud_pair(config):
    "A random target and head in bfloat16 whose draft is sure of itself, so that its trees are deep"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    model.get_output_embeddings().weight.data *= 10000
    return Target(model), DraftHead.from_target(model).to(torch.bfloat16).eval()


def large(args, lengths, trees, tokens=129):
    "Plain decoding and replayed trees of the large random target"
    torch.manual_seed(0)
    with torch.device(args.device):
        target, head = loud_pair(LlamaConfig(**(TINY if args.tiny else SHAPE)))
        ids = torch.randint(target.vocab_size, (1, 200))
    costs = measure_costs(target, head, sizes=(1, 16, 60), repeats=9)
    print("\n| forward | " + " | ".join(f"{n} tokens, {c} before" for c in costs.contexts for n in costs.sizes) + " |\n|" + "---|" * (1 + 2 * len(costs.sizes)))
    for what in ("verify", "draft"):
        print(f"| {what}, ms | " + " | ".join(f"{1000 * seconds:.2f}" for row in getattr(costs, what) for seconds in row) + " |")
    plain = min(timed(target, PlainDrafter(), ids, None, tokens)[0] for _ in range(3))
    print(f"\n| tree | tau recorded | tau replayed | ms a token | over plain ({1000 * plain:.2f} ms a token) |\n|---|---|---|---|---|")
    for tree in trees:
        seconds, tau = min(timed(target, Eagle2Drafter(head, tree), ids, Replay(lengths[tree]), tokens) for _ in range(3))
        print(f"| {tree} | {sum(lengths[tree]) / len(lengths[tree]):.2f} | {tau:.2f} | {1000 * seconds:.2f} | {plain / seconds:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit", type=int, default=2, help="shipped prompts of each of six kinds to answer")
    parser.add_argument("--tiny", action="store_true", help="try the script: a small random target")
    args = parser.parse_args()
    target, tokenizer, head = load_default(torch.bfloat16, args.device)
    print(in_words(environment(target)) + "\n")
    for temperature in (0.0, 1.0):
        config = BenchConfig(("eagle2", "static", "pld"), args.limit, temperature, max_new_tokens=64 if args.tiny else 128)
        print(f"Temperature {temperature}\n\n" + markdown_table(bench(target, tokenizer, head, shipped_questions(), config, cost=load_costs(target, head))) + "\n", flush=True)
    trees = [TreeConfig(), TreeConfig(4, 8, 16)]
    ids = tokenizer("Explain how rainbows form.", return_tensors="pt").input_ids.to(target.device)
    lengths = {tree: lengths_of(target, head, ids, tree) for tree in trees}
    large(args, lengths, trees)


if __name__ == "__main__":
    main()
