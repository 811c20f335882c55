"""Tables in CSV and Parquet files, against pandas and scikit-learn's encoders."""

import bz2
import csv
import gzip
import json
import lzma

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
import torch
from order import filed
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from pluribus.data.catalogue import encoded, load
from pluribus.data.tables import column_rules, feature_names, read_table


def houses(rows=200, seed=0):
    g = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "area": g.normal(100, 30, rows),
            "rooms": g.integers(1, 7, rows),
            "town": g.choice(["Ulm", "Bonn", "Jena"], rows),
            "garden": g.random(rows) < 0.5,
            "sold": pd.Timestamp("2020-01-01") + pd.to_timedelta(g.integers(0, 900, rows), unit="D"),
        }
    )
    frame["price"] = 1000 * frame["area"] + g.normal(0, 100, rows)
    return frame


def written(frame, folder, name="houses", form="csv"):
    path = folder / f"{name}.{form}"
    if form == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    return path


def rows(split):
    return [int(name) for name in split.names()]


@pytest.fixture
def path(tmp_path):
    return written(houses(), tmp_path)


# ---------------------------------------------------------------- encoding


@pytest.mark.parametrize("form", ["csv", "csv.gz", "parquet"])
def test_columns_are_encoded_as_scikit_learn_does(tmp_path, form):
    frame = houses()
    frame.loc[::7, "area"] = np.nan
    data = load(f"table:{written(frame, tmp_path, form=form)}", target="price")
    assert data.task == "regression" and data.kind == "table" and len(data.train) == 140
    train, test = frame.iloc[rows(data.train)], frame.iloc[rows(data.test)]
    days = [[(day - pd.Timestamp(0)).days for day in part["sold"]] for part in (train, test)]
    numbers = [
        np.column_stack([part["area"], part["rooms"], part["garden"], day])
        for part, day in zip((train, test), days, strict=True)
    ]
    scaler, imputer = StandardScaler().fit(numbers[0]), SimpleImputer(keep_empty_features=True)
    scaled = imputer.fit(scaler.transform(numbers[0])).transform(scaler.transform(numbers[1]))
    towns = OneHotEncoder(sparse_output=False).fit(train[["town"]]).transform(test[["town"]])
    missing, unknown = test["area"].isna().to_numpy()[:, None], np.zeros((len(test), 1))
    expected = np.concatenate(
        [scaled[:, :1], missing, scaled[:, 1:2], towns, unknown, scaled[:, 2:3], scaled[:, 3:]], axis=1
    )
    assert np.allclose(data.test[:][0], expected, atol=1e-4)
    assert data.encoding["columns"][-1]["mean"] == pytest.approx(np.mean(days[0]))
    assert feature_names(data.encoding) == [
        *("area", "area missing", "rooms", "town = Bonn", "town = Jena", "town = Ulm", "town unknown"),
        *("garden", "sold"),
    ]


def test_targets_are_standardised_by_the_training_part(tmp_path, path):
    frame = houses()
    data = load(f"table:{path}", target="price")
    train = frame["price"].iloc[rows(data.train)]
    assert data.target_mean == pytest.approx(train.mean()) and data.target_std == pytest.approx(train.std(ddof=0))
    expected = (frame["price"].iloc[rows(data.test)] - train.mean()) / train.std(ddof=0)
    assert np.allclose(data.test.y, expected, atol=1e-5)


def test_encoding_survives_json_and_applies_to_new_files(tmp_path, path):
    data = load(f"table:{path}", target="price")
    new = houses(20, seed=5).drop(columns="price")
    new.loc[0, "town"], new.loc[1, "town"], new.loc[2, "area"] = "Unheard", None, None
    encoding = json.loads(json.dumps(data.encoding))
    split = encoded(encoding, written(new, tmp_path, "new"))
    names = feature_names(encoding)
    x = split[:][0]
    assert x.shape == (20, *data.shape) and split.y.isnan().all()
    assert x[:3, names.index("town unknown")].tolist() == [1, 1, 0] and x[2, names.index("area")] == 0
    assert torch.equal(encoded(encoding, new)[:][0], x)


