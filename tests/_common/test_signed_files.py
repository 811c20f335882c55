"""Files that carry a digest of their contents."""

import torch

from pluribus._common.signed_files import check_digest, read_safetensors, write_safetensors


def test_equal_tensors_give_equal_files(tmp_path):
    metadata = {name: f'{name} é \n \x1f \\ "' for name in "abcdefgh"}  # eight entries: 40,320 orders
    tensors = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(2)}
    for name in ("one", "other"):
        write_safetensors(tmp_path / name, tensors, metadata)
        check_digest(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    text, read = read_safetensors(tmp_path / "one", "c")
    assert text == metadata["c"] and torch.equal(read["weight"], tensors["weight"])
