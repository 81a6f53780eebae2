"""The page in a real browser: tabs are opened, values read, what is live changes, hostile text stays text."""

import pytest

from rhymed.show.top.plain import PURPOSE
from tests.show.dashboard.browser import Browser, Loop, find
from tests.show.dashboard.fake_runs import (
    GROUP,
    HOSTILE,
    SHAPE,
    FakeRun,
    Server,
    lengths_row,
    open_step,
    step_row,
    worker_row,
)

TABS = ("overview", "workers", "samples", "metrics", "logs", "configuration")
DRAFTED = [count for count, drafted in SHAPE if drafted]
CHARTS = 18  # of the overview
DATASET = "datasets 1.nametest,datasets 1.tasksums"  # a table in a list: a row per value
CTRL, SHIFT = 2, 8  # of a mouse event's modifiers
NEW = "[...document.querySelectorAll('button')].find(one => one.textContent.includes('new samples'))"


@pytest.fixture(scope="module")
def server():
    loop = Loop()
    server = Server(loop)
    yield server
    server.close()
    loop.close()


@pytest.fixture(scope="module")
def browser(server):
    path = find()
    if path is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    browser = Browser(path, server.loop)
    yield browser
    browser.close()


@pytest.fixture
def show(server, browser):
    """Opens a run; afterwards the console must be empty, and no other origin asked."""
    pages = []

    def show(run, hash="", **options):
        address = server.add(run)
        page = browser.open(f"{address}{hash}", **options)
        pages.append((page, address))
        page.wait("document.getElementById('connection')?.textContent", "live" if run.live else "not running")
        return page

    yield show
    for page, address in pages:
        page.close()
        assert all(asked.startswith(address) for asked in page.asked)
        assert page.problems == []


@pytest.fixture(scope="module")
def shared(server, browser):
    address = server.add(FakeRun("plain"))
    page = browser.open(address)
    page.wait("document.getElementById('connection')?.textContent", "live")
    yield page
    assert all(asked.startswith(address) for asked in page.asked)
    page.close()


@pytest.fixture
def plain(shared):
    """The page of a usual run, at its overview; tests leave it as they like."""
    shared.size(1280, 900)
    shared.read("location.hash = '#overview'")
    shared.wait("document.getElementById('panel-overview').hidden === false")
    yield shared
    assert shared.problems == []


def tab(page, name):
    page.click(f"#tab-{name}")
    page.wait(f"document.getElementById('panel-{name}').hidden === false")


def fact(page, name):
    return f"document.getElementById('fact-{name}').textContent"


def test_the_head_line_shows_how_the_run_does(plain):
    run, page = FakeRun("plain"), plain
    page.wait(fact(page, "step"), "20 / 40")
    page.wait(fact(page, "speed"), "412")
    page.wait(fact(page, "reward"), f"{run.rows[-1]['reward/mean']:.3g}")
    page.wait(fact(page, "accept"), f"{run.rows[-1]['rollout/spec_accept_length']:.3g} tokens")
    page.wait(fact(page, "epoch"), "3")
    page.wait(fact(page, "elapsed"), "6 min 40 s")
    page.wait(fact(page, "left"), "about 7 min 0 s")
    assert page.text("#state") == "running"
    assert page.read("document.title") == "plain – rhymed"


def test_the_overview_draws_every_chart_and_compares_the_epochs(plain):
    page = plain
    page.wait("document.querySelectorAll('#panel-overview .uplot').length", CHARTS)
    page.wait("document.querySelector('.ridges canvas').width > 100")
    titles = page.read("[...document.querySelectorAll('#panel-overview h3')].map(e => e.firstChild.textContent)")
    assert {"Reward", "Length distribution", "Acceptance by epoch", "Bubble ratio", "Staleness"} <= set(titles)
    assert {"Time per phase", "Store growth", "Epochs"} <= set(titles)
    rows = page.read(
        "[...document.querySelectorAll('#panel-overview tbody tr')].filter(r => !r.closest('.held-out'))"
        ".map(r => r.innerText.split('\\t')[0].trim())"
    )
    assert rows == ["1", "2", "3"]
    page.wait(
        "document.querySelector('.meter').textContent.startsWith('640 samples, 76.8k tokens; 313 KiB of 1 GiB')"
    )


def test_a_drag_zooms_all_charts_and_a_button_shows_all_again(plain):
    page = plain
    page.wait("document.querySelectorAll('#panel-overview .uplot').length", CHARTS)
    shown = "b => b.innerText == 'show all' && b.offsetParent"
    zoomed = f"[...document.querySelectorAll('.small')].filter({shown}).length"
    x, y, wide, _ = page.rest("[data-chart=Reward] .u-over")
    page.drag(x - wide / 4, y, x + wide / 4, y)
    page.wait(zoomed, CHARTS - 1)  # the x of one is not steps but epochs
    page.click("[data-chart=Reward] .small:not([hidden])")
    page.wait(zoomed, 0)
    page.click("[data-chart=Reward] [aria-pressed].small")
    page.wait("document.querySelector('[data-chart=Reward] .small[aria-pressed=true]') != null")
    page.wait("document.querySelectorAll('[data-chart=Reward] .uplot').length", 1)


