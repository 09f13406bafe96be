"""The page on a package index: README.md, with links that lead into the repository. All else is in pyproject.toml."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

here = Path(__file__).parent
repository = tomllib.loads((here / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
readme = (here / "README.md").read_text(encoding="utf-8")
page = re.sub(r"\]\((?!https?:|#)", f"]({repository}/blob/main/", readme)
page = re.sub(r'src="(?!https?:)', f'src="{repository}/raw/main/', page)
setup(long_description=page, long_description_content_type="text/markdown")
