"""In production: answer only what is safe to answer, and notice when the inputs change.

You learn: `pb.abstain` chooses a threshold of uncertainty so that the error of what is answered is at most 2 %, with
95 % confidence; the guarantee covers inputs like those it was chosen on. When the inputs change, fewer are answered:
monitor that share, which needs no labels.
"""

import torch

import pluribus as pb
from pluribus.data.corruptions import corrupt


def main() -> None:
    torch.manual_seed(0)
    data = pb.data.load("digits", validation=0.25)
    (x, y), (held_x, held_y), (test_x, test_y) = data.train[:], data.validation[:], data.test[:]
    ensemble = pb.deep(pb.models.mlp(28 * 28, 10, hidden=(128,)), 4)
    pb.fit(ensemble, (x, y), epochs=8, batch_size=64, lr=1e-2, optimizer="adam")
    threshold = pb.abstain(ensemble.predict(held_x), held_y, risk=0.02, confidence=0.95)
    print(threshold.explain(), "\n")

    weeks = {
        "1: as in training": (test_x, test_y),
        "2: a shaking camera": (corrupt(test_x, "motion_blur", 3), test_y),
        "3: a noisy sensor": (corrupt(test_x, "gaussian_noise", 5), test_y),
        "4: forms in letters": data.outside["letters"][:],  # no answer is right
    }
    print(f"{'week':20} {'answered':>8} {'errors among answers':>21} {'errors without abstaining':>26}")
    for week, (inputs, truth) in weeks.items():
        prediction = ensemble.predict(inputs)
        wrong, answered = prediction.label != truth, threshold.keep(prediction)
        errors = wrong[answered].float().mean()
        print(f"{week:20} {answered.float().mean():8.1%} {errors:21.1%} {wrong.float().mean():26.1%}")


if __name__ == "__main__":
    main()
