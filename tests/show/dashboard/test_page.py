"""The page in a real browser: tabs are opened, values read, what is live changes, hostile text stays text."""

import contextlib
import re

import pytest

from rhymed.show.top.plain import PURPOSE
from tests.show.dashboard.browser import chromium, expect, visit, watch
from tests.show.dashboard.fake_runs import (
    GROUP,
    HOSTILE,
    SHAPE,
    FakeRun,
    Loop,
    Server,
    lengths_row,
    open_step,
    step_row,
    worker_row,
)

TABS = ("Overview", "Workers", "Samples", "Metrics", "Logs", "Configuration")
CHARTS = 18  # of the overview
BROKEN = "Failed to load resource"  # the browser's own words about a request that did not succeed
PAINTED = "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean)"


@pytest.fixture(scope="module")
def server():
    loop = Loop()
    server = Server(loop)
    yield server
    server.close()
    loop.close()


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@contextlib.contextmanager
def opened(browser, server, run, hash="", broken=False):
    """The page of a run. Its console stays empty, but for requests that are to fail, and it asks no other origin."""
    page, address = browser.new_page(), server.add(run)
    problems, asked = watch(page)
    visit(page, address + hash)
    expect(connection(page)).to_have_text("live" if run.live else "not running")
    yield page
    page.close()
    assert [problem for problem in problems if not (broken and BROKEN in problem)] == []
    assert [one for one in asked if not one.startswith(address)] == []


@pytest.fixture
def show(server, browser):
    with contextlib.ExitStack() as pages:
        yield lambda *given, **more: pages.enter_context(opened(browser, server, *given, **more))


@pytest.fixture(scope="module")
def shared(server, browser):
    with opened(browser, server, FakeRun("plain")) as page:
        yield page


@pytest.fixture
def plain(shared):
    """The page of a usual run, at its overview; tests leave it as they like."""
    shared.set_viewport_size({"width": 1280, "height": 900})
    go(shared, "#overview")
    expect(shared.get_by_role("tabpanel", name="Overview")).to_be_visible()
    return shared


def go(page, hash):
    page.goto(page.url.split("#")[0] + hash)


def tab(page, name):
    page.get_by_role("tab", name=name).click()
    panel = page.get_by_role("tabpanel", name=name)
    expect(panel).to_be_visible()
    return panel


def connection(page):
    return page.get_by_role("banner").get_by_role("status")


def state(page):
    return page.locator("[data-state]")


def fact(page, name):
    """Of the head line."""
    return page.locator(f"[data-fact={name}]")


def chart(page, title):
    return page.get_by_role("figure", name=title, exact=True)


def plot(page, title):
    """What a chart draws, named by its title and its newest values."""
    return page.get_by_role("img", name=re.compile(f"^{title}( in|,) .*"))


def worker(page, name):
    """Its row in the table."""
    return page.locator(f"[data-worker={name}]")


def prompts(page):
    return page.get_by_role("listbox", name="Prompts").get_by_role("option")


def answer(page, index, step):
    """A response in the table of a prompt's responses; all count from 1."""
    return page.get_by_role("link", name=f"Response {index}, step {step}", exact=True)


def answers(page):
    return page.get_by_role("table", name="Responses by epoch").get_by_role("cell")


def choose(page, label, value):
    page.get_by_role("combobox", name=label).select_option(value)


def drag(picture, start, end):
    """From one part of its width to another."""
    wide = picture.bounding_box()["width"]
    begin, to = ({"x": part * wide, "y": 80} for part in (start, end))
    picture.drag_to(picture, source_position=begin, target_position=to)


# The overview


def test_the_head_line_shows_how_the_run_does(plain):
    row = FakeRun("plain").rows[-1]
    facts = {
        "step": "20 / 40", "speed": "412", "reward": f"{row['reward/mean']:.3g}", "epoch": "3", "left": "7 min 0 s",
        "accept": f"{row['rollout/spec_accept_length']:.3g} tokens", "elapsed": "6 min 40 s",
    }  # fmt: skip
    for name, value in facts.items():
        expect(fact(plain, name)).to_contain_text(value)
    expect(state(plain)).to_have_text("running")
    expect(plain.get_by_role("heading", level=1)).to_have_text("plain")
    expect(plain).to_have_title(re.compile("plain"))


def test_the_overview_draws_what_the_run_reports_and_compares_the_epochs(plain):
    expect(plain.get_by_role("img", name=re.compile(r" points\. "))).to_have_count(CHARTS)
    for title in ("Reward", "Acceptance by epoch", "Bubble ratio", "Staleness", "Time per phase", "Store growth"):
        expect(plot(plain, title)).to_be_visible()
    expect(plain.get_by_role("img", name=re.compile("^Entropy, .*last 1.05 nats.token"))).to_be_visible()
    health = plain.get_by_role("region", name="Training health").get_by_role("figure").get_by_role("heading")
    reported = ("Loss", "Mismatch KL", "Entropy", "Gradient norm", "Clip fraction", "Learning rate")
    expect(health).to_have_text([re.compile(f"^{title}") for title in reported])
    rows = plain.get_by_role("region", name="Epochs").get_by_role("row")
    expect(rows).to_have_count(4)
    for epoch in (1, 2, 3):
        expect(rows.nth(epoch).get_by_role("cell").first).to_have_text(str(epoch))
    expect(plain.get_by_role("meter")).to_have_attribute("value", str(640 * 500))
    expect(chart(plain, "Store growth")).to_contain_text(re.compile("640 .* 76.8k .* 313 KiB of 1 GiB"))
    assert plot(plain, "Length distribution").evaluate(PAINTED)


