"""Answer prompts in batches through the package and through the model's own `generate`, and compare tokens a second.

    python scripts/generation_speed.py PROMPTS --tokens 100000

The same groups of prompts are answered three ways, one way after another, group by group: as `eagle2 train --stage generate`
does (batches of similar length, rows that end leave the work), by `generate` in the order of the file, and by `generate` in
batches of similar length. All greedy, with the same batch size and length limit. The two references are run on every
`--reference-every`-th group only.
"""
import argparse
import sys
import time

import torch
import transformers

from eagle2_nb.cli import environment
from eagle2_nb.decode import plain_generate
from eagle2_nb.target import default_model_folder, load_target, read_questions
from eagle2_nb.train import AnswerConfig, answer_all_turns, encode_turns, pad_left
from eagle2_nb.verify import Sampling


def reference(target, prompts, config):
    "Answer tokens that `generate` writes to prompts, in batches in their order"
    stop, count = target.model.generation_config.eos_token_id, 0
    for at in range(0, len(prompts), config.batch_size):
        ids, mask = pad_left(prompts[at:at + config.batch_size])
        count += sum(map(len, plain_generate(target, ids, mask, Sampling(), config.max_new_tokens, stop)))
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", help="JSON Lines file of `messages` or `turns`; first turns are answered")
    parser.add_argument("--tokens", type=int, default=100_000, help="answer tokens to write our way")
    parser.add_argument("--group", type=int, default=384, help="prompts a group, within which lengths are sorted")
    parser.add_argument("--reference-every", type=int, default=2)
    args = parser.parse_args()
    config = AnswerConfig(sampled=0.0)
    target, tokenizer = load_target(default_model_folder(), torch.bfloat16)
    questions = [[question["turns"][0]] for question in read_questions(args.prompts)]
    sums = {name: [0, 0.0] for name in ("ours, all groups", "ours", "generate, file order", "generate, sorted")}

    def measure(names, work):
        start = time.perf_counter()
        count = work()
        seconds = time.perf_counter() - start
        for name in names:
            sums[name] = [sums[name][0] + count, sums[name][1] + seconds]
        print(f"{names[-1]}: {count} tokens, {count / seconds:.0f} tokens/s", file=sys.stderr, flush=True)

    for number, at in enumerate(range(0, len(questions), args.group)):
        group = questions[at:at + args.group]
        compared = number % args.reference_every == 0
        ours = lambda: sum(len(answer) for batch in answer_all_turns(target, tokenizer, group, config, number) for _, answer, _ in batch)
        measure(["ours, all groups"] + ["ours"] * compared, ours)
        if compared:
            prompts = [prompt for turns in group if len(prompt := encode_turns(tokenizer, turns, [])) <= config.longest_prompt]
            measure(["generate, file order"], lambda: reference(target, prompts, config))
            measure(["generate, sorted"], lambda: reference(target, sorted(prompts, key=len), config))
        if sums["ours, all groups"][0] >= args.tokens:
            break
    for name, (count, seconds) in sums.items():
        print(f"{name}: {count} tokens in {seconds:.0f} s, {count / seconds:.0f} tokens/s")
    ours = sums["ours"][0] / sums["ours"][1]
    for name in ("generate, file order", "generate, sorted"):
        print(f"ours is {ours / (sums[name][0] / sums[name][1]):.2f} times as fast as {name}, on the same prompts")
    facts = environment(target)
    print(f"batch size {config.batch_size}, at most {config.max_new_tokens} new tokens, {facts['dtype']}, {facts['hardware']}, {facts['threads']} threads, "
          f"torch {torch.__version__}, transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
