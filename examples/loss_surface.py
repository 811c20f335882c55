"""What lies between your own two checkpoints: a ridge, and a tunnel around it.

You learn: `ls.plane` and `ls.surface` measure the loss on the plane through two trained networks; `ls.line` and
`ls.tunnel` join them. The straight line crosses a ridge; a tunnel of low loss goes around it. Draws
`loss_surface.png`.
"""

import matplotlib.pyplot as plt
import torch

import pluribus as pb
from pluribus import landscape as ls


def main() -> None:
    data = pb.data.load("sklearn_digits")
    train, test = data.train[:], data.test[:]
    for seed in (1, 2):  # your checkpoints; any two files with weights of the same network
        torch.manual_seed(seed)
        run = pb.single(pb.models.mlp(64, 10, hidden=(32, 32)))
        pb.fit(run, train, epochs=15, batch_size=64, lr=1e-2, optimizer="adam", seed=seed)
        torch.save(run.member(0).state_dict(), f"run{seed}.pt")

    first, second = (pb.models.mlp(64, 10, hidden=(32, 32)).eval() for _ in range(2))
    first.load_state_dict(torch.load("run1.pt"))
    second.load_state_dict(torch.load("run2.pt"))
    print(f"cosine of the weights        {ls.cosine(first, second)[0, 0]:.3f}")
    print(f"different labels, test data  {ls.disagreement(first, second, data=test)[0, 0]:.3f}")
    straight = ls.line(first, second)
    around = ls.tunnel(first, second, train, points=5, steps=100, lr=0.02, batch_size=200)
    print(f"ridge on the line            {ls.barrier(straight, train, points=11):.3f}")
    print(f"ridge in the tunnel          {ls.barrier(around, train, points=11):.3f}")

    surface = ls.surface(ls.plane(first, second), test, grid=21)
    figure, axis = plt.subplots(figsize=(5, 3.8), layout="constrained")
    mesh = axis.contourf(surface.u, surface.v, surface.loss.T, levels=25, cmap="viridis_r")
    axis.contour(surface.u, surface.v, surface.loss.T, levels=8, colors="white", linewidths=0.4)
    for name, (u, v) in zip(("first", "second"), surface.points[:2], strict=True):
        axis.plot(u, v, "o", color="#d95f02")
        axis.annotate(name, (u, v), xytext=(6, 6), textcoords="offset points")
    axis.plot(0, 0, "k+")
    axis.set(xlabel="distance in weight space", ylabel="distance in weight space", aspect="equal")
    figure.colorbar(mesh, label="test loss")
    figure.savefig("loss_surface.png", dpi=110)


if __name__ == "__main__":
    main()