def test_a_hovered_curve_names_the_step_of_its_values(plain):
    page = plain
    page.wait("document.querySelectorAll('#panel-overview .uplot').length", CHARTS)
    at = "document.querySelector('[data-chart=\"{}\"] .at').textContent"
    assert page.read(at.format("Reward")) == ""
    x, y, *_ = page.rest("[data-chart=Reward] .u-over")
    page.mouse("mouseMoved", x, y)
    page.wait(f"/^step 1[01]$/.test({at.format('Reward')})")
    page.wait(f"/^step 1[01]$/.test({at.format('Reward spread')})")  # the cursor is common
    x, y, wide, _ = page.rest("[data-chart='Acceptance by epoch'] .u-over")
    page.mouse("mouseMoved", x + wide / 2 - 2, y)
    page.wait(at.format("Acceptance by epoch"), "epoch 3")
    page.mouse("mouseMoved", 2, 2)
    page.wait(at.format("Acceptance by epoch"), "")


def test_the_axis_of_a_constant_zero_ends_at_one(plain):
    ranges = plain.read(
        """import('./static/charts/plot.js').then(({ plotOptions }) => {
            const range = options => plotOptions(options, [{ label: 'a', values: [0] }],
                { log: false, hidden: new Set() }).scales.y.range;
            return [range({ zero: true })(null, 0, 0), range({})(null, 0, 0), range({ zero: true })(null, 0, 2)];
        })"""
    )
    assert ranges == [[0, 1], [0, 1], pytest.approx([0, 2.12])]


def test_the_gantt_shows_what_each_worker_did_when(plain):
    page = plain
    tab(page, "workers")
    page.wait("document.querySelector('.legend').textContent.includes('verify')")
    whole = page.wait("document.getElementById('gantt-window').textContent")
    assert whole.endswith("6 min 40 s, 4 workers")
    x, y, wide, tall = page.rest(".gantt canvas")
    page.mouse("mouseMoved", x, y - tall / 2 + 34 + 36)  # the second row
    page.wait("document.querySelector('.tip strong')?.textContent", "rollout-0")
    assert ", version 8, 200 tokens/s" in page.text(".tip")
    assert " CPU, 2.5 GiB, GPU " in page.text(".tip")
    assert page.count(".tip li") >= 4
    page.mouse("mouseWheel", x, y, deltaX=0, deltaY=-120, modifiers=CTRL)
    page.wait(f"document.getElementById('gantt-window').textContent != {whole!r}")
    page.drag(x - wide / 4, y, x, y)
    page.wait("document.querySelector('.gantt-panel select').value", "own")
    narrow = page.text("#gantt-window")
    page.key("-")
    page.wait(f"document.getElementById('gantt-window').textContent != {narrow!r}")
    page.key("0")
    page.wait("document.getElementById('gantt-window').textContent", whole)
    drawn = "document.querySelector('.gantt canvas').getContext('2d').getImageData(300, 66, 1, 1).data[3]"
    assert page.read(drawn) == 255


def test_the_wheel_alone_scrolls_the_page_and_not_the_gantt(plain):
    page = plain
    page.size(1280, 500)
    tab(page, "workers")
    whole = page.wait("document.getElementById('gantt-window').textContent")
    x, y, *_ = page.rest(".gantt canvas")
    page.mouse("mouseWheel", x, y, deltaX=0, deltaY=100)
    page.wait("scrollY > 0")
    assert page.text("#gantt-window") == whole
    page.read("scrollTo(0, 0)")
    for modifier in (CTRL, SHIFT):
        x, y, *_ = page.rest(".gantt canvas")
        before = page.text("#gantt-window")
        page.mouse("mouseWheel", x, y, deltaX=0, deltaY=-120, modifiers=modifier)
        page.wait(f"document.getElementById('gantt-window').textContent != {before!r}")
    narrow = page.text("#gantt-window")
    page.mouse("mouseWheel", x, y, deltaX=100, deltaY=0)
    page.wait(f"document.getElementById('gantt-window').textContent != {narrow!r}")
    assert narrow.split(", ")[1] == page.text("#gantt-window").split(", ")[1]  # moved, and as long
    assert page.read("scrollY") == 0
    page.read("document.querySelector('[aria-label=\"Show the whole run\"]').click()")


def test_what_happened_is_not_hidden_by_steps(plain):
    page = plain
    tab(page, "workers")
    page.wait("document.querySelectorAll('.events li').length", 5)
    assert "trained" not in page.text(".events")
    page.click(".choice input")
    page.wait("document.querySelectorAll('.events li').length", 25)
    assert "step 20 trained" in page.text(".events")
    page.click(".choice input")
    page.wait("document.querySelectorAll('.events li').length", 5)


def test_a_worker_has_its_accepted_length_and_its_last_heartbeat(plain):
    page = plain
    tab(page, "workers")
    cells = "[...document.querySelectorAll('[data-worker={}] td')].map(e => e.textContent)"
    page.wait(f"{cells.format('rollout-0')}.slice(-5, -2).join()", "412,2.35,0.2 s ago")
    page.wait(f"{cells.format('reward-0')}.slice(-5, -2).join()", "–,–,0.2 s ago")
    page.wait(f"{cells.format('rollout-1')}.slice(-5, -2).join()", "–,–,–")


