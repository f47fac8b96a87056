"""Chat templates rendered by our interpreter and by Jinja2, set up as transformers sets it up."""

import itertools
import json

import pytest
from tokenizer_probe import ask, needs_probe
from transformers.utils.chat_template_utils import _compile_jinja_template

pytestmark = needs_probe

# Written as the templates of these families are: the same tags, tests, filters and use of white space.
CHATML = """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
QWEN2 = """{% for message in messages %}
{% if loop.first and messages[0]['role'] != 'system' %}
{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{% endif %}
{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
LLAMA3 = """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""
LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""
MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported!") }}
    {%- endif %}
{%- endfor %}
"""
MIXTRAL = """{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate!') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"""
ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""
GENERATION = """{%- for message in messages -%}
{{ '<' ~ message.role ~ '>' }}
{%- if message.role == 'assistant' %}{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ message.content }}{% endif %}
{% endfor %}"""
FAMILIES = {"chatml": CHATML, "qwen2": QWEN2, "llama3": LLAMA3, "llama2": LLAMA2, "mistral": MISTRAL, "mixtral": MIXTRAL, "zephyr": ZEPHYR}

# One construct each; `messages` is CHATS["three"].
CONSTRUCTS = [
    "{{ messages | length }} {{ messages[-1].content[1:-1] }} {{ messages[0]['content'][::-1] }} {{ 'äöü'[1] }}",
    "{% for m in messages if m.role != 'user' %}{{ loop.index }}/{{ loop.length }} {{ m.role }};{% else %}none{% endfor %}",
    "{% for m in [] %}x{% else %}empty{% endfor %} {% for a, b in {'x': 1, 'y': 2}.items() %}{{ a }}={{ b }},{% endfor %}",
    "{{ messages | tojson }}\n{{ {'a': [1, 2.5, none, true], 'b': {}} | tojson(indent=2) }}",
    "{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'x'.upper() ~ 3 ~ none ~ true }} {{ ['a', \"it's\"] }}",
    "{% set ns = namespace(n=0, seen='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.seen = ns.seen ~ m.role %}{% endfor %}{{ ns.n }}{{ ns.seen }}",
    "{% set x = 1 %}{% for i in range(3) %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }} {{ range(5, 0, -2) | list }}",
    "{{ missing is defined }} {{ missing | default('d') }} {{ '' | default('e', true) }} {{ none is none }} {{ missing }}|{{ 1 if missing }}",
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 2 * 3 + 4 }} {{ 'ab' * 3 }} {{ 1.0 }} {{ 1e3 }} {{ 2.5e-3 if true else 0.1 + 0.2 }}",
    "{{ 'a' in 'abc' }} {{ 'z' not in ['a'] }} {{ 'role' in messages[0] }} {{ not true or 1 < 2 and 'b' >= 'a' }}",
    "{% macro tag(name, end='!') %}<{{ name }}{{ end }}>{% endmacro %}{{ tag('a') }}{{ tag('b', end='?') }}",
    "{% set block %}  kept {{ messages[0].role }}\n{% endset %}[{{ block }}]{{ block | trim | upper }}",
    "a\n  {% if true %}\n  b\n  {% endif %}\nc {#- gone -#}  d\n{# gone #}\ne {%+ if true %} f {% endif +%}\n  g",
    "{{- '  x  ' }}   {{- 'y' -}}   z\n\n{%- for i in [1,2] -%} {{ i }} {% endfor -%}  end\n",
    "{{ messages | map(attribute='role') | join(', ') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
    "{{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='content') | first | title }} {{ [3,1,2] | last }}",
    "{% for m in messages %}{{ loop.first }}{{ loop.last }}{{ loop.revindex0 }}{{ loop.previtem.role if not loop.first }};{% endfor %}",
    "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{{ 'Hello'.startswith('He') }} {{ 'Hello'.endswith(('x', 'lo')) }} {{ '  x'.lstrip() }} {{ 'a-b'.replace('-', '+') }} {{ 'xxyxx'.strip('x') }}",
    "{{ 'it' \"'s\" '\\t\\u00e9\\x41\\\\' }} {{ 'a\nb' | indent(2) }} {{ 'straße' | upper }} {{ 'ÄÖ' | lower | capitalize }}",
    "{{ messages is string }} {{ messages is iterable }} {{ messages[0] is mapping }} {{ 3 is odd }} {{ 4 is divisibleby 2 }} {{ 1 is number }}",
    "{{ {'a': 1}.get('b', 'c') }} {{ {'a': 1}['a'] }} {{ ({'a': 1} | items | list)[0][1] }} {{ dict(a=1).keys() | list }} {{ '12' | int + 1 }}",
    "{{ 'ab-cd (ef'.title() }} {{ 'ab-cd (eF' | title }} {{ tools is none }} {{ (1, 2)[1] }} {{ messages[0].content|length > 2 and messages[0].role|upper }}",
]  # fmt: skip