def test_a_drag_zooms_all_charts_and_a_button_shows_all_again(plain):
    whole = plain.get_by_role("button", name="show all")
    drag(plot(plain, "Reward"), 0.3, 0.7)
    expect(whole).to_have_count(CHARTS - 1)  # the x of one is not steps but epochs
    chart(plain, "Reward").get_by_role("button", name="show all").click()
    expect(whole).to_have_count(0)
    chart(plain, "Reward").get_by_role("button", name="log").click()
    expect(chart(plain, "Reward").get_by_role("button", name="log", pressed=True)).to_be_visible()
    expect(plot(plain, "Reward")).to_be_visible()


def test_a_hovered_curve_names_the_step_of_its_values(plain):
    step, epoch = re.compile(r"^step 1[01]$"), re.compile(r"^epoch \d$")
    expect(plain.get_by_text(step)).to_have_count(0)
    curves, epochs = plot(plain, "Reward"), plot(plain, "Acceptance by epoch")
    curves.hover(position={"x": 25 + curves.bounding_box()["width"] / 2, "y": 80})  # its numbers are on the left
    for title in ("Reward", "Reward spread"):  # the cursor is common
        expect(chart(plain, title).get_by_text(step)).to_be_visible()
    epochs.hover(position={"x": epochs.bounding_box()["width"] - 60, "y": 80})
    expect(chart(plain, "Acceptance by epoch").get_by_text(epoch)).to_have_text("epoch 3")
    plain.mouse.move(2, 2)
    expect(chart(plain, "Acceptance by epoch").get_by_text(epoch)).to_have_count(0)


def test_the_axis_of_a_constant_zero_ends_at_one(plain):
    ranges = plain.evaluate(
        """import('./static/charts/plot.js').then(({ plotOptions }) => {
            const range = options => plotOptions(options, [{ label: 'a', values: [0] }],
                { log: false, hidden: new Set() }).scales.y.range;
            return [range({ zero: true })(null, 0, 0), range({})(null, 0, 0), range({ zero: true })(null, 0, 2)];
        })"""
    )
    assert ranges == [[0, 1], [0, 1], pytest.approx([0, 2.12])]


def test_of_many_epochs_some_lengths_are_drawn_and_the_newest_always(show):
    class Long(FakeRun):
        def lengths(self, query):
            return {"epochs": [lengths_row(epoch) for epoch in range(40)]}

    page = show(Long("lengths"))
    lengths, drawn = chart(page, "Length distribution"), plot(page, "Length distribution")
    expect(page.get_by_role("img", name=re.compile("in 40 epochs, of which 12"))).to_be_visible()
    expect(lengths.get_by_role("option")).to_have_count(41)
    expect(page.get_by_role("img", name=re.compile(r" points\. "))).to_have_count(CHARTS)
    for line, epoch in ((0, 1), (1, 5), (11, 40)):
        drawn.hover(position={"x": 200, "y": (line + 0.5) * 154 / 12})
        expect(lengths.get_by_role("status")).to_have_text(re.compile(f"^Epoch {epoch},"))
    numbers = re.compile("3: .* 0.6, .* 1, 32 ")
    expect(chart(page, "Reward distribution").get_by_role("status")).to_have_text(numbers)
    sizes = [one.bounding_box()["height"] for one in (chart(page, "Response length"), lengths)]
    assert sizes[0] == sizes[1]


def queue(page, name, depth, oldest=""):
    words = rf"^\s*{name}\s*{depth}{re.escape(PURPOSE[name])}\D*{oldest}$"
    expect(page.locator(f"[data-queue={name}]")).to_have_text(re.compile(words))


def test_every_queue_is_shown_as_long_as_the_run_lives(show):
    run = FakeRun("queues")
    page = show(run)
    queues = page.get_by_role("list", name="Queues").get_by_role("listitem")
    steps = page.get_by_role("list", name="Open steps").get_by_role("listitem")
    expect(queues).to_have_count(6)
    queue(page, "waiting", 3, "2 s")
    queue(page, "running", 8, "12.5 s")
    queue(page, "scored", 5)
    for name in ("generated", "scoring", "training"):
        queue(page, name, 0)
    first = re.compile("step 21.*1 of 4 .* 42 s: 8 running, 5 scored, 3 dropped")
    expect(steps).to_have_text([first, re.compile("step 22.*: 8 waiting")])
    widths = steps.first.locator("i").evaluate_all("parts => parts.map(part => part.style.width)")
    assert widths == ["50%", "31.25%", "18.75%"]
    run.changed = {"open_steps": [open_step(20 + step, waiting=4) for step in range(9)]}
    expect(steps.last).to_contain_text("3 more")
    workers = [*run.queues()["workers"], worker_row("environment-0", -1)]
    acting = {"workers": workers, "open_steps": [open_step(20, acting=4, turned=12)]}
    run.changed = acting | {"queues": {"acting": 4, "turned": 12}, "oldest_s": {"acting": 5.0}}
    expect(queues).to_have_count(8)
    queue(page, "acting", 4, "5 s")
    queue(page, "turned", 12)
    expect(steps).to_have_text([re.compile("step 21.*: 12 turned, 4 acting")])
    run.live = False
    expect(connection(page)).to_have_text("run ended")
    expect(page.get_by_role("region", name="Queues")).to_be_hidden()


