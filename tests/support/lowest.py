"""The lowest versions that pyproject.toml allows: printed as pins for pip, or tried (`python lowest.py try`).

`make lowest` installs them in an environment of their own and tries there what each of them is needed for.
`python lowest.py needs` prints all that the checks need but torch: `make torch` may choose a release below the bound.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[2]

OTHERS = ("all", "dev", "timm")  # made of the rest; for the checks; brings torchvision


def needs() -> list[str]:
    """All that the package, its extras and the checks need, but torch and the package itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = project["dependencies"], *project["optional-dependencies"].values()
    return sorted({need for one in lists for need in one if not re.match(r"(torch|pluribus-ml)\b", need)})


def pins() -> dict[str, str]:
    """The largest lower bound of each package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (needs for name, needs in project["optional-dependencies"].items() if name not in OTHERS)
    found: dict[str, str] = {}
    for need in (*project["dependencies"], *(one for needs in extras for one in needs)):
        name, bound = re.fullmatch(r"([\w.-]+)>=([\d.]+).*", need).groups()
        found[name] = max(found.get(name, "0"), bound, key=lambda version: [*map(int, version.split("."))])
    return found


# ---------------------------------------------------------------- what is tried, in a folder of its own


def network():
    from torch import nn

    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))


def rows():
    import torch

    return torch.randn(64, 4, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 3


def fitting() -> None:
    """numpy, lightning."""
    import pluribus as pb

    history = pb.fit(pb.deep(network(), 2), rows(), rows(), epochs=2, batch_size=16, folder="fit", logger="csv")
    assert len(history.rows) == 2


def augmenting() -> None:
    """kornia."""
    import torch

    from pluribus.training.augmentation import augment_of

    x, _ = augment_of("hflip", torch.zeros(3, 1, 1), torch.ones(3, 1, 1), 10)(torch.rand(4, 3, 32, 32), torch.arange(4))
    assert x.shape == (4, 3, 32, 32)


def saving() -> None:
    """safetensors."""
    import torch

    import pluribus as pb

    ensemble, (x, _) = pb.packed(network(), 2, example=rows()[0]), rows()
    pb.save(ensemble, "x.safetensors")
    assert torch.equal(pb.load("x.safetensors", network())(x), ensemble(x))


def exporting() -> None:
    """onnx, onnxscript, onnxruntime."""
    import onnxruntime
    import torch

    import pluribus as pb

    ensemble, (x, _) = pb.deep(network(), 2).eval(), rows()
    pb.export(ensemble, x, "x.onnx")
    session = onnxruntime.InferenceSession("x.onnx", providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    mean = ensemble.predict(x).mean
    assert any(one.shape == mean.shape and torch.allclose(torch.tensor(one), mean, atol=1e-5) for one in found)


def measuring() -> None:
    """torchmetrics, matplotlib."""
    import pluribus as pb
    from pluribus.figures import reliability

    x, y = rows()
    prediction, metric = pb.deep(network(), 2).predict(x), pb.torchmetric("nll")
    metric.update(prediction, y)
    assert abs(metric.compute().item() - pb.evaluate(prediction, y)["nll"]) < 1e-5
    assert reliability is not None


def studying() -> None:
    """pandas, pyarrow, pillow, scipy, scikit-learn, mlxtend, jinja2, rich, typer: the commands, and their help."""
    import numpy as np
    import pandas
    from PIL import Image

    frame = pandas.DataFrame({"a": np.random.randn(90), "b": ["x", "y", "z"] * 30, "c": ["u", "v"] * 45})
    frame.to_csv("t.csv", index=False)
    frame.to_parquet("t.parquet")
    for name in ("cat", "dog"):
        Path("images", name).mkdir(parents=True)
        for i in range(12):
            Image.fromarray(np.random.randint(0, 255, (32, 32, 3), dtype=np.uint8)).save(f"images/{name}/{i}.png")
    quick = ["--methods", "single,packed", "--epochs", "1", "--size", "2"]
    pluribus("compare", "--data", "digits", *quick, "--out", "study")
    pluribus("compare", "--data", "folder:images", *quick, "--out", "pictures", "--corruptions", "some")
    pluribus("compare", "--data", "table:t.parquet", "--target", "c", *quick, "--out", "tables")
    pluribus("train", "--data", "table:t.csv", "--target", "c", "--epochs", "1", "--out", "trained")
    pluribus("predict", "trained", "t.csv", "--format", "csv")
    pluribus("export", "trained", "trained.onnx")
    pluribus("landscape", "--data", "moons", "--epochs", "1", "--rows", "40", "--runs", "2", "--out", "page.html")
    pluribus("data")
    pluribus("train", "--help")


def distributing() -> None:
    """ray."""
    pluribus("compare", "--data", "moons", "--methods", "single", "--epochs", "1", "--ray", "local", "--out", "cluster")


def estimating() -> None:
    """scikit-learn."""
    from pluribus.integrations.sklearn import EnsembleClassifier

    x, y = (tensor.numpy() for tensor in rows())
    assert EnsembleClassifier(size=2, epochs=2).fit(x, y).predict_proba(x).shape == (64, 3)


def sharing() -> None:
    """transformers, huggingface_hub, accelerate."""
    import torch
    import transformers

    import pluribus as pb
    from pluribus.integrations.huggingface import EnsembleForSequenceClassification, EnsembleTrainer

    sizes = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, intermediate_size=8, num_labels=3)
    model = EnsembleForSequenceClassification(pb.multihead(transformers.BertForSequenceClassification(config), 2))
    data = [{"input_ids": torch.tensor([1, 2, i]), "labels": torch.tensor(i % 3)} for i in range(8)]
    options = transformers.TrainingArguments("trained-texts", max_steps=2, report_to=[], use_cpu=True)
    EnsembleTrainer(model, options, train_dataset=data).train()
    model.save_pretrained("shared")
    tokens = torch.tensor([[1, 2, 3]])
    again = EnsembleForSequenceClassification.from_pretrained("shared").eval()
    assert torch.equal(again(input_ids=tokens).logits, model.eval()(input_ids=tokens).logits)


TRIALS = (fitting, augmenting, saving, exporting, measuring, studying, distributing, estimating, sharing)


def pluribus(*words: str) -> None:
    """Run a command; what it says is shown where it fails."""
    ran = subprocess.run([sys.executable, "-m", "pluribus", *words], capture_output=True, text=True)
    assert not ran.returncode, f"pluribus {' '.join(words)}: {(ran.stdout + ran.stderr)[-1500:]}"


def try_all(names: list[str]) -> int:
    """Every trial, or those that are named, and how many failed."""
    failed = 0
    for trial in (one for one in TRIALS if one.__name__ in names or not names):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                trial()
                print(f"ok      {trial.__name__}", flush=True)
            except Exception:
                failed += 1
                print(f"FAILED  {trial.__name__} ({trial.__doc__})\n{traceback.format_exc()}", flush=True)
            os.chdir(ROOT)
    return failed


if __name__ == "__main__":
    if sys.argv[1:2] == ["try"]:
        sys.exit(min(try_all(sys.argv[2:]), 1))
    pinned = [f"{name}=={version}" for name, version in pins().items()]
    print("\n".join(needs() if sys.argv[1:2] == ["needs"] else pinned))
