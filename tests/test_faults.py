"""A run that is killed goes on where it was; a folder that cannot be written is told of.

    EAGLE2_KILLS=20 python -m pytest tests/test_faults.py
"""
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import eagle2_nb.target
from eagle2_nb.decode import load_costs
from eagle2_nb.draft_head import DraftHead
from eagle2_nb.target import Target, default_model_folder

KILLS = int(os.environ.get("EAGLE2_KILLS", "3"))
RUN = """
import sys, torch
from pathlib import Path
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from eagle2_nb.draft_head import DraftHead
from eagle2_nb.expand import TreeConfig
from eagle2_nb.experiments import ExperimentConfig, Lab, run_experiments
from eagle2_nb.target import Target, default_model_folder, shipped_questions
out = Path(sys.argv[1])
torch.manual_seed(0)
torch.set_num_threads(1)
tokenizer = AutoTokenizer.from_pretrained(default_model_folder())
target = Target(LlamaForCausalLM(LlamaConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                                             vocab_size=49152, tie_word_embeddings=True, initializer_range=0.3)).eval())
head = DraftHead.from_target(target.model).eval()
print("ready", flush=True)
lab = Lab(target, tokenizer, head, shipped_questions()[1:3], out, ExperimentConfig(2, 1, 12, TreeConfig(2, 3, 6)))
run_experiments(lab, ("figure6", "table3"))
"""


def start(out):
    "The experiments on a tiny random pair, in a process of their own"
    running = subprocess.Popen([sys.executable, "-c", RUN, str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout.readline() == "ready\n", running.stderr.read()
    return running


def finished(out):
    "What counts of a complete run: every token, and which children were chosen"
    running = start(out)
    error = running.communicate()[1]
    assert not running.returncode, error[-2000:]
    assert (out / "report.md").exists() and not list(out.rglob(".*"))
    kept = {file.name: json.loads(file.read_text()) for file in (out / "records").glob("*.json")}
    answers = [json.loads(line) for line in (out / "records/table3.jsonl").read_text().splitlines()]
    return kept, {(a["task"], a["question"], a["turn"], a["method"]): a["tokens"] for a in answers}


def test_experiments_that_are_killed_end_as_if_they_had_not_been(tmp_path):
    expected, chance, hit = finished(tmp_path / "whole"), random.Random(0), 0
    for _ in range(KILLS):
        running = start(tmp_path / "killed")
        time.sleep(chance.uniform(0.05, 3))
        running.send_signal(signal.SIGKILL)
        hit += running.wait() == -signal.SIGKILL
        running.stdout.close(), running.stderr.close()
    for file in (tmp_path / "killed").rglob(".*"):  # a name that nothing reads, of a file that was being written
        file.unlink()
    assert hit and finished(tmp_path / "killed") == expected


def test_costs_that_cannot_be_kept_are_measured_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("EAGLE2_CACHE", str(tmp_path / "file" / "cache"))
    torch.manual_seed(0)
    target = Target(AutoModelForCausalLM.from_config(LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=97)).eval())
    with pytest.warns(UserWarning, match="cannot be kept"):
        costs = load_costs(target, DraftHead.from_target(target.model).eval())
    assert costs.verify[0][0] > 0 and (tmp_path / "file").read_text() == "in the way"


@pytest.fixture
def converting(tmp_path, monkeypatch):
    "The conversion of the embedded model with a stand-in for its slow part -> (the cache folder, a function that sets the stand-in)"
    monkeypatch.setenv("EAGLE2_CACHE", str(tmp_path))
    monkeypatch.setattr(eagle2_nb.target, "fetch_gguf", lambda folder: Path(folder) / "model.gguf")
    return tmp_path, lambda convert: monkeypatch.setattr(eagle2_nb.target, "convert_gguf", convert)


def test_two_conversions_at_once_make_one_whole_model(converting):
    cache, use = converting
    together = threading.Barrier(2, timeout=60)

    def convert(file, folder):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        together.wait()  # both have begun before one ends
        (folder / "model.safetensors").write_text("whole")

    use(convert)
    found = []
    threads = [threading.Thread(target=lambda: found.append(default_model_folder())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 2 and found[0] == found[1] and (found[0] / "model.safetensors").read_text() == "whole"
    assert [path.name for path in cache.iterdir()] == [found[0].name]  # and nothing beside it


def test_a_conversion_that_fails_leaves_nothing_and_can_be_tried_again(converting):
    cache, use = converting

    def full(file, folder):
        folder.mkdir()
        (folder / "model.safetensors").write_text("ha")
        raise OSError(28, "No space left on device")

    use(full)
    with pytest.raises(OSError, match="No space left"):
        default_model_folder()
    assert not list(cache.iterdir())
    use(lambda file, folder: folder.mkdir())
    assert default_model_folder().is_dir()
