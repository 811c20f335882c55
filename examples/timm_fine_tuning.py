"""A network of timm becomes an ensemble that keeps its weights, and is fine-tuned on little data.

You learn: `trained=x` makes a method start near the network that it is given, so that what it has learned is not
lost; without it, members start far away. The network is trained here on the digits 0 to 4, because nothing is
downloaded: with `timm.create_model(NAME, pretrained=True, num_classes=5)`, the rest stays as it is. It is fine-tuned
on 100 of the digits 5 to 9.
"""

import timm
import torch

import pluribus as pb


def main() -> None:
    torch.manual_seed(0)
    data = pb.data.load("sklearn_digits")
    (x, y), (test_x, test_y) = data.train[:], data.test[:]
    model = timm.create_model("test_resnet", in_chans=1, num_classes=5)  # random weights
    old = pb.single(model)
    pb.fit(old, (x[y < 5], y[y < 5]), epochs=8, batch_size=64, lr=1e-3, optimizer="adam")
    model = old.member(0)
    model.reset_classifier(5)  # the new task has classes of its own

    few_x, few_y = x[y >= 5][:100], y[y >= 5][:100] - 5
    test_x, test_y = test_x[test_y >= 5], test_y[test_y >= 5] - 5
    ensembles = {
        "fine-tuned": pb.single(model),
        "batch_ensemble": pb.batch_ensemble(model, 4, trained=few_x),
        "batch_ensemble, not near": pb.batch_ensemble(model, 4, trained=False),
    }
    print(f"{'':25} {'accuracy':>8} {'NLL':>6} {'ECE':>6}")
    for name, ensemble in ensembles.items():
        pb.fit(ensemble, (few_x, few_y), epochs=10, batch_size=20, lr=1e-3, optimizer="adam")
        figures = pb.evaluate(ensemble.predict(test_x), test_y)
        print(f"{name:25} {figures['accuracy']:8.3f} {figures['nll']:6.3f} {figures['ece']:6.3f}")


if __name__ == "__main__":
    main()