def test_advice_is_shown_as_long_as_the_run_needs_it(show):
    run = FakeRun("advised")
    run.advice = [{"name": "flat", "wrong": "All groups are flat.", "change": "Take harder rows."}]
    page = show(run)
    advice = page.get_by_role("region", name="Advice")
    expect(advice.get_by_role("listitem")).to_have_text("All groups are flat. Take harder rows.")
    run.advice = []
    run.rows.append(step_row(20))
    expect(advice).to_have_count(0)


# The workers


def span_shown(page):
    """Begin, end and length of the time that the timeline shows."""
    return page.get_by_text(re.compile(r", \d+ workers$"))


def test_the_gantt_shows_what_each_worker_did_when(plain):
    panel = tab(plain, "Workers")
    gantt = panel.get_by_role("img", name="Timeline of 4 workers")
    expect(panel.get_by_role("list", name=re.compile("^Activities"))).to_contain_text("verify")
    expect(span_shown(panel)).to_contain_text("6 min 40 s")
    whole = span_shown(panel).text_content()
    wide = gantt.bounding_box()["width"]
    gantt.hover(position={"x": wide / 2, "y": 34 + 36})  # the second row
    tip = panel.get_by_role("status")
    for part in ("rollout-0", "version 8", "200 tokens/s", " CPU, 2.5 GiB, GPU "):
        expect(tip).to_contain_text(part)
    expect(tip.get_by_role("listitem").nth(3)).to_be_visible()
    plain.keyboard.down("Control")
    plain.mouse.wheel(0, -120)
    plain.keyboard.up("Control")
    expect(span_shown(panel)).not_to_have_text(whole)
    drag(gantt, 0.25, 0.5)
    expect(panel.get_by_role("combobox", name="Time shown")).to_have_value("own")
    narrow = span_shown(panel).text_content()
    plain.keyboard.press("-")
    expect(span_shown(panel)).not_to_have_text(narrow)
    plain.keyboard.press("0")
    expect(span_shown(panel)).to_have_text(whole)
    assert gantt.evaluate(PAINTED)


def test_the_wheel_alone_scrolls_the_page_and_not_the_gantt(plain):
    plain.set_viewport_size({"width": 1280, "height": 500})
    panel = tab(plain, "Workers")
    gantt = panel.get_by_role("img", name="Timeline of 4 workers")
    whole = span_shown(panel).text_content()
    gantt.hover()
    plain.mouse.wheel(0, 100)
    expect(plain.locator(":root")).to_have_js_property("scrollTop", 100)
    assert span_shown(panel).text_content() == whole
    gantt.hover()
    place = plain.evaluate("scrollY")
    for key in ("Control", "Shift"):
        before = span_shown(panel).text_content()
        plain.keyboard.down(key)
        plain.mouse.wheel(0, -120)
        plain.keyboard.up(key)
        expect(span_shown(panel)).not_to_have_text(before)
    narrow = span_shown(panel).text_content()
    plain.mouse.wheel(100, 0)
    expect(span_shown(panel)).not_to_have_text(narrow)
    assert narrow.split(", ")[1] == span_shown(panel).text_content().split(", ")[1]  # moved, and as long
    assert plain.evaluate("scrollY") == place
    panel.get_by_role("button", name="Show the whole run").click()


def test_what_happened_is_not_hidden_by_steps(plain):
    events = tab(plain, "Workers").get_by_role("region", name="Events")
    trained = events.get_by_role("listitem").filter(has_text=re.compile(r"step \d+ trained"))
    every = events.get_by_role("checkbox")
    expect(events.get_by_role("listitem")).to_have_count(5)
    expect(trained).to_have_count(0)
    every.check()
    expect(events.get_by_role("listitem")).to_have_count(25)
    expect(trained.first).to_contain_text("step 20")
    every.uncheck()
    expect(events.get_by_role("listitem")).to_have_count(5)


def test_a_worker_has_its_accepted_length_and_its_last_heartbeat(plain):
    panel = tab(plain, "Workers")
    for name, cells in {
        "rollout-0": ["412", "2.35", "0.2 s"], "reward-0": ["–", "–", "0.2 s"], "rollout-1": ["–", "–", "–"],
    }.items():  # fmt: skip
        expect(worker(panel, name).get_by_role("cell")).to_contain_text(cells)
    expect(worker(panel, "rollout-1")).to_contain_text("lost at")
    expect(panel.get_by_role("region", name="Events")).to_contain_text("rollout-1 lost: silent for 10 s")


def test_what_a_worker_uses_is_shown_with_its_newest_spans(plain):
    panel = tab(plain, "Workers")
    uses = worker(panel, "rollout-0").get_by_role("cell").filter(has_text="CPU")
    expect(uses).to_have_text(re.compile("^3.2 CPU, 2.5 GiB2 GPUs 92 %, 122 GiB, 61 °C[▁▂▃▄▅▆▇█]{20}$"))
    expect(uses).to_have_attribute("title", re.compile("\nGPU 1 NVIDIA H200: 97 %, 61 GiB of 140 GiB, 61 °C$"))
    expect(worker(panel, "reward-0").get_by_role("cell").filter(has_text="CPU")).to_contain_text("0.0 CPU, 812 MiB")
    expect(worker(panel, "rollout-1").get_by_role("cell").filter(has_text="CPU")).to_have_count(0)  # it is lost


def test_a_worker_that_joins_appears_at_once(show):
    run = FakeRun("joins", steps=0)
    panel = tab(show(run), "Workers")
    run.changed = {"workers": [worker_row("rollout-7", 0)]}
    expect(worker(panel, "rollout-7")).to_contain_text("0 / 16")


