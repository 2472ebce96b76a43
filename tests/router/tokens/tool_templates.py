"""Small chat templates of our own, each with what a family is known for where it shows tools, calls and reasoning."""

from __future__ import annotations

END = "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
PLAIN = "{%- for m in messages %}{{- '<|' + m.role + '|>' + (m.content or '') }}{%- endfor %}" + END

# A list of tools in JSON, calls in tags, and results that follow each other in one turn.
HERMES = (
    "{%- if tools %}{{- '<|system|>' }}{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}"
    "{%- endif %}{{- '<tools>' }}{%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}{{- '\n</tools>' }}"
    "{%- elif messages[0].role == 'system' %}{{- '<|system|>' + messages[0].content }}{%- endif %}"
    "{%- for m in messages %}{%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{{- '<|' + m.role + '|>' + m.content }}{%- elif m.role == 'assistant' %}{{- '<|assistant|>' }}"
    "{%- if m.content %}{{- m.content }}{%- endif %}{%- for call in m.tool_calls %}"
    "{%- if call.function is defined %}{%- set call = call.function %}{%- endif %}"
    '{{- \'\n<tool_call>\n{"name": "\' + call.name + \'", "arguments": \' + (call.arguments | tojson) + '
    "'}\n</tool_call>' }}"
    "{%- endfor %}{%- elif m.role == 'tool' %}"
    "{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{- '<|user|>' }}{%- endif %}"
    "{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|end|>' }}{%- endif %}{%- endif %}"
    "{%- endfor %}"
) + END

# Thoughts of the turns after the last question, and a switch that writes empty ones.
QWEN_3 = (
    "{%- set ns = namespace(last=messages | length - 1, found=false) %}{%- for m in messages[::-1] %}"
    "{%- if not ns.found and m.role == 'user' %}{%- set ns.found = true %}"
    "{%- set ns.last = messages | length - 1 - loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- if tools %}{{- tools | tojson }}{%- endif %}{%- for m in messages %}{{- '<|' + m.role + '|>' }}"
    "{%- set thoughts = '' %}{%- if m.reasoning_content is string %}{%- set thoughts = m.reasoning_content %}"
    "{%- endif %}"
    "{%- if m.role == 'assistant' and loop.index0 > ns.last and thoughts %}"
    "{{- '<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' }}{%- endif %}{{- m.content }}"
    "{%- for call in m.tool_calls or [] %}{{- call.function.name }}"
    "{%- if call.function.arguments is string %}{{- call.function.arguments }}{%- else %}"
    "{{- call.function.arguments | tojson }}{%- endif %}{%- endfor %}{%- endfor %}" + END + "{%- if enable_thinking is"
    " defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
)

# Arguments one after another, objects in JSON and texts as they are.
QWEN_3_CODER = (
    "{%- for tool in tools or [] %}{{- '<function><name>' + tool.function.name + '</name>' }}"
    "{%- if tool.function.description is defined %}{{- '<d>' + (tool.function.description | trim) + '</d>' }}"
    "{%- endif %}"
    "{%- if tool.function.parameters is mapping and tool.function.parameters.properties is mapping %}"
    "{%- for name, fields in tool.function.parameters.properties | items %}{{- '<p>' + name }}"
    "{%- if fields.type is defined %}{{- ':' + (fields.type | string) }}{%- endif %}{{- '</p>' }}{%- endfor %}"
    "{%- endif %}"
    "{{- '</function>' }}{%- endfor %}{%- for m in messages %}{{- '<|' + m.role + '|>' + m.content }}"
    "{%- for call in m.tool_calls or [] %}{{- '<function=' + call.function.name + '>' }}"
    "{%- for name, value in call.function.arguments | items %}{{- '<parameter=' + name + '>' }}"
    "{%- set value = value | tojson | safe if value is mapping or (value is sequence and value is not string) "
    "else value | string %}{{- value + '</parameter>' }}{%- endfor %}{{- '</function>' }}{%- endfor %}{%- endfor %}"
) + END

