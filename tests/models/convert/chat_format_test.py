"""Tests models/convert/chat_format.py on templates like those published with models."""

from __future__ import annotations

import json
import unittest
from typing import Any
from unittest import mock

from checkpoint_case import CheckpointCase

from models.convert import chat_format

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
ALTERNATE = ("{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
             "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}")
PROMPT = "{% if add_generation_prompt %}{{ 'P' }}{% endif %}"
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
          "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
          + PROMPT.replace("P", "<|im_start|>assistant\n"))
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}" + ALTERNATE +
    "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\n' + "
    "system_message + '\n<</SYS>>\n\n' + message['content'] %}{% else %}"
    "{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}"
    "{% endif %}{% endfor %}")
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
    "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim "
    "+ '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}"
    + PROMPT.replace("P", "<|start_header_id|>assistant<|end_header_id|>\n\n"))
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}" + ALTERNATE +
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% else %}"
    "{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}")
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}"
    + ALTERNATE + "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}"
    "{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + "
    "message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    + PROMPT.replace("P", "<start_of_turn>model\n"))
PHI3 = (
    "{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + "
    "message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + "
    "message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}"
    "{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}")
ZEPHYR = (
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + "
    "message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n"
    "{{ '<|system|>\n' + message['content'] + eos_token }}\n"
    "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + "
    "eos_token }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n"
    "{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}")
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}" + PROMPT.replace("P", "<|im_start|>assistant\n"))

# Templates of published models, from memory and with shorter texts.
QWEN25 = r"""{%- if tools %}{{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}
    {%- else %}{{- 'You are Qwen.' }}{%- endif %}
    {{- "\n\n# Tools\n<tools>" }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\n</tools>\n\nCall:\n<tool_call>\n{\"name\": <name>}\n</tool_call><|im_end|>\n" }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
{%- else %}{{- '<|im_start|>system\nYou are Qwen.<|im_end|>\n' }}{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first)
        or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}{{- '}\n</tool_call>' }}
        {%- endfor %}{{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}{{- message.content }}{{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""


def changed(template: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert template.count(old) == 1, old
        template = template.replace(old, new)
    return template


SWITCH = r"""{%- if enable_thinking is defined and enable_thinking is false %}
    {{- '<think>\n\n</think>\n\n' }}{%- endif %}"""
QWEN3_INSTRUCT = changed(
    QWEN25, ("""{%- else %}{{- 'You are Qwen.' }}{%- endif %}
    {{- "\\n\\n#""", r"""{{- '\n\n' }}{%- endif %}{{- "#"""),
    (r"{%- else %}{{- '<|im_start|>system\nYou are Qwen.<|im_end|>\n' }}", ""),
    ("""\n        or (message.role == "assistant" and not message.tool_calls)""", ""),
    (r"""{{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\n' + message.content }}{%- endif %}""",
     r"""{%- set content = message.content %}
        {{- '<|im_start|>' + message.role + '\n' + content }}"""),
    (r"""{{- '\n<tool_call>""", r"""{%- if (loop.first and content) or (not loop.first) %}
                {{- '\n' }}
            {%- endif %}{{- '<tool_call>"""))
# Removes the part before </think> from answers, except after the last question.
QWEN3 = changed(
    QWEN3_INSTRUCT, ("{%- for message in messages %}", r"""
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user"
        and not(message.content.startswith('<tool_response>')
                and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}"""),
    (r"{{- '<|im_start|>' + message.role + '\n' + content }}", r"""
        {%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\n') %}
            {%- set reasoning_content = reasoning_content.split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n')
                + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}"""),
    (r"assistant\n' }}", r"assistant\n' }}" + SWITCH))
QWEN3_THINKING = changed(QWEN3, (r"assistant\n' }}" + SWITCH, r"assistant\n<think>\n' }}"))

