"""Training in several processes gives what one process gives; a run that is killed goes on as if nothing had happened."""
import csv
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from eagle2_nb.target import default_model_folder
from eagle2_nb.train import pack_answers, save_answers

BIN = Path(sys.executable).parent
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    "The command that trains a head for a tiny random target, and the folder of everything"
    from transformers import AutoTokenizer
    folder = tmp_path_factory.mktemp("train")
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=49152, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                                 num_key_value_heads=2)).save_pretrained(folder / "target")
    AutoTokenizer.from_pretrained(default_model_folder()).save_pretrained(folder / "target")
    random = lambda n: torch.randint(3, 200, (n,)).tolist()
    save_answers(pack_answers([(random(5 + i % 7), random(8 + i % 11), True) for i in range(60)], 49152), folder / "answers.safetensors")
    options = ("--stage train --updates 60 --batch-tokens 128 --set accumulate=2 --set steps=2 --set steps_from=0.5 --set held_out=4 "
               "--draft-vocab-size 128 --dtype float32 --device cpu").split()
    return folder, [BIN / "eagle2", "train", "--target", folder / "target", "--answers", folder / "answers.safetensors", *options]


def log(folder):
    with open(folder / "log.csv", encoding="utf-8") as file:
        return [(int(row["update"]), float(row["feature_loss"]), float(row["cross_entropy"])) for row in csv.DictReader(file)]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_two_processes_train_as_one(run):
    folder, command = run
    subprocess.run([*command, "--out", folder / "one"], check=True, env=ENVIRONMENT, capture_output=True)
    launch = [BIN / "accelerate", "launch", "--cpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
              "--main_process_port", str(free_port())]
    subprocess.run([*launch, *command, "--out", folder / "two"], check=True, env=ENVIRONMENT, capture_output=True)
    one, two = log(folder / "one"), log(folder / "two")
    assert [row[0] for row in one] == [row[0] for row in two] == [20, 40, 60]
    assert torch.allclose(torch.tensor(one), torch.tensor(two), rtol=0, atol=1e-5), (one, two)
    assert one[1][2] < one[0][2]


def test_killed_run_goes_on_bit_for_bit(run):
    folder, command = run
    whole, killed = folder / "whole", folder / "killed"
    subprocess.run([*command, "--out", whole], check=True, env=ENVIRONMENT, capture_output=True)
    subprocess.run([*command, "--out", killed, "--budget-minutes", "0"], check=True, env=ENVIRONMENT, capture_output=True)
    process = subprocess.Popen([*command, "--out", killed], env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert any("update 40/60" in line for line in process.stderr)  # in the middle of what the checkpoint does not hold
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    subprocess.run([*command, "--out", killed], check=True, env=ENVIRONMENT, capture_output=True)
    a, b = (load_file(out / "head" / "model.safetensors") for out in (whole, killed))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    assert [row[0] for row in log(killed)] == [20, 40, 60]
