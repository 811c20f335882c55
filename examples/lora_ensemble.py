"""Four members on one frozen transformer: what a LoRA ensemble owns, stores and gains.

You learn: `pb.lora` leaves every weight of a trained network as it is and gives each member thin matrices next to its
attention; `pb.save` stores only those, with the hash of the network that they belong to. The network has learned
upright digits; the ensemble learns from 200 mirrored ones.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

import pluribus as pb


class Transformer(nn.Module):
    """Reads a digit as eight rows of eight pixels; yours is read from a file."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(8, width), nn.Linear(width, 10)
        self.place = nn.Parameter(0.1 * torch.randn(8, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.enter(x.squeeze(1)) + self.place).mean(1))


def main() -> None:
    torch.manual_seed(0)
    data = pb.data.load("sklearn_digits")
    (x, y), (test_x, test_y) = data.train[:], data.test[:]
    base = pb.single(Transformer())
    pb.fit(base, (x, y), epochs=12, batch_size=64, lr=3e-3, optimizer="adam", schedule="cosine")
    trained = base.member(0).eval()

    mirrored = test_x.flip(-1)
    ensemble = pb.lora(trained, 4, rank=4)
    before = ensemble.predict(mirrored)  # members begin as the network itself
    pb.fit(ensemble, (x[:200].flip(-1), y[:200]), epochs=15, batch_size=20, lr=5e-3, optimizer="adam")
    after = ensemble.predict(mirrored)

    print(f"{'on mirrored digits':22} {'accuracy':>8} {'NLL':>6}")
    rows = {
        "the frozen network": pb.evaluate(before, test_y),
        "a member, on average": pb.by_member(after, test_y)["mean"],
    }
    for name, figures in {**rows, "the ensemble": pb.evaluate(after, test_y)}.items():
        print(f"{name:22} {figures['accuracy']:8.3f} {figures['nll']:6.3f}")

    pb.save(ensemble, "members.safetensors")
    pb.save(ensemble, "everything.safetensors", whole=True)
    for file in ("members.safetensors", "everything.safetensors"):
        print(f"{file:22} {Path(file).stat().st_size / 1024:8.0f} KiB")
    assert torch.equal(pb.load("members.safetensors", trained)(mirrored), ensemble(mirrored))


if __name__ == "__main__":
    main()