# Tools in the first question, one call a turn, results of role ipython, and text beside a call that is left out.
LLAMA_3 = (
    "{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}"
    "{%- if not tools is defined %}{%- set tools = none %}{%- endif %}"
    "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] | trim %}"
    "{%- set messages = messages[1:] %}{%- else %}{%- set system = '' %}{%- endif %}"
    "{{- '<|system|>' + system }}{%- if tools is not none %}{%- set first = messages[0]['content'] | trim %}"
    "{%- set messages = messages[1:] %}{{- '<|user|>' }}{%- for t in tools %}{{- t | tojson(indent=4) }}"
    "{{- '\n\n' }}{%- endfor %}{{- first }}{%- endif %}{%- for m in messages %}"
    "{%- if not (m.role == 'ipython' or m.role == 'tool' or 'tool_calls' in m) %}"
    "{{- '<|' + m['role'] + '|>' + m['content'] | trim }}{%- elif 'tool_calls' in m %}"
    "{%- if not m.tool_calls | length == 1 %}{{- raise_exception('This model only takes one call at once') }}"
    "{%- endif %}{%- set call = m.tool_calls[0].function %}{{- '<|assistant|>' }}"
    "{{- '{\"name\": \"' + call.name + '\", \"parameters\": ' }}{{- call.arguments | tojson }}{{- '}' }}"
    "{%- elif m.role == 'tool' or m.role == 'ipython' %}{{- '<|ipython|>' }}"
    "{%- if m.content is mapping or m.content is iterable %}{{- m.content | tojson }}{%- else %}{{- m.content }}"
    "{%- endif %}{%- endif %}{%- endfor %}"
) + END

# Content as text or parts, and calls in Python's words.
LLAMA_4 = (
    "{%- for t in tools or [] %}{{- t | tojson(indent=4) + '\n' }}{%- endfor %}{%- for m in messages %}"
    "{{- '<|' + ('ipython' if m.role == 'tool' else m.role) + '|>' }}"
    "{%- if m.content is string %}{{- m.content }}{%- else %}{%- for part in m.content %}"
    "{%- if part.type == 'text' %}{{- part.text }}{%- endif %}{%- endfor %}{%- endif %}"
    "{%- if m.tool_calls is defined and m.tool_calls %}{{- '[' }}{%- for call in m.tool_calls %}"
    "{{- call.function.name + '(' }}{%- for name, value in call.function.arguments.items() %}"
    "{{- name + '=' + (value | tojson) }}{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}{{- ')' }}"
    "{%- endfor %}{{- ']' }}{%- endif %}{%- endfor %}"
) + END

# Tools before the last question, and ids of nine characters.
MISTRAL_3 = (
    "{%- set questions = messages | selectattr('role', 'equalto', 'user') | list %}{%- for m in messages %}"
    "{%- if m.role == 'user' %}{%- if tools is not none and m == questions[-1] %}{{- '[AVAILABLE_TOOLS] [' }}"
    '{%- for tool in tools %}{%- set tool = tool.function %}{{- \'{"type": "function", "function": {\' }}'
    "{%- for key, value in tool.items() if key != 'return' %}{%- if value is string %}"
    "{{- '\"' + key + '\": \"' + value + '\"' }}{%- else %}{{- '\"' + key + '\": ' + (value | tojson) }}{%- endif %}"
    "{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}{{- '}}' }}{%- if not loop.last %}{{- ', ' }}"
    "{%- endif %}{%- endfor %}{{- ']' }}{%- endif %}{{- '[INST] ' + m.content + '[/INST]' }}"
    "{%- elif m.tool_calls is defined and m.tool_calls is not none %}{{- '[TOOL_CALLS] [' }}"
    "{%- for call in m.tool_calls %}{%- set out = call.function | tojson %}{{- out[:-1] }}"
    "{%- if not call.id is defined or call.id | length != 9 %}"
    "{{- raise_exception('ids of calls have nine characters') }}{%- endif %}{{- ', \"id\": \"' + call.id + '\"}' }}"
    "{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}{{- ']' + eos_token }}"
    "{%- elif m.role == 'assistant' %}{{- ' ' + m.content + eos_token }}{%- elif m.role == 'tool' %}"
    "{%- if not m.tool_call_id is defined or m.tool_call_id | length != 9 %}"
    "{{- raise_exception('ids of calls have nine characters') }}{%- endif %}"
    "{{- '[TOOL_RESULTS] {\"content\": ' + m.content + ', \"call_id\": \"' + m.tool_call_id + '\"}[/TOOL_RESULTS]' }}"
    "{%- elif m.role == 'system' %}{{- '[SYSTEM]' + m.content }}{%- endif %}{%- endfor %}"
)

