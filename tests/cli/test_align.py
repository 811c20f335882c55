"""`pluribus align`: two checkpoints in, one in the other's order out, and a line for whatever does not fit."""

import json
import re
from pathlib import Path

import pytest
import torch

from pluribus import landscape as ls
from pluribus._common.signed_files import read_safetensors
from pluribus.models.by_name import build_network

MLP = ["--model", "mlp", "--shape", "1,8,8", "--classes", "3"]


def network(seed, shape=(1, 8, 8), classes=3):
    torch.manual_seed(seed)
    return build_network("mlp", shape, classes).eval()


def store(model, path):
    torch.save({"state_dict": {f"module.{name}": t for name, t in model.state_dict().items()}}, path)


def test_a_shuffled_checkpoint_is_put_back(pluribus):
    model, x = network(1), torch.randn(4, 1, 8, 8)
    store(model, "one.pt")
    store(ls.permute(model, ls.permutations(model, x)), "two.pt")
    code, out, _ = pluribus("align", "two.pt", "one.pt", *MLP)
    assert code == 0
    assert "1 group of hidden units" in out and "200 units: fc1.weight[0], fc1.bias[0], fc.weight[1]" in out
    _, tensors = read_safetensors("aligned.safetensors")
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {n: tuple(t.shape) for n, t in state(model)}
    assert all(torch.equal(tensors[name], tensor) for name, tensor in state(model))


def state(model):
    return model.state_dict().items()


def test_with_data_it_says_what_the_line_gains_and_writes_the_page(pluribus):
    model = network(1, (2,), 2)
    store(model, "one.pt")
    store(network(2, (2,), 2), "two.pt")
    options = ["--model", "mlp", "--data", "moons", "--page", "page.html", "--rows", "60", "--points", "5", "--json"]
    code, out, _ = pluribus("align", "one.pt", "two.pt", *options, "--by", "activations")
    assert code == 0
    found = json.loads(out)
    assert set(found["barrier"]) == {"as trained", "aligned by activations"}
    assert found["groups"][0]["size"] == 200 and found["moved"] > 0
    assert "Is it one valley, up to the order of units?" in Path("page.html").read_text()
    aligned = network(0, (2,), 2)
    aligned.load_state_dict(read_safetensors("aligned.safetensors")[1])
    x = torch.randn(5, 2)
    assert torch.allclose(aligned(x), model(x), atol=1e-5)


class Harmful:
    def __reduce__(self):
        return Path.touch, (Path("harm"),)


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        ("absent", MLP, "file not found"),
        (b"no checkpoint", MLP, "it is not a file of torch.save"),
        ({"weights": Harmful()}, MLP, "it holds something other than weights, and no code in a checkpoint is run"),
        ({"fc1.weight": torch.zeros(3)}, MLP, "must be of the model's architecture"),
        ({**network(1).state_dict(), "more": torch.zeros(3)}, MLP, "1 tensors that the model lacks, such as 'more'"),
        (network(1, (1, 9, 9)).state_dict(), MLP, r"'fc1.weight', of the shape \(200, 64\)"),
        (network(1).state_dict(), [*MLP, "--by", "names"], "--by must be weights or activations"),
        (network(1).state_dict(), [*MLP, "--by", "activations"], "--by activations needs --data"),
        (network(1).state_dict(), [*MLP, "--page", "page.html"], "--page needs --data"),
        (network(1).state_dict(), ["--model", "mlp"], "give --data, or --shape and --classes"),
        (network(1).state_dict(), ["--model", "unheard", *MLP[2:]], "'unheard' is unknown"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_in_a_line(pluribus, content, options, words):
    store(network(1), "one.pt")
    if isinstance(content, bytes):
        Path("two.pt").write_bytes(content)
    elif content != "absent":
        torch.save(content, "two.pt")
    code, _, err = pluribus("align", "one.pt", "two.pt", *options)
    assert code == 2 and "Traceback" not in err
    assert re.search(words, " ".join(err.split()))
    assert not Path("harm").exists() and not Path("aligned.safetensors").exists()