def test_every_queue_is_shown_as_long_as_the_run_lives(show, server):
    run = FakeRun("queues")
    page = show(run)
    page.wait("document.querySelectorAll('.queues li').length", 6)
    usual = [name for name in PURPOSE if name not in ("turned", "acting", "trained", "filtered", "dropped")]
    said = {name: page.text(f"[data-queue={name}]") for name in usual}
    assert said["waiting"] == f" waiting3{PURPOSE['waiting']}oldest 2 s"
    assert said["running"] == f" running8{PURPOSE['running']}oldest 12.5 s"
    assert all(said[name].endswith(f"0{PURPOSE[name]}") for name in ("generated", "scoring", "training"))
    assert said["scored"] == f" scored5{PURPOSE['scored']}"
    steps = "[...document.querySelectorAll('.open-steps li')].map(e => e.textContent)"
    assert page.read(steps) == [
        "step 211 of 4 groups ready, open for 42 s: 8 running, 5 scored, 3 dropped",
        "step 221 of 4 groups ready, open for 42 s: 8 waiting",
    ]
    widths = "[...document.querySelectorAll('.open-steps li:first-child i')].map(e => e.style.width).join()"
    assert page.read(widths) == "50%,31.25%,18.75%"
    many = [open_step(20 + step, waiting=4) for step in range(9)]
    run.changed = {"open_steps": many}
    page.wait(f"{steps}.at(-1)", "and 3 more steps")
    workers = [*run.queues()["workers"], worker_row("environment-0", -1)]
    acting = {"workers": workers, "open_steps": [open_step(20, acting=4, turned=12)]}
    run.changed = acting | {"queues": {"acting": 4, "turned": 12}, "oldest_s": {"acting": 5.0}}
    page.wait("document.querySelectorAll('.queues li').length", 8)
    assert page.text("[data-queue=acting]") == f" acting4{PURPOSE['acting']}oldest 5 s"
    assert page.text("[data-queue=turned]") == f" turned12{PURPOSE['turned']}"
    assert page.read(steps) == ["step 211 of 4 groups ready, open for 42 s: 12 turned, 4 acting"]
    run.live = False
    page.wait("document.getElementById('connection').textContent", "run ended")
    page.wait("document.querySelector('.now').hidden")


def test_training_health_has_what_the_run_reports(plain):
    page = plain
    page.wait("document.querySelectorAll('.health .uplot').length", 6)
    shown = "[...document.querySelectorAll('.health .chart')].filter(e => !e.hidden).map(e => e.dataset.chart).join()"
    assert page.read(shown) == "Loss,Mismatch KL,Entropy,Gradient norm,Clip fraction,Learning rate"
    assert "entropy: last 1.05 nats/token" in page.read(
        "document.querySelector('[data-chart=Entropy]').getAttribute('aria-label')"
    )


def test_advice_is_shown_as_long_as_the_run_needs_it(show, server):
    run = FakeRun("advised")
    run.advice = [{"name": "flat", "wrong": "All groups are flat.", "change": "Take harder rows."}]
    page = show(run)
    page.wait("document.querySelector('.advice li')?.textContent", "All groups are flat. Take harder rows.")
    assert page.read("document.querySelector('.advice').offsetParent != null")
    run.advice = []
    run.rows.append(step_row(20))
    page.wait("document.querySelector('.advice').hidden")


def test_of_many_epochs_some_lengths_are_drawn_and_the_newest_always(show):
    class Long(FakeRun):
        def lengths(self, query):
            return {"epochs": [lengths_row(epoch) for epoch in range(40)]}

    page = show(Long("lengths"))
    canvas, status = (
        f"document.querySelector(\"[data-chart='Length distribution'] {part}\")" for part in ("canvas", ".status")
    )
    page.wait(f"{canvas}?.getAttribute('aria-label')?.includes('of which 12 are drawn')")
    page.wait(f"{canvas}.clientHeight", 178)
    assert page.count("[data-chart='Length distribution'] option") == 41
    page.wait("document.querySelectorAll('#panel-overview .uplot').length", CHARTS)
    x, y, _, tall = page.rest("[data-chart='Length distribution'] canvas")
    for line, epoch in ((0, 0), (1, 4), (11, 39)):
        page.mouse("mouseMoved", x, y - tall / 2 + (line + 0.5) * 154 / 12)
        page.wait(f"{status}.textContent.startsWith('Epoch {epoch + 1},')")
    tall = "document.querySelector(`[data-chart='${e}']`).offsetHeight"
    rewards = "[data-chart='Reward distribution'] .status"
    page.wait(f"document.querySelector({rewards!r}).textContent", "Epoch 3: mean 0.6, highest 1, 32 samples")
    tops = f"['Response length', 'Length distribution'].map(e => {tall})"
    assert len(set(page.read(tops))) == 1


def test_missing_rows_are_stated(show):
    run = FakeRun("lacking", live=False)
    run.missing = "metrics.jsonl is not in the run's folder"
    page = show(run)
    page.wait("document.getElementById('notice').textContent", run.missing)


