"""The grammar of the command line: a noun, then a verb, as in `traceplane task list`. Daily commands have short names
(`traceplane deploy`), and the plural of a noun lists (`traceplane tasks`). Either way it is the same command."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

import click
from click.shell_completion import CompletionItem

from traceplane.errors import InvalidInput

_EXAMPLES = 2


class Noun(click.Group):
    """The commands about one kind of thing. `aliases` are further names of commands; help does not repeat them."""

    group_class = type

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.aliases: dict[str, click.Command] = {}

    @property
    def plural(self) -> str:
        assert self.name is not None
        return f"{self.name}es" if self.name.endswith("ch") else f"{self.name}s"

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or self.aliases.get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand:
            path = ctx.command_path
            raise InvalidInput(
                "cli.usage",
                f"no such command '{args[0]}'",
                next_step=self.suggestion(path, args[0]) or f"see `{path} --help`",
            ) from None

    def suggestion(self, path: str, word: str) -> str | None:
        """What somebody may have meant."""
        near = get_close_matches(word, [*self.commands, *self.aliases])
        return f"did you mean `{path} {near[0]}`?" if near else None


class CommandLine(Noun):
    """The command itself: sections of commands, their short names, and plurals."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.sections: dict[str, list[click.Command]] = {}
        self.short_names: dict[str, list[str]] = {}

    def add_section(self, title: str, *commands: click.Command) -> None:
        self.sections[title] = list(commands)
        for command in commands:
            self.add_command(command)

    def add_short_names(self, noun: str, **commands: click.Command) -> None:
        self.short_names[noun] = list(commands)
        self.aliases |= commands

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        noun = next((noun for noun in self._nouns() if noun.plural == args[0]), None)
        if noun is None:
            return super().resolve_command(ctx, args)
        rest = args[1:]
        word = rest[0] if rest and not rest[0].startswith("-") else None
        is_verb = word is not None and (word in noun.commands or word in noun.aliases)
        if is_verb or "list" not in noun.commands:
            return noun.name, noun, rest
        if word is None:
            return args[0], noun.commands["list"], rest
        if "show" not in noun.commands or (word and get_close_matches(word, noun.commands)):
            return noun.name, noun, rest  # which refuses the word
        return f"{noun.name} show", noun.commands["show"], rest

    def suggestion(self, path: str, word: str) -> str | None:
        nouns = [noun.name for noun in self._nouns() if word in noun.commands]
        if not nouns:
            return super().suggestion(path, word)
        examples = [f"`{path} {noun} {word}`" for noun in nouns[:_EXAMPLES]]
        return f"name what it is about, for example {' or '.join(examples)}"

    def _nouns(self) -> Iterator[Noun]:
        return (command for command in self.commands.values() if isinstance(command, Noun))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(name) for name in self.commands)
        for title, commands in self.sections.items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (str(command.name).ljust(width), command.get_short_help_str(formatter.width))
                        for command in commands
                    ]
                )
        with formatter.section("Short names"):
            formatter.write_dl(
                [(noun.ljust(width), ", ".join(names)) for noun, names in self.short_names.items()]
            )
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(
                "`traceplane deploy` is short for `traceplane dag deploy`. The plural of a noun lists:"
                " `traceplane tasks` is `traceplane task list`; with a name it shows: `traceplane datasets NAME`."
            )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        short = [
            CompletionItem(name, help=command.get_short_help_str())
            for name, command in self.aliases.items()
            if name.startswith(incomplete) and any(name in names for names in self.short_names.values())
        ]
        return [*super().shell_complete(ctx, incomplete), *short]
