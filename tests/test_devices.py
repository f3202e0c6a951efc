"""A target that does not lie on one device as a whole writes what it writes on one."""
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from architectures import WAYS, build, compare, ours, reference
from transformers import AutoModelForCausalLM

from eagle2_nb.draft_head import DraftHead, config_for
from eagle2_nb.expand import TreeConfig
from eagle2_nb.rerank import Eagle2Drafter
from eagle2_nb.target import Target

BIN, ROOT = Path(sys.executable).parent, Path(__file__).resolve().parent.parent
PARTS = ["model.embed_tokens", *(f"model.layers.{i}" for i in range(4)), "model.norm", "model.rotary_emb", "lm_head"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    "A tiny Llama with 4 query heads and 2 key heads on disk"
    folder = tmp_path_factory.mktemp("target")
    build("LlamaConfig", dict(num_hidden_layers=4, vocab_size=98, tie_word_embeddings=False)).save_pretrained(folder)   # 98: two processes share the LM head evenly
    return folder


def dispatched(folder, offload, main, away, parts):
    "The model with some parts offloaded by accelerate, the others on the main device"
    places = {part: away if part in parts else main for part in PARTS}
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map=places, offload_folder=offload).eval()


@pytest.mark.parametrize("parts", [["model.layers.1", "model.layers.2"], ["model.embed_tokens", "model.layers.3", "lm_head"]], ids=["layers", "both ends"])
def test_parts_on_disk(folder, tmp_path, parts):
    whole = Target(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval())
    target = Target(dispatched(folder, tmp_path, "cpu", "disk", parts))
    assert sum(weight.is_meta for weight in target.model.parameters()) >= len(parts), "nothing is on disk"
    for way, sampling in WAYS.items():
        for batch in (1, 3):
            answers, equal, _ = compare(target, way, batch)
            assert equal and answers == reference(whole, batch, sampling)[0]
    torch.manual_seed(6)
    head = DraftHead(replace(config_for(target.model), draft_vocab_size=32)).eval()   # scores 32 words of an LM head that may be away
    assert ours(target, Eagle2Drafter(head, TreeConfig(3, 4, 12)), 1, WAYS["greedy"])[0] == reference(whole, 1, WAYS["greedy"])[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_parts_in_memory_of_the_host(folder, tmp_path):
    target = Target(dispatched(folder, tmp_path, 0, "cpu", ["model.layers.1", "lm_head"]))
    assert target.device == torch.device("cuda", 0) and any(weight.is_meta for weight in target.model.parameters())
    for way in WAYS: assert compare(target, way, 1)[1]


WORKER = """
import json, sys
import torch, torch.distributed as dist, transformers
from architectures import NEW, WAYS, Oracle, compare, prompts, reference
from eagle2_nb.generate import generate
from eagle2_nb.target import Target

transformers.logging.set_verbosity_error()
dist.init_process_group("gloo")
try:
    from transformers.distributed import DistributedConfig
    split = dict(distributed_config=DistributedConfig(tp_plan="auto"))
except ImportError: split = dict(tp_plan="auto")
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32, **split).eval()
target, found = Target(model), {}
for way in WAYS:
    for batch in (1, 3):
        answers, equal, statistics = compare(target, way, batch)
        found[f"{way} {batch}"] = [answers, equal, statistics.tau]
    torch.manual_seed(5 + dist.get_rank())                 # the generators differ, so rank 0 must say what was drawn
    ids, mask = prompts(batch)
    again = generate(model, ids, attention_mask=mask, draft_head=Oracle(answers, target.vocab_size), max_new_tokens=NEW, eos_token_id=None, **WAYS[way].options())
    found[f"{way} {batch}"][1] &= again[:, ids.shape[1]:].tolist() == answers
weight = model.model.layers[0].self_attn.q_proj.weight
found["shard"] = list((weight.to_local() if hasattr(weight, "to_local") else weight).shape)
open(f"{sys.argv[2]}/{dist.get_rank()}.json", "w").write(json.dumps(found))
dist.destroy_process_group()
"""


def test_tensor_parallel(folder, tmp_path):
    "Two processes under torchrun with gloo, each with half of every layer, write what one process writes"
    (tmp_path / "worker.py").write_text(WORKER)
    command = [BIN / "torchrun", "--standalone", "--nproc-per-node", "2", tmp_path / "worker.py", folder, tmp_path]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-6000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first == second and first.pop("shard") == [16, 32], "each process holds half of the query heads"
    whole = Target(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval())
    for case, (answers, equal, tau) in first.items():
        way, batch = case.split()
        assert equal and answers == reference(whole, int(batch), WAYS[way])[0] and tau > 3