def test_a_lost_worker_is_named(plain):
    page = plain
    tab(page, "workers")
    page.wait("document.querySelector('[data-worker=rollout-1]')?.textContent.includes('lost at')")
    assert "silent for 10 s" in page.text(".events .bad")


def test_a_sample_is_found_and_its_drafted_tokens_are_marked(plain):
    page = plain
    tab(page, "samples")
    page.wait("document.querySelector('.count').textContent", "24 prompts")
    page.click("#panel-samples input[type=search]")
    page.type("is 17 plus")
    page.wait("document.querySelector('.count').textContent", "1 prompt with “is 17 plus”")
    page.click("#row-0")
    page.wait("document.querySelectorAll('.card').length", 3 * GROUP)
    assert "query=is+17+plus" in page.read("location.hash")
    assert "55 % drafted" in page.text(".matrix-row:nth-child(2) .card:nth-child(3)")
    assert page.text(".matrix-row:nth-child(3) .card:nth-child(3) .parts") == "exact 0.5 · score/tidy 0.25"
    page.click(".matrix-row:nth-child(3) .card:nth-child(3) a")
    page.wait("document.querySelectorAll('.full').length", 2)
    assert page.count(".full:first-child mark") == len(DRAFTED)
    marked = page.read("[...document.querySelectorAll('.full:first-child mark')].map(e => e.textContent).join('')")
    assert marked == "and so " * sum(DRAFTED)
    assert page.text(".full header .parts") == "exact 0.5 · score/tidy 0.25"
    assert page.text(".full .drafting") == "23 of 42 tokens (55 %) were accepted drafts"
    assert [page.text(".full:first-child h3"), page.text(".full:last-child h3")] == ["epoch 3", "epoch 2"]
    page.key("ArrowLeft")
    page.wait("document.querySelector('.full h3').textContent", "epoch 2")
    page.key("n")
    page.wait("document.querySelector('.group h2').textContent", "Response 3")
    page.key("Escape")
    page.wait("document.querySelectorAll('.card').length", 3 * GROUP)


def choose(page, label, value):
    element = f"document.querySelector('[aria-label=\"{label}\"]')"
    page.read(f"(e => {{ e.value = {value!r}; e.dispatchEvent(new Event('change')) }})({element})")


def test_held_out_prompts_are_marked_and_can_be_chosen(show):
    page = show(FakeRun("kinds"), hash="#samples")
    page.wait("document.querySelector('#row-0 .kind')?.textContent", "held-out")
    assert page.text("#row-0 .row-facts").endswith("12 samples"), "no epochs"
    assert page.count("#row-1 .kind") == 0
    kinds = "[...document.querySelector('[aria-label=\"Kind of prompt\"]').options].map(e => e.text)"
    assert page.read(kinds) == ["all prompts", "training (16)", "held-out (8)"]
    choose(page, "Kind of prompt", "held-out")
    page.wait("document.querySelector('.count').textContent", "8 prompts")
    assert "kind=held-out" in page.read("location.hash")
    page.wait("[...document.querySelectorAll('.row')].every(e => e.querySelector('.kind'))")


def test_a_prompt_has_its_answer_its_row_and_its_learning_curve(show):
    page = show(FakeRun("row"), hash=f"#samples/{5:016x}")
    page.wait("document.querySelector('.columns summary')?.textContent", "Right answer: 42 2 columns")
    page.click(".columns summary")
    rows = page.read("[...document.querySelectorAll('.columns tr')].map(e => e.innerText)")
    assert rows == ["answer\t42", "source\tsums"]
    page.wait("document.querySelectorAll('.learning .uplot').length", 2)
    label = "document.querySelector('.learning [data-chart=\"Reward by epoch\"]').getAttribute('aria-label')"
    assert "3 points. mean: last 0.5" in page.read(label)
    page.click(".card a")
    page.wait("document.querySelectorAll('.full').length > 0")
    assert page.text(".group .columns summary") == "Right answer: 42 2 columns"


def test_the_text_of_a_response_shows_what_was_chosen(show):
    page = show(FakeRun("overlay"), hash=f"#samples/{5:016x}/18/1?show=difference&compare=2")
    page.wait("document.querySelectorAll('.full').length", 2)
    assert page.read("[...document.querySelectorAll('.full:first-child .changed')].map(e => e.textContent).join('')")
    assert page.count(".full mark:not(.changed)") == 0
    assert page.text(".full header").count("its group") == 1
    choose(page, "Marked in the text", "logprob")
    page.wait("document.querySelectorAll('.full:first-child .shade').length", 42)
    assert "show=logprob" in page.read("location.hash")
    assert page.read("document.querySelectorAll('.shade')[1].title") == "log-prob -0.5, probability 0.607"
    assert "mean log-prob -0.25 nats per token" in page.text(".full:first-child .drafting")
    assert page.text(".full:last-child .drafting") == "There are no log-probabilities: log-probs were forgotten."
    choose(page, "Marked in the text", "version")
    page.wait("document.querySelector('.full .drafting').textContent.startsWith('policy versions 18 to 19')")


TEXTS = (
    "[...document.querySelectorAll('.full:first-child .turn')].map(e => e.querySelector('.response')?.textContent)"
)


