"""Chat templates render as in Hugging Face's library, inside a sandbox with bounds."""

import re

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from kvasir_runtime.frontend import chat_template
from kvasir_runtime.frontend.chat_template import ChatTemplate, TemplateError

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <b>you</b> & 'me'"},
    {"role": "assistant", "content": " Hello "},
    {"role": "user", "content": "Grüße 你好"},
]
SOURCES = {
    "chatml": (
        "{% for message in messages %}\n    {{- '<|im_start|>' + message.role + '\\n' }}{{ message.content }}"
        "{{ '<|im_end|>\\n' }}"
        "\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "llama": (
        "{{ bos_token }}{% for message in messages %}{% if loop.first and message['role'] == 'system' %}<<SYS>>"
        "{{ message['content'] | trim }}<</SYS>>{% continue %}{% endif %}[{{ message['role'] }}] "
        "{{ message['content'].strip() }}{{ eos_token if message.role == 'assistant' }}{% endfor %}"
    ),
    "tojson": "{{ messages | tojson }} {{ messages[1] | tojson(indent=2) }}",
    "tools": "{% if tools %}tools{% endif %}{% if tools is none %}none{% endif %}{{ tools is defined }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
}


@pytest.mark.parametrize("name", SOURCES)
def test_equals_the_reference_renderer(name):
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    rendered, _ = render_jinja_template(
        conversations=[CHAT], chat_template=SOURCES[name], add_generation_prompt=True, **tokens
    )
    assert ChatTemplate(SOURCES[name], tokens).render(CHAT) == rendered[0]


def test_switches_reach_the_template():
    template = ChatTemplate("{{ 'think' if enable_thinking else 'answer' }}", {})
    assert template.render(CHAT, {"enable_thinking": True}) == "think"
    assert template.render(CHAT, {}) == "answer"


def test_a_switch_cannot_replace_the_messages():
    assert ChatTemplate("{{ messages | length }}", {}).render(CHAT, {"messages": []}) == "4"


def test_the_date_is_available():
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", ChatTemplate("{{ strftime_now('%Y-%m-%d') }}", {}).render(CHAT))


def test_what_a_template_raises_is_told():
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(TemplateError, match="roles must alternate"):
        template.render(CHAT)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ self.__init__.__globals__ }}",
        "{% for _ in range(10**9) %}x{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{{ 1 / 0 }}",
        "{{ undefined_thing.x }}",
    ],
)
def test_the_sandbox_holds(source):
    with pytest.raises(TemplateError):
        ChatTemplate(source, {}).render(CHAT)


def test_output_is_bounded():
    # Nested loops get past the sandbox's bound of one range.
    source = "{% for _ in range(90000) %}{% for _ in range(90000) %}{{ 'x' * 9999 }}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateError, match="too much"):
        ChatTemplate(source, {}).render(CHAT)
    assert chat_template.MAX_RENDERED_CHARACTERS < 100_000_000


def test_a_broken_template_is_said_at_the_start():
    with pytest.raises(TemplateError, match="not valid"):
        ChatTemplate("{% for %}", {})
