"A long prompt must fit: what a pass needs may not grow with the square of the text."

import subprocess
import sys

LONG = """
import resource, torch
from eagle2_nb.generate import generate
from eagle2_nb.expand import TreeConfig
from eagle2_nb.target import load_default
target, tokenizer, head = load_default()
ids = torch.randint(1000, 40000, (1, 8000), generator=torch.Generator().manual_seed(0))
found = generate(target, ids, draft_head=head, tree=TreeConfig(4, 8, 16), max_new_tokens=6, eos_token_id=None)
assert found.shape == (1, 8006)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


def test_a_prompt_of_8000_tokens_takes_less_than_3_gib():
    done = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True)
    assert not done.returncode, done.stderr[-2000:]
    assert float(done.stdout) < 3, f"peak memory was {done.stdout.strip()} GiB"
