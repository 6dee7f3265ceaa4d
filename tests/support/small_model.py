"""A model of random weights with a tokenizer and a chat template: all that a real engine needs, loaded in a moment."""

from pathlib import Path

from tiny_models import config_of, save_model

_TEMPLATE = "{% for m in messages %}<|user|>{{ m['content'] }}<|end|>{% endfor %}<|assistant|>"
_CONTROL = ("<s>", "<|user|>", "<|end|>", "<|assistant|>")
_END = {"eos_token": _CONTROL[2]}


def save_small_model(folder, *, family="llama", context=256, seed=0):
    """Save it; its tokens are bytes. Returns the folder as a text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from pipelines.text.pieces import byte_alphabet

    config = config_of(family)
    config.vocab_size = 256 + len(_CONTROL)
    config.max_position_embeddings = context
    save_model(config, Path(folder), seed)
    backend = Tokenizer(models.BPE({character: index for index, character in enumerate(byte_alphabet())}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, special=True) for name in _CONTROL])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=_TEMPLATE, **_END)
    tokenizer.save_pretrained(folder)
    return str(folder)