# DeepSeek-R1-Distill without its tools: removes all thoughts; a system message has no marks.
R1 = (
    "{%- set ns = namespace(system='') -%}{%- for message in messages -%}"
    "{%- if message['role'] == 'system' -%}{%- set ns.system = message['content'] -%}{%- endif -%}"
    "{%- endfor -%}{{bos_token}}{{ns.system}}{%- for message in messages -%}"
    "{%- if message['role'] == 'user' -%}{{'<|User|>' + message['content']}}{%- endif -%}"
    "{%- if message['role'] == 'assistant' and message['content'] is not none -%}"
    "{%- set content = message['content'] -%}{%- if '</think>' in content -%}"
    "{%- set content = content.split('</think>')[-1] -%}{%- endif -%}"
    "{{'<|Assistant|>' + content + '</s>'}}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{'<|Assistant|><think>\n'}}{%- endif -%}")
# QwQ: Qwen2.5's template, but answers lose thoughts and line ends at their beginning.
CUT = "{%- set content = message.content.split('</think>')[-1].lstrip('\n') %}"
QWQ = changed(
    QWEN25, (r"""
        or (message.role == "assistant" and not message.tool_calls) %}
        {{-""", r""" %}
        {{-"""),
    (r"""{%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\n' + message.content }}{%- endif %}""",
     r"""{%- elif message.role == "assistant" and not message.tool_calls %}""" + CUT +
     r"""{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}""" + CUT + r"""{{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\n' + content }}{%- endif %}"""),
    (r"assistant\n' }}", r"assistant\n<think>\n' }}"))
# Hermes' second template, for conversations with tools; its list of tools must not be None.
HERMES_TOOLS = (
    "{{'<|im_start|>system\nYou call functions: <tools> '}}{%- for tool in tools %}"
    "{{ tool.function.name + '(' + tool.function.parameters.properties | join(', ') + ')' }}"
    "{%- endfor %}{{'</tools><|im_end|>\n'}}" + CHATML)
# LLaMA 3.2's beginning, and Mistral Small's default system message.
DATED = (
    "{{- bos_token }}{%- if not date_string is defined %}{%- if strftime_now is defined %}"
    "{%- set date_string = strftime_now('%d %b %Y') %}{%- else %}"
    "{%- set date_string = '26 Jul 2024' %}{%- endif %}{%- endif %}"
    "{%- if messages[0]['role'] == 'system' %}"
    "{%- set system_message = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}"
    "{%- else %}{%- set system_message = '' %}{%- endif %}"
    "{{- '<|start_header_id|>system<|end_header_id|>\n\nToday Date: ' + date_string + '\n\n' }}"
    "{{- system_message }}{{- '<|eot_id|>' }}{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}")
SMALL = (
    "{%- set today = strftime_now('%Y-%m-%d') %}{{- bos_token }}"
    "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] %}"
    "{%- set messages = messages[1:] %}{%- else %}{%- set system = 'It is ' + today + '.' %}"
    "{%- endif %}{{- '[SYSTEM_PROMPT]' + system + '[/SYSTEM_PROMPT]' }}"
    "{%- for message in messages %}" + ALTERNATE + "{%- if message['role'] == 'user' %}"
    "{{- '[INST]' + message['content'] + '[/INST]' }}{%- else %}"
    "{{- message['content'] + eos_token }}{%- endif %}{%- endfor %}")
GENERATION = changed(CHATML.replace("{{'<|im_start|>' + message['role'] + '\n' + ", (
    "{{'<|im_start|>' + message['role'] + '\n'}}{% generation %}{{")), (
    "'<|im_end|>' + '\n'}}", "'<|im_end|>' + '\n'}}{% endgeneration %}"))


def role(prefix: str, suffix: str, trim: bool = False) -> dict[str, Any]:
    return {"prefix": prefix, "suffix": suffix, "trim": trim}


def form(bos: str = "", default: str | None = None, prompt: str = "", end: str = "",
         alternate: bool = False, tools: dict[str, str] | None = None,
         thinking: dict[str, str] | None = None, later: bool | None = None, alone: bool = True,
         **roles: dict[str, Any]) -> dict[str, Any]:
    parts = {"tools": tools, "thinking": thinking}
    return {"bos": bos, "default_system": default, "roles": roles, "generation_prompt": prompt,
            "end": end, "alternate": alternate, **{k: v for k, v in parts.items() if v},
            "later_system": "system" in roles if later is None else later,
            "system_alone": "system" in roles and alone}