def test_seconds_in_the_columns_of_the_gantt_are_those_that_were_reported(plain):
    sums = plain.evaluate(
        """import('./static/charts/timeline.js').then(({ Timeline, columns, shares, at }) => {
            const line = new Timeline();
            const span = (worker, t, inside) => ({ worker, role: worker.split('-')[0], t, s: 2, in: inside });
            const spans = [span('rollout-10', 12, { verify: 1.5, idle: 0.5 }),
                           span('rollout-10', 14.5, { decode: 2 }),
                           span('rollout-9', 12, { decode: 2 }), span('trainer', 13, { train: 2 })];
            const events = [{ t: 15, event: 'lost', worker: 'rollout-9' }];
            line.add({ spans, events, activities: { verify: '#000000' } });
            line.add({ spans, events });
            const [, nine, ten] = line.rows();
            const count = line.names.length;
            return { rows: line.rows().map(row => row.name), names: line.names, count: line.count,
                     whole: columns(ten.spans, count, 10, 15, 7).reduce((a, b) => a + b),
                     half: shares(ten.spans, count, 11, 13.5), gone: nine.gone.event,
                     hole: at(ten.spans, 12.2) === undefined, events: line.events.length };
        })"""
    )
    assert sums["rows"] == ["trainer", "rollout-9", "rollout-10"]
    assert (sums["count"], sums["gone"], sums["events"], sums["hole"]) == (4, "lost", 1, True)
    assert sums["whole"] == pytest.approx(4.0)
    assert dict(zip(sums["names"], sums["half"], strict=True)) == pytest.approx(
        {"verify": 0.75, "idle": 0.25, "decode": 1.0, "train": 0.0}
    )


def test_a_page_that_is_open_for_weeks_keeps_the_newest_events(plain):
    kept = plain.evaluate(
        """import('./static/charts/timeline.js').then(({ Timeline }) => {
            const line = new Timeline();
            const trained = from => Array.from({ length: 100 }, (_, i) => ({ t: from + i, event: 'trained' }));
            for (let t = 2; t < 30002; t += 100) line.add({ events: trained(t) });
            const { events, seen } = line;
            return { most: events.length, seen: seen.size, last: events[events.length - 1].t };
        })"""
    )
    assert 10_000 <= kept["most"] <= 20_000
    assert (kept["seen"], kept["last"]) == (kept["most"], 30_001)


# The samples


def test_a_sample_is_found_and_its_drafted_tokens_are_marked(plain):
    drafted = [count for count, drafted in SHAPE if drafted]
    panel = tab(plain, "Samples")
    found = panel.get_by_role("status").first
    expect(found).to_contain_text("24")
    panel.get_by_role("searchbox").fill("is 17 plus")
    expect(found).to_have_text(re.compile("^1 .*“is 17 plus”"))
    prompts(panel).first.click()
    expect(answers(panel)).to_have_count(3 * GROUP)
    expect(plain).to_have_url(re.compile(r"query=is\+17\+plus"))
    expect(answer(panel, 1, 19)).to_contain_text("55 %")
    expect(answer(panel, 2, 19)).to_contain_text("exact 0.5 · score/tidy 0.25")
    answer(panel, 2, 19).click()
    both = panel.get_by_role("article")
    expect(both.get_by_role("heading")).to_have_text(["epoch 3", "epoch 2"])
    newest = panel.get_by_role("article", name="epoch 3, response 2")
    expect(newest.get_by_role("mark")).to_have_text(["and so " * count for count in drafted])
    expect(newest).to_contain_text("exact 0.5 · score/tidy 0.25")
    expect(newest).to_contain_text("23 of 42 tokens (55 %)")
    plain.keyboard.press("ArrowLeft")
    expect(both.first.get_by_role("heading")).to_have_text("epoch 2")
    plain.keyboard.press("n")
    expect(panel.get_by_role("heading", level=2)).to_have_text("Response 3")
    plain.keyboard.press("Escape")
    expect(answers(panel)).to_have_count(3 * GROUP)


def test_held_out_prompts_are_marked_and_can_be_chosen(show):
    page = show(FakeRun("kinds"), hash="#samples")
    rows = prompts(page)
    expect(rows.first).to_contain_text(re.compile("held-out.*12 samples$"))  # and no epochs
    expect(rows.nth(1)).not_to_contain_text(re.compile("held-out|training"))
    kinds = page.get_by_role("combobox", name="Kind of prompt").get_by_role("option")
    expect(kinds).to_have_text(["all prompts", "training (16)", "held-out (8)"])
    choose(page, "Kind of prompt", "held-out")
    expect(rows).to_have_count(8)
    expect(rows.filter(has_text="held-out")).to_have_count(8)
    expect(page).to_have_url(re.compile("kind=held-out"))


def test_a_prompt_has_its_answer_its_row_and_its_learning_curve(show):
    page = show(FakeRun("row"), hash=f"#samples/{5:016x}")
    right = page.get_by_text("Right answer")
    expect(right).to_contain_text("42")
    right.click()
    columns = page.get_by_role("table", name="Columns of the row").get_by_role("row")
    expect(columns).to_have_text(["answer42", "sourcesums"])
    expect(page.get_by_role("img", name=re.compile("^Reward by epoch, 3 points. mean: last 0.5"))).to_be_visible()
    expect(plot(page, "Length by epoch")).to_be_visible()
    answer(page, 1, 3).click()
    expect(page.get_by_role("article").first).to_be_visible()
    expect(right).to_contain_text("42")


