"""Made-up runs with the keys of real ones, for tests of the page and of the verdict; written as real result files."""

from pathlib import Path

import numpy as np

from pluribus.results.store import Result, write

CLASSES = [str(number) for number in range(10)]
COST = {  # relative to the single network: parameters, mult-adds, latency
    "single": (1, 1, 1),
    "deep": (4, 4, 4.1),
    "packed": (1.05, 1.08, 1.2),
    "mimo": (1.02, 1.02, 1.1),
}


def classification(
    label: str = "single",
    *,
    seed: int = 0,
    skill: float = 3.0,
    method: str | None = None,
    settings: dict | None = None,
    size: int = 4,
    data: str = "digits",
    examples: int = 300,
    shift: bool = True,
    outside: bool = True,
    pictures: bool = True,
    chance: int = 0,
) -> Result:
    """A run whose members see the right class through noise; `skill` says how clearly."""
    method = method or label.split()[0]
    size = 1 if method == "single" else size
    target = np.random.default_rng(7).integers(10, size=examples)
    generator = np.random.default_rng([seed, chance, *label.encode()])
    probabilities = _members(generator, target, skill, size)
    outer = _members(generator, generator.integers(10, size=examples), skill / 3, size)
    columns = {"test/target": target, **_columns(probabilities, target)}
    shifted, outsides = {}, {}
    if shift:
        for name in ("gaussian_noise", "fog", "contrast", "pixelate"):
            rows = [_members(generator, target, skill * (1 - 0.15 * severity), size) for severity in range(1, 6)]
            shifted[name] = [{"severity": i + 1, **_metrics(row, target)} for i, row in enumerate(rows)]
    if outside:
        for score in ("msp", "mutual_information"):
            inner, outer_score = _score(probabilities, score), _score(outer, score)
            columns[f"inside/{score}"], columns[f"outside/letters/{score}"] = inner, outer_score
            above = (outer_score[:, None] > inner).mean() + 0.5 * (outer_score[:, None] == inner).mean()
            outsides.setdefault("letters", {})[score] = {"auroc": float(above), "aupr": 0.8, "fpr95": 0.4}
    if pictures:
        columns |= _examples(generator, columns, examples)
    measured = _metrics(probabilities, target)
    record = _record(label, method, settings or {}, size, seed, data, "classification") | {
        "classes": CLASSES,
        "metrics": {name: {"value": v, "low": v * 0.97, "high": v * 1.03} for name, v in measured.items()},
        "members": {"mean": {"accuracy": measured["accuracy"] - 0.01}},
        "shift": shifted,
        "outside": outsides,
    }
    return Result(record, columns)


def regression(label: str = "single", *, seed: int = 0, noise: float = 0.3, data: str = "houses") -> Result:
    """A run whose mean misses the target by `noise`, and which knows that."""
    method = label.split()[0]
    target = np.random.default_rng(7).normal(size=200)
    generator = np.random.default_rng([seed, *label.encode()])
    scale = noise * generator.uniform(0.5, 1.5, size=200)
    mean = target + scale * generator.normal(size=200)
    columns = {
        "test/target": target,
        "test/mean": mean,
        "test/total": scale**2,
        "test/aleatoric": scale**2 * 0.8,
        "test/epistemic": scale**2 * 0.2,
        "test/lower": mean - 1.645 * scale,
        "test/upper": mean + 1.645 * scale,
        "test/log_likelihood": -0.5 * np.log(2 * np.pi * scale**2) - (target - mean) ** 2 / (2 * scale**2),
        "examples/index": np.arange(4),
        "examples/text": np.array([f"rooms={i}, <b>area</b>={10 * i}" for i in range(4)]),
        "examples/reason": np.array(["mistake", "mistake", "uncertain", "uncertain"]),
    }
    inside = (columns["test/lower"] <= target) & (target <= columns["test/upper"])
    measured = {
        "rmse": float(np.sqrt(((mean - target) ** 2).mean())),
        "nll": float(-columns["test/log_likelihood"].mean()),
        "crps": float(0.5 * np.abs(mean - target).mean()),
        "coverage": float(inside.mean()),
        "width": float((columns["test/upper"] - columns["test/lower"]).mean()),
    }
    record = _record(label, method, {}, 1 if method == "single" else 4, seed, data, "regression") | {
        "kind": "table",
        "metrics": {name: {"value": v, "low": None, "high": None} for name, v in measured.items()},
    }
    return Result(record, columns)


def study(folder: Path, results: list[Result]) -> Path:
    """The folder with one file for each result."""
    for result in results:
        write(folder / "results" / f"{result.record['run']}.npz", result.record, result.columns)
    return folder


def many(seeds: int = 3, **settings: object) -> list[Result]:
    """Twelve labels, two of them a sweep, as a comparison of all methods gives them."""
    skills = {
        **{"single": 3.0, "deep": 3.3, "masksembles": 3.1, "mimo": 3.0, "batch_ensemble": 3.05, "mc_dropout": 3.0},
        **{"treenet": 3.15, "multihead": 3.0, "thin": 2.8, "wide": 3.1},
    }
    runs = [classification(label, seed=s, skill=v, **settings) for label, v in skills.items() for s in range(seeds)]
    for alpha in (1, 2, 3):
        for s in range(seeds):
            label = f"packed alpha={alpha}"
            given = {"settings": {"alpha": alpha, "gamma": 1}, "skill": 3.0 + 0.1 * alpha, **settings}
            runs.append(classification(label, seed=s, **given))
    return runs


