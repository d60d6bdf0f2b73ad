# ctest: TRAINER LABELS full COST 30
"""Sources of values (zshard.torch._sources) and models that are loaded by them (_load), against Transformers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "python"))

from zshard.torch import _load, _meta, _sources  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 16,
    "patch_size": 8,
}
WHISPER: dict[str, Any] = {
    "vocab_size": 96,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "num_mel_bins": 8,
    "max_source_positions": 32,
    "max_target_positions": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
BERT: dict[str, Any] = {k: v for k, v in VISION.items() if "_size" not in k} | {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
}
T5: dict[str, Any] = {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
GPT2: dict[str, Any] = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
MOE: dict[str, Any] = {"num_experts": 4, "moe_intermediate_size": 16, "head_dim": 8}
ZOO: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("AutoModelForCausalLM", "GPT2Config", GPT2),
    "llama": ("AutoModelForCausalLM", "LlamaConfig", SMALL),
    "qwen2": ("AutoModelForCausalLM", "Qwen2Config", SMALL | {"tie_word_embeddings": True}),
    "mistral": ("AutoModelForCausalLM", "MistralConfig", SMALL),
    "mixtral": ("AutoModelForCausalLM", "MixtralConfig", SMALL | {"num_local_experts": 4}),
    "qwen3_moe": ("AutoModelForCausalLM", "Qwen3MoeConfig", SMALL | MOE),
    "t5": ("AutoModelForSeq2SeqLM", "T5Config", T5),
    "bert": ("AutoModelForMaskedLM", "BertConfig", BERT),
    "vit": ("AutoModelForImageClassification", "ViTConfig", VISION),
    "mamba": (
        "AutoModelForCausalLM",
        "MambaConfig",
        GPT2 | {"num_hidden_layers": 2, "hidden_size": 32, "state_size": 8},
    ),
    "whisper": ("AutoModelForSpeechSeq2Seq", "WhisperConfig", WHISPER),
    "gemma": ("AutoModelForCausalLM", "GemmaConfig", SMALL | {"head_dim": 8}),
}
ZOO["mamba"] = ("AutoModelForCausalLM", "MambaConfig", {k: v for k, v in ZOO["mamba"][2].items() if k[1] != "_"})


def of_zoo(name: str) -> tuple[Any, Any]:
    auto, config, args = ZOO[name]
    return getattr(transformers, auto), getattr(transformers, config)(**args)


def saved(name: str, folder: Path, dtype: Any = torch.float32, size: str = "30KB") -> tuple[Any, Any]:
    """A random model of the zoo, saved by Transformers."""
    cls, config = of_zoo(name)
    torch.manual_seed(0)
    model = cls.from_config(config, dtype=dtype)
    model.save_pretrained(folder, max_shard_size=size)
    return cls, model


def pieces(p: Any, name: str, step: int = 777) -> Any:
    """A parameter's first values, read as the engine does it, piece by piece."""
    out = torch.empty(p.numel())
    source = _sources.source_of(p, name)
    for first in range(0, p.numel(), step):
        _sources.read_rounded(source, first, out[first : first + step], p.dtype)
    return out.view(p.shape).to(p.dtype)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    _sources.forget()


@pytest.mark.parametrize("name", ZOO)
def test_values_are_transformers(name: str, tmp_path: Path) -> None:
    dtype = torch.bfloat16 if len(name) % 2 else torch.float32
    cls, _ = saved(name, tmp_path)
    want = cls.from_pretrained(tmp_path, dtype=dtype)
    got = _load.from_pretrained(cls, tmp_path, dtype=dtype)
    assert type(got) is type(want) and not got.training
    a, b = dict(want.named_parameters()), dict(got.named_parameters())
    assert list(a) == list(b)  # tied parameters once, under the same name
    for n, p in b.items():
        assert p.device.type == "meta" and p.dtype == a[n].dtype
        assert torch.equal(pieces(p, n), a[n]), n
    a, b = dict(want.named_buffers()), dict(got.named_buffers())
    assert list(a) == list(b)
    for n, buffer in b.items():
        assert buffer.device.type == "cpu" and torch.equal(buffer, a[n]), n