def test_levels_come_from_the_training_part_only(tmp_path):
    frame = houses()
    data = load(f"table:{written(frame, tmp_path)}", target="price")
    frame.loc[rows(data.test)[0], "town"] = "Only in test"
    data = load(f"table:{written(frame, tmp_path)}", target="price")
    assert "town = Only in test" not in feature_names(data.encoding)
    assert data.test[0][0][feature_names(data.encoding).index("town unknown")] == 1


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators_are_recognised(tmp_path, separator):
    houses().to_csv(tmp_path / "x.csv", sep=separator, index=False)
    assert list(read_table(tmp_path / "x.csv").columns) == list(houses().columns)


def test_nullable_columns_of_parquet_are_read(tmp_path):
    frame = houses().convert_dtypes()
    frame.loc[3, "rooms"], frame.loc[4, "garden"], frame.loc[5, "town"] = pd.NA, pd.NA, pd.NA
    frame["town"] = frame["town"].astype("category")
    data = load(f"table:{written(frame, tmp_path, form='parquet')}", target="price")
    assert data.train[:][0].isfinite().all()
    plain = load(f"table:{written(houses(), tmp_path)}", target="price")
    shared = [i for i, name in enumerate(feature_names(data.encoding)) if name == "area"]
    assert torch.allclose(data.test[:][0][:, shared], plain.test[:][0][:, [0]], atol=1e-5)


# ---------------------------------------------------------------- task and classes


@pytest.mark.parametrize(
    "values, task, classes",
    [
        (["a", "b"], "classification", ("a", "b")),
        ([True, False], "classification", ("False", "True")),
        ([10, 9, 2], "classification", ("2", "9", "10")),
        ([1.0, 2.0, None], "classification", ("1", "2")),
        (list(range(40)), "regression", ()),
        ([0.5, 1.5], "regression", ()),
    ],
)
def test_task_follows_the_values_of_the_target(tmp_path, values, task, classes):
    frame = houses().assign(y=pd.Series(values * 200).iloc[:200])
    data = load(f"table:{written(frame, tmp_path)}", target="y")
    assert (data.task, data.classes) == (task, classes)
    if classes:
        for split in (data.train, data.validation, data.test):
            assert [data.classes[y] for y in split.y] == [
                str(int(v)) if isinstance(v, float) else str(v) for v in frame["y"].iloc[rows(split)]
            ]


def test_classes_are_divided_alike(tmp_path):
    frame = houses(1000).assign(y=np.where(np.arange(1000) % 10 == 0, "rare", "usual"))
    data = load(f"table:{written(frame, tmp_path)}", target="y")
    assert [split.y.bincount().tolist() for split in (data.train, data.validation, data.test)] == [
        [70, 630],
        [10, 90],
        [20, 180],
    ]


def test_folder_with_train_and_test_files_keeps_them(tmp_path):
    written(houses(100, 1), tmp_path, "train")
    written(houses(30, 2), tmp_path, "test", "parquet")
    data = load(f"table:{tmp_path}", target="price")
    assert (len(data.train), len(data.validation), len(data.test)) == (90, 10, 30)


def test_a_table_may_have_no_validation_rows():
    data, usual = load("diabetes", validation=0.0), load("diabetes", validation=0.2)
    assert len(data.validation) == 0 and data.validation[:][0].shape == (0, *data.shape)
    assert len(data.train) == len(usual.train) + len(usual.validation)


def test_other_tables_can_be_outside_data_and_variants(tmp_path, path):
    far, near = houses(50, seed=9), houses(60, seed=10)
    far["area"] += 1000
    data = load(
        f"table:{path}",
        target="town",
        outside=[f"table:{written(far.drop(columns='town'), tmp_path, 'far')}"],
        variants=[f"table:{written(near[near['town'] != 'Ulm'], tmp_path, 'near')}"],
    )
    assert (data.outside["far"].y == -1).all() and data.outside["far"][:][0][:, 0].min() > 10
    assert data.subsets == {"near": [0, 1]} and len(data.variants["near"]) == (near["town"] != "Ulm").sum()


