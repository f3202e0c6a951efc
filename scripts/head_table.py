"""Measure a draft head on FastChat question files and print the tables of its model card.

    python scripts/head_table.py FILE ... [--head FOLDER] --limit 8 --out records.jsonl

A task is one file; the first turns of its first `limit` questions are answered once for every measure. The oracle is the
target as its own draft, the most that a head could reach. The chain holds the first choice of each depth. The measure
whole_vocabulary lets the head score all tokens; places looks at the first choices over all places of the target's greedy answer
(teacher forced), not only where steps begin. Each answer becomes one line of sums in `--out`; a run that was stopped
goes on there, if its settings are the same. Oracle records do not depend on the head and may be copied to another file.
"""
import argparse
import hashlib
import json
import shlex
import sys
import time
from operator import truediv
from pathlib import Path

import torch

import eagle2_nb
from eagle2_nb.bench import drop_torn_line
from eagle2_nb.decode import KVCache, collect, decode
from eagle2_nb.draft_head import DraftHead, slot_mask, upload
from eagle2_nb.expand import TreeConfig
from eagle2_nb.experiments import judged, whole_vocabulary
from eagle2_nb.rerank import Eagle2Drafter
from eagle2_nb.train import Features, chain_hits, pack_answers
from eagle2_nb.target import encode_prompt, environment, in_words, load_default, read_questions
from eagle2_nb.verify import Sampling

EMBEDDED = Path(eagle2_nb.__file__).parent / "heads" / "smollm2-135m"
BINS, LARGE = 10, TreeConfig(6, 10, 60)
MEASURES = {"tau": (LARGE, 0), "small_tree": (TreeConfig(4, 8, 16), 0), "sampled": (LARGE, 1.0), "oracle": (LARGE, 1.0),
            "chain": (TreeConfig(6, 1, 7), 0), "places": (TreeConfig(4, 8, 16), 0), "whole_vocabulary": (LARGE, 0)}  # name -> tree, temperature


class OracleDrafter(Eagle2Drafter):
    "The target as its own draft, for one row: the confidence is its true next-token probability"

    def start(self, target, batch):
        self.token_ids, self.budget = None, None
        self.target, self.score, self.unread = target, target.logits, batch[0][None, :1]
        self.cache = KVCache(target.layers, 1, target.device)

    def observe(self, tokens, features, lengths, tree_logits=None):  # reads what was committed, the root included
        new, base = torch.cat([self.unread, tokens[:, : lengths[0]]], 1), self.cache.base
        steps = torch.arange(new.shape[1], device=new.device)
        features, _ = self._read(new, (steps <= steps[:, None])[None], base + steps[None], 0, last_only=True)
        self.cache.lengths, self.unread = [base + len(steps)], new[:, :0]
        self.root, self.feature = new[:, -1], features[:, -1]

    def _level(self, tokens, features, mask, level):
        k = tokens.shape[1]
        return self._read(tokens, mask, torch.full_like(tokens, self.cache.base + level - 1), (level - 1) * k)[::-1]

    def _read(self, tokens, mask, positions, at, **options):  # mask [1, n, at + n] over the slots after the committed text
        base = self.cache.base
        mask, self.cache.lengths = slot_mask(upload([base], tokens.device), base, mask), [base + at]  # write after `at` drafts
        read = self.target.forward(tokens, mask[:, None], positions, self.cache, **options)
        self.cache.lengths = [base]                                                                   # and forget all drafts
        return read


def check_oracle(target, head, ids, stop, depth=3):
    "Greedy, the oracle's chain is accepted whole: every step but the last commits depth + 1 tokens"
    drafter = OracleDrafter(head, TreeConfig(depth, 1, depth + 1))
    lengths = collect(decode(target, drafter, ids, max_new_tokens=4 * depth + 4, stop=stop))[1].accept_lengths.get(0, [])
    assert all(length == depth + 1 for length in lengths[:-1]), f"the oracle's steps commit {lengths} tokens, not {depth + 1}"


def histogram(pairs):
    "For every bin of confidence: sum of confidence, number accepted, number of children"
    confidence, accepted = (torch.cat([torch.zeros(0), *part]) for part in (zip(*pairs) if pairs else ([], [])))
    rows = torch.stack([confidence, accepted, torch.ones_like(confidence)], 1).double()
    return rows.new_zeros(BINS, 3).index_add_(0, (confidence * BINS).long().clamp(max=BINS - 1), rows).tolist()


def sums(steps, token_ids):
    "What the tables need from the steps of one answer: pairs to divide, and the bins of confidence"
    (new,), statistics = collect(steps)
    lengths, reached = statistics.accept_lengths.get(0, []), list(zip(statistics.accepted, map(int, statistics.deepest)))
    pairs = [pair for step in steps if not step.prefill for pair in judged(step)]
    record = {"tau": [sum(lengths), len(lengths)], "children": histogram(pairs), "first choices": histogram([(c[:1], right[:1]) for c, right in pairs])}
    for depth in range(1, 7):  # hits and trials, as `Statistics.acceptance_by_depth` counts them
        trials = [n for n, deepest in reached if n >= depth - 1 and deepest >= depth]
        record[f"depth {depth}"] = [sum(n >= depth for n in trials), len(trials)]
    outside = [] if token_ids is None else set(new) - set(token_ids.tolist())
    return record | {"outside": [sum(token in outside for token in new), len(new)]}