# Calls only beside content of none, and arguments that are joined with text.
DEEPSEEK_3 = (
    "{%- for tool in tools or [] %}{{- tool.function.name + ': ' + (tool.function.description or '') }}{%- endfor %}"
    "{%- for m in messages %}{%- if m['role'] == 'user' %}{{- '<|User|>' + m['content'] }}{%- endif %}"
    "{%- if m['role'] == 'system' %}{{- m['content'] }}{%- endif %}"
    "{%- if m['role'] == 'assistant' and m['content'] is none %}{{- '<|Assistant|>' }}"
    "{%- for call in m['tool_calls'] %}"
    "{{- '<call>' + call['type'] + '<sep>' + call['function']['name'] + '\n```json\n' + call['function']['arguments'] "
    "+ '\n```<end>' }}{%- endfor %}{%- endif %}"
    "{%- if m['role'] == 'assistant' and m['content'] is not none %}{{- '<|Assistant|>' + m['content'] }}{%- endif %}"
    "{%- if m['role'] == 'tool' %}{{- '<output>' + m['content'] }}{%- endif %}{%- endfor %}"
)

# Thinking by a variable, and calls after text of the same turn.
DEEPSEEK_31 = (
    "{%- if not thinking is defined %}{%- set thinking = false %}{%- endif %}{%- for t in tools or [] %}"
    "{{- '### ' + t.function.name + '\nParameters: ' + (t.function.parameters | tojson) }}{%- endfor %}"
    "{%- for m in messages %}{%- if m.role == 'assistant' %}{{- '</think>' + (m.content or '') }}"
    "{%- for call in m.tool_calls or [] %}{%- set arguments = call.function.arguments %}"
    "{{- '<call>' + call.function.name + '<sep>' + (arguments if arguments is string else arguments | tojson) }}"
    "{%- endfor %}{%- else %}{{- '<|' + m.role + '|>' + m.content }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|Assistant|>' + ('<think>' if thinking else '</think>') }}{%- endif %}"
)

# A plan beside calls, results by the number of their call, and documents.
COMMAND = (
    "{%- if documents %}{%- for d in documents %}{{- 'Document: ' ~ loop.index0 ~ '\n' }}"
    "{%- for key, value in d.items() %}{{- key ~ ': ' ~ value ~ '\n' }}{%- endfor %}{%- endfor %}{%- endif %}"
    "{%- for tool in tools or [] %}{{- {'name': tool['function']['name'], 'parameters': "
    "tool['function']['parameters']} "
    "| tojson(indent=2) }}{%- endfor %}{%- set ns = namespace(n=0) %}{%- for m in messages %}"
    "{{- '<|' + m.role + '|>' }}{%- if m.role == 'assistant' and m.tool_calls %}{{- 'Action: [' }}"
    "{%- for call in m.tool_calls %}{{- {'tool_name': call.function.name, 'parameters': call.function.arguments} "
    "| tojson(indent=4) }}{%- if not loop.last %}{{- ',' }}{%- endif %}{%- endfor %}{{- ']' }}"
    "{%- elif m.role == 'tool' %}{{- '<result ' ~ ns.n ~ '>' ~ m.content }}{%- set ns.n = ns.n + 1 %}"
    "{%- else %}{{- m.content }}{%- endif %}{%- endfor %}"
) + END

# Tools and documents in turns of their own, thinking by a variable.
GRANITE = (
    "{%- if tools %}{{- '<|tools|>' + (tools | map(attribute='function') | list | tojson(indent=4)) }}{%- endif %}"
    "{%- for d in documents or [] %}{{- '<|document|>' + d['title'] + '\n' + d['text'] }}{%- endfor %}"
    "{%- for m in messages %}{{- '<|' + m['role'] + '|>' + m['content'] }}{%- if m.tool_calls %}"
    "{{- '<|tool_call|>' + (m.tool_calls | map(attribute='function') | list | tojson) }}{%- endif %}{%- endfor %}"
    "{%- if thinking %}{{- 'Think first.' }}{%- endif %}"
) + END

