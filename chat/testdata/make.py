"""Makes golden.json: conversations as transformers renders them with the templates below.

Python 3.11, transformers 5.23.0, jinja2 3.1.6:

    pip install transformers==5.23.0 jinja2
    python chat/testdata/make.py
"""

import json
import pathlib

import jinja2
import transformers
from transformers.utils.chat_template_utils import render_jinja_template

TEMPLATES = {
    "marks": """{%- for message in messages %}
    {%- if message['role'] == 'assistant' %}
<|a|>
{% generation %}
{{ message['content'] + eos_token }}
    {% endgeneration %}
    {%- else %}
<|{{ message.role }}|>{{ message.content | trim }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
<|a|>
{% endif %}""",
    "loop": "{{ bos_token }}{% for m in messages %}{{ '<|start|>' + m['role'] + '\n' + m['content'] + '<|end|>' + '\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}",
    "first": """{% if messages[0]['role'] == 'system' %}
{% set rest = messages[1:] %}
{% set system = '<<' + messages[0]['content'].strip() + '>>\n\n' %}
{% else %}
{% set rest = messages %}
{% set system = '' %}
{% endif %}
{% for m in rest %}
    {% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('roles must alternate') }}
    {% endif %}
    {% if loop.first %}{% set content = system + m['content'] %}{% else %}{% set content = m['content'] %}{% endif %}
    {% if m['role'] == 'user' %}
{{ bos_token + '[I] ' + content | trim + ' [/I]' }}
    {% elif m['role'] == 'assistant' %}
{{ ' ' + content | trim + ' ' + eos_token }}
    {% endif %}
{% endfor %}""",
    "headers": """{%- set loop_messages = messages -%}
{%- for message in loop_messages -%}
{%- set content = '<|h|>' + message['role'] + '<|/h|>\n\n' + message['content'] | trim + '<|eot|>' -%}
{%- if loop.index0 == 0 -%}{%- set content = bos_token + content -%}{%- endif -%}
{{- content -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|h|>assistant<|/h|>\n\n' -}}{%- endif -%}""",
    "think": """{%- set ns = namespace(last=messages|length - 1, open=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.open and message.role == "user" and message.content is string and not (message.content.startswith('<t>') and message.content.endswith('</t>')) %}
        {%- set ns.open = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" and '</think>' in message.content and loop.index0 < ns.last %}
        {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
    {%- else %}
        {%- set content = message.content %}
    {%- endif %}
    {{- '<|im|>' + message.role + '\\n' + content + '<|/im|>' + '\\n' }}
    {%- if loop.last %}{{- '<last>' if message.role == 'user' else '<done>' }}{% endif %}
{%- endfor %}
{%- if tools is defined and tools %}{{ tools }}{% endif %}
{%- if add_generation_prompt %}
    {{- '<|im|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
    # Conditions in parentheses, and methods of empty texts, as published templates of 2025 have them.
    "prefix": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set first = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set first = "" -%}
    {%- set rest = messages -%}
{%- endif -%}
{%- for message in rest -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("roles must alternate") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start>' + role + '
' + (first if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- endif -%}
    {{ '<end>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start>model
'}}
{%- endif -%}
""",
    "reasoning": """{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.last or reasoning_content %}
            {{- '<|im|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}{%- for call in message.tool_calls %}{{- call | tojson }}{%- endfor %}{%- endif %}
        {{- '<|/im|>\\n' }}
    {%- else %}
        {{- '<|im|>%s\\n%s<|/im|>\\n' % (message.role, content.strip()) }}
    {%- endif %}
{%- endfor %}
{%- if tools is defined %}{{ tools is none }}{% endif %}""",
    "json": "{% for m in messages %}{{ m | tojson if false else m.content | tojson }};{{ m.role | upper }};{% if not loop.last %}{{ '\\n' }}{% endif %}"
            "{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}",
}
turn = lambda role, text: {"role": role, "content": text}
CONVERSATIONS = [
    [turn("user", "Hello")],
    [turn("user", "What is 1+1?"), turn("assistant", "2"), turn("user", "  and \"2 < 3\"?\n"), turn("assistant", "\n\n yes & no \n")],
    [turn("system", " Be brief. "), turn("user", "Grüße, 世界 🙂"), turn("assistant", "Hallo! 'ok' {{ x }}")],
    [turn("system", ""), turn("user", ""), turn("assistant", "")],
    [turn("user", "a"), turn("assistant", "<think>\nhm\n</think>\n\nb"), turn("user", "<t>c</t>"), turn("assistant", "<think>x</think>d"), turn("user", "e")],
    [turn("assistant", "first"), turn("user", "second")],
    [turn("user", "\u2028a\x1f "), turn("assistant", "</think>"), turn("user", "\x85\u00a0b"), turn("assistant", "<think></think>\n")],
]
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def render(template, messages, prompt):
    try:
        marked = "generation %}" in template and not prompt
        texts, spans = render_jinja_template(conversations=[messages], chat_template=template, add_generation_prompt=prompt,
                                             return_assistant_tokens_mask=marked, **NAMES)
        return {"text": texts[0], "spans": [list(s) for s in spans[0]] if marked else None}
    except jinja2.exceptions.TemplateError as e:
        return {"error": str(e)}


out = {"transformers": transformers.__version__, "jinja2": jinja2.__version__, "names": NAMES, "templates": TEMPLATES, "conversations": CONVERSATIONS, "cases": []}
for name, template in TEMPLATES.items():
    for i, messages in enumerate(CONVERSATIONS):
        for prompt in (False, True):
            out["cases"].append({"template": name, "conversation": i, "prompt": prompt, **render(template, messages, prompt)})
(pathlib.Path(__file__).parent / "golden.json").write_text(json.dumps(out, indent=1, ensure_ascii=False) + "\n")