def test_experts_are_joined_by_slices(tmp_path: Path) -> None:
    cls, _ = saved("mixtral", tmp_path)
    model = _load.from_pretrained(cls, tmp_path)
    joined = [p for n, p in model.named_parameters() if "experts.gate_up_proj" in n]
    assert joined and all(isinstance(_sources.attached(p), _sources.Cat) for p in joined)


def test_an_unknown_conversion_is_computed_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cls, model = saved("mixtral", tmp_path)
    monkeypatch.setattr(_load._Converted, "_composed", lambda self, targets: None)
    got = _load.from_pretrained(cls, tmp_path)
    want = dict(model.named_parameters())
    for n, p in got.named_parameters():
        assert torch.equal(pieces(p, n), want[n]), n


@pytest.mark.parametrize("name", ZOO)
def test_initial_values(name: str) -> None:
    """Those of _init_weights, the same for every order of reading, others for another seed."""
    cls, config = of_zoo(name)
    torch.manual_seed(0)
    want = dict(cls.from_config(config).named_parameters())
    first = dict(_load.from_config(cls, config, seed=3).named_parameters())
    again = dict(_load.from_config(cls, config, seed=3).named_parameters())
    other = dict(_load.from_config(cls, config, seed=4).named_parameters())
    assert list(first) == list(want)
    state = torch.get_rng_state()
    for n in reversed(list(again)):
        assert torch.equal(pieces(first[n], n), pieces(again[n], n, 100)), n
        value = _sources.source_of(first[n], n).tensor()
        if want[n].unique().numel() == 1:
            assert torch.equal(value, want[n]), n
        elif want[n].numel() > 200:
            assert abs(value.std() / want[n].std() - 1) < 0.35, n
            assert torch.equal(value, want[n]) or not torch.equal(value, _sources.source_of(other[n], n).tensor()), n
    assert torch.equal(state, torch.get_rng_state())


def test_a_new_head_is_initialised_and_said(tmp_path: Path) -> None:
    saved("bert", tmp_path)
    cls = transformers.AutoModelForSequenceClassification
    with pytest.warns(UserWarning, match="classifier"):
        model = _load.from_pretrained(cls, tmp_path, num_labels=3)
    head = pieces(model.classifier.weight, "classifier.weight")
    assert head.shape == (3, 32) and 0.005 < head.std() < 0.05
    with pytest.raises(KeyError, match=r"classifier\.weight"):
        _load.from_pretrained(cls, tmp_path, num_labels=3, missing="error")


def test_base_model_prefix_comes_and_goes(tmp_path: Path) -> None:
    cls, model = saved("llama", tmp_path / "whole")
    base = _load.from_pretrained(transformers.AutoModel, tmp_path / "whole")
    assert torch.equal(pieces(base.norm.weight, "norm.weight"), model.model.norm.weight)
    model.model.save_pretrained(tmp_path / "base")
    with pytest.warns(UserWarning, match="lm_head"):
        again = _load.from_pretrained(cls, tmp_path / "base")
    name = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(pieces(again.get_parameter(name), name), model.get_parameter(name))


def rewritten(folder: Path, change: Any) -> None:
    """The only file of a folder, with its tensors changed."""
    path = folder / "model.safetensors"
    tensors = safetensors_torch.load_file(path)
    change(tensors)
    safetensors_torch.save_file(tensors, path, metadata={"format": "pt"})


def test_what_is_missing_or_wrong_is_named(tmp_path: Path) -> None:
    cls, _ = saved("llama", tmp_path, size="1GB")
    rewritten(tmp_path, lambda t: t.pop("model.layers.0.mlp.up_proj.weight"))
    with pytest.raises(KeyError, match=r"model\.layers\.0\.mlp\.up_proj\.weight"):
        _load.from_pretrained(cls, tmp_path)
    with pytest.warns(UserWarning, match=r"up_proj"):
        _load.from_pretrained(cls, tmp_path, missing="init")
    rewritten(tmp_path, lambda t: t.update({"model.layers.0.mlp.up_proj.weight": torch.zeros(8, 32)}))
    with pytest.raises(ValueError, match=r"up_proj\.weight: \[8, 32\] in the files, \[64, 32\] in the model"):
        _load.from_pretrained(cls, tmp_path)
    with pytest.warns(UserWarning, match="up_proj"):
        _load.from_pretrained(cls, tmp_path, ignore_mismatched_sizes=True)