# Keys and values of arguments in tags; thinking that a question switches off.
GLM = (
    "{%- if tools %}{{- '<|system|>\n<tools>' }}{%- for tool in tools %}"
    "{{- '\n' + (tool | tojson(ensure_ascii=False)) }}"
    "{%- endfor %}{{- '</tools>' }}{%- endif %}"
    "{%- macro shown(content) %}{%- if content is string %}{{- content }}"
    "{%- elif content is iterable and content is not "
    "mapping %}{%- for item in content %}{%- if item is mapping and item.type == 'text' %}{{- item.text }}"
    "{%- elif item is string %}{{- item }}{%- endif %}{%- endfor %}{%- else %}{{- content }}{%- endif %}{%- endmacro %}"
    "{%- for m in messages %}{%- if m.role == 'user' %}{{- '<|user|>\n' + shown(m.content) }}"
    "{%- if enable_thinking is defined and not enable_thinking and not shown(m.content).endswith('/nothink') %}"
    "{{- '/nothink' }}{%- endif %}{%- elif m.role == 'assistant' %}{{- '<|assistant|>' }}"
    "{%- if m.reasoning_content is string %}{{- '\n<think>' + m.reasoning_content.strip() + '</think>' }}{%- endif %}"
    "{{- shown(m.content).strip() }}{%- for tc in m.tool_calls or [] %}{%- if tc.function %}{%- set tc = tc.function %}"
    "{%- endif %}{{- '\n<tool_call>' + tc.name + '\n' }}{%- set args = tc.arguments %}{%- for k, v in args.items() %}"
    "{{- '<arg_key>' + k + '</arg_key>\n<arg_value>' }}"
    "{{- v | tojson(ensure_ascii=False) if v is not string else v }}{{- '</arg_value>\n' }}{%- endfor %}"
    "{{- '</tool_call>' }}{%- endfor %}{%- elif m.role == 'tool' %}{%- if m.content is string %}"
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|observation|>' }}{%- endif %}"
    "{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}{%- endif %}{%- elif m.role == 'system' %}"
    "{{- '<|system|>\n' + shown(m.content) }}{%- endif %}{%- endfor %}"
) + END

# Ids of calls in the text, and the name of a speaker.
KIMI = (
    "{%- if tools %}{{- '<|tool_declare|>' + (tools | tojson(separators=(',', ':'))) }}{%- endif %}"
    "{%- for m in messages %}{{- '<|im|>' + (m.get('name') or m['role']) + '<|mid|>' }}"
    "{%- if m['role'] == 'assistant' and m.get('tool_calls') %}{%- if m['content'] %}{{- m['content'] }}{%- endif %}"
    "{%- for call in m['tool_calls'] %}{{- '<|call|>' + call['id'] + '<|args|>' + call['function']['name'] }}"
    "{%- if call['function']['arguments'] is string %}{{- call['function']['arguments'] }}{%- else %}"
    "{{- call['function']['arguments'] | tojson }}{%- endif %}{%- endfor %}"
    "{%- elif m['role'] == 'tool' %}{{- '## Return of ' + m.tool_call_id + '\n' + m['content'] }}"
    "{%- elif m['content'] is string %}{{- m['content'] }}{%- else %}{%- for part in m['content'] %}"
    "{{- part['text'] if part['type'] == 'text' }}{%- endfor %}{%- endif %}{%- endfor %}"
) + END