def test_the_text_of_a_response_shows_what_was_chosen(show):
    page = show(FakeRun("overlay"), hash=f"#samples/{5:016x}/18/1?show=difference&compare=2")
    newest, oldest = (page.get_by_role("article", name=f"epoch {epoch}, response 2") for epoch in (3, 1))
    tokens = newest.get_by_role("group").get_by_title(re.compile("."))  # those that say something of themselves
    expect(newest.get_by_title("not in the other response").first).to_be_visible()
    expect(page.get_by_title("accepted draft")).to_have_count(0)
    expect(newest.get_by_text("its group")).to_have_count(1)
    choose(page, "Marked in the text", "logprob")
    expect(tokens).to_have_count(42)
    expect(page).to_have_url(re.compile("show=logprob"))
    expect(tokens.nth(1)).to_have_attribute("title", re.compile("-0.5, .* 0.607"))
    expect(newest).to_contain_text("log-prob -0.25 nats")
    expect(oldest).to_contain_text("log-probs were forgotten")
    choose(page, "Marked in the text", "version")
    expect(newest).to_contain_text("18 to 19")


def test_the_turns_of_a_response_are_shown_apart_with_their_calls(show):
    page = show(FakeRun("turns", turns=True), hash=f"#samples/{5:016x}")
    expect(answers(page)).to_have_count(3 * GROUP)
    expect(answer(page, 1, 3)).to_contain_text(re.compile("3 turns.*2 rows.*2 calls.*1 failed"))
    answer(page, 2, 19).click()
    newest = page.get_by_role("article", name="epoch 3, response 2")
    texts, heads = newest.get_by_role("group"), newest.get_by_role("heading", level=4)
    expect(heads).to_have_count(len(SHAPE))
    assert heads.all_text_contents() == [
        "Turn 112 tokens", "Environment9 tokensadd 4 ms", "Turn 23 tokens",
        f"Environment14 tokensdivide 2.5 s: {HOSTILE}", "Turn 34 tokens",
    ]  # fmt: skip
    expect(texts).to_have_text(["and so " * count for count, _ in SHAPE])
    expect(newest).to_contain_text(re.compile("Row 2 .* 17 tokens of row 1"))
    expect(newest).to_contain_text("23 of 19 tokens (121 %)")  # those of this response are its environment's
    expect(newest).to_contain_text(re.compile("23 of 42 tokens .* its environment's.* reward 0.5"))
    for kind in ("difference", "logprob"):  # whatever is marked, the runs have the same text
        choose(page, "Marked in the text", kind)
        expect(newest.get_by_title("accepted draft")).to_have_count(0)
        expect(texts).to_have_text(["and so " * count for count, _ in SHAPE])
    assert page.evaluate("window.owned") is None
    go(page, f"#samples/{5:016x}/2/1")  # its text could not be cut
    cut = page.get_by_role("article", name="epoch 1, response 2").get_by_role("group").first
    expect(cut).to_have_text(re.compile("^first we add"))


def test_differences_are_words(plain):
    found = plain.evaluate(
        """import('./static/views/samples/diff.js').then(({ difference }) => [
            difference('the sum is 7, so 7', 'the sum is 8, so 7'), difference('', 'new'),
            difference('same', 'same'), difference('a '.repeat(9000), 'b')])"""
    )
    first, second = found[0]
    assert [piece["text"] for piece in first if piece["changed"]] == ["7"]
    assert [piece["text"] for piece in second if piece["changed"]] == ["8"]
    assert "".join(piece["text"] for piece in second) == "the sum is 8, so 7"
    assert found[1] == [[], [{"text": "new", "changed": True}]]
    assert [[piece["changed"] for piece in side] for side in found[2]] == [[False], [False]]
    assert found[3] is None, "too long"


def test_responses_are_searched_until_there_is_enough(show):
    page = show(FakeRun("search", prompts=200), hash="#samples?query=carry%20the%20one&in=responses")
    found = page.get_by_role("list", name="Responses found").get_by_role("listitem")
    expect(found).to_have_count(56)
    numbers = re.compile(r"^56 .*“carry the one” \(672 .* 56 of 200 ")
    expect(page.get_by_role("tabpanel").get_by_role("status")).to_have_text(numbers)
    expect(found.first.get_by_role("mark")).to_have_text("carry the one")
    page.get_by_role("button", name="Search more").click()
    expect(found).to_have_count(112)
    found.nth(1).get_by_role("link").click()
    expect(page.get_by_role("heading", level=2)).to_have_text("Response 2")
    expect(found).to_have_count(112)  # the list stays


def test_the_id_of_a_sample_can_be_copied(show):
    sample = f"18/{5:016x}/1"
    page = show(FakeRun("copied"), hash=f"#samples/{5:016x}/18/1")
    newest = page.get_by_role("article", name="epoch 3, response 2")
    copy = newest.get_by_role("button", name=f"Copy {sample}")
    selected = "getSelection().toString()"  # whether or not the page may copy
    expect(copy).to_have_text(sample)
    expect(copy).to_have_attribute("title", re.compile(f"^rhymed logs /runs/copied --sample={sample} "))
    copy.click()
    expect(newest.get_by_role("status")).to_have_text(re.compile("."))
    assert page.evaluate(selected) == sample
    page.evaluate("getSelection().removeAllRanges()")
    page.keyboard.press("Enter")
    assert page.evaluate(selected) == sample


