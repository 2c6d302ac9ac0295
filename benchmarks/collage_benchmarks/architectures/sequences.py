"""Architectures that read text, sound, graphs and tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from types import MappingProxyType

import torch
import transformers
from torch import Tensor, nn

from collage_benchmarks.architectures.answers import Answering
from collage_benchmarks.architectures.architecture import Architecture

__all__ = ["SEQUENCES"]

_WORDS = 1000
"""In every vocabulary."""


def _ids(*shape: int) -> Tensor:
    return torch.randint(0, _WORDS, shape)


def _bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=_WORDS, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
    )
    return Answering(transformers.BertModel(config, add_pooling_layer=False), "input_ids", "attention_mask")


def _gpt2() -> nn.Module:
    config = transformers.GPT2Config(vocab_size=_WORDS, n_positions=256, n_embd=256, n_layer=4, n_head=4)
    return Answering(transformers.GPT2LMHeadModel(config), "input_ids", use_cache=False)


def _t5() -> nn.Module:
    # With its other attention PyTorch 2.13 fails to decompose what it has exported.
    config = transformers.T5Config(
        vocab_size=_WORDS,
        d_model=256,
        d_kv=64,
        d_ff=1024,
        num_layers=4,
        num_heads=4,
        attn_implementation="eager",
    )
    return Answering(transformers.T5EncoderModel(config), "input_ids")


def _whisper() -> nn.Module:
    config = transformers.WhisperConfig(
        vocab_size=_WORDS,
        d_model=256,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=1024,
        decoder_ffn_dim=1024,
        max_source_positions=500,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return Answering(
        transformers.WhisperModel(config), "input_features", "decoder_input_ids", use_cache=False
    )


def _wav2vec2() -> nn.Module:
    config = transformers.Wav2Vec2Config(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
    )
    return Answering(transformers.Wav2Vec2Model(config), "input_values")


class _LlamaBlock(nn.Module):  # type: ignore[misc]
    """One block of Touvron et al. (arXiv 2302.13971) with grouped queries (arXiv 2305.13245), which reads and
    extends a cache: keys and values of what was before.
    """

    width, heads, key_heads, inner = 512, 8, 2, 1376

    def __init__(self) -> None:
        super().__init__()
        self.size = self.width // self.heads
        kept = self.key_heads * self.size
        self.query = nn.Linear(self.width, self.width, bias=False)
        self.key, self.value = (nn.Linear(self.width, kept, bias=False) for _ in range(2))
        self.out = nn.Linear(self.width, self.width, bias=False)
        self.gate, self.up = (nn.Linear(self.width, self.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(self.inner, self.width, bias=False)
        self.before, self.between = nn.RMSNorm(self.width, 1e-5), nn.RMSNorm(self.width, 1e-5)
        self.register_buffer("rates", 10000.0 ** -(torch.arange(0, self.size, 2) / self.size))

    def _turned(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotary positions (arXiv 2104.09864), the halves as in Llama."""
        angles = positions[:, None].float() * self.rates
        cos, sin = (torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin))
        half = self.size // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def forward(self, x: Tensor, past_key: Tensor, past_value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, count, past = x.shape[0], x.shape[1], past_key.shape[2]
        h = self.before(x)
        query, key, value = (
            w(h).reshape(batch, count, -1, self.size).transpose(1, 2)
            for w in (self.query, self.key, self.value)
        )
        positions = torch.arange(count, device=x.device) + past
        query, key = self._turned(query, positions), self._turned(key, positions)
        key, value = torch.cat([past_key, key], 2), torch.cat([past_value, value], 2)
        wide = self.heads // self.key_heads
        scores = query @ key.repeat_interleave(wide, 1).transpose(2, 3) / math.sqrt(self.size)
        seen = torch.arange(past + count, device=x.device)[None] <= positions[:, None]
        scores = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        mixed = (scores @ value.repeat_interleave(wide, 1)).transpose(1, 2).reshape(batch, count, -1)
        x = x + self.out(mixed)
        h = self.between(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h)), key, value


