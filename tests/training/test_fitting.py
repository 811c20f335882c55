"""pb.fit: it equals a plain loop, goes on where it was stopped, and keeps what was best."""

import copy
import math
import subprocess
import sys
import warnings

import lightning.pytorch as pytorch
import pytest
import torch
import torch.nn.functional as F
from fitting_cases import examples, network
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pluribus as pb
from pluribus.training.batching import EpochSampler, loader


def make(method: str, model: nn.Module, example: torch.Tensor) -> pb.Ensemble:
    settings = {
        "packed": {"example": example},
        "masksembles": {"example": example},
        "mimo": {"example": example},
        "mc_dropout": {"rate": 0.1},
        "treenet": {"branch": "3"},
    }
    return pb.METHODS[method](model, *(() if method == "single" else (3,)), **settings.get(method, {}))


def weights(ensemble: pb.Ensemble) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in ensemble.state_dict().items()}


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor], tolerance: float = 0.0) -> None:
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=tolerance, atol=tolerance, msg=name)


class TestTheLoop:
    def test_fit_equals_a_plain_loop(self):
        x, y = examples()
        torch.manual_seed(1)
        ensemble = pb.deep(network(), 3)
        other = pb.deep(network(), 3)
        other.load_state_dict(ensemble.state_dict())
        pb.fit(ensemble, (x, y), epochs=3, batch_size=32, optimizer="sgd", lr=0.1, schedule=lambda epoch: 0.5**epoch)
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
        order = EpochSampler(len(x), seed=0, shuffle=True)
        for epoch in range(3):
            order.set_epoch(epoch)
            for group in optimizer.param_groups:
                group["lr"] = 0.1 * 0.5**epoch
            for rows in torch.tensor(list(order)).split(32):
                optimizer.zero_grad()
                other.loss(x[rows], y[rows], F.cross_entropy).backward()
                optimizer.step()
        assert_same(weights(ensemble), weights(other), 1e-6)

    @pytest.mark.parametrize("method", pb.METHODS)
    def test_every_method_learns(self, method):
        x, y = examples(512)
        ensemble = make(method, network(), example=x[:4])
        history = pb.fit(ensemble, (x, y), (x, y), epochs=6, batch_size=32, lr=1e-2)
        assert history.rows[-1]["loss"] < history.rows[0]["loss"]
        assert history.rows[-1]["validation_accuracy"] > 0.6

    @pytest.mark.parametrize("method", ["deep", "masksembles", "mimo", "mc_dropout"])
    def test_the_same_seed_gives_the_same_weights_and_another_seed_others(self, method):
        x, y = examples()

        def trained(seed: int) -> dict[str, torch.Tensor]:
            torch.manual_seed(0)
            ensemble = make(method, network(), example=x[:4])
            torch.manual_seed(seed + 7)  # the chance outside has no part in it
            pb.fit(ensemble, (x, y), epochs=2, batch_size=32, seed=seed)
            return weights(ensemble)

        assert_same(trained(0), trained(0))
        assert any(not torch.equal(a, b) for a, b in zip(trained(0).values(), trained(1).values(), strict=True))

    def test_chance_outside_and_the_mode_are_left_as_they_were(self):
        x, y = examples()
        ensemble = pb.deep(network(), 2).eval()
        before = torch.get_rng_state()
        pb.fit(ensemble, (x, y), epochs=1)
        assert torch.equal(before, torch.get_rng_state())
        assert not ensemble.training

    @pytest.mark.parametrize("method", pb.METHODS)
    def test_an_ensemble_in_eval_mode_is_trained_as_one_in_training_mode(self, method):
        x, y = examples()
        found = []
        for mode in (True, False):
            torch.manual_seed(0)
            ensemble = make(method, network(), example=x[:4]).train(mode)
            before = [m.training for m in ensemble.modules()]
            pb.fit(ensemble, (x, y), epochs=1, batch_size=32)
            found.append(weights(ensemble))
            assert [m.training for m in ensemble.modules()] == before
        assert_same(*found)

    def test_what_the_user_has_put_to_sleep_sleeps_on(self):
        x, y = examples()
        ensemble = pb.single(network())
        norm = next(m for m in ensemble.modules() if isinstance(m, nn.BatchNorm1d))
        norm.eval()
        before = norm.running_mean.clone()
        pb.fit(ensemble, (x, y), epochs=1)
        assert torch.equal(norm.running_mean, before) and not norm.training and ensemble.training

    def test_a_loader_and_a_data_set_do(self):
        x, y = examples()
        found = []
        for train in (DataLoader(TensorDataset(x, y), 32, shuffle=True), TensorDataset(x, y), (x, y)):
            torch.manual_seed(0)
            ensemble = pb.deep(network(), 2)
            pb.fit(ensemble, train, (x, y), epochs=2, batch_size=32)
            found.append(weights(ensemble))
        assert_same(found[0], found[1])
        assert_same(found[0], found[2])

    def test_clipping_is_by_member_as_in_separate_training(self):
        x, y = examples()
        ensemble = pb.deep(nn.Linear(5, 3), 2)
        with torch.no_grad():
            ensemble.module.weight[1] *= 30  # its gradients are larger: one norm for both would clip the first too
        alone = [pb.deep([ensemble.member(i)]) for i in range(2)]
        for one in (ensemble, *alone):
            pb.fit(one, (x, y), epochs=2, batch_size=32, optimizer="sgd", lr=0.1, clip=0.05)
        for i in range(2):
            torch.testing.assert_close(ensemble.module.weight[i], alone[i].module.weight[0])

    def test_an_l2_penalty_is_half_a_weight_decay_in_sgd(self):
        x, y = examples()
        first = pb.deep(nn.Linear(5, 3), 2)
        second = pb.deep(nn.Linear(5, 3), 2)
        second.load_state_dict(first.state_dict())
        pb.fit(first, (x, y), epochs=2, optimizer="sgd", lr=0.1, l2=0.05)
        pb.fit(second, (x, y), epochs=2, optimizer="sgd", lr=0.1, weight_decay=0.1)
        assert_same(weights(first), weights(second), 1e-6)

    def test_augment_sees_training_batches_only_and_soft_targets_reach_the_loss(self):
        x, y = examples()
        seen = []

        def augment(x, y):
            seen.append(len(x))
            return x, F.one_hot(y, 3).float() * 0.7 + 0.1

        pb.fit(pb.mimo(nn.Linear(5, 3), 2, example=x[:2]), (x, y), (x, y), epochs=2, batch_size=32, augment=augment)
        assert seen == [32, 32, 32] * 2

    def test_mimo_takes_batches_divided_by_its_repetition(self):
        x, y = examples()
        steps = []
        ensemble = pb.mimo(nn.Linear(5, 3), 2, batch_repetition=4, example=x[:2])
        loss, ensemble.loss = ensemble.loss, lambda x, y, c: (steps.append(len(x)), loss(x, y, c))[1]
        pb.fit(ensemble, (x, y), epochs=1, batch_size=32)
        assert steps == [8] * 12

    @pytest.mark.parametrize("task", ["regression", "gaussian"])
    def test_regression_is_judged_by_its_own_figures(self, task):
        x, _ = examples()
        ensemble = pb.deep(nn.Linear(5, 2 if task == "gaussian" else 1), 2)
        ensemble.task = task
        history = pb.fit(ensemble, (x, x.sum(1)), (x, x.sum(1)), epochs=3, lr=0.05)
        assert history.rows[-1]["validation_mse"] < history.rows[0]["validation_mse"]
        assert ("validation_nll" in history.rows[0]) == (task == "gaussian")

    def test_half_precision_trains(self):
        x, y = examples()
        ensemble = pb.packed(network(), 2, alpha=1, example=x)
        history = pb.fit(ensemble, (x, y), epochs=2, precision="bf16-mixed")
        assert all(p.dtype == torch.float32 for p in ensemble.parameters())
        assert history.rows[-1]["loss"] < history.rows[0]["loss"]