# ---------------------------------------------------------------- bad input


def test_rows_without_target_are_left_out_with_a_note(tmp_path):
    frame = houses()
    frame.loc[:29, "price"] = np.nan
    data = load(f"table:{written(frame, tmp_path)}", target="price")
    assert len(data.train) + len(data.validation) + len(data.test) == 170 and "30 train rows" in data.notes[0]
    assert min(rows(data.train) + rows(data.test)) >= 30


def test_labels_that_training_never_saw_are_named(tmp_path):
    written(houses(), tmp_path, "train")
    written(houses().assign(town="Köln"), tmp_path, "test")
    with pytest.raises(ValueError, match="must occur in training, but Köln never does"):
        load(f"table:{tmp_path}", target="town")


def test_columns_without_use_are_left_out_with_a_note(tmp_path):
    frame = houses().assign(same=1, empty=np.nan, name=[f"name {i}" for i in range(200)])
    data = load(f"table:{written(frame, tmp_path)}", target="price")
    assert data.shape == load(f"table:{written(houses(), tmp_path)}", target="price").shape
    said = " ".join(data.notes)
    assert '"same" has only one value' in said and '"empty" has no value' in said and '"name" has 140 different' in said


# ---------------------------------------------------------------- UCI


def write_uci(folder, splits=3):
    values = np.random.default_rng(0).normal(size=(30, 4)) * [1, 10, 100, 5]
    folder.mkdir(parents=True)
    np.savetxt(folder / "data.txt", values)
    np.savetxt(folder / "index_features.txt", [0, 2], fmt="%d")
    np.savetxt(folder / "index_target.txt", [3], fmt="%d")
    (folder / "n_splits.txt").write_text(f"{splits}\n")
    for split in range(splits):
        order = np.random.default_rng(split).permutation(30)
        np.savetxt(folder / f"index_train_{split}.txt", order[:27], fmt="%d")
        np.savetxt(folder / f"index_test_{split}.txt", order[27:], fmt="%d")
    return values


@pytest.mark.parametrize("inside", ["uci/concrete", "uci/concrete/data"])
@pytest.mark.parametrize("split", range(3))
def test_uci_sets_come_with_their_standard_splits(tmp_path, inside, split):
    values = write_uci(tmp_path / inside)
    data = load("uci:concrete", folder=tmp_path, split=split)
    order = np.random.default_rng(split).permutation(30)
    assert rows(filed(data.test)) == order[27:].tolist()
    assert sorted(rows(data.train) + rows(data.validation)) == sorted(order[:27])
    train = values[rows(data.train)]
    expected = (values[order[27:]] - train.mean(0)) / train.std(0)
    assert np.allclose(filed(data.test)[:][0], expected[:, [0, 2]], atol=1e-5)
    assert np.allclose(filed(data.test).y, expected[:, 3], atol=1e-5)


# ---------------------------------------------------------------- files as spreadsheets write them


def test_decimal_commas_are_numbers_where_semicolons_separate(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("size;price;street;code\n1,5;1.200,5;A;1,2,3\n-2,25;7;B;4\n;3e2;C;5,6\n")
    frame = read_table(path)
    assert frame["size"].tolist()[:2] == [1.5, -2.25]
    assert np.isnan(frame["size"][2])
    assert frame["price"].tolist() == [1200.5, 7.0, 300.0]
    assert frame["code"].tolist() == ["1,2,3", "4", "5,6"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "latin-1"])
