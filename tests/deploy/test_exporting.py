"""Exported files: the same answers as PyTorch's, for every method and batch size, without Pluribus."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from small import SMALL, make
from torch import Tensor, nn

import pluribus as pb
from pluribus.deploy import exporting
from pluribus.deploy.export_graph import ExportedMembers, trace_program
from pluribus.deploy.exporting import _onnx_runner, export
from pluribus.deploy.fixed_dropout import Fixed
from pluribus.uncertainty.outputs import AnswerModule

onnxruntime = pytest.importorskip("onnxruntime")

QUICK = [("mc_dropout", "cnn")]
CASES = [(method, name) for method in pb.METHODS for name in SMALL]


def run_onnx(path, **inputs):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    fed = {name: tensor.numpy() for name, tensor in inputs.items()}
    return {name: torch.from_numpy(array) for name, array in zip(names, session.run(None, fed), strict=True)}


@pytest.fixture
def traced_once(monkeypatch):
    """Lets a test that exports one ensemble to several files trace it once."""
    programs = []

    def trace(*args, **kwargs):
        if not programs:
            programs.append(trace_program(*args, **kwargs))
        return programs[0]

    monkeypatch.setattr(exporting, "trace_program", trace)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "name"), CASES)
def test_every_method_exports_on_every_kind_of_model(method, name, tmp_path, traced_once):
    ensemble, x = make(method, name)
    for suffix in ("pt2", "onnx"):
        chance = torch.Generator().manual_seed(0)  # of MC-Dropout, whose draws are part of what is traced
        written = export(ensemble, x, tmp_path / f"m.{suffix}", generator=chance)
        assert written.difference < 1e-5
        assert written.checked == (1, 5, 11)


@pytest.mark.parametrize(
    ("method", "name"),
    [
        pytest.param(m, n, marks=[] if (m, n) in QUICK else pytest.mark.slow)
        for m, n in CASES
        if n != "tied" or m == "deep"  # frozen, tied weights are tensors like others
    ],
)
def test_what_was_frozen_exports_for_any_number_of_rows(method, name, tmp_path):
    ensemble, x = make(method, name)
    frozen = pb.freeze(ensemble.eval(), x, choose="rule")
    written = export(frozen, x, tmp_path / "m.onnx")
    assert written.difference < 1e-5
    assert written.checked == (1, 5, 11)
    if method != "mc_dropout":
        more = torch.cat([x, x])
        given = run_onnx(written.path, **dict(zip(written.inputs, [more], strict=True)))
        torch.testing.assert_close(given["mean"], ensemble.predict(more).mean, rtol=1e-4, atol=1e-5)


LOADER = """
import sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
(given,) = session.get_inputs()
mean, label, *rest = session.run(None, {given.name: numpy.load(sys.argv[2])})
assert "torch" not in sys.modules and "pluribus" not in sys.modules
numpy.save(sys.argv[3], mean)
"""


@pytest.mark.slow
def test_packed_resnet18_runs_in_a_process_without_torch_or_pluribus(tmp_path):
    import numpy

    ensemble = pb.packed(pb.models.resnet18(), 4, alpha=2, example=torch.randn(1, 3, 32, 32)).eval()
    export(ensemble, torch.randn(2, 3, 32, 32), tmp_path / "m.onnx")
    x = torch.randn(5, 3, 32, 32)
    numpy.save(tmp_path / "x.npy", x.numpy())
    files = [str(tmp_path / name) for name in ("m.onnx", "x.npy", "y.npy")]
    subprocess.run([sys.executable, "-c", LOADER, *files], check=True)
    mean = torch.from_numpy(numpy.load(tmp_path / "y.npy"))
    torch.testing.assert_close(mean, ensemble.predict(x).mean, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("task", ["regression", "gaussian"])
def test_regressions_give_mean_and_variances(task, tmp_path):
    ensemble = pb.deep(nn.Linear(4, 2), 3)
    ensemble.task = task
    x = torch.randn(5, 4)
    written = export(ensemble, x, tmp_path / "m.pt2")
    assert written.outputs == ("mean", "total", "aleatoric", "epistemic")
    given = torch.export.load(written.path).module()(x)
    torch.testing.assert_close(given["total"], ensemble.predict(x).total, rtol=1e-4, atol=1e-6)


class TestDraws:
    @pytest.mark.slow
    def test_fixed_draws_are_the_same_for_each_row_and_run_and_differ_between_members(self, tmp_path):
        ensemble, x = make("mc_dropout", "mlp")
        written = export(ensemble, x, tmp_path / "m.onnx", generator=torch.Generator().manual_seed(1))
        assert written.draws == "fixed"
        same = run_onnx(written.path, input=x[:1].repeat(3, 1))
        assert same["epistemic"].min() > 0
        torch.testing.assert_close(same["mean"][0], same["mean"][2])
        torch.testing.assert_close(run_onnx(written.path, input=x[:1])["mean"][0], same["mean"][0])

    @pytest.mark.slow
    def test_random_draws_differ_between_runs_and_members(self, tmp_path):
        ensemble, x = make("mc_dropout", "mlp")
        written = export(ensemble, x, tmp_path / "m.onnx", draws="random")
        run = _onnx_runner(written.path, written.inputs, written.outputs)
        first, second = run(((x,), {})), run(((x,), {}))
        assert not torch.equal(first["mean"], second["mean"])
        assert first["epistemic"].min() > 0

    @pytest.mark.parametrize("name", SMALL)
    def test_every_dropout_is_stored_for_each_member(self, name):
        ensemble, x = make("mc_dropout", name)
        ensemble(x)
        plain = ExportedMembers(ensemble).eval()
        fixed = Fixed(plain, ((x,), {}))
        assert fixed.count == 3 * len(
            {"mlp": [1], "cnn": [1], "encoder": range(5), "recurrent": [1], "tied": [1]}[name]
        )
        outputs = fixed(x)
        assert torch.equal(outputs, fixed(x))
        assert outputs.var(0).max() > 0  # members

    @pytest.mark.parametrize("drop", [F.dropout, F.dropout2d])
    def test_stored_draws_have_the_law_of_dropout(self, drop):
        class Drops(nn.Module):
            def forward(self, x):
                return drop(x, 0.3, True)

        x = torch.randn(1, 40, 30, 30)
        given, expected = Fixed(Drops(), ((x,), {}))(x), drop(x, 0.3, True)
        close = {"rtol": 0.1, "atol": 0.1}
        torch.testing.assert_close(given.mean(), expected.mean(), **close)
        torch.testing.assert_close(given.var(), expected.var(), rtol=0.25, atol=0.1)


class Strange(nn.Module):
    """Uses what ONNX has no operator for."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) + torch.linalg.eigvalsh(x.T @ x)[:3]


