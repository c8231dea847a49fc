"""Draw the forgetting curve, from the function that recall uses, into docs/forgetting.svg."""

from __future__ import annotations

import sys
from pathlib import Path

from mnemic.recall.index_entry import HALF_LIFE, strength

TARGET = Path(__file__).parent.parent / "docs" / "forgetting.svg"
LEFT, TOP, WIDTH, HEIGHT = 56, 24, 540, 220
DAYS = 180
USES = {0: "#c0392b", 1: "#d68910", 3: "#1e8449", 10: "#2471a3"}


def place(days: float, share: float) -> str:
    """Return where a point of the curve lies in the picture."""
    return f"{LEFT + WIDTH * days / DAYS:.1f},{TOP + HEIGHT * (1 - share):.1f}"


def picture() -> str:
    """Return the picture."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 24} {TOP + HEIGHT + 56}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for percent in (0, 25, 50, 75, 100):
        start, end = place(0, percent / 100), place(DAYS, percent / 100)
        lines.append(f'<polyline points="{start} {end}" stroke="#ddd" fill="none"/>')
        height = TOP + HEIGHT * (1 - percent / 100) + 4
        lines.append(f'<text x="{LEFT - 8}" y="{height:.1f}" text-anchor="end" fill="#555">{percent}%</text>')
    for days in range(0, DAYS + 1, int(HALF_LIFE)):
        across = LEFT + WIDTH * days / DAYS
        lines.append(f'<text x="{across:.1f}" y="{TOP + HEIGHT + 20}" text-anchor="middle" fill="#555">{days}</text>')
    lines.append(
        f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 42}" text-anchor="middle" fill="#333">'
        "days since the last use</text>"
    )
    for row, (uses, color) in enumerate(USES.items()):
        curve = " ".join(place(days, float(strength(1.0, days, uses))) for days in range(DAYS + 1))
        lines.append(f'<polyline points="{curve}" stroke="{color}" stroke-width="2" fill="none"/>')
        label = "never used" if not uses else "used once" if uses == 1 else f"used {uses} times"
        # The curves end close together, so their names stand above, in the order of the curves.
        height = TOP + 20 + 20 * (len(USES) - row)
        lines.append(f'<text x="{LEFT + WIDTH - 120}" y="{height}" fill="{color}">{label}</text>')
    return "\n".join([*lines, "</svg>", ""])


def main() -> int:
    """Draw, or with --check tell whether the picture is up to date."""
    if "--check" in sys.argv:
        if TARGET.read_text(encoding="utf-8") == picture():
            return 0
        print(f"{TARGET} is not what tools/draw_forgetting.py draws: run it", file=sys.stderr)
        return 1
    TARGET.write_text(picture(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
