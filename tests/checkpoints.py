"""Small things of every kind that this package reads from files, and ways to spoil them."""
import copy
import gzip
import json
import math
import os
import random
import shutil
import time
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import torch
from accelerate import Accelerator
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from eagle2_nb.baselines import EAGLE_STATIC, MedusaHeads, SmallModel, SmallModelDrafter, load_small_model, make_drafter, write_positions
from eagle2_nb.bench import BenchConfig, Runner, read_records, summarise
from eagle2_nb.decode import collect, decode, plain_generate, read_costs
from eagle2_nb.draft_head import DraftHead
from eagle2_nb.expand import TreeConfig
from eagle2_nb.explorer import Trace, TokenTimeline, TreeExplorer, record, trace_page
from eagle2_nb.hub import examine
from eagle2_nb.rerank import CostModel, Eagle2Drafter
from eagle2_nb.target import Target, load_target, read_questions
from eagle2_nb.train import (AnswerConfig, Features, TrainConfig, Trainer, draft_to_train, load_answers, load_checkpoint, open_manifest,
                             save_checkpoint, write_answers)

PROMPT = torch.tensor([[5, 17, 3, 41]])


# what is spoiled

def small_target():
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, vocab_size=64,
                         max_position_embeddings=256, initializer_range=.3, eos_token_id=None, bos_token_id=None)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(64)}, unk_token="w0"))
    words.pre_tokenizer, words.decoder = pre_tokenizers.WhitespaceSplit(), decoders.Fuse()
    return Target(AutoModelForCausalLM.from_config(config).eval()), PreTrainedTokenizerFast(tokenizer_object=words)