class TestRefusals:
    def test_an_operator_that_onnx_lacks_is_named_and_nothing_is_left(self, tmp_path):
        with pytest.raises(ValueError, match="ONNX has no operator for 'aten._linalg_eigh'"):
            export(pb.deep(Strange(), 2), torch.randn(3, 4), tmp_path / "m.onnx")
        assert not list(tmp_path.iterdir())

    def test_a_file_that_disagrees_is_not_left_behind(self, tmp_path, monkeypatch):
        ensemble, x = make("deep", "mlp")
        (tmp_path / "m.pt2").write_text("earlier")
        answers = AnswerModule(ensemble)
        wrong = lambda batch: {name: tensor + 1 for name, tensor in answers(*batch[0]).items()}  # noqa: E731
        monkeypatch.setattr(exporting, "_torch_runner", lambda path: wrong)
        with pytest.raises(ValueError, match="must agree with PyTorch to 0.0001, but 'mean' differs by"):
            export(ensemble, x, tmp_path / "m.pt2")
        assert [file.name for file in tmp_path.iterdir()] == ["m.pt2"]
        assert (tmp_path / "m.pt2").read_text() == "earlier"

    @pytest.mark.parametrize(
        ("name", "options", "error", "words"),
        [
            ("m.bin", {}, ValueError, "the suffix must be"),
            ("m.onnx", {"draws": "some"}, ValueError, 'draws must be "fixed" or "random"'),
            ("m.onnx", {"draws": "random"}, ValueError, "this ensemble draws nothing"),
            ("m.onnx", {"tolerance": 0}, ValueError, "tolerance must be positive"),
            ("none/m.onnx", {}, FileNotFoundError, "does not exist"),
        ],
    )
    def test_what_cannot_be_asked_for_is_said_before_anything_runs(self, name, options, error, words, tmp_path):
        ensemble, x = make("deep", "mlp")
        with pytest.raises(error, match=words):
            export(ensemble, x, tmp_path / name, **options)


def test_the_ensemble_stays_as_it_was(tmp_path):
    ensemble, x = make("mc_dropout", "mlp")
    ensemble.train()
    before = {name: tensor.clone() for name, tensor in ensemble.state_dict().items()}
    chance = torch.get_rng_state()
    export(ensemble, x, tmp_path / "m.pt2", generator=torch.Generator().manual_seed(0))
    assert ensemble.training
    assert torch.equal(torch.get_rng_state(), chance)
    assert all(torch.equal(tensor, before[name]) for name, tensor in ensemble.state_dict().items())


class Named(nn.Module):
    """Two tensors that must not be taken for each other, and options."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.norm = nn.Linear(4, 3), nn.Linear(4, 3), nn.BatchNorm1d(3)

    def forward(self, left: Tensor, right: Tensor, scale: float = 1.0, flip: bool = False) -> Tensor:
        """(batch, 3)."""
        y = self.norm(self.one(left) - 2 * self.two(right)) * scale
        return y.flip(-1) if flip else y


@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
def test_arguments_are_exported_by_name_and_options_with_their_values(suffix, tmp_path):
    networks = [Named() for _ in range(2)]
    ensemble = pb.deep(networks).train()
    modes = [module.training for module in ensemble.modules()]
    left, right, path = torch.randn(5, 4), torch.randn(5, 4), tmp_path / f"named.{suffix}"
    example = {"right": right, "flip": True, "left": left, "scale": 2.5}
    pb.export(ensemble, example, path)
    assert [module.training for module in ensemble.modules()] == modes
    with torch.no_grad():
        outputs = torch.stack([network.eval()(left, right, 2.5, True) for network in networks])
    mean = outputs.softmax(-1).mean(0)
    if suffix == "pt2":
        given = torch.export.load(path).module()(**example)["mean"]
    else:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        given = torch.from_numpy(session.run(["mean"], {"left": left.numpy(), "right": right.numpy()})[0])
    torch.testing.assert_close(given, mean, rtol=1e-4, atol=1e-5)
