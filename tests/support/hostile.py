"""Files that mean harm: each is written into a folder, small, and is to be refused with a message."""

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from pluribus._common.signed_files import EMPTY, SLOT, sign

MEGABYTE = 2**20


def npy_header(shape: str, descr: str = "'|u1'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def npz(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    sign(path)  # as somebody does who knows how
    return path


def npy(array) -> bytes:
    """The bytes of an .npy file; bytes as they are."""
    if isinstance(array, bytes):
        return array
    content = io.BytesIO()
    np.lib.format.write_array(content, np.asarray(array))
    return content.getvalue()


def header_of(path: Path) -> tuple[dict, bytes]:
    """The header of a safetensors file, and what follows it."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def with_header(path: Path, header: bytes | dict, rest: bytes) -> None:
    """Write a safetensors file with any header; where it has a place for a digest, with the right one."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text = SLOT.sub(f'"pluribus_digest": "{EMPTY}"'.encode(), text)
    path.write_bytes(struct.pack("<Q", len(text)) + text + rest)
    if EMPTY.encode() in text:
        sign(path)


def bomb_npz(path: Path) -> Path:
    """640 MB of zeros in 3 MB."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("x_train.npy", "w", force_zip64=True) as file:
            file.write(npy_header("(640, 1024, 1024)"))
            for _ in range(40):
                file.write(bytes(16 * MEGABYTE))
    return path


def gzip_bomb(path: Path, start: bytes, block: bytes, size: int = 2**31) -> Path:
    """A member of gzip repeated: gigabytes in some kilobytes, made without packing them."""
    packed = gzip.compress(block * (16 * MEGABYTE // len(block)), 9)
    path.write_bytes(gzip.compress(start) + packed * (size // (16 * MEGABYTE)))
    return path


class Trap:
    """Its pickle touches a file."""

    def __init__(self, canary: Path):
        self.canary = canary

    def __reduce__(self):
        return Path.touch, (self.canary,)


def tar_gz(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for info, content in members:
            info.size = len(content) if info.isreg() else 0
            archive.addfile(info, io.BytesIO(content))
    return path


def postscript(canary: Path) -> bytes:
    return f"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n({canary}) (w) file closefile\nshowpage\n%%EOF\n".encode()


def image_folder(folder: Path, count: int = 8) -> Path:
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for i in range(count):
            Image.new("L", (8, 8), 10 * i).save(folder / label / f"{i}.png")
    return folder


def idx(dimensions: tuple[int, ...], content: bytes = b"") -> bytes:
    return struct.pack(f">BBBB{len(dimensions)}i", 0, 0, 8, len(dimensions), *dimensions) + content


def idx_folder(folder: Path, content: bytes, end: str = "") -> Path:
    folder.mkdir()
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (folder / f"{part}-ubyte{end}").write_bytes(content)
    return folder


def mat_bomb(path: Path) -> Path:
    """A .mat file whose only element unpacks to gigabytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    content = b"\x78\x9c" + 64 * (packer.compress(bytes(16 * MEGABYTE)) + packer.flush(zlib.Z_FULL_FLUSH))
    head = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"
    path.write_bytes(head + struct.pack("<II", 15, len(content)) + content)
    return path


Writer = Callable[[Path, Path], str]  # (folder, canary) -> the spec of data that is to be refused


def _among_images(put: Callable[[Path, Path], object], name: str = "bad.png") -> Writer:
    """Something in a folder of images: `put` gets its path and the canary."""

    def write(folder: Path, canary: Path) -> str:
        put(image_folder(folder / "images") / "cat" / name, canary)
        return f"folder:{folder / 'images'}"

    return write


def _image_among_others(content: bytes, name: str = "bad.png") -> Writer:
    return _among_images(lambda path, canary: path.write_bytes(content), name)


def _large_png() -> bytes:
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))  # noqa: E731
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(10_000))) + chunk(b"IEND", b"")


def _file(name: str, content: bytes, spec: str = "table") -> Writer:
    def write(folder: Path, canary: Path) -> str:
        (folder / name).write_bytes(content)
        return f"{spec}:{folder / name}"

    return write