def places(target, head, ids, new):
    "First choices that are right, and those whose predecessors all were, over all places of an answer"
    answer = pack_answers([(ids[0].tolist(), new, True)], target.vocab_size)
    hits = chain_hits(target, head, answer, Features(target, answer, None, 0), [0])
    return {f"depth {depth}": row for depth, row in enumerate(hits.tolist(), 1)}


def plan(args):
    "Text and settings of every answer, by measure, task and question"
    digest = lambda content: hashlib.sha256(content).hexdigest()[:16]
    weights = digest((args.head / "model.safetensors").read_bytes())
    reduced = json.loads((args.head / "config.json").read_text(encoding="utf-8")).get("draft_vocab_size")
    texts = {(file.stem, i): question["turns"][0] for file in args.files for i, question in enumerate(read_questions(file)[: args.limit])}
    jobs, common = {}, dict(dtype=args.dtype, max_new_tokens=args.max_new_tokens, limit=args.limit)
    for measure in [name for name in MEASURES if reduced or name != "whole_vocabulary"]:
        own = dict(head="the target" if measure == "oracle" else weights, tree=str(MEASURES[measure][0]))
        jobs |= {(measure, task, i): (text, common | own | dict(seed=i, text=digest(text.encode()))) for (task, i), text in texts.items()}
    return jobs


def read_records(file, jobs):
    "The planned records that the file holds; ends the program if one was made with other settings"
    records = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines() if file and file.exists() else [], 1):
        try:
            record = json.loads(line)
        except ValueError:
            sys.exit(f"{file}, line {number}: no whole record, perhaps of a run that was stopped; delete this line")
        key = record["measure"], record["task"], record["question"]
        if key in jobs:
            records[key], found = record, record["settings"]
            differ = [f"{name} is {found.get(name)!r}, this run's {value!r}" for name, value in jobs[key][1].items() if found.get(name) != value]
            if differ:
                sys.exit(f"{file}, line {number} ({' '.join(map(str, key))}): {'; '.join(differ)}; use the same settings or another --out")
    return records


def circumstances(target):
    "What the numbers are measured on, and how"
    facts = environment(target)
    return dict(machine=f"{in_words(facts)}, python {facts['versions']['python']}", command=shlex.join(["python", *sys.argv]))


def answer_all(args, jobs, pending, records):
    "Answer what is pending, one record after the other"
    target, tokenizer, _ = load_default(getattr(torch, args.dtype), pack="auto")
    head = DraftHead.load(args.head).to(dtype=target.dtype).eval()
    whole = whole_vocabulary(head)
    drafters = {measure: Eagle2Drafter(head, tree) for measure, (tree, _) in MEASURES.items()}
    drafters.update(oracle=OracleDrafter(head, LARGE), whole_vocabulary=Eagle2Drafter(whole, LARGE))
    common = dict(max_new_tokens=args.max_new_tokens, stop=[tokenizer.eos_token_id])
    for number, key in enumerate(pending, 1):
        (measure, task, i), (text, settings), began = key, jobs[key], time.perf_counter()
        if measure == "oracle" and args.dtype == "float32" and not i:
            check_oracle(target, head, encode_prompt(tokenizer, text), common["stop"])
        torch.manual_seed(settings["seed"])
        choose, ids = Sampling(MEASURES[measure][1]).choose(), encode_prompt(tokenizer, text)
        steps = list(decode(target, drafters[measure], ids, choose=choose, **common))
        found = sums(steps, head.draft_token_ids)
        if measure == "places":
            found |= places(target, head, ids, [token for step in steps for token in step.tokens[0]])
        record = records[key] = dict(measure=measure, task=task, question=i, settings=settings, **found, **circumstances(target))
        if args.out:
            with args.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        seconds = time.perf_counter() - began
        print(f"{number} of {len(pending)}: {measure} {task} {i}, tau {figure([record], 'tau'):.2f}, {seconds:.1f} s", file=sys.stderr, flush=True)


def figure(records, name):
    "A quotient of sums over records, nan without any; of bins, the expected calibration error"
    total = torch.tensor([record[name] for record in records] or [[0, 0]], dtype=torch.float64).sum(0)
    if total.dim() == 2:
        total = torch.stack([(total[:, 0] - total[:, 1]).abs().sum(), total[:, 2].sum()])
    return (total[0] / total[1]).item()


