"""Short training runs that differ from a common one in one point each: the evidence behind the recipe, as tables.

    python scripts/trials.py ANSWERS ... --out DIR [--head FOLDER] [--only NAME ...]

All trials read the same answers with the same seed, and the learning rate falls to zero in each. They are compared by the share
of first choices that are right on rows that none has read: answers chosen by argmax, at depth 1 to 6, and answers that were
drawn, at depth 1. Trials of `steps` go on from the trained head in --head. Results are lines of DIR/trials.jsonl, and a trial
that stands there is not run again; features are kept in DIR/features.
"""
import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import Accelerator

from eagle2_nb.cli import environment
from eagle2_nb.draft_head import DraftHead
from eagle2_nb.target import default_model_folder, load_target
from eagle2_nb.train import Features, TrainConfig, Trainer, chain_acceptance, chain_length, head_to_train, load_answers, plain_copy, some_updates, split_rows

BASE = dict(updates=160, decay=0.5, averaging=0.98, steps=1, steps_from=0.0, size=4096, width=0, drawn=None, go_on=False)
TRIALS = {
    "the common run": {},
    "AdamW": dict(optimizer="adamw"), "AdamW, learning rate 1e-3": dict(optimizer="adamw", learning_rate=1e-3),
    "learning rate 1e-3": dict(learning_rate=1e-3), "learning rate 4e-3": dict(learning_rate=4e-3),
    "batches of 2,048 tokens": dict(batch_tokens=2048, updates=320), "batches of 8,192 tokens": dict(batch_tokens=8192, updates=80, warmup=25),
    "weight of words 0.1": dict(distribution_weight=0.1), "weight of words 2": dict(distribution_weight=2.0),
    "no noise": dict(noise=0.0), "noise 0.3": dict(noise=0.3),
    "16,384 words": dict(size=16384), "MLP twice as wide": dict(width=3072), "another seed": dict(seed=1),
    "no drawn answers": dict(drawn=0.0), "a quarter drawn": dict(drawn=0.25), "half drawn": dict(drawn=0.5),
    "1 step": dict(steps=1, go_on=True), "2 steps": dict(steps=2, go_on=True), "3 steps": dict(steps=3, go_on=True), "5 steps": dict(steps=5, go_on=True),
}
MIX_TOKENS = 150_000  # answer tokens of each of the trials of `drawn`


def rows_of(answers, drawn):
    "Rows to train on, a share of them drawn (None: all rows there are); greedy and drawn rows to measure, which no trial reads"
    rows, greedy = split_rows(answers, 80, 0)
    others, sampled = split_rows(replace(answers, greedy=~answers.greedy), 80, 0)
    rows = sorted(set(rows) & set(others))
    if drawn is None:
        return rows, greedy, sampled
    lengths, chosen = (answers.lengths - answers.prompt_lengths).tolist(), []
    for is_greedy, room in ((True, (1 - drawn) * MIX_TOKENS), (False, drawn * MIX_TOKENS)):
        for row in rows:
            if answers.greedy[row] == is_greedy and room > 0:
                chosen, room = chosen + [row], room - lengths[row]
    return chosen, greedy, sampled


def run(name, target, answers, features, head):
    "What a trial came to"
    options = BASE | TRIALS[name]
    size, width, drawn, go_on = (options.pop(key) for key in ("size", "width", "drawn", "go_on"))
    start = DraftHead.load(head) if go_on else None
    config = TrainConfig(held_out=80, **options)
    accelerator = Accelerator(cpu=target.device.type == "cpu", mixed_precision="bf16")
    trainer = Trainer(accelerator, target, head_to_train(target, answers, features, start, size, width, config.seed), answers, features, config)
    trainer.source.rows, greedy, sampled = rows_of(answers, drawn)
    trainer.source.go_to(0, 0)
    row = some_updates(trainer, config.updates, measure=False)
    trained = plain_copy(trainer.averaged).to(target.dtype)
    trained.draft_token_ids = None  # so that different vocabularies are compared by the same words
    accept = [[round(share, 4) for share in chain_acceptance(target, trained, answers, features, rows)] for rows in (greedy, sampled)]
    return dict(trial=name, pairs=row["pairs"], seconds=row["seconds"], feature_loss=row["feature_loss"], greedy=accept[0], drawn=accept[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", nargs="+", type=Path, help="files or folders of answers")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--head", type=Path, help="folder of a trained head, from which the trials of `steps` start")
    parser.add_argument("--only", nargs="+", choices=TRIALS, help="default: all")
    args = parser.parse_args()
    target, _ = load_target(default_model_folder(), torch.bfloat16)
    answers = load_answers(args.answers, target.vocab_size)
    features, file = Features(target, answers, args.out / "features"), args.out / "trials.jsonl"
    features.fill(lambda line: print(line, file=sys.stderr))
    results = {result["trial"]: result for result in map(json.loads, file.read_text(encoding="utf-8").splitlines())} if file.exists() else {}
    for name in args.only or [name for name in TRIALS if args.head or "go_on" not in TRIALS[name]]:
        if name not in results:
            start = time.perf_counter()
            results[name] = run(name, target, answers, features, args.head)
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(results[name]) + "\n")
            print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    print("| trial | pairs | seconds | " + " | ".join(f"depth {depth}" for depth in range(1, 7)) + " | chain | drawn, depth 1 |\n" + "|---" * 11 + "|")
    for name, result in results.items():
        print(f"| {name} | {result['pairs']:,} | {result['seconds']:.0f} | " + " | ".join(f"{share:.3f}" for share in result["greedy"])
              + f" | {chain_length(result['greedy']):.3f} | {result['drawn'][0]:.3f} |")
    facts = environment(target)
    print(f"\n{facts['hardware']}, {facts['threads']} threads, {facts['dtype']}, torch {torch.__version__}; {len(answers):,} answers")


if __name__ == "__main__":
    main()