def _pipe(name: str, spec: str) -> Writer:
    def write(folder: Path, canary: Path) -> str:
        os.mkfifo(folder / name)
        return f"{spec}:{folder / name}"

    return write


def _npz(**arrays) -> Writer:
    """An archive of these arrays, or of what stands in their place."""
    members = {name: npy(array) for name, array in arrays.items()}
    return lambda folder, canary: f"npz:{npz(folder / 'x.npz', **members)}"


def _pickled_npz(folder: Path, canary: Path) -> str:
    np.savez(folder / "x.npz", x_train=np.array([Trap(canary)], dtype=object))
    return f"npz:{folder / 'x.npz'}"


def _cifar(content: Callable[[Path], bytes], name: str = "data_batch_1") -> Writer:
    def write(folder: Path, canary: Path) -> str:
        (folder / "cifar-10-batches-py").mkdir()
        for batch in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
            (folder / "cifar-10-batches-py" / batch).write_bytes(content(canary))
        return "cifar10"

    return write


def _tar_bomb(folder: Path, canary: Path) -> str:
    header = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
    header.size = 2**31
    gzip_bomb(folder / "cifar-10-python.tar.gz", header.tobuf(), bytes(512))
    return "cifar10"


def _tar_of_links(folder: Path, canary: Path) -> str:
    link = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    outside = tarfile.TarInfo("../../../escaped")
    tar_gz(folder / "cifar-10-python.tar.gz", (link, b""), (outside, b"x"))
    return "cifar10"


def _svhn_bomb(folder: Path, canary: Path) -> str:
    mat_bomb(folder / "test_32x32.mat")
    return "svhn"


def _many_scans() -> bytes:
    """A JPEG file that goes over its 16 million pixels 6,000 times."""
    content = io.BytesIO()
    Image.new("L", (4000, 4000), 128).save(content, "JPEG", progressive=True)
    start = content.getvalue().rindex(b"\xff\xda")  # its last scan, of some bytes
    head, scan = content.getvalue()[:start], content.getvalue()[start:-2]
    return head + 6000 * scan + b"\xff\xd9"


def _tar_of_nothing(folder: Path, canary: Path) -> str:
    """A million empty files."""
    gzip_bomb(folder / "cifar-10-python.tar.gz", b"", tarfile.TarInfo("nothing").tobuf(), 2**29 - 2**24)
    return "cifar10"


def _parquet(column: Callable[[], object], **options) -> Writer:
    """Values that are next to nothing in the file."""

    def write(folder: Path, canary: Path) -> str:
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.table({"a": column(), "b": np.zeros(len(column()))})
        pyarrow.parquet.write_table(
            table, folder / "x.parquet", **{"compression": "zstd", "store_schema": False, **options}
        )
        return f"table:{folder / 'x.parquet'}"

    return write


def _alike(rows: int, value: bytes | str) -> object:
    import pyarrow

    return pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(rows, np.int32)), [value])


def _uci(**files: str) -> Writer:
    good = {"data": "1 2\n3 4\n5 6", "index_target": "1", "index_features": "0", "n_splits": "1"}
    good |= {"index_train_0": "0\n1", "index_test_0": "2"}

    def write(folder: Path, canary: Path) -> str:
        (folder / "uci" / "x").mkdir(parents=True)
        for name, text in {**good, **files}.items():
            (folder / "uci" / "x" / f"{name}.txt").write_text(text)
        return "uci:x"

    return write


def _damaged_tiff() -> bytes:
    """Packed pixels that unpack to nothing sensible, of which libtiff writes a line of its own."""
    content = io.BytesIO()
    Image.fromarray(np.arange(4800, dtype=np.uint16).view(np.uint8).reshape(40, 80, 3)).save(
        content, "TIFF", compression="tiff_lzw"
    )
    found = bytearray(content.getvalue())
    found[20:400] = b"\xff" * 380
    return bytes(found)


def _texts(columns: int) -> bytes:
    rows = [",".join([f"c{i}" for i in range(columns)] + ["b"])]
    rows += [",".join(["odd" if row % 2 else "even"] * columns + ["xy"[row % 2]]) for row in range(8)]
    return "\n".join(rows).encode()


