"""The `nunatak` command, also as `python -m nunatak_cli`."""


def main() -> None:
    """Run the command. Ctrl-C shows no traceback, also while the command is imported."""
    try:
        from nunatak_cli.main import app  # noqa: PLC0415

        app()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
