"""Small models with random weights, built by the packages people use, each with a loss on batches of its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from training import batch_generator

Batch = Callable[[torch.Generator], Any]
WORDS = 48


class Task(nn.Module):
    """A third-party model and its training data; ``forward(step)`` is the loss of that step's batch."""

    def __init__(self, net: nn.Module, batch: Batch, loss: Callable[[nn.Module, Any], torch.Tensor]) -> None:
        super().__init__()
        self.net = net
        self.batch = batch
        self.compute = loss
        self.autocast = False

    def forward(self, step: int) -> torch.Tensor:
        generator = batch_generator(step)
        batch = self.batch(generator)
        torch.manual_seed(int(torch.randint(0, 1 << 30, (1,), generator=generator)))  # dropout: the same in both runs
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            return self.compute(self.net, batch)

    def loss(self, step: int) -> torch.Tensor:
        result: torch.Tensor = self(step)
        return result


def images(net: nn.Module, size: int = 32) -> Task:
    def batch(generator: torch.Generator) -> Any:
        return torch.randn(2, 3, size, size, generator=generator), torch.randint(0, 5, (2,), generator=generator)

    def loss(model: nn.Module, pair: Any) -> torch.Tensor:
        output = model(pair[0])
        return F.cross_entropy(getattr(output, "logits", output).float(), pair[1])

    return Task(net, batch, loss)


def text(net: nn.Module, **extra: Callable[[torch.Tensor], torch.Tensor]) -> Task:
    """Language models of transformers compute their own loss from ``labels``."""

    def batch(generator: torch.Generator) -> Any:
        tokens = torch.randint(3, WORDS, (2, 8), generator=generator)
        return {"input_ids": tokens, "labels": tokens, **{name: make(tokens) for name, make in extra.items()}}

    return Task(net, batch, lambda model, given: model(**given).loss)


def torchvision_model(name: str) -> Task:
    from torchvision import models as tv
    from torchvision.models.convnext import CNBlockConfig
    from torchvision.models.resnet import BasicBlock

    if name == "resnet":
        return images(tv.ResNet(BasicBlock, [1, 1, 1, 1], num_classes=5))
    if name == "mobilenet":
        return images(tv.MobileNetV2(num_classes=5, width_mult=0.25))
    if name == "efficientnet":
        return images(tv.efficientnet_b0(num_classes=5), 64)
    if name == "vit":
        return images(
            tv.VisionTransformer(
                32, 8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=5, dropout=0.1
            )
        )
    if name == "convnext":
        return images(tv.ConvNeXt([CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 1)], num_classes=5))
    if name == "densenet":
        return images(tv.DenseNet(8, (2, 2), 8, num_classes=5))
    assert name == "swin"
    return images(tv.SwinTransformer([4, 4], 16, [1, 1], [1, 2], [4, 4], num_classes=5))


def timm_model(name: str) -> Task:
    import timm

    if name == "mixer":
        from timm.models.mlp_mixer import MlpMixer

        return images(MlpMixer(num_classes=5, img_size=32, patch_size=8, num_blocks=2, embed_dim=32))
    return images(timm.create_model(f"test_{name}", num_classes=5), 160 if name == "vit" else 64)


def transformers_model(name: str, **options: Any) -> Task:
    import transformers as hf

    common = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, **options}
    if name == "bert":
        return text(hf.BertForMaskedLM(hf.BertConfig(**common, intermediate_size=64, max_position_embeddings=16)))
    if name == "gpt2":
        return text(
            hf.GPT2LMHeadModel(
                hf.GPT2Config(vocab_size=WORDS, n_positions=16, n_embd=32, n_layer=2, n_head=2, **options)
            )
        )
    if name == "llama":
        return text(hf.LlamaForCausalLM(hf.LlamaConfig(**common, intermediate_size=64, num_key_value_heads=1)))
    if name == "mixtral":
        config = hf.MixtralConfig(
            **common, intermediate_size=32, num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=1
        )
        return text(hf.MixtralForCausalLM(config))
    if name == "mamba":
        config = hf.MambaConfig(vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, state_size=4, **options)
        return text(hf.MambaForCausalLM(config))
    if name == "t5":
        config = hf.T5Config(
            vocab_size=WORDS, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, decoder_start_token_id=0
        )
        return text(hf.T5ForConditionalGeneration(config))
    if name == "vit":
        config = hf.ViTConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            image_size=32,
            patch_size=8,
        )
        config.num_labels = 5
        return images(hf.ViTForImageClassification(config))
    if name == "whisper":
        return _whisper()
    assert name == "wav2vec2"
    return _wav2vec2()


