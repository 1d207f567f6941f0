"""Laws of Locust's place: it patches its process, so only a process of its own imports it."""

import subprocess
import sys

from nunatak_loadtest.process import LOCUSTFILE


def test_only_the_locustfile_and_its_summary_import_locust() -> None:
    modules = sorted(it.stem for it in LOCUSTFILE.parent.glob("*.py"))
    light = [it for it in modules if it not in {"locustfile", "summary"}]
    imports = "\n".join(f"import nunatak_loadtest.{it}" for it in light)
    code = f"import sys\n{imports}\nimport nunatak_cli.main\nassert 'gevent' not in sys.modules"

    done = subprocess.run([sys.executable, "-c", code], check=False)  # noqa: S603 - our own code

    assert done.returncode == 0


def test_every_option_has_a_default_whose_type_the_web_page_reads() -> None:
    code = (
        "import argparse\n"
        "from nunatak_loadtest.locustfile import add_options\n"
        "parser = argparse.ArgumentParser()\n"
        "add_options(parser)\n"
        "assert None not in vars(parser.parse_args([])).values()"
    )

    done = subprocess.run([sys.executable, "-c", code], check=False)  # noqa: S603 - our own code

    assert done.returncode == 0
