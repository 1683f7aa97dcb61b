"""A page as a person reads it: its tags, words and links."""

from __future__ import annotations

from html.parser import HTMLParser


class Read(HTMLParser):
    """Tags with their attributes, and all words."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def links(self) -> list[str]:
        return [str(one["href"]) for tag, one in self.tags if tag == "a"]