def _whisper() -> Task:
    import transformers as hf

    config = hf.WhisperConfig(
        vocab_size=WORDS, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, num_mel_bins=8,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=16,
        max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip

    def batch(generator: torch.Generator) -> Any:
        sound = torch.randn(2, 8, 32, generator=generator)
        return {"input_features": sound, "labels": torch.randint(3, WORDS, (2, 6), generator=generator)}

    return Task(hf.WhisperForConditionalGeneration(config), batch, lambda model, given: model(**given).loss)


def _wav2vec2() -> Task:
    import transformers as hf

    config = hf.Wav2Vec2Config(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        conv_dim=(16, 16), conv_kernel=(10, 3), conv_stride=(5, 2), num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2, mask_time_prob=0.0, ctc_zero_infinity=True,
    )  # fmt: skip

    def batch(generator: torch.Generator) -> Any:
        sound = torch.randn(2, 400, generator=generator)
        return {"input_values": sound, "labels": torch.randint(3, WORDS, (2, 5), generator=generator)}

    return Task(hf.Wav2Vec2ForCTC(config), batch, lambda model, given: model(**given).loss)


def peft_model(kind: str) -> Task:
    import peft

    base = transformers_model("llama" if kind in ("lora", "modules_to_save") else "gpt2").net
    config: Any
    if kind == "lora":
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1, task_type="CAUSAL_LM")
    elif kind == "modules_to_save":
        config = peft.LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM")
    elif kind == "prefix tuning":
        config = peft.PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")
    else:
        assert kind == "prompt tuning"
        config = peft.PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")
    return text(peft.get_peft_model(base, config))


def frozen_base() -> Task:
    task = transformers_model("bert")
    task.net.bert.requires_grad_(False)
    return task


def checkpointed(name: str) -> Task:
    task = transformers_model(name, use_cache=False) if name != "bert" else transformers_model(name)
    task.net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return task


def channels_last() -> Task:
    task = torchvision_model("resnet")
    task.net.to(memory_format=torch.channels_last)
    batch = task.batch
    task.batch = lambda generator: (batch(generator)[0].to(memory_format=torch.channels_last), batch(generator)[1])
    return task


def autocast(make: Callable[[], Task]) -> Task:
    task = make()
    task.autocast = True
    return task


def compiled_blocks(backend: str = "inductor") -> Task:
    torch._dynamo.reset()
    task = torchvision_model("vit")
    for block in task.net.encoder.layers:
        block.compile(backend=backend)
    return task


def lightning_step() -> Task:
    """``training_step`` calls submodules; the module's own forward is never called."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            inner = torchvision_model("mobilenet")
            self.features, self.classifier = inner.net.features, inner.net.classifier

        def training_step(self, batch: Any, batch_idx: int = 0) -> torch.Tensor:
            features = self.features(batch[0]).mean((2, 3))
            return F.cross_entropy(self.classifier(features), batch[1])

    task = images(nn.Identity())
    task.net = Module()
    task.compute = lambda model, batch: model.training_step(batch)
    return task


# Lives as long as the operator does.
_TORCHVISION = torch.library.Library("torchvision", "FRAGMENT")


def declare_missing_operators() -> None:
    """The torchvision wheel that fits torch 2.13 is linked against CUDA; without it, not even its import works.

    None of the models here calls a C++ operator of torchvision, so a declaration without an implementation is enough.
    """
    import importlib.util

    if torch.cuda.is_available() or importlib.util.find_spec("torchvision") is None:
        return
    if not hasattr(torch.ops.torchvision, "nms"):
        for operator in ("nms", "qnms"):
            _TORCHVISION.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def quiet() -> None:
    """Other people's deprecations are not ours to fail on."""
    warnings.simplefilter("ignore")
    import logging

    for name in ("transformers", "timm", "peft", "accelerate", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
