"""Options that are made from the settings of a package, so that nothing spells them again."""

from collections.abc import Mapping
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from nunatak_contract.errors import MissingExtraError


def made_options(wanted: Mapping[str, tuple[Any, Any]]) -> tuple[Any, ...]:
    """Return the options of these names, each made of a type and the description of typer."""

    def options() -> None:
        pass

    parameters = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])
        for name, (kind, option) in wanted.items()
    ]
    options.__signature__ = Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    app = typer.Typer(add_completion=False)
    app.command()(options)
    return tuple(get_command(app).params)


class SettingsCommand(TyperCommand):
    """A command with an option for each of some settings; its context holds their values."""

    @staticmethod
    def setting_options() -> tuple[Any, ...]:
        """Return the options."""
        return ()

    # Typer hands in a typer.Context, but names its own private base classes here.
    def get_params(self, ctx: typer.Context) -> list[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the command's own options, then those of the settings."""
        own: list[Any] = super().get_params(ctx)  # pyright: ignore[reportArgumentType]
        try:
            return [*own, *self.setting_options()]
        except MissingExtraError:
            return own

    def invoke(self, ctx: typer.Context) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Run the command; the context holds the settings that were given."""
        own = {param.name for param in self.params}
        ctx.obj = {name: ctx.params.pop(name) for name in [*ctx.params] if name not in own}
        return super().invoke(ctx)  # pyright: ignore[reportArgumentType]