class Things:
    "A folder with one whole thing of every kind"
    def __init__(self, folder):
        self.folder = folder
        self.target, self.tokenizer = small_target()
        self.head = DraftHead.from_target(self.target.model).eval()
        self.tree = TreeConfig(2, 3, 8)
        self.ids = plain_generate(self.target, PROMPT, max_new_tokens=6)[0]
        self.make_heads()
        self.target.model.save_pretrained(folder / "target")
        self.tokenizer.save_pretrained(folder / "target")
        self.make_texts()
        self.make_numbers()

    def make_heads(self):
        fields = json.loads(self.saved(self.head, "head").read_text())
        self.saved(MedusaHeads(16, 3), "head/medusa")
        shutil.copytree(self.folder / "head/medusa", self.folder / "medusa/medusa")
        (self.folder / "positions").mkdir()
        self.saved(SmallModel(self.target), "head/small")
        write_positions(EAGLE_STATIC, torch.arange(len(EAGLE_STATIC) - 1).flip(0), 30, self.folder / "head/static_tree.json")
        shutil.copy(self.folder / "head/static_tree.json", self.folder / "positions")
        shutil.copytree(self.folder / "head/small", self.folder / "small")
        self.saved(DraftHead(replace(self.head.config, draft_vocab_size=24)), "few")
        shutil.copytree(self.folder / "few", self.folder / "doctor")
        weights = {name: weight.clone() for name, weight in self.head.state_dict().items()}
        for name, new in (("bin", True), ("old", False)):
            (self.folder / name).mkdir()
            (self.folder / name / "config.json").write_text(json.dumps(fields))
            torch.save(weights, self.folder / name / "pytorch_model.bin", _use_new_zipfile_serialization=new)
        self.shard(fields, weights)

    def saved(self, thing, name):
        thing.save(self.folder / name)
        return self.folder / name / "config.json"

    def shard(self, fields, weights):
        from safetensors.torch import save_file
        folder, where = self.folder / "shards", {}
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(fields))
        for number, part in enumerate((sorted(weights)[:4], sorted(weights)[4:])):
            save_file({key: weights[key] for key in part}, folder / f"part-{number}.safetensors")
            where |= dict.fromkeys(part, f"part-{number}.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps(dict(metadata={}, weight_map=where)))

    def make_texts(self):
        for name in ("trace", "questions", "answers"):
            (self.folder / name).mkdir()
        record(self.target, self.tokenizer, self.head, PROMPT, self.tree, max_new_tokens=6).save(self.folder / "trace/trace.json")
        lines = "".join(json.dumps(dict(question_id=i, turns=[f"w{i} w5", "w17 w3"])) + "\n" for i in range(8))
        (self.folder / "questions/few.jsonl").write_text(lines)
        with gzip.open(self.folder / "questions/few.jsonl.gz", "wt") as file:
            file.write(lines)
        talks = [q["turns"] for q in read_questions(self.folder / "questions/few.jsonl")]
        write_answers(self.target, self.tokenizer, talks, self.folder / "answers", AnswerConfig(max_new_tokens=6, shard=8), report=lambda line: None)

    def make_numbers(self):
        for name in ("costs", "records", "state"):
            (self.folder / name).mkdir()
        seconds = (.01, .012, .02)
        self.cost = CostModel((16, 64), (1, 4, 16), (seconds, seconds), (seconds, seconds))
        (self.folder / "costs/costs.json").write_text(json.dumps(asdict(self.cost)))
        self.config, self.settings = BenchConfig(max_new_tokens=4), dict(tree="2/3/8", seed=0)
        runner = Runner(self.target, self.head, self.config, self.tree, self.cost)
        with open(self.folder / "records/bench.records.jsonl", "w") as file:
            for question, method in ((q, m) for q in range(2) for m in self.config.all_methods):
                record = runner(method, PROMPT, 4) | dict(task="few", question=question, turn=0, method=method, repeat=0)
                file.write(json.dumps(record | dict(settings=self.settings)) + "\n")
        self.records = read_records(self.folder / "records/bench.records.jsonl", self.settings)
        save_checkpoint(self.trainer(), self.folder / "state/checkpoint.pt")

    def trainer(self):
        config = TrainConfig(updates=2, batch_tokens=64, held_out=0)
        data = load_answers([self.folder / "answers"], 64)
        features = Features(self.target, data)
        return Trainer(Accelerator(cpu=True), self.target, draft_to_train("head", self.target, data, features), data, features, config)

    def decoded(self, drafter):
        "The ids, and none but the target's"
        found = collect(decode(self.target, drafter, PROMPT, max_new_tokens=6))[0][0]
        assert found == self.ids
        return found


# ways to spoil

class Spoiler:
    "Random faults, each a function of the seed"
    def __init__(self, *seed):
        self.chance = random.Random(repr(seed))

    def spoil(self, folder):
        "One file of a folder; says what was done"
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        file = self.chance.choice(files)
        kinds = ["flip", "flip", "flip", "cut", "zero", "repeat", "insert"]
        if file.suffix == ".json":
            kinds += ["field"] * 14
        if file.suffix == ".safetensors":
            kinds += ["header"] * 7
        kind = self.chance.choice(kinds)
        getattr(self, kind)(file)
        return f"{kind} in {file.relative_to(folder)}"

    def place(self, data):
        "Half of the places are near the beginning or the end, where headers are"
        limit = self.chance.choice([len(data), min(len(data), 400)])
        at = self.chance.randrange(max(1, limit))
        return at if self.chance.random() < .7 else max(0, len(data) - 1 - at)

    def flip(self, file):
        data = bytearray(file.read_bytes())
        for _ in range(self.chance.choice([1, 1, 2, 8])):
            data[self.place(data)] ^= 1 << self.chance.randrange(8)
        file.write_bytes(data)

    def cut(self, file):
        data = file.read_bytes()
        file.write_bytes(data[:self.place(data)])

    def zero(self, file):
        data = bytearray(file.read_bytes())
        at, n = self.place(data), self.chance.choice([1, 8, 100])
        data[at:at + n] = bytes(len(data[at:at + n]))
        file.write_bytes(data)

    def repeat(self, file):
        data = file.read_bytes()
        at, n = self.place(data), self.chance.choice([1, 8, 100])
        file.write_bytes(data[:at] + data[at:at + n] * 2 + data[at + n:])

    def insert(self, file):
        data = file.read_bytes()
        at = self.place(data)
        file.write_bytes(data[:at] + bytes(self.chance.randrange(256) for _ in range(self.chance.choice([1, 8, 64]))) + data[at:])

    ABSURD = (-1, 0, 1, 2.5, -1e308, 1e400, math.nan, "", "x", "<script>", None, True, False, 10**9, 2**31, 2**63, 10**30, [], {}, [[]], [0], {"a": {"b": []}}, "../x", "9" * 5000)

    def field(self, file):
        "A leaf of a JSON file replaced, removed, renamed or exchanged"
        held = json.loads(file.read_text())
        spots = list(self.spots(held))
        if not spots:
            return self.flip(file)
        holder, key = self.chance.choice(spots)
        act = self.chance.choice(["set", "set", "set", "set", "delete", "rename", "exchange"])
        if act == "set":
            holder[key] = copy.deepcopy(self.chance.choice(self.ABSURD))
        elif act == "exchange":
            other, place = self.chance.choice(spots)
            holder[key], other[place] = copy.deepcopy(other[place]), copy.deepcopy(holder[key])
        elif act == "delete":
            del holder[key]
        elif isinstance(holder, dict):
            holder[self.chance.choice(["x", "hidden_size", key + "s", ""])] = holder.pop(key)
        file.write_text(json.dumps(held))

    def spots(self, held):
        for key, value in list(held.items() if isinstance(held, dict) else enumerate(held)):
            yield held, key
            if isinstance(value, dict | list):
                yield from self.spots(value)

    def header(self, file):
        "A safetensors header whose JSON is spoiled and whose length is right"
        data = file.read_bytes()
        n = int.from_bytes(data[:8], "little")
        beside = file.with_name(f".{file.name}.json")
        beside.write_bytes(data[8:8 + n])
        self.field(beside)
        text = beside.read_bytes()
        beside.unlink()
        file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + n:])