def test_the_turns_of_a_response_are_shown_apart_with_their_calls(show):
    page = show(FakeRun("turns", turns=True), hash=f"#samples/{5:016x}")
    page.wait("document.querySelectorAll('.card').length", 3 * GROUP)
    assert "3 turns2 rows2 calls, 1 failed" in page.text(".card-head")
    page.click(".matrix-row:nth-child(3) .card:nth-child(3) a")
    page.wait("document.querySelectorAll('.full').length", 2)
    heads = page.read("[...document.querySelectorAll('.full:first-child h4')].map(e => e.textContent)")
    assert heads == [
        "Turn 112 tokens", "Environment9 tokensadd 4 ms", "Turn 23 tokens",
        f"Environment14 tokensdivide 2.5 s: {HOSTILE}", "Turn 34 tokens",
    ]  # fmt: skip
    assert page.read(TEXTS) == ["and so " * count for count, _ in SHAPE]
    assert page.text(".full .row-begins") == "Row 2 begins after the first 17 tokens of row 1"
    assert page.read("[...document.querySelectorAll('.full:first-child .drafting')].map(e => e.textContent)") == [
        "23 of 19 tokens (121 %) were accepted drafts",  # those of this response are its environment's
        "23 of 42 tokens are its environment's, and are not trained; it gave the reward 0.5",
    ]
    for kind in ("difference", "logprob"):  # whatever is marked, the runs have the same text
        choose(page, "Marked in the text", kind)
        page.wait("document.querySelectorAll('.full:first-child mark:not(.changed)').length", 0)
        assert page.read(TEXTS) == ["and so " * count for count, _ in SHAPE]
    assert "owned" not in page.read("Object.keys(window)")
    page.read(f"location.hash = '#samples/{5:016x}/2/1'")  # its text could not be cut
    page.wait("document.querySelector('.turn .response')?.textContent.startsWith('first we add')")