def same(prefix: str, suffix: str, *names: str, trim: bool = False) -> dict[str, Any]:
    """Roles whose texts differ only by the name."""
    return {name: role(prefix.replace("ROLE", name), suffix, trim) for name in names}


ALL = ("system", "user", "assistant")
IM = same("<|im_start|>ROLE\n", "<|im_end|>\n", *ALL)
QWEN25_TOOLS = {
    "prefix": "\n\n# Tools\n<tools>", "prefix_alone": "You are Qwen.\n\n# Tools\n<tools>",
    "tool": "\n",
    "suffix": "\n</tools>\n\nCall:\n<tool_call>\n{\"name\": <name>}\n</tool_call>",
    "separator": "\n", "call": "<tool_call>\n{\"name\": \"", "arguments": "\", \"arguments\": ",
    "call_end": "}\n</tool_call>", "next_response": "\n</tool_response>\n<tool_response>\n"}
IM_TOOLS = {**IM, "tool": role("<|im_start|>user\n<tool_response>\n",
                               "\n</tool_response><|im_end|>\n")}
QWEN25_FORM = form(default="You are Qwen.", prompt="<|im_start|>assistant\n",
                   tools=QWEN25_TOOLS, **IM_TOOLS)
QWEN25_PLAIN = form(default="You are Qwen.", prompt="<|im_start|>assistant\n", **IM)
QWEN3_TOOLS = {**QWEN25_TOOLS, "prefix_alone": "# Tools\n<tools>"}
QWEN3_THINKS = {"prefix": "<think>\n", "suffix": "\n</think>\n\n", "skip": "",
                "response_start": "<tool_response>", "response_end": "</tool_response>"}
DROPPED = {"prefix": "<think>", "suffix": "</think>", "skip": "", "kept": False,
           "response_start": "", "response_end": "", "strip": False}