def test_umlauts_are_read_however_they_were_written(encoding, tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("Gr\u00f6\u00dfe,Stra\u00dfe\n1,M\u00fcller\n2,\u00c9cole\n".encode(encoding))
    frame = read_table(path)
    assert list(frame.columns) == ["Gr\u00f6\u00dfe", "Stra\u00dfe"]
    assert frame["Stra\u00dfe"].tolist() == ["M\u00fcller", "\u00c9cole"]


@pytest.mark.parametrize("ending, pack", [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
def test_packed_tables_are_read_up_to_a_limit_that_can_be_raised(tmp_path, monkeypatch, ending, pack):
    text = "a,b\n" + "".join(f"{i},{i % 2}\n" for i in range(200))
    path = tmp_path / f"x.csv.{ending}"
    path.write_bytes(pack(text.encode()))
    plain = load(f"table:{path}", target="b")
    assert len(plain.train) + len(plain.validation) + len(plain.test) == 200
    for given in (1000, "1k"):
        with pytest.raises(ValueError, match="unpacks to more than 1 kB.*--unpack-limit.*PLURIBUS_UNPACK_LIMIT"):
            load(f"table:{path}", target="b", unpack_limit=given)
    monkeypatch.setenv("PLURIBUS_UNPACK_LIMIT", "1k")
    with pytest.raises(ValueError, match="unpacks to more than 1 kB"):
        load(f"table:{path}", target="b")
    assert load(f"table:{path}", target="b", unpack_limit="1M").train.names() == plain.train.names()


@pytest.mark.parametrize(
    ("name", "values", "left_out"),
    [
        ("customer_id", range(100), True),
        ("PassengerId", range(100), True),
        ("id", range(7, 107), True),
        ("humid", range(100), False),  # no identifier by its name
        ("paid", range(100), False),
        ("id", [i // 2 for i in range(100)], False),  # two rows alike: it groups them
        ("id", [i + 0.5 for i in range(100)], False),
    ],
)
def test_numbers_of_rows_are_noticed_and_left_out(name, values, left_out):
    notes = []
    rules = column_rules(pd.DataFrame({name: list(values), "a": range(100)}), notes)
    assert [rule["name"] for rule in rules] == (["a"] if left_out else [name, "a"])
    assert any(name in note for note in notes) == left_out


def test_the_limit_of_columns_can_be_raised(tmp_path, monkeypatch):
    frame = pd.DataFrame({f"c{i}": ["x", "y"] * 3 for i in range(8)})
    monkeypatch.setattr("pluribus.data.tables.MOST_OTHER_COLUMNS", 7)
    with pytest.raises(ValueError, match="7 columns that are not numbers, but this one has 8.*PLURIBUS_COLUMN_LIMIT"):
        column_rules(frame, [])
    monkeypatch.setenv("PLURIBUS_COLUMN_LIMIT", "8")
    assert len(column_rules(frame, [])) == 8


# ---------------------------------------------------------- fields, words and large numbers, against the csv module


def fields(path, column):
    """A column of a CSV file as the standard library reads it."""
    with open(path, newline="") as file:
        return [row[column] for row in csv.DictReader(file)]


def text_file(folder, text, name="t.csv"):
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_separator_at_the_end_of_every_row_shifts_no_column(tmp_path, separator):
    lines = ["size,weight,kind", *(f"{i},{2 * i},{'ab'[i % 2]}," for i in range(30))]
    path = text_file(tmp_path, "\n".join(lines).replace(",", separator))
    frame = read_table(path)
    with open(path, newline="") as file:
        expected = [row[:3] for row in csv.reader(file, delimiter=separator)]
    assert [list(frame.columns), *frame.astype(str).to_numpy().tolist()] == expected
    assert load(f"table:{path}", target="kind").classes == ("a", "b")


@pytest.mark.parametrize("extra", ["9", "NA", "9,9"])
def test_rows_with_more_fields_than_the_header_are_refused(tmp_path, extra):
    path = text_file(tmp_path, "a,b\n" + f"1,2,{extra}\n" * 3)
    with pytest.raises(ValueError, match=r"t\.csv: .*as many fields as the header"):
        read_table(path)


def test_na_is_a_class_and_a_level_and_empty_fields_are_missing(tmp_path):
    land = ["NA", "DE", "null", "", "None", "NaN"] * 20
    path = text_file(
        tmp_path, "x,land,y\n" + "".join(f"{i},{v},{'NA' if i % 2 else 'ZA'}\n" for i, v in enumerate(land))
    )
    frame = read_table(path)
    assert frame["land"].fillna("").tolist() == fields(path, "land")
    data = load(f"table:{path}", target="y")
    assert data.classes == ("NA", "ZA") == tuple(sorted(set(fields(path, "y"))))
    assert len(data.train) + len(data.validation) + len(data.test) == len(land)
    levels = next(column["levels"] for column in data.encoding["columns"] if column["name"] == "land")
    assert levels == sorted(set(fields(path, "land")) - {""})


@pytest.mark.parametrize("word", ["NA", "NaN", "null", "N/A", "?"])
@pytest.mark.parametrize(
    "values", [["1.5", "2", "7"], ["True", "False", "True"], ["2020-01-01", "2020-01-02", "2021-05-05"]]
)
def test_in_columns_of_numbers_flags_and_dates_such_words_are_missing_values(tmp_path, word, values):
    column = [*values, word, ""] * 6
    rows = "".join(f"{v},{i % 7},{'ab'[i % 2]}\n" for i, v in enumerate(column))
    data = load(f"table:{text_file(tmp_path, 'v,w,y' + chr(10) + rows)}", target="y")
    assert data.encoding["columns"][0]["kind"] in ("number", "flag", "date")
    assert data.encoding["columns"][0]["missing"]
    alone = encoded(data.encoding, text_file(tmp_path, f"v,w\n{word},1\n", "new.csv"))[:][
        0
    ]  # a column of this word only
    empty = encoded(data.encoding, text_file(tmp_path, "v,w\n,1\n", "empty.csv"))[:][0]
    assert torch.equal(alone, empty)


def test_words_that_are_named_are_missing_in_training_and_in_prediction(tmp_path):
    rows = "".join(f"{i if i % 3 else -999},{'NA' if i % 5 == 0 else 'uv'[i % 2]},{'ab'[i % 2]}\n" for i in range(60))
    path = text_file(tmp_path, "v,w,y\n" + rows)
    data = load(f"table:{path}", target="y", missing=["-999", "NA"])
    number, words = data.encoding["columns"]
    kept = [float(v) for v in fields(path, "v") if v != "-999"]
    assert number["missing"] and words["levels"] == ["u", "v"]
    assert min(kept) <= number["mean"] <= max(kept)
    stored = json.loads(json.dumps(data.encoding))
    new = encoded(stored, text_file(tmp_path, "v,w\n-999,NA\n", "new.csv"))[:][0]
    assert new.tolist() == [[0.0, 1.0, 0.0, 0.0, 1.0]]
    pd.read_csv(path, keep_default_na=False).to_parquet(tmp_path / "t.parquet")
    packed = load(f"table:{tmp_path / 't.parquet'}", target="y", missing=["-999", "NA"])
    assert packed.encoding["columns"] == data.encoding["columns"]


@pytest.mark.parametrize(
    ("form", "first"),
    [*(("csv", 2**power + 1) for power in (53, 62, 63, 70)), ("parquet", 2**53 + 1), ("parquet", 2**62 + 1)],
)
def test_large_whole_numbers_stay_different_classes(tmp_path, first, form):
    values = [first + i % 4 if i % 9 else None for i in range(90)]
    if form == "csv":
        path = text_file(
            tmp_path, "x,y\n" + "".join(f"{i % 13},{'' if v is None else v}\n" for i, v in enumerate(values))
        )
    else:
        path = tmp_path / "t.parquet"
        column = pyarrow.array(values, pyarrow.int64())
        pyarrow.parquet.write_table(pyarrow.table({"x": [i % 13 for i in range(90)], "y": column}), path)
    data = load(f"table:{path}", target="y", task="classification")
    assert data.classes == tuple(str(first + i) for i in range(4))
    labels = encoded(data.encoding, path).y.tolist()
    assert labels == [-1 if v is None else v - first for v in values]
