"""Your own method in ten lines: members that share every weight and own their biases.

You learn: a method says which tensors each member owns, stacked as (members, *shape), and `pb.Ensemble` does the
rest: training, prediction, saving, freezing, export. An entry in `pb.METHODS` makes it known by name.
"""

import copy

import torch
from torch import nn

import pluribus as pb


def own_biases(model: nn.Module, size: int, *, spread: float = 0.5) -> pb.Ensemble:
    """Members share their weights and own their biases, which start apart by `spread`."""
    module = copy.deepcopy(model)
    biases = [name for name, _ in module.named_parameters() if name.endswith("bias")]
    if not biases:
        raise ValueError("own_biases: needs a layer with a bias, but the model has none. Set bias=True.")
    for name in biases:
        stacked = torch.stack([module.get_parameter(name).detach()] * size)
        module.get_submodule(name.rpartition(".")[0]).bias = nn.Parameter(stacked + spread * torch.randn_like(stacked))
    return pb.Ensemble(module, size, own=biases, method="own_biases", settings={"spread": spread})


def main() -> None:
    torch.manual_seed(0)
    pb.METHODS["own_biases"] = own_biases
    data = pb.data.load("sklearn_digits", outside=["letters"])
    (x, y), (test_x, test_y) = data.train[:], data.test[:]
    model = pb.models.mlp(64, 10, hidden=(64, 64))
    print(f"{'method':15} {'parameters':>10} {'accuracy':>9} {'NLL':>6} {'disagreement':>13} {'AUROC, letters':>15}")
    for name in ("single", "own_biases", "deep"):
        ensemble = pb.single(model) if name == "single" else pb.METHODS[name](model, 4)
        pb.fit(ensemble, (x, y), epochs=12, batch_size=64, lr=5e-3, optimizer="adam")
        p = ensemble.predict(test_x)
        figures, found = pb.evaluate(p, test_y), pb.ood(p, ensemble.predict(data.outside["letters"][:][0]))
        count = sum(q.numel() for q in ensemble.parameters())
        print(f"{name:15} {count:10,} {figures['accuracy']:9.3f} {figures['nll']:6.3f}", end=" ")
        print(f"{figures.get('disagreement', 0):13.3f} {found['auroc']:15.3f}")
    pb.save(ensemble := own_biases(model, 4), "own_biases.safetensors")
    assert torch.equal(pb.load("own_biases.safetensors", model)(x[:5]), ensemble(x[:5]))
    print("\n" + ensemble.explain())


if __name__ == "__main__":
    main()
