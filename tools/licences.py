"""List the licence of every installed package: `python tools/licences.py > tools/locked/licences.md` (make lock)."""

from importlib.metadata import Distribution, distributions

HEAD = """# Licences of the packages

What `make install` puts beside this project on Linux without a GPU, as the packages themselves name their licences;
`make lock` rewrites this page. With torch's build for GPUs come NVIDIA's packages
([torch.txt](torch.txt) lists them), which have NVIDIA's own licences.

| package | version | licence |
| --- | --- | --- |"""


def licence_of(package: Distribution) -> str:
    """What a package says of its licence: an SPDX expression, else a classifier, else a short text."""
    about = package.metadata
    if expression := about.get("License-Expression"):
        return expression
    classifiers = [line.split(" :: ")[-1] for line in about.get_all("Classifier", []) if line.startswith("License ::")]
    text = " ".join((about.get("License") or "").split())
    if classifiers and classifiers != ["OSI Approved"]:
        return ", ".join(classifiers)
    return text if 0 < len(text) <= 60 else "see its own files"


def main() -> None:
    print(HEAD)
    for package in sorted(distributions(), key=lambda one: one.name.lower()):
        if package.name != "albert-lsh":
            print(f"| {package.name} | {package.version.split('+')[0]} | {licence_of(package)} |")


if __name__ == "__main__":
    main()