# what is promised

def memory(name):
    return next(int(line.split()[1]) * 1024 for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))


def tree(folder):
    return sorted((str(path), os.lstat(path).st_size, os.lstat(path).st_mtime_ns) for path in [folder, *Path(folder).rglob("*")])


@contextmanager
def contained(*folders):
    "Within 5 seconds and 500 MB, and no file made, changed or removed"
    Path("/proc/self/clear_refs").write_text("5")          # the peak is counted from here
    files, held, began = list(map(tree, folders)), memory("VmRSS"), time.perf_counter()
    yield
    seconds, grown = time.perf_counter() - began, memory("VmHWM") - held
    assert seconds < 5, f"took {seconds:.1f} s"
    assert grown < 500e6, f"took {grown / 1e6:.0f} MB"
    assert list(map(tree, folders)) == files, "a file was written"


def outcome(call, *folders, names=()):
    "What a call returns, or its one clear error"
    found = error = None
    with contained(*folders):
        try:
            found = call()
        except (ValueError, OSError) as e:
            error = e
    if error is None:
        return found, None
    text = str(error)
    assert type(error).__module__ in ("builtins", "eagle2_nb.target") and not isinstance(error, UnicodeError | json.JSONDecodeError), f"{type(error)}: {text}"
    assert text and len(text) < 1500 and any(str(name) in text for name in names), f"{type(error).__name__} names nothing of {names}: {text}"
    return None, text


def copied(folder, to):
    shutil.copytree(folder, to, symlinks=True)
    return Path(to)


# how each is read, and used when it was read

def use_head(things, folder):
    head = DraftHead.load(folder)
    if head.config.hidden_size == 16 and head.config.vocab_size == 64:
        things.decoded(Eagle2Drafter(head.float(), things.tree))


def use_medusa(things, folder):
    things.decoded(make_drafter("medusa", None, things.tree, folder=folder))


def use_small(things, folder):
    things.decoded(SmallModelDrafter(Target(load_small_model(folder, things.target))))


def use_positions(things, folder):
    things.decoded(make_drafter("static-fitted", things.head, TreeConfig(3, 4, 6), folder=folder))


def use_trace(things, folder):
    trace = Trace.load(Path(folder) / "trace.json")
    trace_page(trace), trace.answer, trace.tau
    TreeExplorer(trace).html(), TokenTimeline(trace).html()


def use_answers(things, folder):
    files = sorted(Path(folder).glob("*.safetensors"))
    open_manifest(Path(folder), {})
    load_answers([folder, *files], 64, None)


def use_questions(things, folder):
    for file in sorted(Path(folder).iterdir()):
        read_questions(file)


def use_target(things, folder):
    load_target(Path(folder))


def use_costs(things, folder):
    made = read_costs(Path(folder) / "costs.json")
    assert all(math.isfinite(cost) and cost > 0 for what in ("verify", "draft") for cost in made.seconds(what, 40, [1, 3, 50]))


def use_records(things, folder):
    held = read_records(Path(folder) / "bench.records.jsonl", things.settings)
    held = {key: held.get(key, record) for key, record in things.records.items()}     # what is not there is measured
    tasks, mean, ratios = summarise(held, things.config)
    json.dumps([tasks, mean, ratios])


def use_state(things, folder):
    load_checkpoint(things.trainer(), Path(folder) / "checkpoint.pt")


def use_doctor(things, folder):
    report = examine(folder, things.target)
    json.dumps(report.as_dict()), report.markdown()
    if not report.loads:
        assert report.trouble
    else:
        DraftHead.load(folder)


READERS = dict(head=use_head, few=use_head, bin=use_head, old=use_head, shards=use_head, medusa=use_medusa, small=use_small, positions=use_positions,
               trace=use_trace, answers=use_answers, questions=use_questions, target=use_target, costs=use_costs, records=use_records, state=use_state,
               doctor=use_doctor)