def test_differences_are_words(plain):
    found = plain.read(
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
    page.wait("document.querySelectorAll('.found li').length", 56)
    assert page.text(".found-box .count") == "56 responses with “carry the one” (672 searched, 56 of 200 prompts)"
    assert page.text(".found mark") == "carry the one"
    page.click(".found-box > button")
    page.wait("document.querySelectorAll('.found li').length", 112)
    page.click(".found li:nth-child(2) a")
    page.wait("document.querySelector('.group h2')?.textContent", "Response 2")
    assert page.count(".found li") == 112, "the list stays"


def test_the_newest_lines_of_the_logs_are_filtered(plain):
    page = plain
    tab(page, "logs")
    page.wait("document.querySelectorAll('.log li').length", 3)
    assert page.text(".log li:last-child pre") == "Traceback (most recent call last)"
    hidden = "document.querySelector('#panel-logs [role=status]').textContent"
    page.wait(hidden, "3 lines; 7 of libraries are hidden")
    page.click("#panel-logs .choice input")
    page.wait(hidden, "3 lines")
    page.click("#panel-logs .choice input")
    choose(page, "Lowest level", "warning")
    page.wait("document.querySelectorAll('.log li').length", 2)
    choose(page, "Process", "reward-0")
    page.wait("document.querySelector('.log').textContent.includes('a reward timed out')")
    page.wait("document.querySelectorAll('.log li').length", 1)
    assert page.read("location.hash") == "#logs?level=warning&process=reward-0"
    page.click("#panel-logs input")
    page.type("nothing like it")
    page.wait("document.querySelector('.log').textContent.includes('No such line')")


def test_the_id_of_a_sample_can_be_copied(show):
    page = show(FakeRun("copied"), hash=f"#samples/{5:016x}/18/1")
    page.wait("document.querySelectorAll('.full').length", 2)
    sample = f"18/{5:016x}/1"
    assert page.text(".full:first-child .copyable") == sample
    assert f"rhymed logs /runs/copied --sample={sample}" in page.read("document.querySelector('.copyable').title")
    page.click(".full:first-child .copyable")
    page.wait("document.querySelector('.full .copy small').textContent.length > 0")
    assert page.read("getSelection().toString()") == sample  # whether or not the page may copy
    page.read("getSelection().removeAllRanges()")
    page.key("Enter")
    page.wait("getSelection().toString()", sample)


def test_of_many_epochs_the_first_and_the_newest_are_side_by_side(show):
    run = FakeRun("many")
    run.asked = 7
    page = show(run, hash=f"#samples/{5:016x}")
    shown = "[...document.querySelectorAll('.matrix-row.head strong')].map(e => e.textContent)"
    page.wait("document.querySelectorAll('.card').length", 3 * GROUP)
    assert page.read(shown) == ["epoch 1", "epoch 6", "epoch 7"]
    page.click(".chips .chip:nth-child(2)")
    page.wait("document.querySelectorAll('.card').length", 4 * GROUP)
    assert page.read(shown) == ["epoch 1", "epoch 2", "epoch 6", "epoch 7"]


def test_a_link_leads_to_a_sample_in_an_order(show):
    run = FakeRun("link")
    page = show(run, hash=f"#samples/{5:016x}/18/1?compare=none&sort=reward/desc")
    best = max(run.prompt_rows(), key=lambda row: row["reward"])
    page.wait("document.querySelector('#row-0 .row-text')?.textContent", best["text"])
    page.wait("document.querySelectorAll('.full').length", 1)
    assert page.text(".full h3") == "epoch 3"
    page.wait("document.querySelector('.row[aria-selected=true] .row-text')?.textContent", "What is 5 plus 2?")


def test_a_click_counts_though_the_list_is_drawn_in_between(show):
    page = show(FakeRun("drawn"), hash="#samples")
    page.wait("document.querySelector('#row-1 .row-text') != null")
    x, y, *_ = page.rest("#row-1")
    page.mouse("mousePressed", x, y, button="left", clickCount=1)
    page.read("document.querySelector('.list').dispatchEvent(new Event('scroll'))")
    page.read("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.mouse("mouseReleased", x, y, button="left", clickCount=1)
    page.wait("document.querySelectorAll('.card').length", 3 * GROUP)


def test_ten_thousand_prompts_are_a_few_rows_in_the_page(show):
    page = show(FakeRun("many", prompts=10_000), hash="#samples")
    page.wait("document.querySelector('.count').textContent", "10,000 prompts")
    page.wait("document.querySelectorAll('.row').length > 5")
    assert page.count(".row") < 40
    page.read("document.querySelector('.list').scrollTop = 5000 * 80")
    page.wait("document.querySelector('#row-5000 .row-text')?.textContent", "What is 5000 plus 9?")
    page.read("document.querySelector('.list').focus()")
    page.key("End")
    page.wait("document.querySelector('#row-9999')?.getAttribute('aria-selected')", "true")
    page.wait(f"location.hash.includes('{9999:016x}')")
    assert page.count(".row") < 40
    assert page.count("*") < 1500


def test_hostile_text_is_only_text(show):
    page = show(FakeRun("hostile", text=HOSTILE), hash=f"#samples/{0:016x}/18/0")
    page.wait("document.querySelectorAll('.full mark').length", 2)
    assert page.read("document.querySelector('.full mark').textContent") == HOSTILE
    assert page.text("#row-0 .row-text") == HOSTILE
    assert page.count(".row script, .group script, .group img, .row img") == 0
    assert page.read("window.owned") is None


def test_a_very_long_response_comes_in_parts(show):
    text = "wörd \U0001f600 " * 50_000
    page = show(FakeRun("long", text=text, prompts=1), hash=f"#samples/{0:016x}/18/0?compare=none")
    page.wait("document.querySelectorAll('.full').length", 1)
    assert page.read("document.querySelector('.full .response').textContent.length") <= 40_000
    assert len(page.text(".row-text")) <= 300
    page.click(".full .more button")
    page.wait("document.querySelector('.full .response').textContent.length > 70000")
    shown = page.read("document.querySelector('.full .response').textContent")
    assert text.startswith(shown)


def test_what_is_new_is_shown(show, server):
    run = FakeRun("events")
    page = show(run)
    page.wait(fact(page, "step"), "20 / 40")
    run.rows.append(step_row(20) | {"reward/mean": 0.875})
    run.changed = {"troubles": ["no reward worker"]}
    page.wait(fact(page, "step"), "21 / 40")
    page.wait(fact(page, "reward"), "0.875")
    page.wait("document.getElementById('notice').textContent", "no reward worker")
    page.wait("document.querySelector('[data-chart=Reward]').getAttribute('aria-label').includes('step: last 0.875')")
    tab(page, "metrics")
    run.rows.append(step_row(21) | {"reward/mean": 0.75})
    page.wait(fact(page, "step"), "21 / 40")
    page.wait(fact(page, "reward"), "0.75")
    tab(page, "overview")
    page.wait("document.querySelector('[data-chart=Reward]').getAttribute('aria-label').includes('step: last 0.75')")
    run.changed = {"paused": True}
    page.wait("document.getElementById('state').textContent", "paused")
    end = run.spans[-1]["t"]
    row = run.spans[-1] | {"t": end + 5, "worker": "rollout-9", "role": "rollout", "in": {"verify": 1.0}}
    run.spans.append(row)
    tab(page, "workers")
    page.wait("document.querySelector('[data-worker=rollout-9]') != null")


def test_a_lost_connection_is_shown_and_mended(show, server):
    run = FakeRun("broken")
    page = show(run)
    run.down = True
    page.wait("document.getElementById('connection').textContent", "connection lost")
    page.wait("document.getElementById('notice').textContent.includes('tries again by itself')")
    assert page.text("#fact-step") == "20 / 40"
    page.wait("document.getElementById('state').textContent", "was running")
    run.rows.append(step_row(20))
    run.down = False
    page.wait("document.getElementById('connection').textContent", "live")
    page.wait(fact(page, "step"), "21 / 40")
    page.wait("document.getElementById('notice').hidden")
    page.problems.clear()  # the browser's own words about the connection


def test_the_end_of_a_run_is_shown(show, server):
    run = FakeRun("ending")
    page = show(run)
    run.live = False
    page.wait("document.getElementById('connection').textContent", "run ended")
    page.wait("document.getElementById('state').textContent", "finished")
    page.wait("document.getElementById('notice').textContent.startsWith('The run has finished')")


def test_the_end_of_a_run_is_shown_if_its_server_ends_too(show, server):
    run = FakeRun("going")
    page = show(run)
    page.wait(fact(page, "workers"), "2")
    failed = {"t": run.spans[-1]["t"] + 1, "event": "finished", "text": "run failed: the store is full"}
    run.events.append(failed)
    run.live, run.ended = False, "stopped"
    page.wait("document.getElementById('connection').textContent", "run ended")
    run.down = True
    page.wait("document.getElementById('state').textContent", "stopped")
    page.wait("document.getElementById('notice').textContent.startsWith('The run failed: the store is full')")
    page.wait(fact(page, "workers"), "–")
    page.problems.clear()  # the browser's own words about the connection


def test_a_finished_run_can_be_looked_at(show):
    page = show(FakeRun("finished", live=False))
    page.wait("document.getElementById('state').textContent", "finished")
    page.wait(fact(page, "step"), "20 / 40")
    tab(page, "workers")
    page.wait("document.querySelector('[data-worker=rollout-0]')?.textContent.includes('not running')")


def test_only_samples_that_have_come_since_are_called_new(show, server):
    run = FakeRun("fresh")
    page = show(run, hash="#samples")
    page.wait(fact(page, "step"), "20 / 40")
    page.wait("document.querySelectorAll('.row-text').length > 0")
    assert page.read(f"{NEW}.hidden")
    run.rows.append(step_row(20))
    page.wait(f"!{NEW}.hidden")


def test_what_the_server_cannot_tell_is_a_sentence_and_the_rest_is_shown(show):
    run = FakeRun("partly", refuses={"store": "the store cannot be read"})
    page = show(run)
    page.wait("document.getElementById('notice').textContent", run.refuses["store"])
    page.wait(fact(page, "step"), "20 / 40")
    page.read("location.hash = '#samples/ffff/1/2'")
    page.wait("document.querySelector('.group').textContent.includes('no prompt ffff')")
    page.problems.clear()  # the browser's own words about the refusals


def test_a_reason_that_several_parts_share_is_shown_once(show):
    reason = "there is no store on this machine"
    page = show(FakeRun("storeless", live=False, refuses=dict.fromkeys(("lengths", "rewards", "store"), reason)))
    page.wait("document.getElementById('notice').textContent", reason)
    page.problems.clear()  # the browser's own words about the refusals


def test_an_empty_run_says_what_will_appear(show):
    page = show(FakeRun("empty", steps=0))
    for name in TABS:
        tab(page, name)
    said = page.read("document.body.textContent")
    for words in ("when the first step has been trained", "No worker yet", "No samples yet", "first heartbeats"):
        assert words in said


def test_any_metric_can_be_picked(plain):
    page = plain
    tab(page, "metrics")
    page.click("#panel-metrics input[type=search]")
    page.type("spec accept_len")
    page.wait("document.querySelectorAll('.names input').length", 1)
    page.click(".names input")
    page.wait("document.querySelectorAll('#panel-metrics .key').length", 2)
    assert "m=reward" in page.read("location.hash")
    tab(page, "configuration")
    tab(page, "metrics")
    page.wait("location.hash.includes('m=reward')")
    page.read(
        "(e => { e.value = 'epoch'; e.dispatchEvent(new Event('change')) })(document.querySelector('.picker select'))"
    )
    page.wait(
        "[...document.querySelectorAll('#panel-metrics .key span')].map(e => e.textContent).join()",
        "epoch 1,epoch 2,epoch 3,epoch 1,epoch 2,epoch 3",
    )


def test_every_metric_is_read_against_an_axis_of_its_own(show):
    names = ("reward/mean", "reward/flat_groups", "actor/grad_norm", "timing_s/step")
    page = show(FakeRun("axes"), hash=f"#metrics?m={','.join(names)}")
    titles = "[...document.querySelectorAll('#panel-metrics [data-chart]')].map(e => e.dataset.chart).join()"
    page.wait("document.querySelectorAll('#panel-metrics .uplot').length", 4)
    assert page.read(titles) == ",".join(names)
    charts = "document.querySelectorAll('.picker select')[1]"
    page.read(f"(e => {{ e.value = 'unit'; e.dispatchEvent(new Event('change')) }})({charts})")
    page.wait(titles, "Without a unit,In share,In s")
    page.wait("document.querySelectorAll('#panel-metrics .uplot').length", 3)
    assert "charts=unit" in page.read("location.hash")
    text = page.read(
        """import('./static/views/metrics/columns.js').then(({ csv, table }) => csv(table({
            steps: [{ step: 0, 'a/b': 0.5 }, { step: 1, 'a/b': 1 }],
            evaluations: [{ step: 2, 'val/c': 3 }] }, 'step'),
            ['a/b', 'val/c'], 'step'))"""
    )
    assert text == "step,a/b,val/c\n1,0.5,\n2,1,3\n"
    text = page.read(
        """import('./static/views/metrics/columns.js').then(({ csv, table }) => csv(table({
            steps: [{ step: 0, '=1+1': 0.5, 'a,"b"': 1 }], evaluations: [] }, 'step'), ['=1+1', 'a,"b"'], 'step'))"""
    )
    assert text.splitlines() == ["step,'=1+1," + '"a,""b"""', "1,0.5,1"]


def test_the_configuration_is_filtered(plain):
    page = plain
    tab(page, "configuration")
    page.click("#panel-configuration input")
    page.type("temperature")
    page.wait("document.querySelectorAll('.config tr').length", 1)
    assert page.text(".config tr") == "temperature1"
    page.read("document.querySelector('#panel-configuration input').value = ''")
    page.type("datasets")
    page.wait("[...document.querySelectorAll('.config tr')].map(e => e.textContent).join()", DATASET)


def test_a_narrow_window_has_no_horizontal_scroll(plain):
    page = plain
    page.size(400, 800)
    page.read("location.hash = '#samples'")
    for name in TABS:
        tab(page, name)
        page.wait("document.documentElement.scrollWidth", 400)
    tab(page, "samples")
    page.click("#row-1")
    page.wait("document.querySelectorAll('.card').length", 3 * GROUP)
    page.wait("document.documentElement.scrollWidth", 400)
    page.click(".card a")
    page.wait("document.querySelectorAll('.full').length >= 1")
    page.wait("document.documentElement.scrollWidth", 400)


def test_what_a_narrow_window_cuts_has_a_hint(plain):
    page = plain
    page.size(420, 800)
    more = "document.querySelector({!r}).getAttribute('data-more')"
    page.wait(more.format(".facts"), "right")
    assert page.read("document.getElementById('tabs').offsetTop") < 130, "one row of numbers is above the tabs"
    page.wait(more.format("#panel-overview .tall:not(.held-out *)"), "right")
    page.click("#tab-configuration")
    page.wait("document.querySelector('#tab-configuration').getBoundingClientRect().right <= 420")
    page.read(f"location.hash = '#samples/{5:016x}'")
    page.wait("document.querySelectorAll('.card').length", 3 * GROUP)
    page.wait(more.format(".group .scroll"), "right")
    page.read("document.querySelector('.group .scroll').scrollLeft = 9999")
    page.wait(more.format(".group .scroll"), "left")


def test_the_theme_follows_the_system_and_the_switch(show):
    page = show(FakeRun("theme"), dark=True)
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.read(ground) == "rgb(20, 23, 26)"
    page.click("#head .theme")
    page.wait(ground, "rgb(246, 246, 243)")
    page.prefer("light")
    page.click("#head .theme")
    page.wait(ground, "rgb(20, 23, 26)")
    page.click("#head .theme")
    page.wait(ground, "rgb(246, 246, 243)")


def test_everything_can_be_reached_and_has_a_name(plain):
    page = plain
    for name in TABS:
        tab(page, name)
    page.read("document.getElementById('tab-overview').click(); document.getElementById('tab-overview').focus()")
    page.key("ArrowRight")
    page.wait("document.getElementById('tab-workers').getAttribute('aria-selected')", "true")
    nameless = page.read(
        "[...document.querySelectorAll('button, select, input, canvas[role], [role=listbox], a')]"
        ".filter(e => !(e.getAttribute('aria-label') || e.labels?.length || e.textContent.trim())"
        " && !e.closest('.uplot')).map(e => e.outerHTML.slice(0, 80))"
    )
    assert nameless == []


def test_a_worker_that_joins_appears_at_once(show, server):
    run = FakeRun("joins", steps=0)
    page = show(run)
    tab(page, "workers")
    run.changed = {"workers": [worker_row("rollout-7", 0)]}
    page.wait("document.querySelector('[data-worker=rollout-7]')?.textContent.includes('0 / 16')")


def test_what_a_worker_uses_is_shown_with_its_newest_spans(plain):
    page, cell = plain, "[data-worker={}] .usage"
    tab(page, "workers")
    page.wait(f"document.querySelector('{cell.format('rollout-0')} .spark')?.textContent.length", 20)
    text = page.text(cell.format("rollout-0"))
    assert text.startswith("3.2 CPU, 2.5 GiB2 GPUs 92 %, 122 GiB, 61 °C")
    assert set(text[-20:]) <= set("▁▂▃▄▅▆▇█")
    tips = page.read(f"document.querySelector('{cell.format('rollout-0')}').title").splitlines()
    assert tips[1] == "GPU 1 NVIDIA H200: 97 %, 61 GiB of 140 GiB, 61 °C"
    assert page.text(cell.format("reward-0")).startswith("0.0 CPU, 812 MiB")
    assert page.text("[data-worker=rollout-1]").count("–") >= 4, "it is lost: its use is not known"


def test_seconds_in_the_columns_of_the_gantt_are_those_that_were_reported(plain):
    sums = plain.read(
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
    kept = plain.read(
        """import('./static/charts/timeline.js').then(({ Timeline }) => {
            const line = new Timeline();
            for (let t = 2; t < 30002; t++) line.add({ events: [{ t, event: 'trained', step: t }] });
            const { events, seen } = line;
            return { most: events.length, seen: seen.size, last: events[events.length - 1].t };
        })"""
    )
    assert 10_000 <= kept["most"] <= 20_000
    assert (kept["seen"], kept["last"]) == (kept["most"], 30_001)


def test_numbers_are_written_for_people(plain):
    written = plain.read(
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