class Stop(pytorch.Callback):
    """Stops training in the middle of an epoch, as a power cut would."""

    def __init__(self, epoch: int):
        self.epoch = epoch

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.current_epoch == self.epoch and batch_idx == 1:
            raise ConnectionError("cut")


class TestGoingOn:
    @pytest.mark.parametrize("method", ["deep", "masksembles", "mc_dropout"])
    @pytest.mark.parametrize("shuffling", ["ours", "torch"])
    def test_training_that_was_cut_ends_as_if_it_had_not_been(self, method, shuffling, tmp_path):
        x, y = examples()

        def start() -> tuple[pb.Ensemble, dict]:
            torch.manual_seed(0)
            train = (x, y) if shuffling == "ours" else DataLoader(TensorDataset(x, y), 32, shuffle=True)
            ensemble = make(method, network(), example=x[:4])
            return ensemble, {"train": train, "validation": (x, y), "epochs": 5, "batch_size": 32, "seed": 3}

        whole, settings = start()
        expected = pb.fit(whole, **settings)
        cut, settings = start()
        with pytest.raises(ConnectionError):
            pb.fit(cut, folder=tmp_path, callbacks=[Stop(2)], **settings)
        again, settings = start()
        record = Record(again)
        history = pb.fit(again, folder=tmp_path, callbacks=[record], **settings)
        assert len(record.states) == 3, "epochs 0 and 1 were whole: only 2, 3 and 4 are run"
        assert_same(weights(again), weights(whole))
        assert history.rows == expected.rows
        assert history.best == expected.best

    def test_training_that_stopped_early_is_over(self, tmp_path):
        x, y = examples(64)
        settings = {"epochs": 50, "lr": 0.05, "patience": 2, "folder": tmp_path}
        first = pb.deep(network(), 2)
        history = pb.fit(first, (x, y), (x, 2 - y), **settings)
        second = pb.deep(network(), 2)
        again = pb.fit(second, (x, y), (x, 2 - y), **settings)
        assert again.rows == history.rows
        assert_same(weights(second), weights(first))

    def test_ctrl_c_arrives_as_what_it_is(self):
        class Interrupt(pytorch.Callback):
            def on_train_batch_end(self, *args, **kwargs):
                raise KeyboardInterrupt

        x, y = examples()
        with pytest.raises(KeyboardInterrupt):
            pb.fit(pb.deep(network(), 2), (x, y), epochs=2, callbacks=[Interrupt()])


