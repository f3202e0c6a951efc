"""Read the package metadata from settings.ini: the one place where it is written."""
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
parser = ConfigParser(delimiters=["="], interpolation=None)
parser.read(here / "settings.ini", encoding="utf-8")
settings = parser["DEFAULT"]

setup(
    name=settings["lib_name"],
    version=settings["version"],
    description=settings["description"],
    author=settings["author"],
    license=settings["license"],
    keywords=settings["keywords"],
    long_description=(here / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    python_requires=f">={settings['min_python']}",
    classifiers=["Programming Language :: Python :: 3", "Framework :: Jupyter", "Intended Audience :: Science/Research"],
    packages=find_packages(include=[settings["lib_path"], settings["lib_path"] + ".*"]),
    package_data={settings["lib_path"]: ["heads/*/*", "heads/*/*/*", "prompts/*"]},
    install_requires=settings["requirements"].split(),
    extras_require={"dev": settings["dev_requirements"].split()},
    entry_points={
        "console_scripts": ["eagle2 = eagle2_nb.cli:main"],
        "nbdev": ["eagle2_nb = eagle2_nb._modidx:d"],
    },
    zip_safe=False,
)