def _record(label: str, method: str, settings: dict, size: int, seed: int, data: str, task: str) -> dict:
    parameters, mult_adds, latency = COST.get(method, (1.2, 2.0, 2.2))
    scale = settings.get("alpha", 2) / 2
    return {
        "format": 1,
        "run": f"{data}-{label}-{seed}".replace(" ", "-").replace("/", "_").replace("<", "_"),
        "method": method,
        "label": label,
        "settings": settings,
        "size": size,
        "data": data,
        "task": task,
        "kind": "images",
        "classes": [],
        "model": "lenet",
        "seed": seed,
        "training": {"epochs": 3, "batch_size": 64, "optimizer": "adam", "lr": 0.001},
        "metrics": {},
        "members": {},
        "shift": {},
        "outside": {},
        "variants": {},
        "cost": {
            "parameters": int(61706 * parameters * scale),
            "mult_adds": int(416520 * mult_adds * scale),
            "forward_passes": 1,
            "latency": 0.0021 * latency * scale,
            "latency_rows": 32,
            "relative": {
                **{"parameters": parameters * scale, "mult_adds": mult_adds * scale, "latency": latency * scale},
                "training": mult_adds * scale,
            },
            "deployed": _deployed(parameters * scale, mult_adds * scale, latency * scale),
        },
        "seconds": {"training": 12.5 * mult_adds, "evaluation": 1.0},
        "versions": {"pluribus": "0.1.0", "torch": "2.6", "python": "3.11"},
        "threads": 1,
        "history": [{"epoch": i, "loss": 2.0 / (i + 1), "validation_accuracy": 0.9 - 0.4 / (i + 1)} for i in range(3)],
        "notes": ["12 rows without a target were dropped"],
    }


def _deployed(parameters: float, mult_adds: float, latency: float) -> dict:
    return {
        "frozen": True,
        "why": "",
        "parameters": int(61706 * parameters),
        "mult_adds": int(416520 * mult_adds),
        "memory": int(250000 * parameters),
        "latency": {"1": 0.0002 * latency, "32": 0.0018 * latency},
        "relative": {
            "parameters": parameters,
            "mult_adds": mult_adds,
            "latency": {"1": latency, "32": latency},
            "plain_latency": {"1": 0.9 * latency, "32": 0.9 * latency},
        },
    }


def _members(generator: np.random.Generator, target: np.ndarray, skill: float, size: int) -> np.ndarray:
    logits = generator.normal(size=(size, len(target), 10))
    shared = generator.normal(size=(len(target), 10))
    logits = 0.9 * logits + 1.2 * shared
    logits[:, np.arange(len(target)), target] += skill
    exponentials = np.exp(1.5 * logits)
    return exponentials / exponentials.sum(-1, keepdims=True)


def _entropy(p: np.ndarray) -> np.ndarray:
    return -(p * np.log(p)).sum(-1)


def _columns(members: np.ndarray, target: np.ndarray) -> dict[str, np.ndarray]:
    mean = members.mean(0)
    return {
        "test/label": mean.argmax(-1),
        "test/confidence": mean.max(-1),
        "test/total": _entropy(mean),
        "test/aleatoric": _entropy(members).mean(0),
        "test/epistemic": _entropy(mean) - _entropy(members).mean(0),
        "test/log_likelihood": np.log(mean[np.arange(len(target)), target]),
        "test/member_label": members.argmax(-1),
    }


def _score(members: np.ndarray, name: str) -> np.ndarray:
    mean = members.mean(0)
    return 1 - mean.max(-1) if name == "msp" else _entropy(mean) - _entropy(members).mean(0)


def _metrics(members: np.ndarray, target: np.ndarray) -> dict[str, float]:
    columns = _columns(members, target)
    label, confidence, correct = columns["test/label"], columns["test/confidence"], columns["test/label"] == target
    bins = np.clip(np.ceil(confidence * 15).astype(int) - 1, 0, 14)
    gaps = [abs((confidence - correct)[bins == b].sum()) for b in range(15)]
    labels = members.argmax(-1)
    pairs = [(labels[i] != labels[j]).mean() for i in range(len(labels)) for j in range(i)]
    onehot = np.eye(10)[target]
    risk = np.cumsum(~correct[np.argsort(-confidence)]) / np.arange(1, len(label) + 1)
    return {
        "accuracy": float(correct.mean()),
        "nll": float(-columns["test/log_likelihood"].mean()),
        "brier": float(((members.mean(0) - onehot) ** 2).sum(-1).mean()),
        "ece": float(sum(gaps) / len(label)),
        "aurc": float(risk.mean()),
        "disagreement": float(np.mean(pairs)) if pairs else 0.0,
        "mutual_information": float(columns["test/epistemic"].mean()),
    }


def _examples(generator: np.random.Generator, columns: dict[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    wrong = np.flatnonzero(columns["test/label"] != columns["test/target"])
    mistakes = wrong[np.argsort(-columns["test/confidence"][wrong])][:4]
    uncertain = np.argsort(-columns["test/total"])[:4]
    index = np.concatenate([mistakes, uncertain])
    return {
        "examples/index": index,
        "examples/pictures": generator.integers(256, size=(len(index), 28, 28), dtype=np.uint8),
        "examples/reason": np.array(["mistake"] * len(mistakes) + ["uncertain"] * len(uncertain)),
    }