# template -> its format, and a part of the note if system messages or tools are missing
REAL = {
    "ChatML": (CHATML, form(prompt="<|im_start|>assistant\n", **IM), ""),
    "first alone": (CHATML.replace("%}{{'<", "%}{% if loop.first or message['role'] != 'system' %}"
                                   "{{'<").replace("'}}{% endfor", "'}}{% endif %}{% endfor"),
                    form(prompt="<|im_start|>assistant\n", later=False, **IM), ""),
    "LLaMA-2": (LLAMA2, form(alternate=True, user=role("<s>[INST] ", " [/INST]", True),
                             assistant=role(" ", " </s>", True)), "how the user's begins"),
    "LLaMA-3": (LLAMA3, form(
        "<s>", prompt="<|start_header_id|>assistant<|end_header_id|>\n\n",
        **same("<|start_header_id|>ROLE<|end_header_id|>\n\n", "<|eot_id|>", *ALL, trim=True)), ""),
    "Mistral": (MISTRAL, form("<s>", alternate=True, user=role("[INST] ", " [/INST]"),
                              assistant=role("", "</s>")),
                "it refuses a conversation of system, user"),
    "Gemma": (GEMMA, form("<s>", prompt="<start_of_turn>model\n", alternate=True,
                          user=role("<start_of_turn>user\n", "<end_of_turn>\n", True),
                          assistant=role("<start_of_turn>model\n", "<end_of_turn>\n", True)),
              "System role not supported"),
    "Phi-3": (PHI3, form(prompt="<|assistant|>\n", end="</s>",
                         **same("<|ROLE|>\n", "<|end|>\n", *ALL)), ""),
    "Zephyr": (ZEPHYR, form(prompt="<|assistant|>\n", **same("<|ROLE|>\n", "</s>\n", *ALL)), ""),
    "SmolLM2": (SMOLLM2, form(
        default="You are a helpful AI assistant named SmolLM, trained by Hugging Face",
        prompt="<|im_start|>assistant\n", **IM), ""),
    "Qwen2.5": (QWEN25, QWEN25_FORM, ""),
    "Qwen3": (QWEN3, form(
        prompt="<|im_start|>assistant\n", tools=QWEN3_TOOLS,
        thinking={**QWEN3_THINKS, "skip": "<think>\n\n</think>\n\n"}, **IM_TOOLS), ""),
    "Qwen3 Instruct": (QWEN3_INSTRUCT, form(
        prompt="<|im_start|>assistant\n", tools=QWEN3_TOOLS, **IM_TOOLS), ""),
    "Qwen3 Thinking": (QWEN3_THINKING, form(
        prompt="<|im_start|>assistant\n<think>\n", tools=QWEN3_TOOLS, thinking=QWEN3_THINKS,
        **IM_TOOLS), ""),
    "R1-Distill": (R1, form(
        "", "", later=False, prompt="<|Assistant|><think>\n",
        thinking=DROPPED, system=role("<s>", ""),
        user=role("<|User|>", ""), assistant=role("<|Assistant|>", "</s>")), ""),
    "QwQ": (QWQ, form(default="You are Qwen.", prompt="<|im_start|>assistant\n<think>\n",
                      thinking={**DROPPED, "strip": True}, tools=QWEN25_TOOLS, **IM_TOOLS), ""),
    "dated": (DATED, form(
        later=False, default="", prompt="<|start_header_id|>assistant<|end_header_id|>\n\n",
        system=role("<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: "
                    '{{strftime_now("%d %b %Y")}}\n\n', "<|eot_id|>", True),
        **same("<|start_header_id|>ROLE<|end_header_id|>\n\n", "<|eot_id|>", *ALL[1:],
               trim=True)), ""),
    "LLaMA 3.1": (DATED.replace("if strftime_now is defined", "if false"), form(
        later=False, default="", prompt="<|start_header_id|>assistant<|end_header_id|>\n\n",
        system=role("<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: "
                    "26 Jul 2024\n\n", "<|eot_id|>", True),
        **same("<|start_header_id|>ROLE<|end_header_id|>\n\n", "<|eot_id|>", *ALL[1:],
               trim=True)), "every chat says that today is 26 Jul 2024"),
    "Mistral Small": (SMALL, form(
        later=False, default='It is {{strftime_now("%Y-%m-%d")}}.', alternate=True,
        system=role("<s>[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"), user=role("[INST]", "[/INST]"),
        assistant=role("", "</s>")), ""),
    "generation": (GENERATION, form(prompt="<|im_start|>assistant\n", **IM), ""),
    "a system message alone": (
        "{% if messages[0].role == 'system' and not messages[1:] %}"
        "{{ raise_exception('no question') }}{% endif %}" + CHATML,
        form(prompt="<|im_start|>assistant\n", alone=False, **IM), ""),
    "tools": (CHATML + "{% if tools %}{{ tools }}{% endif %}",
              form(prompt="<|im_start|>assistant\n", **IM), "without tools: tools are not"),
    "calls": (QWEN25.replace("tool_call.name }}", "tool_call.name | upper }}"),
              QWEN25_PLAIN, "without tools: calls are not"),
    "one call": (QWEN25.replace("in message.tool_calls", "in message.tool_calls[:1]"),
                 QWEN25_PLAIN, "without tools: "),
    "indent": (QWEN25.replace("tool | tojson", "tool | tojson(indent=2)"),
               QWEN25_PLAIN, "without tools: tools are not"),
    "trim": (QWEN25.replace("{{- message.content }}", "{{- message.content | trim }}"),
             QWEN25_PLAIN, "without tools: conversations with a call of a tool"),
}
# a change of ChatML -> the reason why it has no format
REFUSED = {
    "content": ("message['content'] +", "message['content'].split('</think>')[-1] +",
                "conversations with </think> in a content come out differently"),
    "questions": (CHATML, QWEN3.replace("'<tool_response>'", "'<response>'"),
                  "come out differently"),
    "kept": (CHATML, QWEN3.replace("(loop.last or reasoning_content)", "loop.last"),
             "come out differently"),
    "switch": (CHATML, QWEN3.replace(" and enable_thinking is false", ""), "come out differently"),
    "count": ("{% for", "{{ messages | length }}{% for", "come out differently"),
    "upper": ("message['content'] +", "message['content'] | upper +",
              "does not write every content once"),
    "rstrip": ("message['content'] +", "message['content'].rstrip() +", "come out differently"),
    "prompt": ("{% if add", "{{ 'x' if not add_generation_prompt }}{% if add", "generation prompt"),
    "hostile": ("{% for", "{{ raise_exception('\x1b[31m' + 'x' * 9999) }}{% for", "?[31mxx"),
    "syntax": ("{% endfor %}", "", "not understood"),
    "sandbox": ("message['role'] +", "''.__class__.__mro__ | string +", "SecurityError"),
    "loop": ("{% for", "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
             "{% endfor %}{% for", "no chat: "),
    "memory": ("{% for", "{{ ('x' * 9000000000) | length }}{% for", "MemoryError"),
}