def test_of_many_epochs_the_first_and_the_newest_are_side_by_side(show):
    run = FakeRun("many")
    run.asked = 7
    page = show(run, hash=f"#samples/{5:016x}")
    heads = page.get_by_role("table", name="Responses by epoch").get_by_role("columnheader")
    expect(heads).to_have_text([re.compile(f"^epoch {epoch}") for epoch in (1, 6, 7)])
    page.get_by_role("group", name="Epochs shown").get_by_role("button", name="epoch 2").click()
    expect(heads).to_have_text([re.compile(f"^epoch {epoch}") for epoch in (1, 2, 6, 7)])
    expect(answers(page)).to_have_count(4 * GROUP)


def test_a_link_leads_to_a_sample_in_an_order(show):
    run = FakeRun("link")
    page = show(run, hash=f"#samples/{5:016x}/18/1?compare=none&sort=reward/desc")
    best = max(run.prompt_rows(), key=lambda row: row["reward"])
    expect(prompts(page).first).to_contain_text(best["text"])
    expect(page.get_by_role("article").get_by_role("heading")).to_have_text(["epoch 3"])
    expect(prompts(page).and_(page.get_by_role("option", selected=True))).to_contain_text("What is 5 plus 2?")


def test_a_click_counts_though_the_list_is_drawn_in_between(show):
    page = show(FakeRun("drawn"), hash="#samples")
    prompts(page).nth(1).hover()
    page.mouse.down()
    page.get_by_role("listbox").dispatch_event("scroll")
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.mouse.up()
    expect(answers(page)).to_have_count(3 * GROUP)


def test_ten_thousand_prompts_are_a_few_rows_in_the_page(show):
    page = show(FakeRun("many", prompts=10_000), hash="#samples")
    rows, box = prompts(page), page.get_by_role("listbox")
    expect(page.get_by_role("tabpanel").get_by_role("status")).to_contain_text("10,000")
    expect(rows.nth(5)).to_be_visible()
    assert rows.count() < 40
    box.evaluate("list => list.scrollTop = 5000 * 80")
    expect(rows.filter(has_text="What is 5000 plus 9?")).to_have_attribute("aria-posinset", "5001")
    box.focus()
    page.keyboard.press("End")
    expect(box.get_by_role("option", selected=True)).to_have_attribute("aria-posinset", "10000")
    expect(page).to_have_url(re.compile(f"{9999:016x}"))
    assert rows.count() < 40
    assert page.locator("*").count() < 1500


def test_hostile_text_is_only_text(show):
    page = show(FakeRun("hostile", text=HOSTILE), hash=f"#samples/{0:016x}/18/0")
    marks = page.get_by_role("article").get_by_role("mark")
    expect(marks).to_have_count(2)
    assert marks.first.text_content() == HOSTILE
    expect(prompts(page).first).to_contain_text("window.owned")
    assert prompts(page).first.text_content().startswith(HOSTILE)
    assert page.get_by_role("main").locator("script, img").count() == 0
    assert page.evaluate("window.owned") is None


def test_a_very_long_response_comes_in_parts(show):
    whole = "wörd \U0001f600 " * 50_000
    page = show(FakeRun("long", text=whole, prompts=1), hash=f"#samples/{0:016x}/18/0?compare=none")
    text = page.get_by_role("article").get_by_role("group")
    expect(text).to_be_visible()
    assert len(text.text_content()) <= 40_000
    assert len(page.get_by_role("listbox").text_content()) <= 400
    page.get_by_role("article").get_by_role("button", name="Show more").click()
    shown = text.text_content()
    assert 50_000 < len(shown) <= 80_000
    assert whole.startswith(shown)


# What changes


def test_what_is_new_is_shown(show):
    run = FakeRun("events")
    page = show(run)
    expect(fact(page, "step")).to_have_text("20 / 40")
    run.rows.append(step_row(20) | {"reward/mean": 0.875})
    run.changed = {"troubles": ["no reward worker"]}
    expect(fact(page, "step")).to_have_text("21 / 40")
    expect(fact(page, "reward")).to_have_text("0.875")
    expect(page.get_by_role("alert")).to_have_text("no reward worker")
    expect(page.get_by_role("img", name=re.compile("^Reward, 21 points. step: last 0.875"))).to_be_visible()
    tab(page, "Metrics")
    run.rows.append(step_row(21) | {"reward/mean": 0.75})
    expect(fact(page, "reward")).to_have_text("0.75")
    tab(page, "Overview")
    expect(page.get_by_role("img", name=re.compile("^Reward, 22 points. step: last 0.75"))).to_be_visible()
    run.changed = {"paused": True}
    expect(state(page)).to_have_text("paused")
    row = {"t": run.spans[-1]["t"] + 5, "worker": "rollout-9", "role": "rollout", "in": {"verify": 1.0}}
    run.spans.append(run.spans[-1] | row)
    expect(worker(tab(page, "Workers"), "rollout-9")).to_be_visible()


def test_a_lost_connection_is_shown_and_mended(show):
    run = FakeRun("broken")
    page = show(run, broken=True)
    expect(fact(page, "step")).to_have_text("20 / 40")
    run.down = True
    expect(connection(page)).to_have_text("connection lost")
    expect(page.get_by_role("alert")).to_contain_text("rhymed view /runs/broken")
    expect(state(page)).to_have_text("was running")
    expect(fact(page, "step")).to_have_text("20 / 40")
    run.rows.append(step_row(20))
    run.down = False
    expect(connection(page)).to_have_text("live")
    expect(fact(page, "step")).to_have_text("21 / 40")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_the_end_of_a_run_is_shown(show):
    run = FakeRun("ending")
    page = show(run)
    run.live = False
    expect(connection(page)).to_have_text("run ended")
    expect(state(page)).to_have_text("finished")
    expect(page.get_by_role("alert")).to_contain_text(re.compile("finished.*rhymed view /runs/ending"))


