"""A chat template and its tokenizer: chats as tokens, and the tokens between two turns. Threads may share one.

Invariants: tokens that the policy wrote are never computed again from text: the text after a turn is rendered with a
stand-in for the turn, and tokenised alone. The content of messages is plain text: the text of a special token in a
row, or in a tool's result, becomes ordinary tokens. Only the template writes
special tokens.

Templates differ in the messages that they accept. Small chats are tried once: a system message, tools, the role of
tools, two results in a row. Messages that a template refuses take another form (`Ways`).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from rhymed.core.errors import ConfigError
from rhymed.inputs.tokenizer import render

Chat = list[dict[str, Any]]
"""Messages with `role` and `content`."""

Tools = Sequence[Mapping[str, Any]]
"""Schemas, as in OpenAI's API."""

TURN, RESULT, SYSTEM = "STAND-IN-FOR-A-TURN", "STAND-IN-FOR-A-RESULT", "STAND-IN-FOR-A-SYSTEM-MESSAGE"
CALLED = "stand_in_for_a_function"
TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{schemas}\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML"
    ' tags:\n<tool_call>\n{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)
"""From Qwen 2.5's template, for templates without tools."""

MARK = "\U000f5afe"
"""A private character inside of words that are no special token though they look like one; doubled: itself."""

MARKED = re.compile(f"{MARK}({MARK}?)")
TAIL = 64  # last tokens of a turn, in which a stop string is looked for


class Ways(NamedTuple):
    """The form of a turn's results in a chat."""

    role: str  # tool; user: as messages of the user
    joined: bool  # several are one message


