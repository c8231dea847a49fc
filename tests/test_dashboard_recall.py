"""The Recall lab in a browser: shares of signals, weights and filters, A and B, and marks that `mnemic eval` reads."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
from playwright.sync_api import Locator, Page, expect

import mnemic
from browser import Dashboard, Visit

QUESTION = "What is her sister allergic to?"
UNFIT = dict.fromkeys(("lexical", "dense", "session", "graph", "importance", "recency"), 0) | {"form": 3}
"""Weights that rank badly, at any time."""


def ranking(page: Page, side: str = "A") -> Locator:
    return page.get_by_role("list", name=f"Ranking {side}").locator("> li")


def weigh(page: Page, **factors: float) -> None:
    for name, factor in factors.items():
        page.get_by_role("slider", name=name, exact=True).fill(str(factor))


def ask(visit: Visit, question: str = QUESTION, scope: str = "acme") -> Page:
    page = visit.open("recall", scope=scope)
    page.get_by_role("searchbox", name="Question").fill(question)
    expect(ranking(page).first).to_be_visible()
    return page


def test_hits_show_the_share_of_each_signal(dashboard: Dashboard) -> None:
    with dashboard.visit() as visit:
        page = ask(visit)
        best = ranking(page).first
        expect(best).to_contain_text("Alice's sister Ines is allergic to shellfish")
        told = best.get_by_role("list", name="Signals").inner_text()
        shares = {name: float(share) for name, share in re.findall(r"(\w+)\s+\+([\d.]+)", told)}
        assert {"dense", "lexical"} <= shares.keys()
        score = float(best.locator("strong").inner_text())
        assert sum(shares.values()) == pytest.approx(score, abs=0.04)
        widths = best.locator(".bar i").evaluate_all("bars => bars.map(bar => parseFloat(bar.style.width))")
        assert sum(widths) == pytest.approx(100 * score, abs=4)
        visit.check_accessibility()


def test_weights_move_the_ranking_and_the_address_has_them(dashboard: Dashboard) -> None:
    with dashboard.visit() as visit:
        page = ask(visit)
        before = ranking(page).nth(1).locator(".hit-text").inner_text()
        assert page.locator(".move").count() == 0
        weigh(page, lexical=0.2, importance=3)
        expect(page.locator(".move").first).to_be_visible()
        expect(ranking(page).nth(1).locator(".hit-text")).not_to_have_text(before)
        page.wait_for_url(re.compile("lexical.*importance"))  # both are asked for, not the first alone
        visit.settle()
        after = ranking(page).locator(".hit-text").all_inner_texts()
        page.reload()
        visit.settle()
        assert ranking(page).locator(".hit-text").all_inner_texts() == after
        page.get_by_role("button", name="Reset").click()
        expect(ranking(page).nth(1).locator(".hit-text")).to_have_text(before)
        expect(page.locator(".move")).to_have_count(0)


def test_filters(dashboard: Dashboard) -> None:
    with dashboard.visit() as visit:
        page = ask(visit)
        page.get_by_role("slider", name="Hits (k)").fill("3")
        expect(ranking(page)).to_have_count(3)
        page.get_by_role("button", name="memory", exact=True).click()
        expect(ranking(page).locator(".badge:not(.accent)")).to_have_text(["memory"] * 3)
        page.get_by_label("Metadata").fill("topic=sister")
        expect(ranking(page)).to_have_count(1)
        page.get_by_label("Since").fill("2026-05-14")
        expect(page.get_by_text("Nothing answers this")).to_be_visible()
        page.get_by_role("button", name="Reset").click()
        page.get_by_role("slider", name="Least score").fill("0.8")
        expect(ranking(page)).to_have_count(1)
        visit.check_accessibility()


def test_a_bad_filter_is_told_in_the_words_of_the_server(dashboard: Dashboard) -> None:
    with dashboard.visit() as visit:
        visit.expect_faults = ["400"]
        page = visit.open("recall", q=QUESTION, a=json.dumps({"k": 5000}))
        expect(page.get_by_role("alert")).to_contain_text("<= 1000")


def test_a_lost_server_is_said_and_tried_again(dashboard: Dashboard) -> None:
    with dashboard.visit() as visit:
        visit.expect_faults = ["ERR_INTERNET_DISCONNECTED"]
        page = ask(visit)
        visit.context.set_offline(True)
        page.get_by_role("searchbox", name="Question").fill("Where does Alice live?")
        expect(page.get_by_role("alert")).to_contain_text("The server does not answer")
        visit.check_accessibility()
        visit.context.set_offline(False)
        page.get_by_role("button", name="Try again").click()
        expect(ranking(page).first).to_contain_text("lives_in")


def test_two_settings_side_by_side(dashboard: Dashboard) -> None:
    with dashboard.visit() as visit:
        page = ask(visit)
        page.get_by_role("button", name="Compare A and B").click()
        weigh(page, lexical=0.2, importance=3)
        expect(ranking(page, "B").locator(".move").first).to_be_visible()
        assert ranking(page, "A").locator(".move").count() == 0
        left, right = (page.get_by_role("list", name=f"Ranking {side}").bounding_box() for side in "AB")
        assert left is not None
        assert right is not None
        assert left["y"] == right["y"]
        visit.check_accessibility()
        page.get_by_role("button", name="Use in code").click()
        code = page.get_by_role("dialog").locator("pre").inner_text()
        assert code == (f'memory.scope("acme").recall("{QUESTION}", k=10, weights={{"lexical": 0.2, "importance": 3}})')
        page.keyboard.press("Escape")
        page.get_by_role("tab", name="A").click()
        expect(page.get_by_role("slider", name="lexical", exact=True)).to_have_value("1")


def test_marks_are_measured_kept_and_read_by_the_command(dashboard: Dashboard, demo_file: Path, tmp_path: Path) -> None:
    answers = {QUESTION: "allergic to shellfish", "Which language do invoices need?": "invoices in French"}
    with dashboard.visit() as visit:
        for question, text in answers.items():
            page = ask(visit, question)
            ranking(page).filter(has_text=text).first.get_by_role("button", name="Right").click()
        page.get_by_role("button", name="Compare A and B").click()
        weigh(page, **UNFIT)
        expect(page.locator("[data-figure=hit-rate-A]")).to_have_text("100.0%")
        expect(page.locator("[data-figure=mrr-A]")).to_have_text("100.0%")
        expect(page.locator("[data-figure=mrr-B]")).not_to_have_text(re.compile("100.0%|…"))
        visit.check_accessibility()
        page.reload()
        visit.settle()
        rows = page.get_by_role("group", name="Questions").locator("tbody tr")
        expect(rows).to_have_count(2)
        expect(page.locator("[data-figure=mrr-B]")).not_to_have_text("…")
        shown = float(page.locator("[data-figure=mrr-B]").inner_text().removesuffix("%")) / 100
        with page.expect_download() as started:
            page.get_by_role("button", name="Download").click()
        file = tmp_path / started.value.suggested_filename
        started.value.save_as(file)
        rows.first.get_by_role("button", name="Remove").click()
        expect(rows).to_have_count(1)
        page.get_by_role("button", name="Undo").click()
        expect(rows).to_have_count(2)
    weights = [f"{name}={factor}" for name, factor in UNFIT.items()]
    command = [sys.executable, "-m", "mnemic", "eval", file, "--store", demo_file, "--json"]
    for options, mrr in (((), 1.0), ([word for one in weights for word in ("--weight", one)], shown)):
        done = subprocess.run([*map(str, command), *options], capture_output=True, text=True, check=True)
        report = json.loads(done.stdout)
        assert report["questions"] == 2
        assert report["turn"]["mrr"] == pytest.approx(mrr, abs=0.0006)


def test_looking_counts_as_no_use(dashboard: Dashboard) -> None:
    """Neither as a use of a memory, nor in the figures of recall."""
    with dashboard.visit() as visit:
        api = f"{dashboard.address}/api/v1"

        def figures() -> tuple[Any, Any]:
            fading = visit.page.request.get(f"{api}/memories/fading?scope=acme/alice").json()["fading"]
            return visit.page.request.get(f"{api}/metrics").json()["recalls"], {
                one["memory"]["id"]: one["uses"] for one in fading
            }

        before = figures()
        ask(visit, "Alice prefers trains to planes")
        assert figures() == before
        counted = {"query": "Alice prefers trains to planes", "k": 1}
        assert visit.page.request.post(f"{api}/recall?scope=acme/alice", data=counted).ok
        recalls, uses = figures()
        assert recalls == before[0] + 1
        assert sum(uses.values()) == sum(before[1].values()) + 1


def test_a_hit_leads_to_its_record_and_session(dashboard: Dashboard, demo_file: Path) -> None:
    """Also that of an archived message, which recall calls a message."""
    with mnemic.open(f"sqlite:///{demo_file}") as memory:
        acme = memory.scope("acme")
        found = ((chat, acme.session(chat).archived()) for chat in acme.sessions.list())
        long, archived = next((chat, messages) for chat, messages in found if messages)
    message = next(one for one in archived if one.role == "user")
    assert message.text is not None
    with dashboard.visit() as visit:
        page = ask(visit, message.text, scope=long.scope.path)
        ranking(page).filter(has_text=message.text).first.get_by_title("Show the record").click()
        panel = page.get_by_role("dialog", name="Record")
        expect(panel.get_by_text(message.id, exact=True)).to_be_visible()
        visit.check_accessibility()
        panel.get_by_role("button", name=long.name, exact=True).click()
        expect(page).to_have_title("Sessions · Mnemic")


def test_hostile_hits_are_text(dashboard: Dashboard) -> None:
    with dashboard.visit(390) as visit:
        page = ask(visit, "script img onerror word weather", scope="acme/<b>mallory")
        visit.check_width()
        expect(page.get_by_text("<script>document.title='hacked'</script>", exact=True).first).to_be_visible()
        assert page.locator("img[src=x]").count() == 0
        visit.check_accessibility()


def test_back_returns_to_the_question_before(dashboard: Dashboard) -> None:
    with dashboard.visit() as visit:
        page = visit.open("recall", scope="acme/alice")
        ask = page.get_by_label("Question", exact=True)
        for question in ("who is allergic?", "which hotel?"):
            ask.fill(question)
            page.wait_for_url(f"**q={quote_plus(question)}")
            ask.press("Enter")
        page.go_back()
        expect(ask).to_have_value("who is allergic?")
        visit.settle()
        page.reload()
        expect(ask).to_have_value("who is allergic?")
        page.go_forward()
        expect(ask).to_have_value("which hotel?")
