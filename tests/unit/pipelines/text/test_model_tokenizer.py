"""A transformers tokenizer is used as its authors meant it, apart from what would change a text or trust a user."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from pipelines.config import ModelConfig
from pipelines.core.request import ToolFormat
from pipelines.errors import ModelError
from pipelines.text.byte_tokenizer import ByteTokenizer
from pipelines.text.pieces import byte_alphabet
from pipelines.text.refusal import RefusalError
from pipelines.text.tokenizer import ModelTokenizer, load_tokenizer
from pipelines.text.tool_calls import CALL_MARKS

NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}<|user|>{{ m['content'] | trim }}<|end|>{% endfor %}<|assistant|>"
)


def small(template: str | None = NO_SYSTEM, **special: str) -> Any:
    """A byte-level tokenizer whose control tokens take blanks with them, as Phi's do, and which begins texts with <s>."""
    vocab = {character: index for index, character in enumerate(byte_alphabet())}
    backend = Tokenizer(models.BPE(vocab | {"<s>": 256}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    control = ("<s>", "<|user|>", "<|end|>", "<|assistant|>")
    backend.add_special_tokens([AddedToken(name, rstrip=name != "<s>", special=True) for name in control])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, model_max_length=4, **special)


def ids_of(tokenizer: ModelTokenizer, *messages: tuple[str, str]) -> list[int]:
    (ids,) = tokenizer.encode_chats(
        [tokenizer.render([{"role": role, "content": content} for role, content in messages])]
    )
    return list(ids)


def test_a_chat_is_tokenised_as_transformers_does() -> None:
    """Without a begin token of the post-processor, which the template itself would write."""
    theirs = small()
    messages = [{"role": "user", "content": "Hello \U0001f600"}, {"role": "assistant", "content": " x"}]
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids_of(ModelTokenizer(theirs, 260), ("user", "Hello \U0001f600"), ("assistant", " x")) == expected


def test_a_raw_prompt_begins_as_the_tokenizer_has_it_and_knows_no_length_limit() -> None:
    (ids,) = ModelTokenizer(small(), 260).encode_texts(["<|user|>" + "x" * 50])
    assert list(ids) == small()("<|user|>" + "x" * 50, truncation=False)["input_ids"]
    assert (ids[0], len(ids)) == (256, 52)


def test_a_control_string_that_a_user_writes_keeps_its_blanks_and_its_place() -> None:
    """Where the control token would have taken the blank behind it along, the words still come back unchanged."""
    tokenizer = ModelTokenizer(small(), 260)
    words = "a<|end|>  b <|user|><s>c"
    ids = ids_of(tokenizer, ("user", words))
    assert tokenizer.detokenizer.text(ids, opens_text=True) == words
    assert [token_id for token_id in ids if token_id >= 256] == [257, 258, 259]


def test_a_template_that_refuses_is_quoted() -> None:
    with pytest.raises(RefusalError, match="System role not supported") as caught:
        ids_of(ModelTokenizer(small(), 260), ("system", "x"))
    assert (caught.value.code, caught.value.param) == ("chat_template_refuses", "messages")


def test_a_model_without_a_template_says_what_to_use() -> None:
    with pytest.raises(RefusalError, match="/v1/completions") as caught:
        ids_of(ModelTokenizer(small(template=None), 260), ("user", "x"))
    assert caught.value.code == "no_chat_template"


@pytest.mark.parametrize(
    ("special", "start_id", "eos_ids"),
    [
        ({"bos_token": "<s>", "eos_token": "<|end|>"}, 256, (258,)),
        ({"eos_token": "<|end|>"}, 258, (258,)),
        ({}, None, ()),
    ],
)
def test_an_empty_prompt_starts_from_what_the_model_has(
    special: dict[str, str], start_id: int | None, eos_ids: tuple[int, ...]
) -> None:
    tokenizer = ModelTokenizer(small(**special), 260)
    assert (tokenizer.start_id, tokenizer.eos_ids) == (start_id, eos_ids)


def test_ids_that_only_the_model_has_are_no_text() -> None:
    """An embedding may have more rows than the tokenizer has tokens."""
    tokenizer = ModelTokenizer(small(), 300)
    (ids,) = tokenizer.encode_texts(["x"])
    assert tokenizer.detokenizer.text([299, *ids], opens_text=True) == "x"


def test_a_folder_without_a_tokenizer_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelError, match="tokenizer") as caught:
        load_tokenizer(ModelConfig(str(tmp_path)), tmp_path, 260)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