class ChatTemplate:
    """`stops`: ids that end a turn, `stop`: strings that do. `options`: arguments of the template in every call.
    Methods may be called by several threads: a lock guards the tokenizer. Those that render may raise any error of a
    template."""

    def __init__(
        self,
        tokenizer: Any,
        options: Mapping[str, Any] | None = None,
        stops: Iterable[int] = (),
        stop: Sequence[str] = (),
    ) -> None:
        self.tokenizer, self._options = tokenizer, dict(options or {})
        self._stops, self._stop = frozenset(stops), tuple(stop)
        self._lock = threading.Lock()  # fast tokenizers are not thread-safe
        self._known: tuple[str, bool] | None = None  # the last tools, and whether the template writes them
        added = {str(token): id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special = added
        longest = sorted((re.escape(words) for words in added if words), key=len, reverse=True)
        self._control = re.compile("|".join(longest) or r"(?!)")
        longer = [words for words in longest if len(re.sub(r"\\(.)", r"\1", words)) > 1]
        self._foreign = re.compile("|".join([re.escape(MARK), *longer]))

    # Chats as text. It has marks: `tokens` reads them, `without_marks` removes them.

    def text(
        self, chat: Chat, tools: Tools = (), options: Mapping[str, Any] | None = None, *, continued: bool = False
    ) -> str:
        """A prompt, with the beginning of the policy's turn. `continued`: its last message is that beginning."""
        chat = self._results(chat)
        if tools and not self._knows(tools):
            listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
            chat, tools = self._with_words(chat, TOOLS.format(schemas=listed)), ()
        given: dict[str, Any] = {"tools": list(tools)} if tools else {}
        if continued:
            given["continue_final_message"] = True
        return self._render(chat, options, add_generation_prompt=not continued, **given)

    def after(
        self, messages: Chat, turn: Sequence[int], options: Mapping[str, Any] | None = None, stop: Sequence[str] = ()
    ) -> list[int]:
        """The tokens between a turn (its last ones suffice) and the next one. `stop`: strings that ended this turn,
        too.

        A turn that was cut gets the template's end of a turn. A turn that has ended is not ended again: by its
        id, or by the stop string with which the template would continue."""
        chat = [*_user(), {"role": "assistant", "content": TURN}, *self._results(messages, joined=True)]
        text = self._render(chat, options, add_generation_prompt=True)
        rest, last = text[text.index(TURN) + len(TURN) :], turn[-1]  # the first: later text may contain it, too
        begins = re.match(rf"\s*({self._control.pattern})", rest)
        ending = self._special.get(begins[1]) if begins else None
        if begins and (last == ending or {last, ending} <= self._closing):
            return self.tokens(rest[begins.end() :])
        if last in self._stops:
            return self.tokens(rest.removeprefix(self.decode([last])))
        tail = self.decode(turn[-TAIL:])
        for words in (*self._stop, *stop):
            if (place := tail.rfind(words)) >= 0 and rest.startswith(tail[place:]):
                return self.tokens(rest.removeprefix(tail[place:]))
        return self.tokens(rest)

    # Text as tokens

    def tokens(self, text: str) -> list[int]:
        (found,) = self.batch([text])
        return found

    def batch(self, texts: Sequence[str]) -> list[list[int]]:
        with self._lock:
            plain = [text for text in texts if MARK not in text]
            encoded = iter(self._encoded(plain) if plain else ())
            return [next(encoded) if MARK not in text else self._pieces(text) for text in texts]

    def _encoded(self, texts: list[str], **options: bool) -> list[list[int]]:
        return [
            list(ids) for ids in self.tokenizer(texts, add_special_tokens=False, verbose=False, **options).input_ids
        ]

    def _pieces(self, text: str) -> list[int]:
        """Special tokens of the template, and between them text that has none."""
        found: list[int] = []
        place = 0
        for control in [*self._control.finditer(text), None]:
            if piece := without_marks(text[place : control.start() if control else None]):
                found += self._encoded([piece], split_special_tokens=True)[0]
            if control:
                found.append(self._special[control[0]])
                place = control.end()
        return found

    def without_special(self, text: str) -> str:
        """Without every special token of the tokenizer, whether it has a name there or not."""
        return self._control.sub("", text)

    def decode(self, tokens: Sequence[int], *, special: bool = True) -> str:
        with self._lock:
            return str(self.tokenizer.decode(list(tokens), skip_special_tokens=not special))

    def words(self, chat: Any) -> list[str]:
        """Texts of special tokens in the content of messages."""
        texts = [
            text for message in chat for key, value in message.items() if key != "role" for text in _texts(value)
        ]
        return sorted({found[0] for text in texts for found in self._foreign.finditer(text)} - {MARK})

    # Properties of the template

    @cached_property
    def end(self) -> int | None:
        """The special token that the template writes after every turn, the last one and earlier ones."""
        last, earlier = self._ends
        return last if last == earlier else None

    @property
    def last_end(self) -> int | None:
        """The special token after a turn that is the last message."""
        return self._ends[0]

    @cached_property
    def end_text(self) -> str:
        """The text that the template writes after a turn that is the last message, without spaces around it."""
        try:
            text = self._render([*_user(), {"role": "assistant", "content": TURN}])
        except Exception:  # a template may raise anything
            return ""
        return text.partition(TURN)[2].strip()

    @cached_property
    def _ends(self) -> tuple[int | None, int | None]:
        """Special tokens after a turn that is the last message, and after an earlier one."""
        found: list[int | None] = []
        for more in ([], _user()):
            try:
                text = self._render([*_user(), {"role": "assistant", "content": TURN}, *more])
            except Exception:  # a template may raise anything
                text = ""
            begins = re.match(rf"\s*({self._control.pattern})", text.partition(TURN)[2])
            found.append(self._special[begins[1]] if begins else None)
        return found[0], found[1]

    @cached_property
    def _closing(self) -> frozenset[int | None]:
        """Tokens of the template that end a turn, one as well as the other: <|return|> and <|end|>, or <|eom_id|> and
        <|eot_id|>. None if it ends no turn, because then the beginning of the next one does."""
        if None in self._ends:
            return frozenset()
        source = str(self.tokenizer.chat_template)
        written = {id for words, id in self._special.items() if id in self._stops and words in source}
        return frozenset({*self._ends, *written})

    @cached_property
    def ways(self) -> Ways:
        asked: Chat = [*_user(), {"role": "assistant", "content": TURN}]
        for way in (Ways("tool", False), Ways("tool", True), Ways("user", False), Ways("user", True)):
            if all(self._shows([*asked, *_adapted([_result()] * count, way)], RESULT, count) for count in (1, 2)):
                return way
        return Ways("user", True)

    @cached_property
    def _joins(self) -> bool:
        """Two messages of the user in a row are refused."""
        asked: Chat = [*_user(), {"role": "assistant", "content": TURN}, *_user(), *_user()]
        return not self._shows(asked, TURN)

    @cached_property
    def takes_system(self) -> bool:
        return self._shows([{"role": "system", "content": SYSTEM}, *_user()], SYSTEM)

    @cached_property
    def shows_calls(self) -> bool:
        """It renders the calls of earlier turns."""
        call = {"type": "function", "id": "call_0", "function": {"name": CALLED, "arguments": {}}}
        turn = {"role": "assistant", "content": "", "tool_calls": [call]}
        return self._shows([*_user(), turn, {**_result(), "tool_call_id": "call_0"}], CALLED)

    def knows_tools(self, tools: Tools) -> bool:
        """Raises `ConfigError`."""
        try:
            return self._render(_user(), tools=list(tools)) != self._render(_user())
        except Exception as error:  # a template may raise anything
            raise ConfigError(f"the chat template refuses the tools ({type(error).__name__}: {error})") from None

    def _knows(self, tools: Tools) -> bool:
        key, known = json.dumps(tools), self._known
        if known is None or known[0] != key:
            self._known = known = (key, self.knows_tools(tools))
        return known[1]

    def problem(self) -> str:
        """Why the policy reads a chat that the template would not write; empty: it reads what the template writes."""
        chat: Chat = [*_user(), {"role": "assistant", "content": TURN}, *self._results([_result()])]
        if RESULT not in self._render(chat, add_generation_prompt=True):
            return "the chat template leaves out the results of tools"
        results, words = self.rewrites([_result()]), self.rewrites(_user())
        if results or words:
            when = "" if results else " after a new message of the user"
            return (
                f"the chat template rewrites earlier turns{when} (as those that take out <think> do): the policy"
                " keeps what it wrote, and reads another chat than the template makes"
            )
        return ""

    def rewrites(self, messages: Chat) -> bool:
        """Whether a turn is rendered differently when these messages follow it, or begins differently from the end of
        a prompt."""
        turn = f"<think>\na\n</think>\n\n{TURN}"
        chat: Chat = [*_user(), {"role": "assistant", "content": turn}, *self._results(messages, joined=True)]
        begun = self._render(_user(), add_generation_prompt=True)
        return not self._render(chat, add_generation_prompt=True).startswith(begun + turn)

    def unused(self, options: Mapping[str, Any]) -> list[str]:
        """Options whose names do not occur in the template's text."""
        return [
            name for name in options if not re.search(rf"\b{re.escape(name)}\b", str(self.tokenizer.chat_template))
        ]

    def _shows(self, chat: Chat, words: str, times: int = 1) -> bool:
        try:
            return self._render(chat, add_generation_prompt=True).count(words) >= times
        except Exception:  # a template may raise anything
            return False

    def _results(self, messages: Chat, *, joined: bool = False) -> Chat:
        """Messages in the form that the template accepts. `joined`: they are an environment's, and are joined, too,
        if the template refuses two of the user in a row."""
        if not (joined or any(message["role"] == "tool" for message in messages)):
            return messages
        adapted = _adapted(messages, self.ways)
        return _merged(adapted, "user") if (joined or self.ways.role == "user") and self._joins else adapted

    def _with_words(self, chat: Chat, words: str) -> Chat:
        if chat and chat[0]["role"] == "system":
            return [{**chat[0], "content": f"{chat[0]['content']}\n\n{words}"}, *chat[1:]]
        if self.takes_system:
            return [{"role": "system", "content": words}, *chat]
        place = next((place for place, message in enumerate(chat) if message["role"] == "user"), None)
        if place is None:
            return [{"role": "user", "content": words}, *chat]
        asked = {**chat[place], "content": f"{words}\n\n{chat[place]['content']}"}
        return [*chat[:place], asked, *chat[place + 1 :]]

    def _render(
        self, chat: Sequence[Mapping[str, Any]], options: Mapping[str, Any] | None = None, **more: Any
    ) -> str:
        marked = [
            {key: value if key == "role" else self._literal(value) for key, value in each.items()} for each in chat
        ]
        if "tools" in more:
            more["tools"] = self._literal(more["tools"])
        given = {**self._options, **(options or {}), **more}
        with self._lock:
            return render(self.tokenizer, marked, **given)

    def _literal(self, value: Any) -> Any:
        """The value with marks in text that only looks like a special token."""
        if isinstance(value, str):
            return self._foreign.sub(lambda found: found[0][0] + MARK + found[0][1:], value)
        if isinstance(value, Mapping):
            return {key: self._literal(each) for key, each in value.items()}
        return [self._literal(each) for each in value] if isinstance(value, list | tuple) else value


def without_marks(text: str) -> str:
    """The text without marks."""
    return MARKED.sub(r"\1", text) if MARK in text else text


def _adapted(messages: Sequence[Mapping[str, Any]], way: Ways) -> Chat:
    """Messages in the form `way`, which also decides whether results that are the user's messages join."""
    chat: Chat = []
    follows = False  # the message before is a result
    for message in messages:
        result = message["role"] == "tool"
        each = dict(message)
        if result and way.role == "user":
            each = {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
        if way.joined and result and follows:
            chat[-1] = {**chat[-1], "content": f"{chat[-1]['content']}\n{each['content']}"}
        else:
            chat.append(each)
        follows = result
    return chat


def _merged(messages: Chat, role: str) -> Chat:
    chat: Chat = []
    for message in messages:
        if chat and message["role"] == chat[-1]["role"] == role:
            chat[-1] = {**chat[-1], "content": f"{chat[-1]['content']}\n{message['content']}"}
        else:
            chat.append(message)
    return chat


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(each)


def _user() -> Chat:
    return [{"role": "user", "content": "?"}]


def _result() -> dict[str, Any]:
    return {"role": "tool", "name": "f", "content": RESULT}