def test_the_end_of_a_run_is_shown_if_its_server_ends_too(show):
    run = FakeRun("going")
    page = show(run, broken=True)
    expect(fact(page, "workers")).to_have_text("2")
    run.events.append({"t": run.spans[-1]["t"] + 1, "event": "finished", "text": "run failed: the store is full"})
    run.live, run.ended = False, "stopped"
    expect(connection(page)).to_have_text("run ended")
    run.down = True
    expect(state(page)).to_have_text("stopped")
    expect(page.get_by_role("alert")).to_contain_text("run failed: the store is full")
    expect(fact(page, "workers")).to_have_text("–")


def test_a_finished_run_can_be_looked_at(show):
    page = show(FakeRun("finished", live=False))
    expect(state(page)).to_have_text("finished")
    expect(fact(page, "step")).to_have_text("20 / 40")
    expect(worker(tab(page, "Workers"), "rollout-0")).to_contain_text("not running")


def test_only_samples_that_have_come_since_are_called_new(show):
    run = FakeRun("fresh")
    page = show(run, hash="#samples")
    new = page.get_by_role("button", name="new samples")
    expect(fact(page, "step")).to_have_text("20 / 40")
    expect(prompts(page).first).to_contain_text("What is")
    expect(new).to_have_count(0)
    run.rows.append(step_row(20))
    expect(new).to_be_visible()


def test_what_the_server_cannot_tell_is_stated_once_and_the_rest_is_shown(show):
    reason = "there is no store on this machine"
    run = FakeRun("partly", refuses=dict.fromkeys(("lengths", "rewards", "store"), reason))
    run.missing = "metrics.jsonl is not in the run's folder"
    page = show(run, broken=True)
    expect(page.get_by_role("alert").get_by_role("listitem")).to_have_text([run.missing, reason])
    expect(fact(page, "step")).to_have_text("20 / 40")
    go(page, "#samples/ffff/1/2")
    expect(page.get_by_role("tabpanel", name="Samples")).to_contain_text(run.refuses["prompts/ffff"])


def test_an_empty_run_says_what_will_appear(show):
    page = show(FakeRun("empty", steps=0))
    for name, words in (
        ("Overview", "first trained step"), ("Workers", "No worker"), ("Samples", "No samples"),
        ("Metrics", "first step"), ("Logs", "No such line"), ("Configuration", "empty"),
    ):  # fmt: skip
        expect(tab(page, name).get_by_text(words).first).to_be_visible()


# Metrics, logs, configuration


def test_any_metric_can_be_picked(plain):
    panel = tab(plain, "Metrics")
    panel.get_by_role("searchbox").fill("spec accept_len")
    panel.get_by_role("group", name="Metrics").get_by_role("checkbox").check()
    expect(panel.get_by_role("img")).to_have_count(2)
    expect(plain).to_have_url(re.compile("m=reward.*accept_len"))
    tab(plain, "Configuration")
    tab(plain, "Metrics")
    expect(plain).to_have_url(re.compile("m=reward.*accept_len"))
    choose(panel, "X axis", "epoch")
    curves = panel.get_by_role("button", name=re.compile(r"^epoch \d"))
    expect(curves).to_have_text([re.compile(f"^epoch {epoch}") for epoch in (1, 2, 3, 1, 2, 3)])


def test_every_metric_is_read_against_an_axis_of_its_own(show):
    names = ["reward/mean", "reward/flat_groups", "actor/grad_norm", "timing_s/step"]
    page = show(FakeRun("axes"), hash=f"#metrics?m={','.join(names)}")
    panel = page.get_by_role("tabpanel", name="Metrics")
    drawn, titles = panel.get_by_role("img"), panel.get_by_role("heading")
    expect(drawn).to_have_count(4)
    expect(titles).to_have_text([re.compile(f"^{name}") for name in names])
    choose(panel, "Charts", "unit")
    expect(titles).to_have_text([re.compile(f"^{title}") for title in ("Without a unit", "In share", "In s")])
    expect(drawn).to_have_count(3)
    expect(page).to_have_url(re.compile("charts=unit"))


def test_chosen_metrics_are_saved_as_a_table_that_computes_nothing(plain):
    write = """([data, names]) => import('./static/views/metrics/columns.js')
        .then(({ csv, table }) => csv(table(data, 'step'), names, 'step'))"""
    rows = {"steps": [{"step": 0, "a/b": 0.5}, {"step": 1, "a/b": 1}], "evaluations": [{"step": 2, "val/c": 3}]}
    assert plain.evaluate(write, [rows, ["a/b", "val/c"]]) == "step,a/b,val/c\n1,0.5,\n2,1,3\n"
    odd = {"steps": [{"step": 0, "=1+1": 0.5, 'a,"b"': 1}], "evaluations": []}
    text = plain.evaluate(write, [odd, ["=1+1", 'a,"b"']])
    assert text.splitlines() == ["step,'=1+1," + '"a,""b"""', "1,0.5,1"]