class Record(pytorch.Callback):
    def __init__(self, ensemble):
        self.ensemble, self.states = ensemble, []

    def on_train_epoch_end(self, trainer, module):
        self.states.append({n: t.clone() for n, t in self.ensemble.module.state_dict().items()})


class TestSelection:
    def run(self, select: str | None):
        x, y = examples(64)
        held_out = examples(40, seed=9)
        torch.manual_seed(0)
        ensemble = pb.deep(network(), 3)
        record = Record(ensemble)
        history = pb.fit(ensemble, (x, y), held_out, epochs=8, batch_size=16, lr=1.0, select=select, callbacks=[record])
        return ensemble, record.states, history, held_out

    def test_the_best_epoch_of_the_ensemble_is_kept(self):
        ensemble, states, history, (x, y) = self.run("ensemble")
        other = pb.deep(network(), 3)
        accuracy, likely = [], []
        for state in states:
            other.module.load_state_dict(state)
            figures = pb.evaluate(other.predict(x), y)
            accuracy.append(figures["accuracy"])
            likely.append((figures["accuracy"], -figures["nll"]))
        best = max(range(8), key=lambda epoch: likely[epoch])
        assert history.best == {"ensemble": best}
        assert best != 7, "the last epoch is the best: the test shows nothing"
        assert [row["validation_accuracy"] for row in history.rows] == pytest.approx(accuracy)
        assert_same(dict(ensemble.module.state_dict()), states[best])

    def test_each_members_best_epoch_is_kept(self):
        ensemble, states, history, (x, y) = self.run("member")
        other = pb.deep(network(), 3)
        for i in range(3):
            accuracy = []
            for state in states:
                other.module.load_state_dict(state)
                output = other.eval()(x)[i]
                right = (output.argmax(-1) == y).double().mean().item()
                accuracy.append((right, -F.cross_entropy(output, y).item()))
            best = max(range(8), key=lambda epoch: accuracy[epoch])
            assert history.best[f"member {i}"] == best
            for name, tensor in ensemble.module.state_dict().items():
                assert torch.equal(tensor[i], states[best][name][i])
        assert len(set(history.best.values())) > 1, "all members are best at once: the test shows nothing"