# Calls as elements with parameters; thoughts in the last turn.
MINIMAX = (
    "{%- for tool in tools or [] %}{{- '<tool>' + (tool.function | tojson(ensure_ascii=False)) + '</tool>' }}"
    "{%- endfor %}"
    "{%- for m in messages %}{{- ']~b]' + m.role + '\n' }}"
    "{%- if m.role == 'assistant' and m.reasoning_content and loop.last %}"
    "{{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{%- endif %}"
    "{%- if m.role == 'tool' %}{{- '<response>' + m.content + '</response>' }}{%- elif m.content %}{{- m.content }}"
    "{%- endif %}{%- if m.tool_calls %}{{- '\n<calls>' }}{%- for tool_call in m.tool_calls %}"
    "{%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}"
    "{{- '<invoke name=\"' + tool_call.name + '\">' }}{%- for k, v in tool_call.arguments.items() %}"
    "{{- '<parameter name=\"' + k + '\">' }}{{- v | tojson(ensure_ascii=False) if v is not string else v }}"
    "{{- '</parameter>' }}{%- endfor %}{{- '</invoke>' }}{%- endfor %}{{- '</calls>' }}{%- endif %}{%- endfor %}"
) + END

# Tools as a turn of the system with a name.
INTERNLM = (
    "{%- if tools %}{{- '<|system name=<|plugin|>|>' + (tools | map(attribute='function') | list | tojson) }}"
    "{%- endif %}"
    "{%- for m in messages %}{%- if m.role == 'tool' %}{{- '<|environment name=<|plugin|>|>' + m.content }}"
    "{%- else %}{{- '<|' + m.role + ((' name=' + m.name) if m.name else '') + '|>' + m.content }}"
    "{%- for c in m.tool_calls or [] %}"
    "{{- '<|action_start|>' + {'name': c.function.name, 'parameters': c.function.arguments} | tojson + "
    "'<|action_end|>' }}"
    "{%- endfor %}{%- endif %}{%- endfor %}"
) + END

# Variables of its own for tools, and a switch of thinking that is on.
SMOLLM = (
    "{%- if enable_thinking is not defined %}{%- set enable_thinking = true %}{%- endif %}"
    "{%- set mode = '/think' if enable_thinking else '/no_think' %}{{- '<|system|>Mode: ' + mode + '\n' }}"
    "{%- if xml_tools or tools %}{%- for tool in (xml_tools or tools) %}{{- (tool | string if tool is not mapping else "
    "tool | tojson) ~ '\n' }}{%- endfor %}{%- endif %}{%- for m in messages %}"
    "{%- set content = m.content if m.content is string else '' %}{%- if m.role == 'tool' %}{{- '<|user|>' + content }}"
    "{%- else %}{{- '<|' + m.role + '|>' + content.replace('/think', '') }}{%- for c in m.tool_calls or [] %}"
    "{{- '<tool_call>' + (c.function | tojson) + '</tool_call>' }}{%- endfor %}{%- endif %}{%- endfor %}"
) + END

# A list of all calls of a turn.
NEMOTRON = (
    "{%- if tools %}{{- '<AVAILABLE_TOOLS>[' }}{%- for t in tools %}"
    "{{- (t.function if t.function is defined else t) | tojson }}{{- ', ' if not loop.last else '' }}{%- endfor %}"
    "{{- ']</AVAILABLE_TOOLS>' }}{%- endif %}{%- for m in messages %}{%- if m.role == 'tool' %}"
    "{%- if not loop.first and messages[loop.index0 - 1].role != 'tool' %}{{- '<TOOL_RESPONSE>[' }}{%- endif %}"
    "{{- m.content }}{%- if not loop.last and messages[loop.index0 + 1].role == 'tool' %}{{- ', ' }}{%- else %}"
    "{{- ']</TOOL_RESPONSE>' }}{%- endif %}{%- else %}{{- '<|' + m.role + '|>' }}"
    "{%- if m.role == 'assistant' and '</think>' in m.content %}{{- m.content.split('</think>')[-1] | trim }}"
    "{%- else %}{{- m.content }}{%- endif %}{%- if m.tool_calls %}{{- '<TOOLCALL>[' }}{%- for call in m.tool_calls %}"
    "{{- '{\"name\": \"' + call.function.name + '\", \"arguments\": ' + (call.function.arguments | tojson) + '}' }}"
    "{{- ', ' if not loop.last else '' }}{%- endfor %}{{- ']</TOOLCALL>' }}{%- endif %}{%- endif %}{%- endfor %}"
) + END

