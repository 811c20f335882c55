"""Sets of classes that contain the true one as often as you ask, however good the network is.

You learn: `pb.conformal` takes labelled data that the network has not seen and a coverage, and gives each new input
the smallest set of classes that keeps the guarantee: one class if the input is clear, several if it is not. Draws
`conformal_sets.png`: inputs with the largest sets.
"""

import matplotlib.pyplot as plt
import torch

import pluribus as pb


def main() -> None:
    torch.manual_seed(0)
    data = pb.data.load("digits")
    (x, y), held_out, (test_x, test_y) = data.train[:700], data.validation[:], data.test[:]  # little data: not so sure
    ensemble = pb.deep(pb.models.mlp(28 * 28, 10, hidden=(64,)), 4)
    pb.fit(ensemble, (x, y), epochs=15, batch_size=50, lr=1e-3, optimizer="adam")
    print(f"The most probable class alone is right in {pb.evaluate(ensemble.predict(test_x), test_y)['accuracy']:.1%}.")

    print(f"{'asked for':>9} {'covered':>8} {'classes in a set':>17} {'sets of one':>12}")
    for coverage in (0.99, 0.98, 0.95, 0.9):
        promise = pb.conformal(ensemble, held_out, coverage=coverage)
        sets = promise.sets(test_x)  # truth values, (batch, classes)
        covered = sets[torch.arange(len(test_y)), test_y].float().mean()
        sizes = sets.sum(1)
        print(f"{coverage:9.0%} {covered:8.1%} {sizes.float().mean():17.2f} {(sizes == 1).float().mean():12.1%}")

    figure, axes = plt.subplots(2, 6, figsize=(7.2, 2.9), layout="constrained")
    for axis, i in zip(axes.flat, sizes.argsort(descending=True), strict=False):
        axis.imshow(test_x[i, 0].numpy(), cmap="gray_r")
        axis.set_title("{" + ", ".join(str(c) for c in sets[i].nonzero()[:, 0].tolist()) + "}", fontsize=7.5)
        axis.set_xlabel(f"is {test_y[i]}", fontsize=8)
        axis.set(xticks=[], yticks=[])
    figure.savefig("conformal_sets.png", dpi=110)


if __name__ == "__main__":
    main()
