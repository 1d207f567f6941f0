"""The error of the command that code catches; all others are a `NunatakError` of another code."""

from nunatak_contract.errors import NunatakError


class MissingExtraError(NunatakError):
    """An optional part of the installation is missing."""

    def __init__(self, extra: str, module: str) -> None:
        super().__init__("missing_extra", extra=extra, module=module)