# Calls as functions with arguments by name; results of role environment.
OLMO = (
    "{%- if tools %}{{- '<functions>' + (tools | map(attribute='function') | list | tojson) + '</functions>' }}"
    "{%- endif %}{%- for m in messages %}{%- if m.role == 'tool' %}{{- '<|environment|>' + m['content'] }}{%- else %}"
    "{{- '<|' + m.role + '|>' }}{%- if m.get('content', none) is not none %}{{- m['content'] }}{%- endif %}"
    "{%- if m.get('tool_calls', none) is not none %}{{- '<function_calls>' }}{%- for c in m['tool_calls'] %}"
    "{{- c['function']['name'] + '(' }}{%- for name, value in c['function']['arguments'].items() %}"
    "{{- name + '=' + value | tojson }}{{- ', ' if not loop.last }}{%- endfor %}{{- ')' }}"
    "{{- '\n' if not loop.last }}{%- endfor %}{{- '</function_calls>' }}{%- endif %}{%- endif %}{%- endfor %}"
) + END

# Tools in the system's turn, and answers in tags.
HUNYUAN = (
    "{%- if not enable_thinking is defined %}{%- set enable_thinking = true %}{%- endif %}{%- if tools %}"
    "{{- '<tools>\n[' + (tools | map('tojson') | join(', ')) + ']\n</tools>' }}{%- endif %}{%- for m in messages %}"
    "{{- '<|' + m.role + '|>' }}{%- if m.role == 'assistant' and m.tool_calls %}{{- '<tool_calls>[' }}"
    "{%- for c in m.tool_calls %}{%- set f = c.function %}{{- {'name': f.name, 'arguments': f.arguments} | tojson }}"
    "{{- ',' if not loop.last }}{%- endfor %}{{- ']</tool_calls>' }}{%- elif m.role == 'assistant' %}"
    "{{- '<answer>' + m.content + '</answer>' }}{%- else %}{{- m.content }}{%- endif %}{%- endfor %}"
    "{{- '' if enable_thinking else '/no_think' }}"
) + END

# Tools and documents as lists that a macro writes.
JAMBA = (
    "{%- macro listed(name, items) %}{{- '# ' + name + '\n' }}{%- for item in items %}"
    "{{- item | tojson(sort_keys=true) + '\n' }}{%- endfor %}{%- endmacro %}"
    "{%- if tools %}{{- listed('Tools', tools | map(attribute='function') | list) }}{%- endif %}"
    "{%- if documents %}{{- listed('Documents', documents) }}{%- endif %}{%- for m in messages %}"
    "{{- '<|' + m.role + '|>' + (m.content or '') }}{%- if m.tool_calls is defined %}{{- '<tool_calls>' }}"
    "{%- for c in m.tool_calls %}{{- c.function | tojson + '\n' }}{%- endfor %}{%- endif %}{%- endfor %}"
) + END

# All calls as one list in JSON, without ids.
XLAM = (
    "{%- if tools is defined and tools is not none %}{{- '[BEGIN TOOLS]\n' + (tools | tojson(indent=2)) }}{%- endif %}"
    "{%- for m in messages %}{{- '<|' + m.role + '|>' }}{%- if m.tool_calls %}"
    "{%- set ns = namespace(calls=[]) %}{%- for c in m.tool_calls %}"
    "{%- set ns.calls = ns.calls + [{'name': c.function.name, 'arguments': c.function.arguments}] %}{%- endfor %}"
    "{{- ns.calls | tojson }}{%- else %}{{- m.content | trim }}{%- endif %}{%- endfor %}"
) + END

