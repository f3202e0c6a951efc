"""List the licences of everything that `pip install eagle2_nb` brings, as each package states its own.

    python scripts/licences.py > LICENCES.md

Follows the requirements in settings.ini from package to package, as they are installed here.
"""
from configparser import ConfigParser
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent


def licence(metadata):
    "The licence that a package states, in one line"
    classified = [line.split(" :: ")[-1] for line in metadata.get_all("Classifier", []) if line.startswith("License ::")]
    return metadata.get("License-Expression") or ", ".join(classified) or (metadata.get("License") or "not stated").splitlines()[0]


def follow(requirement, found):
    "Enter a package and what it requires here"
    name = requirement.name.lower().replace("_", "-")
    if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
        return
    try:
        package = distribution(name)
    except PackageNotFoundError:
        return
    found[name] = package.version, licence(package.metadata)
    for text in package.requires or []:
        follow(Requirement(text), found)


def main():
    settings, found = ConfigParser(delimiters=["="], interpolation=None), {}
    settings.read(ROOT / "settings.ini", encoding="utf-8")
    for text in settings["DEFAULT"]["requirements"].split():
        follow(Requirement(text), found)
    print("# Licences of what this package installs\n\nAs each package states its own, on Linux with Python 3.11 (`python scripts/licences.py`). "
          "The embedded model, SmolLM2-135M-Instruct, is under Apache-2.0, and so is this package.\n\n| package | version | licence |\n|---|---|---|")
    for name in sorted(found):
        print(f"| {name} | {' | '.join(found[name])} |")


if __name__ == "__main__":
    main()
