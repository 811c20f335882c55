"""What `print` shows of predictions: some rows, and figures that hold for all of them."""

import torch

import pluribus as pb
from pluribus.training.fitting import History

LOGITS = torch.randn(3, 40, 4, generator=torch.Generator().manual_seed(0))


def test_a_prediction_prints_some_labels_and_the_means_over_all_rows():
    text = str(pb.Classification.from_logits(LOGITS))
    first, header, *rows = text.splitlines()
    assert first == "Classification of 40 examples by 3 members, 4 classes" and len(rows) == 7
    mean = LOGITS.softmax(-1).mean(0)
    assert rows[0].split()[:3] == ["0", str(mean[0].argmax().item()), f"{mean[0].max():.3f}"]
    assert rows[-1].split()[:2] == ["mean", f"{mean.max(-1).values.mean():.3f}"]


def test_a_history_prints_a_table_with_the_epoch_that_was_kept():
    history = History([{"epoch": i, "loss": 1 / (i + 1)} for i in range(50)], {"ensemble": 17}, 3.2)
    first, header, *rows = str(history).splitlines()
    assert first == "50 epochs in 3.2 s; kept: epoch 17 (ensemble)" and header.split() == ["epoch", "loss"]
    assert len(rows) <= 9 and [row.split()[0] for row in (rows[0], rows[-1])] == ["0", "49"]
    assert ["17", f"{1 / 18:.4g}"] in [row.split() for row in rows]
    assert str(History(failure="the loss is NaN")) == "0 epochs in 0.0 s\nstopped: the loss is NaN"
