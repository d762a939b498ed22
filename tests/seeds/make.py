"""``make seeds``: the page of the seeds and its figures, in reports/seeds/."""

from pathlib import Path

from pages import SECTIONS, page

FOLDER = Path(__file__).parent.parent.parent / "reports" / "seeds"


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.svg"):
        old.unlink()
    sections = [make() for make in SECTIONS]
    for section in sections:
        for name, figure in section.files().items():
            (FOLDER / name).write_text(figure)
    (FOLDER / "README.md").write_text(page(sections))
    print(
        f"{FOLDER.relative_to(Path.cwd()) if FOLDER.is_relative_to(Path.cwd()) else FOLDER.name}: "
        f"{len(sections)} claims"
    )


if __name__ == "__main__":
    main()
