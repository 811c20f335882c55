"""Labels for each step of a sequence, some of them -100: as if the others stood alone, from training to promises."""

import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as sk
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pluribus as pb
from pluribus.training.criteria import CRITERIA, cross_entropy

CLASSES = 4


def sequences(rows=30, length=6, seed=0, share=0.4):
    """Logits of three members, labels, and which of them are judged."""
    torch.manual_seed(seed)
    logits = 2 * torch.randn(3, rows, length, CLASSES)
    target = torch.distributions.Categorical(logits=logits.mean(0)).sample()
    judged = torch.rand(rows, length) > share
    return logits, target.masked_fill(~judged, -100), judged


@pytest.mark.parametrize("second", [False, True])
def test_ignored_labels_count_in_no_metric(second):
    logits, target, judged = sequences()
    alone = pb.evaluate(pb.Classification.from_logits(logits[:, judged]), target[judged])
    given = pb.Classification.from_logits(logits.movedim(-1, 2) if second else logits, 2 if second else -1)
    found = pb.evaluate(given, target)
    assert {name: found[name] for name in alone} == pytest.approx(alone, rel=1e-6)
    mean = logits[:, judged].double().softmax(-1).mean(0)
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(target[judged], mean.argmax(-1)))
    assert found["nll"] == pytest.approx(sk.log_loss(target[judged], mean, labels=range(CLASSES)), rel=1e-6)
    bytes_ = torch.where(judged, target, 255).to(torch.uint8)
    assert pb.evaluate(given, bytes_, ignore=255) == found
    both = target.clone()
    both[judged & (target == 1)] = 255
    rest = judged & (target != 1)
    kept = pb.evaluate(pb.Classification.from_logits(logits[:, rest]), target[rest])
    assert pb.evaluate(given, both, ignore=255)["nll"] == pytest.approx(kept["nll"])
    with pytest.raises(ValueError, match="all are -100"):
        pb.evaluate(given, torch.full_like(target, -100))


def test_labels_of_eight_bits_are_not_mistaken_for_ignored_ones():
    prediction = pb.Classification.from_logits(torch.randn(1, 3, 200))
    target = torch.tensor([156, 0, 1], dtype=torch.uint8)  # 156 is -100 in eight bits
    assert pb.evaluate(prediction, target)["nll"] == pytest.approx(pb.evaluate(prediction, target.long())["nll"])