class ChatFormatTest(CheckpointCase):
    def note(self, template: str, **config: Any) -> str:
        (self.src / "tokenizer_config.json").write_text(
            json.dumps({**TOKENS, "chat_template": template, **config}))
        return chat_format.write_chat_format(self.src)

    def test_real_templates(self) -> None:
        for name, (template, want, note) in REAL.items():
            with self.subTest(name):
                self.assertIn(note or "", got := self.note(template))
                self.assertEqual(bool(note), bool(got), got)
                self.assertEqual(json.loads((self.src / chat_format.NAME).read_text()), want)

    def test_what_is_no_format_is_said(self) -> None:
        path = self.src / chat_format.NAME
        for name, (old, new, *reasons) in REFUSED.items():
            path.unlink(missing_ok=True)
            with self.subTest(name), mock.patch.object(chat_format, "_SECONDS", 2):
                got = self.note(CHATML.replace(old, new, 1))
                for reason in ("no chat: ", *reasons):
                    self.assertIn(reason, got)
                self.assertTrue(got.isprintable() and len(got) < 1024)
                self.assertFalse(path.exists())

    def test_where_templates_lie(self) -> None:
        self.assertEqual(chat_format.write_chat_format(self.src), "")
        self.assertEqual(list(self.src.iterdir()), [])
        named = [{"name": "tools", "template": "x"}, {"name": "default", "template": CHATML}]
        self.assertEqual(self.note("", chat_template=named), "")
        named = [{"name": "default", "template": CHATML},
                 {"name": "tool_use", "template": HERMES_TOOLS}]
        self.assertIn("without tools: tools are not", self.note("", chat_template=named))
        named[1]["template"] = QWEN25
        self.assertIn("without tools: ", self.note("", chat_template=named))  # it has another text
        named[0]["template"] = QWEN25.replace("if tools", "if false")
        self.assertEqual(self.note("", chat_template=named), "")
        read = json.loads((self.src / chat_format.NAME).read_text())
        self.assertEqual(read, QWEN25_FORM)
        # transformers 4.50 and newer write these files, which replace the key of the other file.
        (self.src / "chat_template.jinja").write_text(named[0]["template"])
        self.note("", chat_template=named)
        self.assertNotIn("tools", json.loads((self.src / chat_format.NAME).read_text()))
        (self.src / "additional_chat_templates").mkdir()
        (self.src / "additional_chat_templates" / "tool_use.jinja").write_text(
            QWEN25.replace("tojson", "tojson(ensure_ascii=False)"))
        self.assertEqual(self.note(CHATML), "")
        self.assertEqual(json.loads((self.src / chat_format.NAME).read_text()), QWEN25_FORM)
        (self.src / "chat_template.jinja").write_text(MISTRAL)
        (self.src / "additional_chat_templates" / "tool_use.jinja").unlink()
        self.note(CHATML, bos_token={"content": "<B>"})
        self.assertEqual(json.loads((self.src / chat_format.NAME).read_text())["bos"], "<B>")
        # Older versions of transformers keep special tokens in this file.
        named = {"eos_token": {"content": "<E>"}, "bos_token": "<M>"}
        (self.src / "special_tokens_map.json").write_text(json.dumps(named))
        self.note(CHATML, bos_token=None, eos_token=None)
        read = json.loads((self.src / chat_format.NAME).read_text())
        self.assertEqual((read["bos"], read["roles"]["assistant"]["suffix"]), ("<M>", "<E>"))


if __name__ == "__main__":
    unittest.main()
