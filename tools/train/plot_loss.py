#!/usr/bin/env python3
"""Draws a training log as an SVG picture: the loss on answers and the draft layer's, and the checks' accuracies; or the divergence
of each layer's indexer; or that of each draft behind another.

  python3 tools/train/plot_loss.py models/quire-grade-school/training_log.jsonl models/quire-grade-school/loss.svg
"""

import json
import math
import pathlib
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 400, 60, 60, 36, 46
LAYER_COLORS = ("#1f5fa8", "#c2571a", "#2e7d32", "#7b1fa2", "#757575")
LEAST = 1e-4  # logs have four digits
COLORS = {"loss": "#1f5fa8", "draft": "#c2571a", "heldout": "#2e7d32", "long": "#7b1fa2", "unseen_phrasings": "#757575"}


def counted_through(lines):
    """The lines of all stretches with tokens counted from the first one's beginning; a line without a count gets the last."""
    counted, before, last = [], 0, 0
    for line in lines:
        if line.get("event") == "begin":
            before = last
        last = before + line["tokens"] if "tokens" in line else last
        counted.append(line | {"tokens": last})
    return counted


def series_of(steps):
    """({name: losses, one a step}, {name: color}, what they are); the first is drawn last."""
    if "accepted" in steps[0]:
        drafts = [[max(loss, LEAST) for loss in losses] for losses in zip(*(line["steps"] for line in steps))]
        names = [f"draft {i + 1}" for i in range(len(drafts))]
        return dict(zip(names, drafts)), dict(zip(names, LAYER_COLORS)), "divergence of draft and model"
    if "kl" not in steps[0]:
        return {name: [line[name] for line in steps] for name in ("loss", "draft")}, COLORS, "loss per answer token"
    layers = list(zip(*(line["kl"] for line in steps)))
    names = [*(f"layer {i}" for i in range(len(layers) - 1)), "draft layer"]
    return dict(zip(names, layers)), dict(zip(names, LAYER_COLORS)), "divergence of indexer and attention"


def main():
    lines = counted_through(json.loads(line) for line in pathlib.Path(sys.argv[1]).read_text().splitlines())
    steps = [line for line in lines if {"loss", "kl", "accepted"} & line.keys()]
    series, colors, what = series_of(steps)
    checks = [line for line in lines if line.get("event") in ("check", "end")]
    last = max(line["tokens"] for line in steps)
    low = math.floor(math.log10(min(map(min, series.values()))))
    high = math.ceil(math.log10(max(map(max, series.values()))))

    def x(tokens):
        return LEFT + (WIDTH - LEFT - RIGHT) * tokens / last

    def y(share):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    def y_loss(loss):
        return y((math.log10(loss) - low) / (high - low))

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']

    def text(at_x, at_y, words, anchor="middle", color="black"):
        parts.append(f'<text x="{at_x:.1f}" y="{at_y:.1f}" text-anchor="{anchor}" fill="{color}">{words}</text>')

    for power in range(low, high + 1):
        at = y_loss(10.0**power)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        text(LEFT - 6, at + 4, f"{10.0**power:g}", "end")
    for share in (0, 0.25, 0.5, 0.75, 1):
        if checks:
            text(WIDTH - RIGHT + 6, y(share) + 4, f"{share:g}", "start")
        text(x(last * share), HEIGHT - BOTTOM + 18, f"{last * share / 1e6:.{0 if last > 2e7 else 1}f}")
    text(WIDTH / 2, HEIGHT - 8, "million tokens")
    text(LEFT, 16, f"{what} (left, lines)", "start")
    if checks:
        text(WIDTH - RIGHT, 16, "accuracy (right, dots)", "end")
    for name, losses in reversed(series.items()):
        points = " ".join(f"{x(line['tokens']):.1f},{y_loss(loss):.1f}" for line, loss in zip(steps, losses))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colors[name]}" stroke-width="1.3"/>')
    for check in checks:
        at = check["tokens"]
        for name in ("heldout", "long", "unseen_phrasings"):
            parts.append(f'<circle cx="{x(at):.1f}" cy="{y(check[name]["accuracy"]):.1f}" r="4" fill="{colors[name]}"/>')
    for i, (name, color) in enumerate(colors.items()):
        text(LEFT + 120 * i + 20, 31, name.replace("_", " "), "start", color)
    parts.append("</svg>")
    pathlib.Path(sys.argv[2]).write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
