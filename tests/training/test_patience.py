"""Early stopping waits for any figure on validation data, and is the same for every method."""

import torch
from torch import nn

import pluribus as pb
from pluribus.training.schedules import epochs_without_improvement


def test_any_figure_that_improves_counts():
    rows = [
        {"epoch": 0, "loss": 3.0, "validation_accuracy": 0.5, "validation_nll": 1.0},
        {"epoch": 1, "loss": 2.0, "validation_accuracy": 0.7, "validation_nll": 1.2},
        {"epoch": 2, "loss": 1.0, "validation_accuracy": 0.6, "validation_nll": 0.9},
        {"epoch": 3, "loss": 0.5, "validation_accuracy": 0.7, "validation_nll": 0.9},
    ]
    assert [epochs_without_improvement(rows[:n]) for n in range(5)] == [0, 0, 0, 0, 1]


def test_a_recipe_can_hold_the_patience():
    torch.manual_seed(0)
    x, y = torch.randn(64, 4), torch.randint(3, (64,))
    recipe = pb.RECIPES["default"].changed(epochs=60, lr=0.05, patience=2)
    history = pb.fit(pb.deep(nn.Linear(4, 3), 2), (x, y), (x, 2 - y), recipe=recipe)
    figures = [(row["validation_accuracy"], row["validation_nll"]) for row in history.rows]
    last = max(
        i
        for i, (a, n) in enumerate(figures)
        if i == 0 or a > max(f[0] for f in figures[:i]) or n < min(f[1] for f in figures[:i])
    )
    assert len(history.rows) < 60 and len(history.rows) - 1 - last == 2


def test_without_validation_data_nothing_stops_early():
    x, y = torch.randn(32, 4), torch.randint(3, (32,))
    history = pb.fit(pb.single(nn.Linear(4, 3)), (x, y), recipe=pb.RECIPES["default"].changed(epochs=4, patience=1))
    assert len(history.rows) == 4


def test_the_likeliest_epoch_is_kept_where_the_recipe_says_so():
    """An overconfident network: its accuracy on validation data stays while its likelihood falls."""
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    y = (x[:, 0] + 0.8 * torch.randn(64) > 0).long()
    histories = {}
    for best in ("accurate", "likeliest"):
        recipe = pb.RECIPES["default"].changed(epochs=40, lr=0.05, best=best)
        ensemble = pb.single(nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2)))
        histories[best] = pb.fit(ensemble, (x[:32], y[:32]), (x[32:], y[32:]), recipe=recipe)
        rows, kept = histories[best].rows, histories[best].best["ensemble"]
        by = {"accurate": lambda row: (-row["validation_accuracy"], row["validation_nll"]),
              "likeliest": lambda row: row["validation_nll"]}[best]  # fmt: skip
        assert kept == min(range(40), key=lambda i, by=by, rows=rows: by(rows[i]))
    assert (
        min(row["validation_nll"] for row in histories["likeliest"].rows)
        < histories["likeliest"].rows[-1]["validation_nll"]
    )


def test_the_last_epoch_is_kept_where_the_recipe_says_so():
    """As if there were no validation data, although other epochs are better on it."""
    torch.manual_seed(0)
    x, y = torch.randn(32, 4), torch.randint(2, (32,))
    network = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    recipe = pb.RECIPES["default"].changed(epochs=10, lr=0.05, best="last")
    ensembles = [pb.single(network), pb.single(network), pb.single(network)]
    history = pb.fit(ensembles[0], (x, y), (x, 1 - y), recipe=recipe)
    pb.fit(ensembles[1], (x, y), recipe=recipe)
    pb.fit(ensembles[2], (x, y), (x, 1 - y), recipe=recipe.changed(best="likeliest"))
    weights = [ensemble.module[0].weight for ensemble in ensembles]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    assert "validation_nll" in history.rows[-1] and not history.best