def test_missing_files(tmp_path: Path) -> None:
    cls, _ = saved("llama", tmp_path)
    victim = sorted(tmp_path.glob("model-*.safetensors"))[1]
    victim.unlink()
    with pytest.raises(FileNotFoundError, match=victim.name):
        _load.from_pretrained(cls, tmp_path)
    with pytest.raises(FileNotFoundError, match="no model.safetensors"):
        _sources.Checkpoint(tmp_path / "nothing")


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    import zshard

    cls, _ = saved("llama", tmp_path, size="1GB")
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(zshard.Corrupt, match="model.safetensors"):
        _load.from_pretrained(cls, tmp_path)


def test_key_mapping(tmp_path: Path) -> None:
    cls, model = saved("gpt2", tmp_path, size="1GB")
    rewritten(tmp_path, lambda t: [t.update({"old." + k: t.pop(k)}) for k in list(t)])
    got = _load.from_pretrained(cls, tmp_path, key_mapping={r"^old\.": ""})
    name = "transformer.h.1.attn.c_attn.weight"
    assert torch.equal(pieces(got.get_parameter(name), name), model.get_parameter(name))


class Scaled(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.empty(4))
        self.inner = torch.nn.Linear(4, 4)


def test_modules_of_ones_own() -> None:
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.LayerNorm(4))
    _meta.initialise(model, seed=1)
    weight = pieces(model[0].weight, "0.weight")
    assert 0 < weight.abs().max() <= 8**-0.5
    assert torch.equal(pieces(model[1].weight, "1.weight"), torch.ones(4))
    with torch.device("meta"):
        own = Scaled()
    with pytest.raises(ValueError, match=r"scale \(Scaled\)"):
        _meta.initialise(own)

    def init(module: Any) -> None:
        for p in module.parameters(recurse=False):
            torch.nn.init.normal_(p, std=2)

    _meta.initialise(own, init)
    assert pieces(own.scale, "scale").abs().max() > 0
    with torch.device("meta"):
        forgotten = Scaled()
    _meta.initialise(forgotten, lambda module: None)
    with pytest.raises(ValueError, match="wrote no values to 'scale'"):
        pieces(forgotten.scale, "scale")
    with pytest.raises(ValueError, match="its values are not given"):
        with torch.device("meta"):
            _sources.source_of(torch.nn.Parameter(torch.empty(3)), "lost")


def test_meta_parameters_keep_buffers() -> None:
    with _meta.meta_parameters():
        model = torch.nn.BatchNorm1d(3)
    assert model.weight.device.type == "meta" and torch.equal(model.running_var, torch.ones(3))
    _meta.buffers_are_real(model)
    with torch.device("meta"):
        model = torch.nn.BatchNorm1d(3)
    with pytest.raises(ValueError, match="running_mean"):
        _meta.buffers_are_real(model)


def test_joined_and_cut_sources() -> None:
    torch.manual_seed(0)
    parts = [torch.randn(3, 4, 300) for _ in range(3)]
    sources = [_sources.Real(p) for p in parts]
    cases = [(_sources.Cat(sources, d), torch.cat(parts, d)) for d in (0, 1, 2)] + [
        (_sources.stack(sources, 0), torch.stack(parts, 0))
    ]
    whole = torch.cat(parts, 1)
    cases += [(_sources.Narrow(_sources.Real(whole), d, 1, 2), whole.narrow(d, 1, 2).contiguous()) for d in (0, 1, 2)]
    for source, want in cases:
        assert source.shape == tuple(want.shape)
        for first, n in ((0, want.numel()), (7, 60), (want.numel() - 5, 5)):
            out = torch.empty(n)
            source.read(first, out)
            assert torch.equal(out, want.reshape(-1)[first : first + n])
    with pytest.raises(ValueError, match="cannot be joined"):
        _sources.Cat([_sources.Real(torch.zeros(2, 3)), _sources.Real(torch.zeros(2, 4))], 0)


def test_a_numbered_cpu() -> None:
    """Accelerate's device of a rank is "cpu:0"."""
    from zshard.torch import shard

    with torch.device("meta"):
        model = torch.nn.Linear(4, 4)
    handle = shard(model, offload="none", device="cpu:0")
    assert model.weight.device == torch.device("cpu") and model(torch.ones(1, 4)).isfinite().all()
    handle.close()