# Types of parameters in another notation, amounts of reasoning, one call a turn, and the name of the called function.
GPT_OSS = (
    "{%- macro type(spec) -%}{%- if spec.type == 'array' -%}{{ type(spec['items']) }}[]{%- elif spec.enum -%}"
    "{{ '\"' + spec.enum | join('\" | \"') + '\"' }}{%- elif spec.type == 'integer' -%}number{%- else -%}"
    "{{ spec.type }}{%- endif -%}{%- endmacro -%}"
    "{%- if reasoning_effort is not defined %}{%- set reasoning_effort = 'medium' %}{%- endif %}"
    "{{- '<|start|>system<|message|>Reasoning: ' + reasoning_effort }}{%- if tools %}{{- 'namespace functions {' }}"
    "{%- for tool in tools %}{{- '\ntype ' + tool.function.name + ' = (_: {' }}"
    "{%- for name, spec in ((tool.function.parameters or {}).properties or {}).items() %}"
    "{{- '\n' + name + ('' if name in (tool.function.parameters.required or []) else '?') + ': ' + type(spec) }}"
    "{%- endfor %}{{- '}) => any;' }}{%- endfor %}{{- '}' }}{%- endif %}{%- set last = namespace(call=none) %}"
    "{%- for m in messages %}{%- if m.role == 'assistant' %}{%- if 'tool_calls' in m %}"
    "{%- set call = m.tool_calls[0].function %}{%- set last.call = call.name %}"
    "{{- '<|start|>assistant to=functions.' + call.name + '<|message|>' + (call.arguments | tojson) + '<|call|>' }}"
    "{%- else %}{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}{%- endif %}"
    "{%- elif m.role == 'tool' %}{%- if last.call is none %}{{- raise_exception('a result needs a call before it') }}"
    "{%- endif %}{{- '<|start|>functions.' + last.call + ' to=assistant<|message|>' + (m.content | tojson) }}"
    "{%- else %}{{- '<|start|>' + ('developer' if m.role in ('system', 'developer') else m.role) + '<|message|>' "
    "+ m.content }}{%- endif %}{%- endfor %}"
) + END

# Arguments as the text that they came as.
FUNCTIONARY = (
    "{%- for tool in tools or [] %}{{- tool.function | tojson }}{%- endfor %}{%- for m in messages %}"
    "{{- '<|' + m.role + '|>' + (('name=' + m.name + '\n') if m.role == 'tool' and m.name else '') + (m.content or "
    "'') }}"
    "{%- for call in m.tool_calls or [] %}{{- '>>>' ~ call.function.name ~ '\n' ~ call.function.arguments }}"
    "{%- endfor %}"
    "{%- endfor %}"
) + END

# Tools in the system's message, and calls in the words of Python.
LFM = (
    "{%- set ns = namespace(system='') %}{%- if messages[0].role == 'system' %}"
    "{%- set ns.system = messages[0].content %}{%- set messages = messages[1:] %}{%- endif %}{%- if tools %}"
    "{%- set ns.system = ns.system + ('\n' if ns.system else '') + 'List of tools: [' %}{%- for tool in tools %}"
    "{%- set ns.system = ns.system + (tool if tool is string else tool | tojson) + (', ' if not loop.last else '') %}"
    "{%- endfor %}{%- set ns.system = ns.system + ']' %}{%- endif %}{{- ns.system }}{%- for m in messages %}"
    "{{- '<|' + m.role + '|>' + m.content }}{%- for c in m.tool_calls or [] %}"
    "{{- '<|tool_call_start|>' + c.function.name + "
    "'(' }}{%- for k, v in c.function.arguments | dictsort %}{{- k + '=' + v | tojson }}{%- endfor %}{{- ')' }}"
    "{%- endfor %}"
    "{%- endfor %}"
) + END

FAMILIES = {
    "Hermes, Qwen 2.5": HERMES,
    "Qwen 3": QWEN_3,
    "Qwen 3 Coder, Seed-OSS": QWEN_3_CODER,
    "Llama 3.1, 3.2, 3.3": LLAMA_3,
    "Llama 4": LLAMA_4,
    "Mistral v3, Nemo, v7": MISTRAL_3,
    "DeepSeek V3, R1": DEEPSEEK_3,
    "DeepSeek V3.1": DEEPSEEK_31,
    "Command R, Command A": COMMAND,
    "Granite 3, 4": GRANITE,
    "GLM 4.5": GLM,
    "Kimi K2": KIMI,
    "MiniMax M2": MINIMAX,
    "InternLM": INTERNLM,
    "SmolLM 3": SMOLLM,
    "Nemotron": NEMOTRON,
    "Olmo 3": OLMO,
    "Hunyuan": HUNYUAN,
    "Jamba": JAMBA,
    "xLAM": XLAM,
    "gpt-oss": GPT_OSS,
    "Functionary": FUNCTIONARY,
    "LFM 2": LFM,
}
"""Templates that show tools, by family."""
