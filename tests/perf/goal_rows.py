"""A row of the goals' table: what was measured beside what is asked; for tables.py."""


def item(label, measured, bound, better="lower", form="{:.2f}"):
    """(label, text, whether it holds). A digit more where rounding would tell otherwise."""

    def holds(number):
        return number <= bound if better == "lower" else number >= bound

    text = form.format(measured)
    if holds(float(text)) != holds(measured):
        text = f"{measured:.4f}"
    return label, text, holds(measured)


def of(label, entry, form="{:.2f}", scale=1):
    return item(label, scale * entry["value"], scale * entry["bound"], entry["better"], form)


def span_of(label, values, bound, form="{:.0f}", unit=" %"):
    """From the least to the most, which is held against the bound; a digit more where rounding would hide it."""
    low, high = form.format(min(values)), item("", max(values), bound, form=form)
    return label, f"{low} to {high[1]}{unit}", high[2]


def goal(number, what, asked, items, link):
    if not items:
        return f"| {number} | {what} | {asked} | | not measured |"
    short = [label for label, _, holds in items if not holds]
    texts = ", ".join(f"{label} {text}" if label else text for label, text, _ in items)
    word = "reached" if not short else "short" if len(short) == len(items) else f"short: {', '.join(short)}"
    return f"| {number} | {what} | {asked} | {texts} | [{word}](benchmarks/{link}) |"
