"""A regression with intervals that are right where there are data, and wide where there are none.

You learn: a network with two outputs predicts a mean and a variance (`task = "gaussian"`); an ensemble adds what its
members disagree about, so that its intervals widen where there were no data. `pb.conformal` guarantees their coverage
on data like the validation data. Draws `regression_intervals.png`.
"""

import matplotlib.pyplot as plt
import torch

import pluribus as pb


def main() -> None:
    torch.manual_seed(0)
    data = pb.data.load("blundell")  # a noisy curve, 64 training rows
    (x, y), (test_x, test_y) = data.train[:], data.test[:]
    ensemble = pb.deep(pb.models.mlp(1, 2, hidden=(64, 64)), 5)
    ensemble.task = "gaussian"  # the second output, through softplus, is the variance
    pb.fit(ensemble, (x, y), epochs=200, batch_size=64, lr=1e-2, optimizer="adam", criterion=pb.gaussian_nll)

    held_out, test = (test_x[:1000], test_y[:1000]), (test_x[1000:], test_y[1000:])
    promise = pb.conformal(ensemble, held_out, coverage=0.9)
    print(f"{'90 % intervals':15} {'coverage':>8} {'width':>6}")
    intervals = {"predicted": ensemble.predict(test[0]).interval(0.9), "conformal": promise.intervals(test[0])}
    for name, (low, high) in intervals.items():
        inside = (low <= test[1]) & (test[1] <= high)
        print(f"{name:15} {inside.float().mean():8.3f} {(high - low).mean():6.2f}")

    line = torch.linspace(-0.1, 1.2, 200)[:, None]
    curve = ensemble.predict(line)
    figure, axis = plt.subplots(figsize=(6.4, 3), layout="constrained")
    bands = {"total": (curve.total, "#c6b9e8"), "aleatoric": (curve.aleatoric, "#7b5fc7")}
    for name, (variance, colour) in bands.items():
        reach = 1.645 * variance.sqrt()
        axis.fill_between(line[:, 0], curve.mean - reach, curve.mean + reach, color=colour, label=f"90 %, {name}", lw=0)
    axis.plot(line[:, 0], curve.mean, color="black", lw=1)
    axis.scatter(x[:, 0], y, s=8, color="#d95f02", zorder=3, label="training data")
    axis.set(xlabel="x", ylabel="y", ylim=(-6, 6))
    axis.legend(frameon=False, ncols=3, loc="upper center", fontsize=8)
    figure.savefig("regression_intervals.png", dpi=110)


if __name__ == "__main__":
    main()
