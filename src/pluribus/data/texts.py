"""Texts in a column of a table become the numbers of their tokens, by the tokenizer of the model that reads them."""

from __future__ import annotations

import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .source import Request, list_names
from .text_folders import quietly, read_config, read_tokenizer

LONG = ("cut", "refuse")  # what becomes of texts that are longer than the model takes
OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer")  # theirs begin behind the padding's
TEXT_COLUMN = {"name": str, "kind": str, "tokenizer": str, "length": int, "most": int, "long": str}


def check_tokenizer(request: Request) -> str:
    """The folder of the tokenizer, which is that of the model."""
    if request.tokenizer is None:
        raise ValueError(
            f"{request.spec}: texts need the tokenizer of a model. Give its folder with tokenizer= (command "
            "line: --model hf:FOLDER)."
        )
    folder = Path(request.tokenizer).expanduser().absolute()
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"tokenizer: {str(folder)!r} must be a transformers folder, but it has no config.json. Give the "
            "folder that save_pretrained wrote."
        )
    return str(folder)


def text_rule(frame: Any, request: Request, notes: list[str]) -> dict[str, Any]:
    """How texts become numbers, as all rows of a table without its target say; what is cut is said in the notes."""
    name, folder, long = _text_column(frame, request.spec, notes), check_tokenizer(request), request.long_texts
    column = {"name": name, "kind": "text", "tokenizer": folder, "length": 0, "most": most_tokens(folder), "long": long}
    lengths = np.array([len(row) for row in _tokens(column, frame[name], long, notes)])
    return {**column, "length": int(lengths.max())}


def encode_texts(column: dict[str, Any], values: Any) -> Tensor:
    """The numbers of the tokens, padded at the end: (rows, tokens); more than in training where texts are longer."""
    rows = _tokens(column, values, column["long"], notes=None)
    width = max([column["length"], *map(len, rows)])
    encoded = np.full((len(rows), width), _tokenizer(column["tokenizer"]).pad_token_id)
    for i, row in enumerate(rows):
        encoded[i, : len(row)] = row
    return torch.from_numpy(encoded)


def longest(config: Any, tokenizer: Any) -> int:
    """How many tokens of a text the model takes: what its positions and its tokenizer allow."""
    positions = getattr(config, "max_position_embeddings", None) or 10**9
    if config.model_type in OFFSET_POSITIONS:
        positions -= (config.pad_token_id or 0) + 1
    return int(min(positions, tokenizer.model_max_length))


def most_tokens(folder: str) -> int:
    """How many tokens the model in the folder takes."""
    try:
        config = read_config(folder)
    except ValueError as error:
        raise ValueError(f"model: hf:{folder} cannot be used: {error}.") from None
    tokenizer, known = _tokenizer(folder), getattr(config, "vocab_size", None) or 0
    if len(tokenizer) > known:
        raise ValueError(
            f"tokenizer: the one in {folder!r} has {len(tokenizer)} tokens, but the model knows {known}. Give the "
            "tokenizer that the model was trained with."
        )
    return min(longest(config, tokenizer), 2**14)


def _text_column(frame: Any, spec: str, notes: list[str]) -> str:
    """The one column that holds texts, or the one that is called so."""
    texts = [str(name) for name, values in frame.items() if any(isinstance(v, str) for v in values.dropna().head(20))]
    if len(texts) > 1 and "text" in texts:
        texts = ["text"]
    if len(texts) != 1:
        found = list_names(texts) if texts else f"only: {list_names([*map(str, frame.columns)])}"
        raise ValueError(
            f'{spec}: one column must hold the texts, but there are {found}. Call it "text", or leave the others out.'
        )
    if others := [str(name) for name in frame.columns if name != texts[0]]:
        notes.append(f'Only the texts in the column "{texts[0]}" are used: {list_names(others)} left out.')
    return texts[0]


def _tokens(column: dict[str, Any], values: Any, long: str, notes: list[str] | None) -> list[list[int]]:
    """The tokens of each text, at most as many as the model takes."""
    missing = ~np.array([isinstance(value, str) for value in values], dtype=bool)
    if missing.any():
        row = values.index[int(missing.argmax())]
        raise ValueError(f'column "{column["name"]}" must have a text in every row, but row {row} has none.')
    most = column["most"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a text is longer than the model takes is said below
        rows = _tokenize(column["tokenizer"], list(values), truncation=False)
    over = [i for i, row in enumerate(rows) if len(row) > most]
    if not over:
        return rows
    if long == "refuse":
        raise ValueError(
            f'column "{column["name"]}": the model takes {most} tokens, but {len(over)} of {len(rows)} texts have '
            f"more: row {values.index[over[0]]} has {len(rows[over[0]])}. Shorten them, or cut them (command line: "
            "--long-texts cut)."
        )
    said = f'Column "{column["name"]}": {len(over)} of {len(rows)} texts have more than {most} tokens and are cut.'
    if notes is None:
        warnings.warn(said, stacklevel=2)
    else:
        notes.append(said)
    cut = _tokenize(column["tokenizer"], [values.iloc[i] for i in over], truncation=True, max_length=most)
    for i, row in zip(over, cut, strict=True):
        rows[i] = row
    return rows


def _tokenize(folder: str, texts: list[str], **options: Any) -> list[list[int]]:
    tokenizer = _tokenizer(folder)
    try:
        return quietly(lambda: tokenizer(texts, verbose=False, **options)["input_ids"])
    except ValueError as error:  # settings of any kind that the folder has
        raise ValueError(f"tokenizer: the one in {folder!r} reads no texts ({error}).") from None


@lru_cache(maxsize=4)
def _tokenizer(folder: str) -> Any:
    try:
        tokenizer = read_tokenizer(folder)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"tokenizer: {folder!r} has none that can be read ({error}). Give the folder that save_pretrained wrote."
        ) from None
    if tokenizer.pad_token_id is None:
        raise ValueError(f"tokenizer: the one in {folder!r} has no padding token. Set its pad_token and save it again.")
    return tokenizer
