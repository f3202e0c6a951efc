"""Short training runs that differ in one option each: the evidence behind the recipe, as a table.

    python scripts/trials.py ANSWERS ... --out DIR [--only NAME ...]

Every trial is `eagle2 train --stage train` with the same seed, data and number of updates; the learning rate falls to zero in
each, so that the held-out acceptance at its end can be compared. The trials of `steps` start from the head in --head. A
finished trial is not run again.
"""
import argparse
import csv
import subprocess
import sys
from pathlib import Path

from eagle2_nb.train import chain_length

COMMON = dict(updates=160, decay=0.5, steps=1, steps_from=0.0, held_out=100)
TRIALS = {
    "base": {},
    "optimizer adamw": dict(optimizer="adamw"),
    "learning rate 1e-3": dict(learning_rate=1e-3), "learning rate 4e-3": dict(learning_rate=4e-3),
    "batches of 2,048 tokens": dict(batch_tokens=2048, updates=320), "batches of 8,192 tokens": dict(batch_tokens=8192, updates=80),
    "weight of words 0.1": dict(distribution_weight=0.1), "weight of words 2": dict(distribution_weight=2.0),
    "no noise": dict(noise=0.0), "noise 0.3": dict(noise=0.3),
    "4,096 words": dict(draft_vocab_size=4096), "8,192 words": dict(draft_vocab_size=8192),
    "MLP of 2,304": dict(intermediate_size=2304),
    "steps 1": dict(steps=1), "steps 2": dict(steps=2), "steps 3": dict(steps=3), "steps 5": dict(steps=5),
}


def run(name, answers, out, head):
    "The last row of a trial's log, from its folder if it is finished"
    folder, options = out / name.replace(" ", "-").replace(",", ""), COMMON | TRIALS[name]
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "features").exists():
        (folder / "features").symlink_to(out / "features", target_is_directory=True)
    command = [Path(sys.executable).parent / "eagle2", "train", "--stage", "train", "--out", folder]
    for file in answers:
        command += ["--answers", file]
    if name.startswith("steps"):
        command += ["--head", head]
    for option, value in options.items():
        flag = option in ("updates", "batch_tokens", "draft_vocab_size", "intermediate_size")
        command += ["--" + option.replace("_", "-"), str(value)] if flag else ["--set", f"{option}={value}"]
    subprocess.run(command, check=True)
    with open(folder / "log.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", nargs="+", type=Path, help="files or folders of answers")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--head", type=Path, help="folder of a trained head, from which the trials of `steps` start")
    parser.add_argument("--only", nargs="+", choices=TRIALS, help="default: all")
    args = parser.parse_args()
    (args.out / "features").mkdir(parents=True, exist_ok=True)
    names = args.only or [name for name in TRIALS if args.head or not name.startswith("steps")]
    rows = {name: run(name, [file.resolve() for file in args.answers], args.out.resolve(), args.head) for name in names}
    print("| trial | pairs | seconds | feature loss | " + " | ".join(f"depth {d}" for d in range(1, 7)) + " | chain |\n" + "|---" * 11 + "|")
    for name, row in rows.items():
        accept = [float(row[f"accept_{depth}"]) for depth in range(1, 7)]
        print(f"| {name} | {int(row['pairs']):,} | {float(row['seconds']):.0f} | {float(row['feature_loss']):.3f} | "
              + " | ".join(f"{share:.3f}" for share in accept) + f" | {chain_length(accept):.3f} |")


if __name__ == "__main__":
    main()
