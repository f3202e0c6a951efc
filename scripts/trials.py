"""Short training runs that differ from a common one in one point each: the evidence behind the recipe, as tables.

    python scripts/trials.py ANSWERS ... --measure ANSWERS --out DIR [--head FOLDER] [--only NAME ...]

All trials read the same answers with the same seed, and the learning rate falls to zero in each. They are compared by the share
of first choices that are right in answers that nothing was trained on (--measure): those chosen by argmax, at depth 1 to 6, and
those that were drawn, at depth 1. Trials that "go on" start from the trained head in --head. Results are lines of
DIR/trials.jsonl, and a trial that stands there is not run again; features are kept in DIR/features.
"""
import argparse
import json
import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator

from eagle2_nb.draft_head import DraftHead
from eagle2_nb.target import default_model_folder, environment, load_target
from eagle2_nb.train import (Features, TrainConfig, Trainer, answer_counts, chain_acceptance, chain_length, draft_vocabulary, head_to_train, load_answers,
                             plain_copy, some_updates)

BASE = dict(updates=60, warmup=15, decay=0.5, averaging=0.95, steps=1, steps_from=0.0, size=4096, width=0, drawn=None, go_on=False)
GO_ON = dict(go_on=True, updates=40, learning_rate=1e-3, size=8192)
TRIALS = {
    "the common run": {}, "another seed": dict(seed=1),
    "AdamW": dict(optimizer="adamw"), "AdamW, learning rate 1e-3": dict(optimizer="adamw", learning_rate=1e-3),
    "learning rate 1e-3": dict(learning_rate=1e-3), "learning rate 4e-3": dict(learning_rate=4e-3),
    "batches of 2,048 tokens": dict(batch_tokens=2048, updates=120), "batches of 8,192 tokens": dict(batch_tokens=8192, updates=30),
    "weight of words 0.1": dict(distribution_weight=0.1), "weight of words 2": dict(distribution_weight=2.0),
    "no noise": dict(noise=0.0), "noise 0.3": dict(noise=0.3),
    "16,384 words": dict(size=16384), "MLP twice as wide": dict(width=3072),
    "no drawn answers": dict(drawn=0.0), "a quarter drawn": dict(drawn=0.25), "half drawn": dict(drawn=0.5),
} | {f"go on, {steps} step{'s' * (steps > 1)}": GO_ON | dict(steps=steps) for steps in (1, 2, 3, 5)} | {
    "go on, 3 steps, weight of words 2": GO_ON | dict(steps=3, distribution_weight=2.0),
}
AS_GIVEN = {"the given head": True, "the given head, on answers to train on": False}  # nothing is trained; measured on other answers?
MIX_TOKENS = 150_000  # answer tokens of each of the trials of `drawn`


def rows_of(answers, count, drawn):
    "Of the first `count` rows those to train on, a share of them drawn (None: all rows there are); greedy and drawn rows to measure"
    order = torch.randperm(len(answers) - count, generator=torch.Generator().manual_seed(0)) + count
    measured = [order[answers.greedy[order] == greedy][:40].tolist() for greedy in (True, False)]
    if drawn is None:
        return list(range(count)), *measured
    lengths, chosen = (answers.lengths - answers.prompt_lengths).tolist(), []
    for is_greedy, room in ((True, (1 - drawn) * MIX_TOKENS), (False, drawn * MIX_TOKENS)):
        for row in range(count):
            if answers.greedy[row] == is_greedy and room > 0:
                chosen, room = chosen + [row], room - lengths[row]
    return chosen, *measured


def accepted(target, head, answers, features, greedy, sampled):
    "Shares of first choices that are right: in greedy answers at depth 1 to 6, in drawn ones at depth 1"
    head.draft_token_ids = draft_vocabulary(answer_counts(answers, target.vocab_size), 16384)  # the same words in all trials
    shares = [[round(share, 4) for share in chain_acceptance(target, head.to(target.dtype), answers, features, rows, depth)] for rows, depth in ((greedy, 6), (sampled, 1))]
    return dict(greedy=shares[0], drawn=shares[1])


def as_given(target, answers, count, features, head, measured):
    "What the given head does, on answers to measure on or on answers to train on"
    _, *rows = rows_of(answers, count, None)
    if not measured:
        order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
        rows = [order[answers.greedy[order] == greedy][:40].tolist() for greedy in (True, False)]
    return dict(pairs=0, seconds=0) | accepted(target, DraftHead.load(head), answers, features, *rows)


def run(name, target, answers, count, features, head):
    "What a trial came to"
    if name in AS_GIVEN:
        return dict(trial=name) | as_given(target, answers, count, features, head, AS_GIVEN[name])
    options = BASE | TRIALS[name]
    size, width, drawn, go_on = (options.pop(key) for key in ("size", "width", "drawn", "go_on"))
    start = DraftHead.load(head) if go_on else None
    config = TrainConfig(held_out=0, **options)
    accelerator = Accelerator(cpu=target.device.type == "cpu", mixed_precision="bf16")
    trainer = Trainer(accelerator, target, head_to_train(target, answers, features, start, size, width, config.seed), answers, features, config)
    trainer.source.rows, greedy, sampled = rows_of(answers, count, drawn)
    trainer.source.go_to(0, 0)
    row = some_updates(trainer, config.updates, measure=False)
    return dict(trial=name, pairs=row["pairs"], seconds=row["seconds"], feature_loss=row["feature_loss"]) | accepted(
        target, plain_copy(trainer.averaged), answers, features, greedy, sampled)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", nargs="+", type=Path, help="files or folders of answers")
    parser.add_argument("--measure", nargs="+", type=Path, required=True, help="files or folders of answers to other prompts")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--head", type=Path, help="folder of a trained head, from which some trials go on")
    parser.add_argument("--only", nargs="+", choices=[*AS_GIVEN, *TRIALS], help="default: all")
    args = parser.parse_args()
    target, _ = load_target(default_model_folder(), torch.bfloat16)
    answers, count = load_answers(args.answers + args.measure, target.vocab_size), len(load_answers(args.answers, target.vocab_size))
    features, file = Features(target, answers, args.out / "features"), args.out / "trials.jsonl"
    features.fill(lambda line: print(line, file=sys.stderr))
    results = {result["trial"]: result for result in map(json.loads, file.read_text(encoding="utf-8").splitlines())} if file.exists() else {}
    for name in args.only or [name for name in [*AS_GIVEN, *TRIALS] if args.head or "go_on" not in TRIALS.get(name, GO_ON)]:
        if name not in results:
            start = time.perf_counter()
            results[name] = run(name, target, answers, count, features, args.head)
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(results[name]) + "\n")
            print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    print("| trial | pairs | seconds | " + " | ".join(f"depth {depth}" for depth in range(1, 7)) + " | chain | drawn, depth 1 |\n" + "|---" * 11 + "|")
    for name, result in results.items():
        print(f"| {name} | {result['pairs']:,} | {result['seconds']:.0f} | " + " | ".join(f"{share:.3f}" for share in result["greedy"])
              + f" | {chain_length(result['greedy']):.3f} | {result['drawn'][0]:.3f} |")
    facts = environment(target)
    print(f"\n{facts['hardware']}, {facts['threads']} threads, {facts['dtype']}, torch {torch.__version__}; {count:,} answers to train on, {len(answers) - count:,} to measure on")


if __name__ == "__main__":
    main()
