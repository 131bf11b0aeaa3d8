"""The attention of models that people use: their heads, and the lengths and batches of calls.

The heads stand in the configuration of each model (``config.json``, or the model card). Lengths are those of training,
of prompts and of a cache while a model writes; for pictures and sound, those of the model. A call per language model is
drawn at random, so that the list is not only of round numbers.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

SEED = 20261129
LONGEST, MOST = 65536, 32768  # largest numbers: keys of a call, tokens of a random call


class Model(NamedTuple):
    """The heads of a model. A window counts the keys before a query that it sees; None: all of them."""

    name: str
    family: str
    source: str  # of the numbers: a model of the Hugging Face hub, or a project
    H: int
    Hk: int
    d: int
    dv: int
    causal: bool = True
    window: int | None = None
    cap: float | None = None
    sinks: bool = False


class Call(NamedTuple):
    """One call of a model's attention: its pass, and how many texts, queries and keys."""

    model: Model
    direction: str  # "forward", "backward", or "decode": one query per text, on a cache
    B: int
    Nq: int
    Nk: int

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that it sees, in one head. The queries are the last ones."""
        m = self.model
        if not m.causal:
            return self.Nq * self.Nk
        last = np.arange(self.Nk - self.Nq, self.Nk)  # [Nq], the last key of each query
        return int(np.minimum(last + 1, self.Nk if m.window is None else m.window + 1).sum())

    @property
    def flops(self) -> int:
        """FLOPs of the products over these pairs: two forward; five backward, with S anew."""
        m = self.model
        widths = 3 * m.d + 2 * m.dv if self.direction == "backward" else m.d + m.dv
        return 2 * self.B * m.H * self.pairs * widths

    def __str__(self):
        keys = "" if self.Nq == self.Nk else f" x {self.Nk}"
        return f"{self.model.name}, {self.direction}, {self.B} x {self.Nq}{keys}"


WEIGHTS = {  # of a family in the mean over all: its share of what people run
    "Llama 3": 4, "Qwen 3": 4, "DeepSeek": 3, "Gemma": 2, "gpt-oss": 2, "diffusion": 2, "Mistral": 1, "Phi": 1,
    "GPT-2": 1, "BERT": 1, "vision": 1, "Whisper": 1, "NVIDIA": 1,
}  # fmt: skip

LLAMA_8B = Model("Llama 3 8B", "Llama 3", "meta-llama/Meta-Llama-3-8B", 32, 8, 128, 128)
LLAMA_70B = Model("Llama 3 70B", "Llama 3", "meta-llama/Meta-Llama-3-70B", 64, 8, 128, 128)
QWEN_06B = Model("Qwen 3 0.6B", "Qwen 3", "Qwen/Qwen3-0.6B", 16, 8, 128, 128)
QWEN_30B = Model("Qwen 3 30B-A3B", "Qwen 3", "Qwen/Qwen3-30B-A3B", 32, 4, 128, 128)
QWEN_32B = Model("Qwen 3 32B", "Qwen 3", "Qwen/Qwen3-32B", 64, 8, 128, 128)
DEEPSEEK = Model("DeepSeek-V3", "DeepSeek", "deepseek-ai/DeepSeek-V3", 128, 128, 192, 128)
LATENT = Model("DeepSeek-V3, latent", "DeepSeek", "deepseek-ai/DeepSeek-V3", 128, 1, 576, 512)
GEMMA_2 = Model("Gemma 2 9B", "Gemma", "google/gemma-2-9b", 16, 8, 256, 256, cap=50.0)
GEMMA_2_WINDOW = Model("Gemma 2 9B, window", "Gemma", "google/gemma-2-9b", 16, 8, 256, 256, window=4095, cap=50.0)
GEMMA_3 = Model("Gemma 3 12B", "Gemma", "google/gemma-3-12b-pt", 16, 8, 256, 256)
GEMMA_3_WINDOW = Model("Gemma 3 12B, window", "Gemma", "google/gemma-3-12b-pt", 16, 8, 256, 256, window=1023)
GEMMA_27B = Model("Gemma 3 27B, window", "Gemma", "google/gemma-3-27b-pt", 32, 16, 128, 128, window=1023)
OSS = Model("gpt-oss", "gpt-oss", "openai/gpt-oss-20b", 64, 8, 64, 64, sinks=True)
OSS_WINDOW = Model("gpt-oss, window", "gpt-oss", "openai/gpt-oss-20b", 64, 8, 64, 64, window=127, sinks=True)
MISTRAL = Model("Mistral 7B", "Mistral", "mistralai/Mistral-7B-v0.1", 32, 8, 128, 128, window=4095)
PHI_3 = Model("Phi-3-mini", "Phi", "microsoft/Phi-3-mini-4k-instruct", 32, 32, 96, 96, window=2046)
PHI_2 = Model("Phi-2", "Phi", "microsoft/phi-2", 32, 32, 80, 80)
GPT_2 = Model("GPT-2", "GPT-2", "openai-community/gpt2", 12, 12, 64, 64)
GPT_2_XL = Model("GPT-2 XL", "GPT-2", "openai-community/gpt2-xl", 25, 25, 64, 64)
BERT = Model("BERT base", "BERT", "google-bert/bert-base-uncased", 12, 12, 64, 64, causal=False)
BERT_LARGE = Model("BERT large", "BERT", "google-bert/bert-large-uncased", 16, 16, 64, 64, causal=False)
VIT = Model("ViT-H/14", "vision", "google/vit-huge-patch14-224-in21k", 16, 16, 80, 80, causal=False)
SAM = Model("SAM ViT-H", "vision", "facebook/sam-vit-huge", 16, 16, 80, 80, causal=False)
SIGLIP = Model("SigLIP so400m", "vision", "google/siglip-so400m-patch14-384", 16, 16, 72, 72, causal=False)
SD_3 = Model("Stable Diffusion 3", "diffusion", "stabilityai/stable-diffusion-3-medium", 24, 24, 64, 64, causal=False)
SDXL = Model("SDXL", "diffusion", "stabilityai/stable-diffusion-xl-base-1.0", 10, 10, 64, 64, causal=False)
PIXART = Model("PixArt", "diffusion", "PixArt-alpha/PixArt-XL-2-1024-MS", 16, 16, 72, 72, causal=False)
FLUX = Model("FLUX.1", "diffusion", "black-forest-labs/FLUX.1-dev", 24, 24, 128, 128, causal=False)
WAN = Model("Wan 2.1 1.3B", "diffusion", "Wan-AI/Wan2.1-T2V-1.3B", 12, 12, 128, 128, causal=False)
WHISPER = Model("Whisper large", "Whisper", "openai/whisper-large-v3", 20, 20, 64, 64, causal=False)
NVIDIA = Model("NVIDIA's H200 table", "NVIDIA", "NVIDIA/cudnn-frontend, benchmark, llama3.1", 64, 8, 128, 128)

BATCHES = {  # texts, queries and keys; (texts, tokens) where both are the same
    LLAMA_8B: [(1, 512), (4, 2048), (2, 8192), (1, 65536), (1, 1024, 16384)],
    LLAMA_70B: [(1, 4096), (1, 16384)],
    QWEN_06B: [(8, 1024), (1, 4096)],
    QWEN_30B: [(2, 4096), (1, 32768)],
    QWEN_32B: [(1, 8192)],
    DEEPSEEK: [(1, 1024), (1, 4096)],
    GEMMA_2: [(2, 4096)],
    GEMMA_2_WINDOW: [(1, 8192)],
    GEMMA_3: [(4, 4096)],
    GEMMA_3_WINDOW: [(1, 16384)],
    GEMMA_27B: [(1, 16384)],
    OSS: [(1, 2048), (2, 8192)],
    OSS_WINDOW: [(1, 2048), (2, 8192)],
    MISTRAL: [(4, 2048), (1, 16384)],
    PHI_3: [(4, 4096)],
    PHI_2: [(8, 2048)],
    GPT_2: [(8, 1024), (64, 1024)],
    GPT_2_XL: [(16, 1024)],
    BERT: [(32, 512)],
    BERT_LARGE: [(8, 512)],
    VIT: [(64, 257)],
    SAM: [(2, 4096)],
    SIGLIP: [(32, 729)],
    SD_3: [(2, 4429)],  # 64 x 64 places of the picture, 77 + 256 of the text
    SDXL: [(2, 4096), (2, 4096, 77)],
    PIXART: [(2, 4096), (2, 4096, 120)],
    FLUX: [(1, 4608)],
    WAN: [(1, 32760), (1, 32760, 512)],  # 21 x 30 x 52 places of a film
    WHISPER: [(8, 1500), (16, 448, 1500)],
    NVIDIA: [(2, 2048), (2, 4096), (2, 8192), (2, 16384), (2, 32768)],
}  # fmt: skip

CACHES = {  # texts, and keys of each, while a model writes
    LLAMA_8B: [(1, 8192), (64, 4096)],
    LLAMA_70B: [(16, 16384), (1, 65536)],
    QWEN_06B: [(3, 700)],
    QWEN_30B: [(32, 8192)],
    GEMMA_3: [(16, 8192)],
    GEMMA_3_WINDOW: [(16, 8192)],
    OSS: [(32, 4096)],
    OSS_WINDOW: [(32, 4096)],
    MISTRAL: [(16, 16384)],
    LATENT: [(64, 8192)],
    PHI_3: [(32, 2048)],
    WHISPER: [(32, 1500)],
}  # fmt: skip
WRITES = [model for model in BATCHES if model.causal and model.family != "NVIDIA"]


def drawn(models: list[Model] = WRITES, seed: int = SEED) -> Iterator[tuple[Model, int, int]]:
    """Yield a model, texts and tokens of each, for every model: 512 to ``LONGEST`` tokens, uniform in log N."""
    rng = np.random.default_rng(seed)
    for model in models:
        N = int(2 ** rng.uniform(9, np.log2(LONGEST)))
        yield model, int(rng.integers(1, max(1, MOST // N) + 1)), N


def calls() -> list[Call]:
    """Return every call: the steps of decoding, then both passes of the batches and of those that are drawn."""
    batches = [(model, *batch) for model, some in BATCHES.items() for batch in some]
    batches = [(model, B, N, *(Nk or (N,))) for model, B, N, *Nk in [*batches, *drawn()]]
    found = [Call(model, direction, B, Nq, Nk) for model, B, Nq, Nk in batches for direction in ("forward", "backward")]
    return [Call(model, "decode", B, 1, N) for model, some in CACHES.items() for B, N in some] + found
