"""Pickles as Python and numpy write them, and damaged ones; those that would run code are in test_image_archives."""

import pickle

import numpy as np
import pytest

from pluribus.data.safe_pickle import unpickle


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("kind", ["u1", "<i2", ">i4", "<f8", "?"])
@pytest.mark.parametrize("order", "CF")
def test_arrays_in_pickles_of_every_protocol_are_read(tmp_path, protocol, kind, order):
    array = np.asarray(np.random.default_rng(0).integers(0, 2, (3, 5)), dtype=kind, order=order)
    data = pickle.dumps({"data": array, "n": [1, 2]}, protocol)
    found = unpickle(data, tmp_path)
    assert np.array_equal(found["data"], array) and found["data"].dtype == array.dtype and found["n"] == [1, 2]


def test_pickles_as_python_2_wrote_them_are_read(tmp_path):
    # By hand, as the published files are: text is bytes, the array's bytes are a Python 2 string.
    data = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87R"
        b"(K\x01K\x02K\x03\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89U\x06\x01\x02\x03\xfd\xfe\xfftbU\x06labels]q\x05(K\x06K\x09eu."
    )
    found = unpickle(data, tmp_path)
    assert found["data"].tolist() == [[1, 2, 3], [253, 254, 255]] and found["labels"] == [6, 9]


def test_pickle_of_objects_in_an_array_is_refused(tmp_path):
    data = pickle.dumps({"data": np.array([1, "x"], dtype=object)}, 2)
    with pytest.raises(ValueError, match="an array of O"):
        unpickle(data, tmp_path)
