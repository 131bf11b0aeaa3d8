"""Let a Llama of Hugging Face transformers write with its own attention and with ours, and store what it wrote.

    pip install -e ".[transformers]"
    python -m flashlab.bench.llama --json notebooks/data/llama.json

Its weights are random, so it writes nonsense, but the same nonsense each time. That needs no GPU.
"""

import sys

import torch

from flashlab.bench.record import keep, origin, parser
from flashlab.kernels import DEVICE
from flashlab.machine.host import versions
from flashlab.models.transformers import register

OURS = "lab_attention"


def written(count: int = 8) -> dict[str, list[int]] | None:
    """Return for each implementation of attention the tokens that it writes after a prompt of 11 tokens.

    None without transformers.

    A KV cache is kept, and four query heads share two key/value heads.
    """
    if not versions(["transformers"]):
        return None
    from transformers import LlamaConfig, LlamaForCausalLM

    register(OURS)
    sizes = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.5}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        llama = LlamaForCausalLM(LlamaConfig(**sizes, **heads, bos_token_id=None, eos_token_id=None)).to(DEVICE).eval()
    prompt, texts = torch.arange(1, 12, device=DEVICE)[None], {}  # [1, 11]
    for implementation in ("eager", OURS):
        llama.set_attn_implementation(implementation)
        text = llama.generate(prompt, max_new_tokens=count, do_sample=False, pad_token_id=0)  # [1, 11 + count]
        texts[implementation] = text[0, prompt.shape[1] :].tolist()
    return texts


def main(argv: list[str]) -> int:
    """Run the command line. Returns 0, or 1 if transformers is missing or the file cannot be written."""
    options = parser("flashlab.bench.llama", __doc__).parse_args(argv)
    texts = written()
    if texts is None:
        print('transformers is not installed: pip install -e ".[transformers]"', file=sys.stderr)
        return 1
    for implementation, tokens in texts.items():
        print(f"{implementation:14}", *tokens)
    return int(not keep(options.json, origin("flashlab.bench.llama", argv) | {"written": texts}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
