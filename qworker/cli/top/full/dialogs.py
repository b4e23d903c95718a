"""Questions before something is changed, with the number concerned; and the pages that a row opens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.console import RenderableType
from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, Static

from qworker.cli.framework.terminal import plain
from qworker.cli.top.full.bar import Bar, pressing
from qworker.cli.top.full.grid import TONES
from qworker.cli.top.full.head import foot
from qworker.cli.top.full.view import Key
from qworker.errors import QworkerError

if TYPE_CHECKING:
    from textual import events

__all__ = ["Ask", "Confirm", "DetailScreen", "DialogChoice"]

_TITLE: Final = Style(bold=True)
_BACK: Final = Key("escape", "back", "back", "Go back to the table.", "Esc")


@dataclass(frozen=True, slots=True)
class DialogChoice:
    """An answer: its key, its words, and what it stands for."""

    key: str
    label: str
    value: str


class Confirm(ModalScreen[str]):
    """A question with answers, each by its key; Esc and `n` change nothing, and return ''."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n,q", "answer('')", show=False),
        Binding("ctrl+c", "app.interrupt", show=False, priority=True),
    ]

    def __init__(
        self, question: str, detail: str, choices: Sequence[DialogChoice], *, bad: bool
    ) -> None:
        super().__init__()
        self._question = question
        self._detail = detail
        self._choices = tuple(choices)
        self._bad = bad

    def compose(self) -> ComposeResult:
        """Lay the question out."""
        with Vertical(classes="dialog bad" if self._bad else "dialog"):
            yield Static(Text(plain(self._question), TONES["bad"] if self._bad else _TITLE))
            if self._detail:
                yield Static(Text(plain(self._detail), TONES["dim"]), classes="detail")
            answers = Text()
            for choice in (*self._choices, DialogChoice("n", "no, change nothing", "")):
                click = pressing(f"screen.answer('{choice.value}')")
                answers.append(f" {choice.key} ", Style(bold=True, reverse=True) + click)
                answers.append(f" {choice.label}\n", click)
            answers.rstrip()
            yield Bar(answers)

    def on_key(self, event: events.Key) -> None:
        """Take the answer of a key; keys without one do nothing."""
        for choice in self._choices:
            if event.character == choice.key:
                event.stop()
                self.dismiss(choice.value)

    def action_answer(self, value: str) -> None:
        """Answer."""
        self.dismiss(value)


class Ask(ModalScreen[str | None]):
    """A question for a line of text; Enter takes it if `check` does, Esc changes nothing, and returns None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", show=False),
        Binding("ctrl+c", "app.interrupt", show=False, priority=True),
    ]

    def __init__(
        self,
        question: str,
        detail: str,
        *,
        value: str,
        hint: str,
        check: Callable[[str], Any],
        bad: bool = False,
    ) -> None:
        super().__init__()
        self._question = question
        self._detail = detail
        self._value = value
        self._hint = hint
        self._check = check
        self._bad = bad

    def compose(self) -> ComposeResult:
        """Lay the question out."""
        with Vertical(classes="dialog bad" if self._bad else "dialog"):
            yield Static(Text(plain(self._question), TONES["bad"] if self._bad else _TITLE))
            yield Static(Text(plain(self._detail), TONES["dim"]), classes="detail")
            yield Input(self._value, placeholder=self._hint, max_length=40, compact=True)
            yield Static("", classes="wrong")
            answers = Text()
            for key, label in (("Enter", "do it"), ("Esc", "no, change nothing")):
                answers.append(f" {key} ", Style(bold=True, reverse=True))
                answers.append(f" {label}   ")
            yield Static(answers)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the text, or say why not."""
        event.stop()
        text = event.value.strip()
        try:
            self._check(text)
        except QworkerError as error:
            self.query_one(".wrong", Static).update(Text(plain(str(error)), TONES["bad"]))
            return
        self.dismiss(text)

    def action_cancel(self) -> None:
        """Change nothing."""
        self.dismiss(None)


class DetailScreen(Screen[None]):
    """Everything about a row. `write` is called again with every sample; `keys` act on the row."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,backspace", "back", show=False),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
        Binding("home,g", "edge(0)", show=False),
        Binding("end,G", "edge(1)", show=False),
    ]

    def __init__(
        self,
        title: str,
        write: Callable[[], RenderableType],
        keys: Sequence[Key] = (),
        row: Any = None,
    ) -> None:
        super().__init__()
        self._page_title = title
        self._write = write
        self.keys = tuple(keys)
        #: The row that the keys act on, even if the table changes meanwhile.
        self.row = row

    def compose(self) -> ComposeResult:
        """Lay the page out: its title, its text, its keys."""
        yield Static(
            Text(f" {plain(self._page_title)} ", Style(bold=True, reverse=True)), id="title"
        )
        with VerticalScroll(id="text"):
            yield Static(self._write(), id="body")
        yield Static("", id="status")
        yield Bar("", id="foot")

    def on_mount(self) -> None:
        """Show the keys."""
        self.query_one("#text").focus()
        self.show_keys()

    def on_resize(self) -> None:
        """Fit the new size."""
        self.show_keys()
        self.rewrite()

    def show_keys(self) -> None:
        """Write the footer."""
        for line in self.query("#foot").results(Static):
            line.update(foot(self.keys, [_BACK], self.size.width))

    def rewrite(self) -> None:
        """Write the text again; it stays where it was scrolled to."""
        for body in self.query("#body").results(Static):
            body.update(self._write())

    def say(self, text: str, tone: str) -> None:
        """Show one line above the keys."""
        for line in self.query("#status").results(Static):
            line.update(Text(f" {plain(text)}", TONES[tone], no_wrap=True))

    def action_back(self) -> None:
        """Go back to the table."""
        self.app.pop_screen()

    def action_scroll(self, by: int) -> None:
        """Scroll by lines."""
        self.query_one("#text").scroll_relative(y=by, animate=False)

    def action_page(self, by: int) -> None:
        """Scroll by pages."""
        view = self.query_one("#text")
        view.scroll_relative(y=by * max(1, view.size.height - 1), animate=False)

    def action_edge(self, end: int) -> None:
        """Go to the start or the end."""
        view = self.query_one("#text")
        if end:
            view.scroll_end(animate=False)
        else:
            view.scroll_home(animate=False)
