"""What does the dynamic tree bring? tau of EAGLE-2 and of a static tree fitted to the same head, at equal numbers of verified tokens.

    python scripts/equal_budget.py [FILE ...] --limit 8 --total-tokens 16 26 60

The first turns of each file are answered greedily, as one padded batch a file, by EAGLE-2 (`--depth` levels at most,
`--top-k` nodes on each) and by the static tree of as many tokens that promises most (`scripts/static_tree.py` measured its
places on other prompts). Prints a Markdown table a budget: tau of each task (all steps of all its questions), the mean of the
tasks, and the ratio of the two with a 95% interval from drawing the questions of each task anew.
"""
import argparse
from pathlib import Path
from statistics import mean

from eagle2_nb.baselines import make_drafter
from eagle2_nb.bench import intervals
from eagle2_nb.decode import collect, decode
from eagle2_nb.expand import TreeConfig
from eagle2_nb.experiments import padded
from eagle2_nb.target import default_head_folder, encode_prompt, environment, in_words, load_default, read_questions


def lengths_of(target, drafter, batch, tokens):
    "Of each question the tokens that its steps committed"
    ids, mask = batch
    statistics = collect(decode(target, drafter, ids, mask, max_new_tokens=tokens, stop=target.stop), len(ids))[1]
    return [statistics.accept_lengths.get(row, []) for row in range(len(ids))]


def figures(tasks):
    "Task -> list of (lengths by EAGLE-2, lengths by the static tree) -> tau of each, mean over tasks, and the ratio"
    taus = [[sum(map(sum, lengths)) / sum(map(len, lengths)) for lengths in zip(*questions)] for questions in tasks.values()]
    ours, fixed = (mean(column) for column in zip(*taus))
    return dict(zip(tasks, taus)), dict(eagle2=ours, fitted=fixed, ratio=ours / fixed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="question files; default: the shipped prompts")
    parser.add_argument("--limit", type=int, help="questions of each file, default: all")
    parser.add_argument("--total-tokens", type=int, nargs="+", default=[16, 26, 60])
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    args = parser.parse_args()
    target, tokenizer, head = load_default(pack="auto")
    batches = {(file.stem if file else "shipped"): padded([encode_prompt(tokenizer, q["turns"][0])[0] for q in read_questions(file)[: args.limit]]) for file in args.files or [None]}
    for total in args.total_tokens:
        tree = TreeConfig(args.depth, args.top_k, total)
        drafters = [make_drafter(name, head, tree, None, None, default_head_folder()) for name in ("eagle2", "static-fitted")]
        tasks = {task: list(zip(*(lengths_of(target, drafter, batch, args.max_new_tokens) for drafter in drafters))) for task, batch in batches.items()}
        by_task, found = figures(tasks)
        spread = intervals(tasks, lambda drawn: figures(drawn)[1])
        print(f"\nTree {tree}, static tree of {total} tokens\n\n| task | EAGLE-2 | fitted static tree |\n|---|---|---|")
        for task, (ours, fixed) in by_task.items():
            print(f"| {task} | {ours:.2f} | {fixed:.2f} |")
        print(f"| **mean** | {found['eagle2']:.2f} | {found['fitted']:.2f} |")
        print(f"\nRatio {found['ratio']:.3f}, 95% interval {spread['ratio'][0]:.3f} to {spread['ratio'][1]:.3f}", flush=True)
    print(f"\n{sum(len(ids) for ids, _ in batches.values())} questions, at most {args.max_new_tokens} new tokens, greedy; {in_words(environment(target))}")


if __name__ == "__main__":
    main()
