"""Which inputs belong to none of the classes? Digits are the training data; letters and noise are OOD data.

You learn: `predict` gives every input scores of uncertainty, and `pb.ood` says how well each one separates outside
inputs from test data: AUROC (1 is perfect, 0.5 is chance) and FPR95 (the share of digits that are rejected when 95 % of
the outside inputs are detected). Draws `ood_detection.png`.
"""

import matplotlib.pyplot as plt
import torch

import pluribus as pb


def main() -> None:
    torch.manual_seed(0)
    data = pb.data.load("digits", outside=["noise"])
    x, y = data.train[:]
    ensemble = pb.deep(pb.models.mlp(28 * 28, 10, hidden=(128, 128)), 4)
    pb.fit(ensemble, (x, y), epochs=6, batch_size=64, lr=1e-2, optimizer="adam")

    inside = ensemble.predict(data.test[:][0])
    outside = {name: ensemble.predict(split[:][0]) for name, split in data.outside.items()}
    print(f"{'outside':10} {'score':20} {'AUROC':>6} {'FPR95':>6}")
    for name, prediction in outside.items():
        for score in ("msp", "entropy", "mutual_information", "max_logit"):
            found = pb.ood(inside, prediction, score=score)
            print(f"{name:10} {score:20} {found['auroc']:6.3f} {found['fpr95']:6.3f}")

    figure, axis = plt.subplots(figsize=(6, 2.8), layout="constrained")
    for name, prediction in {"digits": inside, **outside}.items():
        axis.hist(prediction.epistemic, bins=60, range=(0, 1), density=True, alpha=0.6, label=name)
    axis.set(xlabel="epistemic uncertainty (nats): what the members disagree about", yscale="log", ylabel="density")
    axis.legend(frameon=False)
    figure.savefig("ood_detection.png", dpi=110)


if __name__ == "__main__":
    main()
