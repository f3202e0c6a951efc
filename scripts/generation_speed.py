"""Answer prompts in batches through the package and through the model's own `generate`, and compare tokens a second.

    python scripts/generation_speed.py PROMPTS --tokens 100000 --out RUN

Ours is what `eagle2 train --stage generate` does (batches of similar length, rows that end leave the work); its shards stay in
RUN/answers, and the command may be continued there. After each shard `generate` answers some of the very prompts of that shard,
at the same batch size and length limit: every `--every`-th batch of them in a shuffled order, as they stand mixed in the file,
and every `--every`-th batch of them sorted by length.
"""
import argparse
import json
import random
import sys
import time
from pathlib import Path

import torch
import transformers

from eagle2_nb.decode import plain_generate
from eagle2_nb.target import default_model_folder, environment, load_target, read_questions
from eagle2_nb.train import AnswerConfig, pad_left, read_answers, write_answers
from eagle2_nb.verify import Sampling


def by_generate(target, prompts, config, every):
    "Answer tokens and seconds of `generate`, over every `every`-th batch of the prompts in their order"
    count, seconds = 0, 0.0
    for at in range(0, len(prompts), config.batch_size * every):
        start = time.perf_counter()
        ids, mask = pad_left(prompts[at:at + config.batch_size])
        count += sum(map(len, plain_generate(target, ids, mask, Sampling(), config.max_new_tokens, target.stop)))
        seconds += time.perf_counter() - start
    return count, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", help="JSON Lines file of `messages` or `turns`")
    parser.add_argument("--skip", type=int, default=0, help="leave out the first N prompts")
    parser.add_argument("--tokens", type=int, default=100_000, help="answer tokens to write our way")
    parser.add_argument("--out", type=Path, required=True, help="receives answers/ as `eagle2 train --out` does")
    parser.add_argument("--every", type=int, default=4, help="of `generate`'s batches, time one in so many")
    parser.add_argument("--shard", type=int, default=AnswerConfig.shard, help="conversations a file")
    args = parser.parse_args()
    config, folder, done = AnswerConfig(shard=args.shard), args.out / "answers", 0
    if folder.exists():
        parser.error(f"--out: {folder} exists; name a new folder")
    target, tokenizer = load_target(default_model_folder(), torch.bfloat16)
    conversations = [question["turns"] for question in read_questions(args.prompts)[args.skip:]]
    sums = {name: (0, 0.0) for name in ("ours", "generate, mixed lengths", "generate, sorted by length")}

    def add(name, count, seconds):
        sums[name] = (sums[name][0] + count, sums[name][1] + seconds)
        print(f"{name}: {count} tokens, {count / seconds:.0f} tokens/s", file=sys.stderr, flush=True)

    while done < args.tokens:
        write_answers(target, tokenizer, conversations, folder, config, tokens=done + 1, report=lambda line: None)
        name, shard = list(json.loads((folder / "manifest-0.json").read_text())["shards"].items())[-1]
        add("ours", shard["answer_tokens"], shard["seconds"])
        done += shard["answer_tokens"]
        answers = read_answers(folder / name, target.vocab_size)
        prompts = [answers.row(i)[:length].tolist() for i, length in enumerate(answers.prompt_lengths.tolist())]
        add("generate, sorted by length", *by_generate(target, sorted(prompts, key=len), config, args.every))
        random.Random(0).shuffle(prompts)
        add("generate, mixed lengths", *by_generate(target, prompts, config, args.every))
    rate = {name: count / seconds for name, (count, seconds) in sums.items()}
    for name, (count, seconds) in sums.items():
        print(f"{name}: {count} tokens in {seconds:.0f} s, {rate[name]:.0f} tokens/s; ours is {rate['ours'] / rate[name]:.2f} times as fast")
    facts = environment(target)
    print(f"batch size {config.batch_size}, at most {config.max_new_tokens} new tokens, {facts['dtype']}, {facts['hardware']}, {facts['threads']} threads, "
          f"torch {torch.__version__}, transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