CHATS = {
    "one": [("user", "Hello?")],
    "three": [("user", " Say 'hi' — 你好 \n"), ("assistant", "hi \"there\"\t"), ("user", "äöü <b>&</b>")],
    "system": [("system", "Be brief.\n"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d ")],
    "wrong": [("assistant", "first"), ("assistant", "again")],
    "tool": [("user", "x"), ("tool", "y")],
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def messages(name):
    return [{"role": role, "content": content} for role, content in CHATS[name]]


def expected(source, chat, invitation=False):
    compiled = _compile_jinja_template(source)
    try:
        return compiled.render(messages=chat, tools=None, documents=None, add_generation_prompt=invitation, **TOKENS)
    except Exception as error:  # whatever a template may raise
        return error


def answers(questions):
    return [json.loads(line) for line in ask("chat", "-", [json.dumps(question | TOKENS) for question in questions])]


def check(answer, text, what):
    if isinstance(text, Exception):
        assert "error" in answer, what
    else:
        assert answer == {"text": text}, what


def test_the_families_render_as_jinja2_renders_them():
    cases = list(itertools.product(FAMILIES, CHATS, [False, True]))
    questions = [{"template": FAMILIES[family], "messages": messages(chat), "invitation": invitation} for family, chat, invitation in cases]
    for case, question, answer in zip(cases, questions, answers(questions)):
        check(answer, expected(question["template"], question["messages"], question["invitation"]), case)


@pytest.mark.parametrize("source", CONSTRUCTS)
def test_a_construct_renders_as_jinja2_renders_it(source):
    (answer,) = answers([{"template": source, "messages": messages("three")}])
    text = expected(source, messages("three"))
    assert isinstance(text, str), text
    assert answer == {"text": text}


@pytest.mark.parametrize("family", FAMILIES)
def test_replies_are_found_without_being_marked(family):
    chat = messages("system" if family != "mixtral" else "three")
    if family == "mistral":
        chat = chat[1:]  # its system prompt moves to the last question, so what comes before a reply changes
    (answer,) = answers([{"template": FAMILIES[family], "messages": chat, "with_replies": True}])
    text = answer["text"].encode()
    assert text.decode() == expected(FAMILIES[family], chat)
    replies = [text[begin:end].decode() for begin, end in answer["replies"]]
    contents = [message["content"].strip() for message in chat if message["role"] == "assistant"]
    assert len(replies) == len(contents)
    for reply, content in zip(replies, contents):
        assert content in reply and len(reply) < len(content) + 20, replies


def test_a_template_that_moves_the_system_prompt_cannot_tell_the_replies():
    (answer,) = answers([{"template": MISTRAL, "messages": messages("system"), "with_replies": True}])
    assert "generation" in answer["error"]


def test_marked_replies_are_those_of_transformers():
    from transformers.utils.chat_template_utils import render_jinja_template

    for name in ["one", "three", "system"]:
        texts, spans = render_jinja_template([messages(name)], chat_template=GENERATION, return_assistant_tokens_mask=True, **TOKENS)
        (answer,) = answers([{"template": GENERATION, "messages": messages(name), "with_replies": True}])
        assert answer["text"] == texts[0]
        ours = [answer["text"].encode()[begin:end].decode() for begin, end in answer["replies"]]
        assert ours == [texts[0][begin:end] for begin, end in spans[0]]


# With a blank before the reply that belongs to the question, and words that touch: tokens that are in both.
TOUCHING = """{{ bos_token }}{%- for message in messages -%}
{%- if message.role == 'assistant' %} {% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}{% else %}[{{ message.role }}]{{ message.content }}{% endif %}
{%- endfor %}"""


@pytest.mark.parametrize("template", [GENERATION, TOUCHING])
@pytest.mark.parametrize("name", ["gpt2", "qwen2", "llama3", "llama2", "mistral", "sentencepiece"])
def test_tokens_of_conversations_are_those_of_transformers(tmp_path, name, template):
    import tokenizer_models
    import transformers

    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "bos_token": "<s>"}
    if name == "sentencepiece":
        tokenizer_models.make_sentencepiece("bpe", tmp_path)
        config["tokenizer_class"] = "LlamaTokenizer"
    else:
        tokenizer_models.make_json(name, tmp_path)
        if name in ("gpt2", "qwen2", "llama3"):
            config["bos_token"] = config["eos_token"] = "<|endoftext|>"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "chat_template.jinja").write_text(template)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    chats = [messages(which) for which in ["one", "three", "system"]]
    chats.append([{"role": "user", "content": "Grüße, 世界 don't"}, {"role": "assistant", "content": "  ﬁn\n\n<0x0A> the quick brown fox 👩‍👩‍👧‍👦"}] * 2)
    learned = 0
    for chat, answer in zip(chats, ask("replies", tmp_path, [json.dumps(chat) for chat in chats])):
        expected = theirs.apply_chat_template(chat, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        ours = json.loads(answer)
        assert ours["ids"] == expected["input_ids"]
        assert ours["counts"] == expected["assistant_masks"]
        learned += sum(ours["counts"])
        assert sum(ours["counts"]) < len(ours["ids"])
    assert learned > 30


@pytest.mark.parametrize("source, line, what", [
    ("{{ x", 1, "closed"), ("{{ x[] }}", 1, "index"), ("a\n{% if x %}", 2, "endif"), ("{% frob %}", 1, "frob"), ("\n\n{{ 1 | frob }}", 3, "frob"),
    ("{{ 1 is frob }}", 1, "frob"), ("{{ 'a'.frob() }}", 1, "frob"), ("{{ frob() }}", 1, "frob"), ("\n{{ frob.x }}", 2, "frob"),
    ("{{ 1 + 'a' }}", 1, "string"), ("{% endfor %}", 1, "endfor"), ("{{ raise_exception('no\tgood') }}", 1, "no\tgood"),
    ("{% for i in range(1000000) %}{% for j in range(1000000) %}{{ j }}{% endfor %}{% endfor %}", 1, "step"),
])  # fmt: skip
def test_what_cannot_be_rendered_is_named_with_its_line(source, line, what):
    (answer,) = answers([{"template": source, "messages": messages("one")}])
    assert f"line {line}: " in answer["error"] and what in answer["error"]