def _llama_inputs(past: int) -> tuple[Tensor, ...]:
    cache = (1, _LlamaBlock.key_heads, past, _LlamaBlock.width // _LlamaBlock.heads)
    return torch.randn(1, 1, _LlamaBlock.width), torch.randn(cache), torch.randn(cache)


class _Tagger(nn.Module):  # type: ignore[misc]
    """A tag for each word, by LSTMs in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, 128)
        self.reader = nn.LSTM(128, 128, num_layers=2, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(256, 17)

    def forward(self, words: Tensor) -> Tensor:
        return self.tags(self.reader(self.words(words))[0]).log_softmax(-1)


class _KeywordGru(nn.Module):  # type: ignore[misc]
    """A convolution over the spectrum, and what a GRU says at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(40, 128, 5, stride=2, padding=2), nn.BatchNorm1d(128), nn.ReLU())
        self.reader = nn.GRU(128, 128, num_layers=2, batch_first=True)
        self.words = nn.Linear(128, 12)

    def forward(self, spectrum: Tensor) -> Tensor:
        return self.words(self.reader(self.front(spectrum).transpose(1, 2))[0][:, -1])


class _GraphNetwork(nn.Module):  # type: ignore[misc]
    """Two layers of GraphSAGE (arXiv 1706.02216), means of neighbours."""

    def __init__(self) -> None:
        super().__init__()
        widths = (64, 128, 16)
        self.own = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.near = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))

    def forward(self, features: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        ones = torch.ones_like(source, dtype=features.dtype)
        degree = torch.zeros(features.shape[0], dtype=features.dtype).index_add(0, target, ones)
        for i, (own, near) in enumerate(zip(self.own, self.near, strict=True)):
            sums = torch.zeros_like(features).index_add(0, target, features[source])
            features = own(features) + near(sums / degree.clamp(min=1.0)[:, None])
            features = features.relu() if i == 0 else features
        return features


def _graph(edges: int) -> tuple[Tensor, Tensor]:
    return torch.randn(200, 64), torch.randint(0, 200, (2, edges))


class _Recommender(nn.Module):  # type: ignore[misc]
    """DLRM of Naumov et al. (arXiv 1906.00091), small."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(_WORDS, 32, mode="sum") for _ in range(4))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(32 + 10, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid())
        rows, columns = torch.tril_indices(5, 5, -1)
        self.register_buffer("pairs", rows * 5 + columns)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        looked_up = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        rows = torch.stack([bottom, *looked_up], 1)
        products = (rows @ rows.transpose(1, 2)).flatten(1)[:, self.pairs]
        return self.top(torch.cat([bottom, products], 1))


SEQUENCES: Mapping[str, Architecture] = MappingProxyType(
    {
        "bert": Architecture(
            "BERT, 4 layers",
            _bert,
            lambda size: (_ids(1, size), torch.ones(1, size, dtype=torch.int64)),
            (32, 77),
            ({1: "words"}, {1: "words"}),
        ),
        "gpt2": Architecture(
            "GPT-2, 4 layers", _gpt2, lambda size: (_ids(1, size),), (32, 77), ({1: "words"},)
        ),
        "t5": Architecture(
            "T5's encoder, 4 layers", _t5, lambda size: (_ids(1, size),), (32, 77), ({1: "words"},)
        ),
        "whisper": Architecture(
            "Whisper, 4 and 4 layers",
            _whisper,
            lambda size: (torch.randn(1, 80, 1000), _ids(1, size)),
            (4, 9),
            ({}, {1: "words"}),
        ),
        "wav2vec2": Architecture(
            "wav2vec 2.0, 4 layers", _wav2vec2, lambda size: (torch.randn(1, size),), (16000,)
        ),
        "llama_block": Architecture(
            "Llama's block with a cache",
            _LlamaBlock,
            _llama_inputs,
            (64, 127),
            ({}, {2: "past"}, {2: "past"}),
        ),
        "lstm": Architecture(
            "LSTM tagger, both directions", _Tagger, lambda size: (_ids(size, 32),), (4, 1), ({0: "batch"},)
        ),
        "gru": Architecture(
            "GRU on a spectrum",
            _KeywordGru,
            lambda size: (torch.randn(size, 40, 100),),
            (4, 1),
            ({0: "batch"},),
        ),
        "graph_network": Architecture(
            "GraphSAGE, 200 nodes", _GraphNetwork, _graph, (800, 501), ({}, {1: "edges"})
        ),
        "recommender": Architecture(
            "DLRM, 4 tables",
            _Recommender,
            lambda size: (torch.rand(size, 13), torch.randint(0, _WORDS, (size, 4, 3))),
            (8, 32),
            ({0: "batch"}, {0: "batch"}),
        ),
    }
)