CALLING = (
    "{% if tools %}<s>{{ tools | tojson }} [TOOL_CALLS]{% endif %}{% for m in messages %}{% if m.tool_calls %}<|assistant|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}{% elif m.role == 'tool' %}{{ m.content }}{% else %}<|user|>"
    "{{ m.content }}{% endif %}{% endfor %}<|assistant|>"
)
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"<|end|>": {"type": "string"}}}}}]


def calling() -> ModelTokenizer:
    """With a mark that is a control token."""
    theirs = small(CALLING)
    theirs.backend_tokenizer.add_special_tokens([AddedToken("[TOOL_CALLS]", special=True)])
    return ModelTokenizer(theirs, 261)


def test_tools_go_to_the_template_and_their_words_stay_words() -> None:
    """Names within them too: they are the user's as much as values."""
    tokenizer = calling()
    assert tokenizer.tool_format is ToolFormat.MISTRAL
    chat = tokenizer.render([{"role": "user", "content": "Hi"}], tools=TOOLS)
    assert chat.text == f"<s>{json.dumps(TOOLS)} [TOOL_CALLS]<|user|>Hi<|assistant|>"
    assert [chat.text[start:end] for start, end in chat.literals] == ["<|end|>"]
    (ids,) = tokenizer.encode_chats([chat])
    assert [token_id for token_id in ids if token_id >= 256] == [256, 260, 257, 259]


def test_arguments_of_a_call_are_an_object_to_the_template() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"x": "\u00fc"}}}
    turns = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "y", "tool_call_id": "c"},
    ]
    assert calling().render(turns, tools=()).text == '<|assistant|>{"x": "\u00fc"}y<|assistant|>'


def test_thoughts_go_to_a_template_that_shows_them_and_to_no_other() -> None:
    thinking = "{% for m in messages %}<|{{ m.role }}|>({{ m.reasoning_content }}){{ m.content }}{% endfor %}"
    chat = [{"role": "assistant", "content": "b", "reasoning_content": "a <|end|>"}]
    rendered = ModelTokenizer(small(thinking), 260).render(chat)
    assert rendered.text == "<|assistant|>(a <|end|>)b"
    assert [rendered.text[start:end] for start, end in rendered.literals] == ["<|end|>"]
    for tokenizer in (ModelTokenizer(small(), 260), ByteTokenizer(1)):
        with pytest.raises(
            RefusalError, match=r"^messages\[0\]\.reasoning_content: this model's chat template does not"
        ):
            tokenizer.render(chat)


def test_a_template_that_does_not_know_tools_refuses_them() -> None:
    tokenizer = ModelTokenizer(small(), 260)
    assert tokenizer.tool_format is None
    with pytest.raises(RefusalError, match=r"^tools: this model's chat template does not know tools"):
        tokenizer.render([{"role": "user", "content": "Hi"}], tools=TOOLS)


def test_a_mark_that_is_a_control_token_is_text_only_where_it_is_asked_for() -> None:
    tokenizer = calling()
    ids = [260, *tokenizer.plain_ids("[]"), 258]
    assert tokenizer.detokenizer.text(ids, opens_text=True) == "[]"
    assert tokenizer.showing(CALL_MARKS).text(ids, opens_text=True) == "[TOOL_CALLS][]"
    assert tokenizer.showing(frozenset({"<think>"})) is tokenizer.detokenizer


def test_a_template_of_its_own_for_tools_is_the_one_that_is_asked() -> None:
    """Some models bring two."""
    theirs = small()
    theirs.chat_template = {"default": NO_SYSTEM, "tool_use": CALLING}
    tokenizer = ModelTokenizer(theirs, 260)
    assert tokenizer.tool_format is ToolFormat.MISTRAL
    assert tokenizer.render([{"role": "user", "content": "Hi"}], tools=TOOLS).text.startswith("<s>[{")
    assert tokenizer.render([{"role": "user", "content": "Hi"}]).text == "<|user|>Hi<|end|><|assistant|>"