@pytest.mark.slow
def test_two_processes_train_together(tmp_path):
    """Each sees half of the batches; what they give back is one ensemble and one history."""
    script = tmp_path / "together.py"
    script.write_text(
        "import torch, pluribus as pb\n"
        "from fitting_cases import examples, network\n"
        "if __name__ == '__main__':\n"
        "    x, y = examples(128)\n"
        "    torch.manual_seed(0)\n"
        "    ensemble = pb.deep(network(), 2)\n"
        "    history = pb.fit(ensemble, (x, y), (x, y), epochs=6, batch_size=16, lr=0.02, devices=2, "
        "strategy='ddp_spawn')\n"
        "    accuracy = pb.evaluate(ensemble.predict(x), y)['accuracy']\n"
        "    best = max(row['validation_accuracy'] for row in history.rows)\n"
        "    assert len(history.rows) == 6 and abs(accuracy - best) < 1e-9 and best > 0.8, (history.rows, accuracy)\n"
    )
    subprocess.run([sys.executable, str(script)], check=True, timeout=300)


class TestErrors:
    x, y = examples(8)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"select": "best"}, 'select must be "ensemble", "member" or None'),
            ({"select": "member"}, 'select="member" needs validation data'),
            ({"patience": 2}, "needs validation data"),
            ({"epochs": 0}, "epochs must be a whole number of at least 1"),
            ({"optimizer": "adagrad"}, "optimizer 'adagrad' is unknown. Choose from sgd, adam, adamw, lamb"),
            ({"schedule": "linear"}, "schedule 'linear' is unknown. Choose from constant"),
            ({"criterion": "hinge"}, "criterion 'hinge' is unknown. Choose from cross_entropy"),
            (
                {"recipe": "resnet"},
                "recipe: 'resnet' is unknown. Choose from default, tabm, digits, packed/",
            ),
            ({"logger": "csv"}, "needs a folder"),
            ({"batch_size": 0}, "batch_size must be at least 1"),
        ],
    )
    def test_bad_settings_are_named(self, changes, message):
        ensemble = pb.deep(network(), 2)
        before = weights(ensemble)
        with pytest.raises(ValueError) as error:
            pb.fit(ensemble, (self.x, self.y), **{"epochs": 1} | changes)
        assert message in str(error.value)
        assert_same(weights(ensemble), before)

    def test_members_that_share_cannot_be_selected_by_member(self):
        with pytest.raises(ValueError, match="needs members that share nothing, but those of multihead share"):
            pb.fit(pb.multihead(network(), 2), (self.x, self.y), (self.x, self.y), epochs=1, select="member")

    def test_a_built_optimizer_is_refused_with_the_way_out(self):
        ensemble = pb.deep(network(), 2)
        with pytest.raises(TypeError, match="optimizer=lambda groups"):
            pb.fit(ensemble, (self.x, self.y), epochs=1, optimizer=torch.optim.SGD(ensemble.parameters(), lr=0.1))

    def test_a_plain_network_and_a_generator_are_refused(self):
        with pytest.raises(TypeError, match="needs an Ensemble, but got a Linear"):
            pb.fit(nn.Linear(5, 3), (self.x, self.y))
        with pytest.raises(ValueError, match="readable once per epoch"):
            pb.fit(pb.deep(network(), 2), (batch for batch in [(self.x, self.y)]), epochs=2)