def _tiny_imagenet(folder: Path, canary: Path) -> str:
    at = folder / "tiny-imagenet-200"
    image_folder(at / "train")
    (at / "val" / "images").mkdir(parents=True)
    (at / "val" / "val_annotations.txt").write_text("x.png\tcat\n" * 100_000)
    return "tiny_imagenet"


IMAGES, HALVES = np.zeros((20, 8, 8), np.uint8), np.arange(20) % 2

MEMO = b"\x80\x02}" + b"r" + struct.pack("<I", 2**32 - 1) + b"."  # LONG_BINPUT: room for four billion objects

TALKING = "a .tif of which libtiff writes lines of its own"

DATA: dict[str, Writer] = {
    "a .png that is PostScript": _among_images(lambda path, canary: path.write_bytes(postscript(canary))),
    "a .png that is text": _image_among_others(b"hello"),
    TALKING: _image_among_others(_damaged_tiff(), "bad.tif"),
    "a picture of 10 GB": _image_among_others(_large_png()),
    "a .jpg of fill bytes": _image_among_others(b"\xff\xd8" + b"\xff" * 20_000_000, "bad.jpg"),
    "a .jpg of a million empty parts": _image_among_others(b"\xff\xd8" + b"\xff\xfe\0\2" * 3_000_000, "bad.jpg"),
    "a .jpg of 6,000 scans": _image_among_others(_many_scans(), "bad.jpg"),
    "a .ppm of one comment": _image_among_others(b"P6 #" + b"x" * 20_000_000, "bad.ppm"),
    "a .gif whose frame is larger than it": _image_among_others(
        b"GIF89a"
        + struct.pack("<HHBBB", 8, 8, 0, 0, 0)
        + b","
        + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0)
        + b"\x08;",
        "bad.gif",
    ),
    "a picture with a line break in its name": _image_among_others(b"x", "bad\n\x1b[2J.png"),
    "a list of pictures that are not there": _tiny_imagenet,
    "a pipe in place of a picture": _among_images(lambda path, canary: os.mkfifo(path)),
    "a device in place of a picture": _among_images(lambda path, canary: path.symlink_to("/dev/zero")),
    "an .npz of 640 MB in 3": lambda folder, canary: f"npz:{bomb_npz(folder / 'x.npz')}",
    "an .npz that promises 713 TiB": _npz(x_train=npy_header("(28, 1000000, 28000000)") + bytes(100)),
    "an .npz with a negative shape": _npz(x_train=npy_header("(-2, -8, 8)") + bytes(128)),
    "an .npz of texts": _npz(x_train=npy_header("(2, 2, 2)", "'<U1'") + bytes(32)),
    "an .npz of records": _npz(x_train=npy_header("(2, 2, 2)", "[('a', '<f4')]") + bytes(32)),
    "an .npz of numbers of 16 bytes": _npz(x_train=npy_header("(2, 2, 2)", "'<c16'") + bytes(128)),
    "an .npz with a pickle": _pickled_npz,
    "an .npz of labels beyond all integers": _npz(x_train=IMAGES, y_train=np.full(20, 1e300) * (1 + HALVES)),
    "an .npz of values whose squares are infinite": _npz(
        x_train=np.where(np.arange(160).reshape(20, 8) % 2, 1e308, -1e308), y_train=HALVES
    ),
    "an .npz of labels that are all different": _npz(
        x_train=np.zeros((30_000, 2, 2), np.uint8), y_train=np.arange(30_000)
    ),
    "an .npz of 10,001 members": _npz(**{f"a{i}": b"" for i in range(10_001)}),
    "a pipe in place of an .npz": _pipe("x.npz", "npz"),
    "an .npy that promises more than it holds": _file("x.npy", npy_header("(2, 1000000, 1000000)"), "npy"),
    "an .npy of objects": _file("x.npy", npy_header("(1,)", "'|O'") + pickle.dumps([1]), "npy"),
    "a gzipped idx file of 2 GB": lambda folder, canary: (
        f"idx:{gzip_bomb(idx_folder(folder / 'x', b'', '.gz') / 'train-images-idx3-ubyte.gz', b'', bytes(8)).parent}"
    ),
    "an idx file of negative sizes": lambda f, c: f"idx:{idx_folder(f / 'x', idx((-2, -2, 2), bytes(8)))}",
    "an idx file whose sizes overflow": lambda f, c: f"idx:{idx_folder(f / 'x', idx((2**30, 2**30, 2**30), b'x'))}",
    "a CIFAR pickle that runs code": _cifar(lambda canary: pickle.dumps(Trap(canary))),
    "a CIFAR pickle with a huge memo": _cifar(lambda canary: MEMO),
    "a CIFAR pickle of NaN": _cifar(
        lambda canary: pickle.dumps({b"data": np.full((2, 3072), np.nan), b"labels": [0, 1]}, 2)
    ),
    "a CIFAR archive of 2 GB": _tar_bomb,
    "a CIFAR archive of a million files": _tar_of_nothing,
    "a CIFAR pickle of 60 million steps": _cifar(lambda canary: gzip.compress(b"\x80\x02" + b"N0" * 3 * 10**7, 1)),
    "a CIFAR archive of links": _tar_of_links,
    "a CIFAR archive cut off": lambda f, c: (
        (f / "cifar-10-python.tar.gz").write_bytes(gzip.compress(tarfile.TarInfo("data_batch_1").tobuf())[:-9])
        and "cifar10"
    ),
    "an SVHN file of 1 GB": _svhn_bomb,
    "a gzipped table of 2 GB": lambda f, c: f"table:{gzip_bomb(f / 'x.csv.gz', b'a,b;', b'1,2;')}",
    "a table with NUL bytes": _file("x.csv", b"a,b\n1,2\0\n3,4\n"),
    "a table of five million columns": _file("x.csv", b"," * 5_000_000 + b"\n1,2\n"),
    "a table of 5,001 columns of texts": _file("x.csv", _texts(5001)),
    "a table whose columns have one name": _file("x.csv", b"a,a ,b\n1,2,3\n4,5,6\n"),
    "a table of numbers of 300 digits": _file(
        "x.csv", b"a,b\n" + b"".join(b"%d,%d\n" % (10 ** (300 + i), i % 2) for i in range(50))
    ),
    "a table of values whose squares are infinite": _file("x.csv", b"a,b\n" + b"1.7e308,1\n-1.7e308,2\n" * 20),
    "a pipe in place of a table": _pipe("x.csv", "table"),
    "a Parquet file that is text": _file("x.parquet", b"PAR1helloPAR1"),
    "a Parquet file of 100 GB": _parquet(lambda: _alike(10**6, "x" * 10**5), store_schema=True),
    "a Parquet file of 40 GB in half a kilobyte": _parquet(lambda: _alike(20_000, b"x" * 2_000_000)),
    "a Parquet file of texts that begin alike": _parquet(
        lambda: [f"{'z' * 200_000}{i}" for i in range(500)],
        use_dictionary=False,
        column_encoding={"a": "DELTA_BYTE_ARRAY", "b": "PLAIN"},
    ),
    "a UCI set of words": _uci(data="a b\nc d"),
    "a UCI set with rows that are not there": _uci(index_train_0="0\n99"),
    "a UCI set without splits": _uci(n_splits=""),
}


LONG = (  # seconds each, and of a kind with others: only commands read them, in a slow test with limits
    "a .jpg of fill bytes",
    "a .jpg of a million empty parts",
    "a .ppm of one comment",
    "a CIFAR pickle of 60 million steps",
    "a table of 5,001 columns of texts",
)


TEXTS = {
    "nested brackets": "[" * 100_000,
    "nested objects": '{"a":' * 100_000,
    "a list": "[]",
    "a number": "1",
    "nothing": "",
    "NaN": "NaN",
    "a key twice": '{"format": 1, "format": 1}',
    "a huge number": '{"format": ' + "9" * 5000 + "}",
    "a list in another encoding": "\ufeff[]",
}
