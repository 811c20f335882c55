"""A web server for the exported file, under load from eight threads, without Pluribus or PyTorch.

You learn: `pb.export` writes one ONNX file that gives label, confidence and uncertainties; `onnxruntime` runs it from
many threads at once. It is a cascade: `members` says how many networks each row needed. The server answers JSON on the
loopback address; every answer is compared with `cascade.predict`.
"""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen

import numpy as np
import onnxruntime
import torch

import pluribus as pb


class Answer(BaseHTTPRequestHandler):
    """POST {"pixels": [rows of 64 numbers]} -> {"label": [...], "confidence": [...], "epistemic": [...], ...}."""

    session: onnxruntime.InferenceSession

    def do_POST(self) -> None:  # noqa: N802, the name that http.server calls
        try:
            pixels = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["pixels"]
            x = np.asarray(pixels, np.float32).reshape(-1, 1, 8, 8)
            names = [output.name for output in self.session.get_outputs()]
            values = self.session.run(None, {self.session.get_inputs()[0].name: x})
            status, answer = 200, {name: value.tolist() for name, value in zip(names, values, strict=True)}
        except (KeyError, TypeError, ValueError) as error:
            status, answer = 400, {"error": str(error)}
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


def main() -> None:
    torch.manual_seed(0)
    data = pb.data.load("sklearn_digits")
    ensemble = pb.packed(pb.models.mlp(64, 10, hidden=(64, 64)), 4, alpha=2, example=data.train[:2][0])
    pb.fit(ensemble, data.train[:], epochs=15, batch_size=64, lr=1e-2, optimizer="adam")
    cascade = pb.cascade(ensemble, data.validation[:], margin=0.05)
    pb.export(cascade, data.train[:2][0], "digits.onnx")

    Answer.session = onnxruntime.InferenceSession("digits.onnx", providers=["CPUExecutionProvider"])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)  # any free port, this machine only
    threading.Thread(target=server.serve_forever, daemon=True).start()
    x = data.test[:][0]
    requests = [x[i : i + 4].flatten(1).tolist() for i in range(0, len(x), 4)] * 3

    def ask(pixels: list) -> dict:
        body = json.dumps({"pixels": pixels}).encode()
        with urlopen(f"http://127.0.0.1:{server.server_port}", body) as reply:
            return json.load(reply)

    start = time.perf_counter()
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(ask, requests))
    seconds = time.perf_counter() - start
    server.shutdown()
    server.server_close()
    print(f"{len(answers)} requests of up to 4 rows from 8 threads, {len(answers) / seconds:.0f} per second")
    members = np.concatenate([answer["members"] for answer in answers])
    print(f"members that answered a row, on average: {members.mean():.2f} of {ensemble.size}")
    expected = cascade.predict(x)
    for name in ("label", "confidence", "aleatoric", "epistemic"):
        served = np.concatenate([answer[name] for answer in answers])
        apart = abs(served - np.tile(getattr(expected, name).numpy(), 3)).max()
        print(f"{name:10} differs from cascade.predict by at most {apart:.0e}")


if __name__ == "__main__":
    main()