def test_users_of_lightning_get_a_module():
    x, y = examples()
    module = pb.lightning_module(pb.deep(network(), 2), lr=0.01, select="ensemble")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pytorch.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
        )
        trainer.fit(module, loader((x, y), 32), loader((x, y), 32))
    module.restore()
    assert "ensemble" in module.best
    assert len(module.rows) == 2


class TestLoading:
    def test_orders_differ_by_epoch_and_repeat_by_seed(self):
        order = EpochSampler(20, seed=1, shuffle=True)
        first = list(order)
        order.set_epoch(1)
        assert sorted(first) == list(range(20))
        assert list(order) != first
        assert first == list(EpochSampler(20, seed=1, shuffle=True))

    def test_a_row_is_never_left_alone(self):
        x = torch.arange(9)
        for source in ((x, x), TensorDataset(x, x)):
            batches = loader(source, 4)
            assert [len(y) for _, y in batches] == [4, 5]
            assert len(batches) == 2

    def test_a_list_of_two_batches_is_no_pair(self):
        x = torch.zeros(3, 2)
        batches = [(x, torch.zeros(3)), (x, torch.ones(3))]
        assert [y.tolist() for _, y in loader(batches, 2)] == [[0, 0, 0], [1, 1, 1]]


def test_inputs_of_another_precision_get_that_of_the_weights():
    ensembles = [pb.deep(nn.Linear(4, 3).double(), 2)]
    ensembles.append(copy.deepcopy(ensembles[0]))
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    for ensemble, inputs in zip(ensembles, (x, x.double()), strict=True):
        pb.fit(ensemble, (inputs, y), epochs=1)
    torch.testing.assert_close(ensembles[0].state_dict(), ensembles[1].state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("task", "outputs", "target", "said"),
    [
        ("classification", 1, torch.tensor([0, 0, 0, 0]), 'two outputs or more.*task = "binary"'),
        ("classification", 3, torch.tensor([[1.0, 1.0, 0.0]] * 4), 'sum to 2.*task = "binary"'),
        ("classification", 3, torch.tensor([[1, 1, 0]] * 4), 'whole numbers.*task = "binary"'),
        ("classification", 3, torch.tensor([0.5, 1.0, 2.0, 3.0]), 'are floats.*task = "regression"'),
        ("binary", 1, torch.tensor([0, 1, 2, 3]), 'from 0 to 3.*task = "classification"'),
        ("regression", 2, torch.tensor([0.5, 1.0, 2.0, 3.0]), "one target for each output"),
    ],
)
def test_targets_that_do_not_fit_the_task_are_an_error_that_names_the_task(task, outputs, target, said):
    ensemble = pb.deep(nn.Linear(2, outputs), 2)
    ensemble.task = task
    before = {name: value.clone() for name, value in ensemble.state_dict().items()}
    with pytest.raises(ValueError, match=f"(?s){said}"):
        pb.fit(ensemble, (torch.randn(4, 2), target), epochs=1)
    assert all(torch.equal(value, before[name]) for name, value in ensemble.state_dict().items())


@pytest.mark.parametrize(
    ("criterion", "outputs", "target", "said"),
    [
        (F.cross_entropy, 1, torch.zeros(4, 1), 'two outputs or more.*task = "binary"'),
        (nn.CrossEntropyLoss(label_smoothing=0.1), 1, torch.zeros(4).long(), 'two outputs or more.*task = "binary"'),
        (F.cross_entropy, 3, torch.tensor([[1.0, 1.0, 0.0]] * 4), 'sum to 2.*task = "binary"'),
        (F.mse_loss, 1, torch.zeros(4), r"\(4,\) for outputs of \(4, 1\).*all rows.*target\[:, None\]"),
        (nn.L1Loss(), 1, torch.zeros(4), r'\(4,\) for outputs of \(4, 1\).*task = "regression"'),
    ],
)
def test_torchs_own_criteria_do_not_train_garbage_either(criterion, outputs, target, said):
    with pytest.raises(ValueError, match=f"(?s){said}"):
        pb.fit(pb.deep(nn.Linear(2, outputs), 2), (torch.randn(4, 2), target), epochs=1, criterion=criterion)