class Table:
    "A Markdown table with a column for the mean and for each task, from the records that are there"

    def __init__(self, jobs, records, *names):
        self.jobs, self.records, self.tasks = jobs, records, list(dict.fromkeys(task for _, task, _ in jobs))
        print("\n| " + " | ".join([*names, "measured mean", *self.tasks]) + " |\n|" + "---|" * (len(names) + 1 + len(self.tasks)))

    def row(self, title, *limits, of, name="tau", form=".2f", combine=lambda values: values, pool=False):
        "A figure of one measure, or two of them combined over the questions that both have; pool: over all tasks at once"
        wanted = [at for measure, *at in self.jobs if measure == of[-1]]
        have = [at for at in wanted if all((measure, *at) in self.records for measure in of)]
        title += "" if len(have) == len(wanted) else f" ({len(have)} of {len(wanted)} questions)"
        figures = torch.tensor([[figure([self.records[measure, *at] for at in have if at[0] == task], name) for task in self.tasks] for measure in of])
        values = combine(*torch.cat([figures.nanmean(1, keepdim=True), figures], 1)).tolist()
        overall = figure([self.records[of[0], *at] for at in have], name) if pool else values[0]
        cells = [format(value, form) if value == value else "-" for value in (overall, *values[1:])]
        print("| " + " | ".join([title, *limits, *cells]) + " |")


def print_tables(jobs, records):
    "What the head must reach, then the numbers behind it"
    reduced, pair = any(measure == "whole_vocabulary" for measure, *_ in jobs), ["tau", "whole_vocabulary"]
    table = Table(jobs, records, "measure", "at least", "aim")
    table.row("tau, T=0, 6/10/60", "3.0", "3.8", of=["tau"])
    table.row("tau, T=0, 4/8/16", "2.6", "3.2", of=["small_tree"])
    table.row("tau, T=1, 6/10/60, share of the oracle's", "70%", "85%", of=["sampled", "oracle"], combine=truediv, form=".1%")
    table.row("first choice accepted, depth 1", "0.65", "0.75", of=["chain"], name="depth 1")
    table.row("first choice accepted, depth 5", "0.55", "0.70", of=["chain"], name="depth 5")
    table.row("calibration error, all children", "under 0.05", "under 0.03", of=["tau"], name="children", pool=True, form=".3f")
    if reduced:
        table.row("tau lost by the reduced vocabulary", "under 3%", "under 1%", of=pair, combine=lambda ours, whole: 1 - ours / whole, form=".1%")
    table = Table(jobs, records, "behind it")
    for depth in range(1, 7):
        table.row(f"first choice accepted, depth {depth}", of=["chain"], name=f"depth {depth}")
        table.row(f"first choice right over all places, depth {depth}", of=["places"], name=f"depth {depth}")
    table.row("calibration error, first choices", of=["tau"], name="first choices", pool=True, form=".3f")
    table.row("tau, T=1, 6/10/60, head", of=["sampled"])
    table.row("tau, T=1, 6/10/60, oracle", of=["oracle"])
    if not reduced:
        return print("\nThe head scores the whole vocabulary, so nothing is lost by a reduced one.")
    table.row("tau, T=0, 6/10/60, whole vocabulary", of=["whole_vocabulary"])
    table.row("emitted tokens outside the head's vocabulary", of=["tau"], name="outside", form=".2%")


def print_notes(args, jobs, records):
    "How the numbers were made"
    tasks, head = [task for measure, task, _ in jobs if measure == "tau"], next(settings["head"] for _, settings in jobs.values())
    print("\nEach task pools its questions, the mean over tasks is unweighted. A share or loss is that of two means, a calibration error pools all tasks. "
          f"Questions: {', '.join(f'{task} {tasks.count(task)}' for task in dict.fromkeys(tasks))}, at most {args.max_new_tokens} new tokens each. "
          f"SHA-256 of the head: {head}...")
    for name in ("machine", "command"):
        for value in dict.fromkeys(record[name] for record in records.values()):
            print(f"\n{name.capitalize()}: `{value}`")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="question files")
    parser.add_argument("--head", type=Path, default=EMBEDDED, help="folder, default: the embedded head")
    parser.add_argument("--limit", type=int, default=8, help="questions of each file")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--measures", nargs="+", choices=MEASURES, default=list(MEASURES), help="default: all")
    parser.add_argument("--out", type=Path, help="JSON Lines file of records, is continued")
    parser.add_argument("--print-only", action="store_true", help="print the tables of the records in --out")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    if len({file.stem for file in args.files}) < len(args.files):
        parser.error("two files have the same stem, which names the task")
    torch.set_num_threads(args.threads)
    jobs = plan(args)
    if args.out:
        drop_torn_line(args.out)
    records = read_records(args.out, jobs)
    pending = [key for key in jobs if key[0] in args.measures and key not in records]
    if pending and not args.print_only:
        answer_all(args, jobs, pending, records)
    print_tables(jobs, records)
    print_notes(args, jobs, records)


if __name__ == "__main__":
    main()