@pytest.mark.parametrize("method", ["temperature", "vector", "isotonic"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_calibration_is_fitted_to_the_labels_that_are_judged(method, when):
    logits, target, judged = sequences(rows=60)
    alone = pb.calibrate(pb.Classification.from_logits(logits[:, judged]), target[judged], method=method, when=when)
    given = pb.Classification.from_logits(logits)
    found = pb.calibrate(given, target, method=method, when=when)
    expected = alone.apply(pb.Classification.from_logits(logits.flatten(1, 2))).mean
    torch.testing.assert_close(found.apply(given).mean.flatten(0, 1), expected, rtol=1e-4, atol=1e-6)
    assert found.examples == int(judged.any(1).sum())  # sequences: their labels stay in one fold


class Tagger(nn.Module):
    """Classes of the steps of a sequence."""

    def __init__(self):
        super().__init__()
        self.embed, self.steps, self.head = nn.Embedding(9, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, CLASSES)

    def forward(self, ids):
        return self.head(self.steps(self.embed(ids))[0])


def ragged(batches=8, seed=0):
    """Batches of unlike lengths, one as long as there are classes; the label is the token before, modulo classes."""
    generator = torch.Generator().manual_seed(seed)
    for i in range(batches):
        ids = torch.randint(9, (16, (7, 5, CLASSES, 6)[i % 4]), generator=generator)
        labels = ids.roll(1, 1) % CLASSES
        labels[:, 0] = -100
        yield ids, labels


@pytest.mark.filterwarnings("ignore:.*vmap")
def test_a_tagger_is_trained_calibrated_and_evaluated_on_batches_of_unlike_lengths():
    torch.manual_seed(0)
    ensemble = pb.deep(Tagger(), 2)
    ensemble.run = "loop"
    validation = list(ragged(seed=1))
    loaders = [DataLoader(data, batch_size=None) for data in (list(ragged()), validation)]
    history = pb.fit(ensemble, *loaders, epochs=12, optimizer="adam", lr=0.03, select=None)
    members = [ensemble.member(i).eval() for i in range(2)]
    with torch.no_grad():
        means = [torch.stack([member(ids).softmax(-1) for member in members]).mean(0) for ids, _ in validation]
    flat, labels = (torch.cat([t.flatten(0, 1) for t in part]) for part in (means, [y for _, y in validation]))
    judged = labels != -100
    expected = sk.accuracy_score(labels[judged], flat[judged].argmax(-1))
    shares = flat[judged].double() / flat[judged].double().sum(-1, keepdim=True)
    assert expected > 0.9 and history.rows[-1]["validation_accuracy"] == pytest.approx(expected)
    loss = sk.log_loss(labels[judged], shares, labels=range(CLASSES))
    assert history.rows[-1]["validation_nll"] == pytest.approx(loss, rel=1e-5)
    found = pb.evaluate(ensemble.predict(validation, keep="summary"))
    assert found["accuracy"] == pytest.approx(expected)
    calibrated = pb.calibrate(ensemble, validation, method="temperature", when="after")
    scaled = (flat[judged].double().log() / calibrated.scaling.value).softmax(-1)
    y = labels[judged]
    assert calibrated.predict(validation[0][0]).mean.shape == (16, 7, CLASSES)
    assert sk.log_loss(y, scaled, labels=range(CLASSES)) <= loss


def one_of_each(target, judged, seed=0):
    """One random label of each row that has any; the others are ignored."""
    chance = torch.rand(target.shape, generator=torch.Generator().manual_seed(seed)).masked_fill(~judged, -1)
    kept = chance.argmax(1)
    return torch.full_like(target, -100).scatter(1, kept[:, None], target.gather(1, kept[:, None])), kept


@pytest.mark.parametrize("kind", ["lac", "aps", "raps"])
def test_promises_are_made_from_one_label_of_each_row(kind):
    logits, target, judged = sequences(rows=80, share=0.2)
    prediction = pb.Classification.from_logits(logits.movedim(-1, 2), class_dim=2)
    with pytest.raises(ValueError, match="one label each, but .* labels belong to 80 rows.* set the others to -100"):
        pb.conformal(prediction, target, kind=kind)
    chosen, kept = one_of_each(target, judged)
    rows = torch.arange(80)
    alone = pb.Classification.from_logits(logits[:, rows, kept])
    expected, found = pb.conformal(alone, target[rows, kept], kind=kind), pb.conformal(prediction, chosen, kind=kind)
    torch.testing.assert_close(found.quantile, expected.quantile)
    sets = found.sets(prediction)
    assert sets.shape == (80, 6, CLASSES)
    assert torch.equal(sets.flatten(0, 1), expected.sets(pb.Classification.from_logits(logits.flatten(1, 2))))
    assert found.measure(prediction, target)["coverage"] == pytest.approx(
        sets[judged].gather(1, target[judged][:, None]).double().mean().item()
    )


# -------------------------------------------------------------------- losses


def test_the_usual_criterion_takes_sequences_and_images():
    logits, target, judged = sequences()
    expected = F.cross_entropy(logits[0][judged], target[judged])
    torch.testing.assert_close(cross_entropy(logits[0], target), expected)
    torch.testing.assert_close(cross_entropy(logits[0].movedim(-1, 1), target), expected)
    torch.testing.assert_close(cross_entropy(logits[0].flatten(0, 1), target.flatten()), expected)
    square, labels = torch.randn(5, CLASSES, CLASSES), torch.randint(CLASSES, (5, CLASSES))
    with pytest.raises(ValueError, match="which dimension holds the classes"):
        cross_entropy(square, labels)
    torch.testing.assert_close(cross_entropy(square, labels, class_dim=1), F.cross_entropy(square, labels))
    last = F.cross_entropy(square.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(cross_entropy(square, labels, class_dim=-1), last)
    soft = torch.randn(5, 6, CLASSES).softmax(-1)
    torch.testing.assert_close(
        cross_entropy(logits[0, :5], soft, class_dim=-1),
        F.cross_entropy(logits[0, :5].flatten(0, 1), soft.flatten(0, 1)),
    )


@pytest.mark.parametrize("name", ["cross_entropy", "bce"])
def test_rows_with_ignored_labels_do_not_count(name):
    output, target = torch.randn(6, CLASSES), torch.tensor([0, 1, -100, 3, -100, 2])
    kept = target != -100
    torch.testing.assert_close(CRITERIA[name](output, target), CRITERIA[name](output[kept], target[kept]))
    if name == "cross_entropy":
        nothing = CRITERIA[name](output.requires_grad_(), torch.full((6,), -100))
        nothing.backward()
        assert nothing.item() == 0 and not output.grad.any()


def test_binary_labels_may_be_ignored():
    output, target = torch.randn(6, 1), torch.tensor([0, 1, -100, 1, -100, 0])
    kept = target != -100
    expected = F.binary_cross_entropy_with_logits(output[kept, 0], target[kept].float())
    torch.testing.assert_close(CRITERIA["binary"](output, target), expected)
    ensemble = pb.deep(nn.Linear(4, 1), 2)
    ensemble.task, x = "binary", torch.randn(6, 4)
    found = pb.evaluate(ensemble.predict(x), target)
    assert found["nll"] == pytest.approx(pb.evaluate(ensemble.predict(x)[kept], target[kept])["nll"])
    data = DataLoader(TensorDataset(x, target), batch_size=3)
    pb.fit(ensemble, data, data, epochs=1)
    assert all(bool(p.isfinite().all()) for p in ensemble.parameters())


class Turned(nn.Module):
    """Classes in the second place, as torch's losses want them."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.head(x).transpose(1, 2)


def test_sequences_as_long_as_there_are_classes_train_as_torch_has_it():
    torch.manual_seed(0)
    x, y = torch.randn(12, CLASSES, 5), torch.randint(CLASSES, (12, CLASSES))
    for network in (Turned(), nn.Linear(5, CLASSES)):
        ensemble = pb.deep([network])
        pb.fit(ensemble, (x, y), epochs=2, batch_size=12, optimizer=lambda groups: torch.optim.SGD(groups), lr=0.5,
               schedule="constant")  # fmt: skip
        optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
        for _ in range(2):
            optimizer.zero_grad()
            output = network(x)
            F.cross_entropy(output if isinstance(network, Turned) else output.transpose(1, 2), y).backward()
            optimizer.step()
        for (name, expected), found in zip(
            network.state_dict().items(), ensemble.member(0).state_dict().values(), strict=True
        ):
            torch.testing.assert_close(found, expected, msg=name)