def test_a_column_of_class_numbers_is_one_number_for_each_row():
    ensembles = [pb.deep(nn.Linear(2, 3), 2)]
    ensembles.append(copy.deepcopy(ensembles[0]))
    x, y = torch.randn(8, 2), torch.arange(8) % 3
    for ensemble, target in zip(ensembles, (y, y[:, None]), strict=True):
        pb.fit(ensemble, (x, target), epochs=1)
    torch.testing.assert_close(ensembles[0].state_dict(), ensembles[1].state_dict(), rtol=0, atol=0)


def test_a_rate_of_zero_is_an_error():
    with pytest.raises(ValueError, match="lr must be above 0"):
        pb.fit(pb.deep(nn.Linear(2, 3), 2), (torch.randn(4, 2), torch.arange(4) % 3), epochs=1, lr=0.0)


class Masked(nn.Module):
    """A network with two inputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x, mask):
        return self.layer(x * mask)


def test_the_forms_of_input_that_people_have_train_the_same_weights():
    pandas = pytest.importorskip("pandas")
    torch.manual_seed(0)
    x, mask, y = torch.randn(12, 4), torch.ones(12, 4), torch.arange(12) % 2
    plain, masked = pb.deep(nn.Linear(4, 2), 2), pb.deep(Masked(), 2)
    masked.module.load_state_dict({f"layer.{name}": tensor for name, tensor in plain.module.state_dict().items()})
    forms = [
        (plain, (x, y)), (plain, (x.double(), y)), (plain, (x.double().numpy(), y.numpy())),
        (plain, (pandas.DataFrame(x.double().numpy()), pandas.Series(y.numpy()))), (masked, (x, mask, y)),
        (masked, ({"x": x, "mask": mask}, y)), (masked, ({"x": x.numpy(), "mask": mask.double().numpy()}, y)),
        (plain, (x, y.int().numpy())), (plain, (x, pandas.Series(y.numpy() > 0))),
    ]  # fmt: skip
    found = []
    for start, source in forms:
        ensemble = copy.deepcopy(start)
        pb.fit(ensemble, source, epochs=2, batch_size=6, lr=0.1)
        found.append([tensor for _, tensor in sorted(ensemble.module.state_dict().items())])
    batches = [slice(0, 6), slice(6, 12)]
    for start, source in (
        (masked, [{"x": x[b], "mask": mask[b], "labels": y[b]} for b in batches]),
        (masked, [(x[b], mask[b], y[b]) for b in batches]),
        (plain, [(x[b], y[b]) for b in batches]),
    ):
        ensemble = copy.deepcopy(start)
        pb.fit(ensemble, source, epochs=2, lr=0.1)
        found.append([tensor for _, tensor in sorted(ensemble.module.state_dict().items())])
    for others in (found[1:9], found[10:]):
        first = found[0] if others[0] is found[1] else found[9]
        for other in others:
            torch.testing.assert_close(other, first)


def test_nan_is_named_by_the_row_and_column_of_the_data():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"age": [1.0] * 10, "price": [2.0] * 7 + [float("nan")] + [3.0] * 2})
    with pytest.warns(RuntimeWarning, match="row 7, column 'price'"):
        history = pb.fit(pb.deep(nn.Linear(2, 2), 2), (table, torch.arange(10) % 2), epochs=1)
    assert history.failure.endswith("In the data this is row 7, column 'price'.")
    ensemble, y = pb.deep(nn.Linear(2, 1), 2), torch.tensor([0, 0, 0, math.nan, 0])
    ensemble.task = "regression"
    with pytest.warns(RuntimeWarning, match="row 3 of y"):
        pb.fit(ensemble, (torch.ones(5, 2), y), epochs=1)


def test_whole_numbers_that_a_network_does_not_take_are_named():
    with pytest.raises(ValueError, match=r"takes no whole numbers.*x\.float\(\)"):
        pb.fit(pb.deep(nn.Linear(4, 2), 2), (torch.ones(6, 4, dtype=torch.long), torch.arange(6) % 2), epochs=1)
