"""A CSV file with numbers, words and gaps: from the file to predictions for new rows.

You learn: `pb.data.load("table:FILE", target=COLUMN)` reads the types of the columns, fills the gaps and standardises
by the training part alone; `encoded` turns new rows into the same numbers, also where a word is new or a value is
missing.
"""

import pandas as pd
import torch
from sklearn.datasets import load_wine

import pluribus as pb
from pluribus.data import encoded


def main() -> None:
    torch.manual_seed(0)
    wine = load_wine(as_frame=True)
    table = wine.data[["alcohol", "malic_acid", "flavanoids", "hue"]].copy()
    table["strength"] = pd.cut(table.alcohol, [0, 12.5, 13.5, 20], labels=["light", "medium", "strong"]).astype(str)
    table.loc[::9, "hue"] = None  # as in real tables
    table["grower"] = wine.target.map({0: "Barolo", 1: "Grignolino", 2: "Barbera"})
    table.to_csv("wine.csv", index=False)

    data = pb.data.load("table:wine.csv", target="grower")
    print(data, *data.notes, sep="\n")
    x, y = data.train[:]
    ensemble = pb.deep(pb.models.mlp(x.shape[1], len(data.classes), hidden=(32,)), 5)
    pb.fit(ensemble, (x, y), data.validation[:], epochs=60, batch_size=32, lr=1e-2, optimizer="adam")
    test_x, test_y = data.test[:]
    figures = pb.evaluate(ensemble.predict(test_x), test_y)
    print(f"accuracy {figures['accuracy']:.3f}, NLL {figures['nll']:.3f}\n")

    new = pd.DataFrame({
        "alcohol": [14.1, 12.3, 13.1, 13.9], "malic_acid": [1.7, 1.4, 3.3, 2.4],
        "flavanoids": [3.0, 2.1, 0.8, 1.3], "hue": [1.1, 1.1, 0.7, None],
        "strength": ["strong", "light", "medium", "unknown"],
    })  # fmt: skip
    p = ensemble.predict(encoded(data.encoding, new)[:][0])
    new["grower"] = [data.classes[i] for i in p.label]
    for name in ("confidence", "aleatoric", "epistemic"):
        new[name] = getattr(p, name).numpy()
    print(new.round(3).to_string(index=False))


if __name__ == "__main__":
    main()
