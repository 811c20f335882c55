"""An ensemble in the browser: draw a digit, and see its label, confidence, aleatoric and epistemic uncertainty.

You learn: the file that `pb.export` writes runs in a web page, too, by onnxruntime-web. This script trains an ensemble,
exports it as a cascade, which runs as many members as a drawing needs, takes the runtime from npm (by name, once), and
writes all of it into one page, `digits.html`, that fetches nothing: open it from the folder, or put it on any web
server. It is written into FOLDER.

Usage: python examples/browser/build.py [FOLDER]
"""

import base64
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import torch

import pluribus as pb

RUNTIME = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")  # of the npm package onnxruntime-web


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "browser-build")
    folder.mkdir(parents=True, exist_ok=True)
    code, wasm = runtime(folder)
    data = pb.data.load("digits")
    ensemble = train(data)
    figures = pb.evaluate(ensemble.predict(data.test[:][0]), data.test[:][1])
    print(f"accuracy {figures['accuracy']:.3f}, NLL {figures['nll']:.3f} on test digits")
    pb.save(ensemble, folder / "digits.safetensors")
    cascade = pb.cascade(ensemble, data.validation[:], margin=0.05)
    print(cascade.explain())
    print(pb.export(cascade, data.train[:2][0], folder / "digits.onnx").explain())
    write_page(folder, model=(folder / "digits.onnx").read_bytes(), code=code, wasm=wasm)


def train(data: pb.data.Data) -> pb.Ensemble:
    torch.manual_seed(0)
    network = pb.models.small_cnn(10, 0.5, channels=1, image=28, dropout=0.0)
    ensemble = pb.packed(network, 4, alpha=2, example=data.train[:2][0])
    pb.fit(ensemble, data.train[:], epochs=6, batch_size=64, lr=3e-3, optimizer="adam", schedule="cosine")
    return ensemble


def write_page(folder: Path, **files: bytes) -> None:
    """One page with all files inside."""
    page = (Path(__file__).parent / "page.html").read_text()
    for name, content in files.items():
        page = page.replace(f"{{{{{name}}}}}", base64.b64encode(content).decode())
    (folder / "digits.html").write_text(page)
    print(f"The page is {folder / 'digits.html'}, {len(page) / 2**20:.0f} MiB. Open it in a browser.")


def runtime(folder: Path) -> list[bytes]:
    """The code and the WebAssembly of onnxruntime-web, from npm at the first time."""
    if not list(folder.glob("onnxruntime-web-*.tgz")):
        if shutil.which("npm") is None:
            sys.exit("This example takes onnxruntime-web from npm, but there is no npm. Install Node.js.")
        subprocess.run(["npm", "pack", "--silent", "onnxruntime-web@1"], cwd=folder, check=True, stdout=subprocess.PIPE)
    with tarfile.open(next(folder.glob("onnxruntime-web-*.tgz"))) as archive:
        found = [archive.extractfile(f"package/dist/{name}") for name in RUNTIME]
        return [file.read() for file in found if file]


if __name__ == "__main__":
    main()