def test_the_newest_lines_of_the_logs_are_filtered(plain):
    panel = tab(plain, "Logs")
    lines, said = panel.get_by_role("list", name="Log lines").get_by_role("listitem"), panel.get_by_role("status")
    expect(lines).to_have_count(3)
    expect(lines.last).to_contain_text("Traceback (most recent call last)")
    expect(said).to_have_text(re.compile(r"^3 .*\b7 "))  # so many of libraries are hidden
    panel.get_by_role("checkbox", name="libraries").check()
    expect(said).not_to_contain_text("7")
    panel.get_by_role("checkbox", name="libraries").uncheck()
    choose(panel, "Lowest level", "warning")
    expect(lines).to_have_count(2)
    choose(panel, "Process", "reward-0")
    expect(lines).to_have_count(1)
    expect(lines).to_contain_text("a reward timed out")
    expect(plain).to_have_url(re.compile("#logs.level=warning&process=reward-0$"))
    panel.get_by_role("searchbox").fill("nothing like it")
    expect(lines).to_contain_text("No such line")


def test_the_configuration_is_filtered(plain):
    panel = tab(plain, "Configuration")
    rows = panel.get_by_role("row")
    panel.get_by_role("searchbox").fill("temperature")
    expect(rows).to_have_text(["temperature1"])
    panel.get_by_role("searchbox").fill("datasets")
    expect(rows).to_have_text(["datasets 1.nametest", "datasets 1.tasksums"])  # a table in a list: a row per value


# For every reader


def fits(page, width):
    expect(page.locator(":root")).to_have_js_property("scrollWidth", width)


def test_a_narrow_window_has_no_horizontal_scroll(plain):
    plain.set_viewport_size({"width": 400, "height": 800})
    go(plain, "#samples")
    for name in TABS:
        tab(plain, name)
        fits(plain, 400)
    panel = tab(plain, "Samples")
    prompts(panel).nth(1).click()
    expect(answers(panel)).to_have_count(3 * GROUP)
    fits(plain, 400)
    answer(panel, 1, 3).click()
    expect(panel.get_by_role("article").first).to_be_visible()
    fits(plain, 400)


def test_what_a_narrow_window_cuts_has_a_hint(plain):
    plain.set_viewport_size({"width": 420, "height": 800})
    for cut in (plain.get_by_role("banner"), plain.get_by_role("region", name="Epochs")):
        expect(cut.locator("[data-more=right]")).to_be_visible()
    assert plain.get_by_role("tablist").bounding_box()["y"] < 130, "one row of numbers is above the tabs"
    last = plain.get_by_role("tab", name="Configuration")
    last.click()
    expect(last).to_be_in_viewport(ratio=0.99)
    go(plain, f"#samples/{5:016x}")
    expect(answers(plain)).to_have_count(3 * GROUP)
    table = plain.locator("[data-more]").filter(has=plain.get_by_role("table", name="Responses by epoch"))
    expect(table).to_have_attribute("data-more", "right")
    table.evaluate("scrolled => scrolled.scrollLeft = 9999")
    expect(table).to_have_attribute("data-more", "left")


def test_the_theme_follows_the_system_and_the_switch(show):
    page = show(FakeRun("theme"))
    body, switch = page.locator("body"), page.get_by_role("button", name=re.compile("^Theme"))
    dark, light = "rgb(20, 23, 26)", "rgb(246, 246, 243)"
    page.emulate_media(color_scheme="dark")
    expect(body).to_have_css("background-color", dark)
    switch.click()
    expect(body).to_have_css("background-color", light)
    page.emulate_media(color_scheme="light")
    switch.click()
    expect(body).to_have_css("background-color", dark)
    switch.click()
    expect(body).to_have_css("background-color", light)


def test_everything_can_be_reached_and_has_a_name(plain):
    nameless = re.compile(r"\s*- (button|link|checkbox|combobox|searchbox|listbox|img|tab|figure|article)\b(?! \")")
    for name in TABS:
        tab(plain, name)
        lines = plain.locator("body").aria_snapshot().splitlines()
        assert [line for line in lines if nameless.match(line)] == []
    plain.get_by_role("tab", name="Overview").click()
    plain.get_by_role("tab", name="Overview").focus()
    plain.keyboard.press("ArrowRight")
    expect(plain.get_by_role("tab", selected=True)).to_have_text("Workers")


def test_numbers_are_written_for_people(plain):
    written = plain.evaluate(
        """import('./static/lib/format.js').then(f => [
            f.number(12345), f.number(0.6234), f.number(0.00012), f.number(null), f.number(9999),
            f.seconds(0.0123), f.seconds(3599), f.seconds(7500), f.bytes(1536), f.percent(0.0004),
            f.percent(0.0712), f.percent(0), f.unit('timing_s/step'), f.unit('rollout/bubble_ratio'),
            f.age(0.4432), f.number(999999), f.bytes(1010 * 2 ** 20),
            f.stepName(2 ** 30 + 3), f.stepName(-1), f.stepName(0),
            f.sampleId("1073741828/ab/0"), f.sampleId("-1/ab/2"), f.epochName(0)])"""
    )
    assert written == [
        "12.3k", "0.623", "1.2e−4", "–", "9,999", "12 ms", "59 min 59 s", "2 h 5 min", "1.5 KiB", "<0.1 %",
        "7.1 %", "0 %", "s", "share", "0.4 s", "1000k", "1010 MiB", "eval v3", "imported", "step 1",
        "eval-v4/ab/0", "-1/ab/2", "epoch 1",
    ]  # fmt: skip
