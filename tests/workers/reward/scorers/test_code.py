"""The scorer `code`: programs in every sandbox that this machine has, and rows as datasets write them."""

import json
import os
import socket
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.errors import RewardError
from rhymed_workers.reward.child import item
from rhymed_workers.reward.pool import Pool
from rhymed_workers.reward.scorers.code import program, same_text, same_value
from rhymed_workers.reward.scorers.load import load_scorers
from rhymed_workers.sandbox import choose
from tests.workers.reward.scorers.test_load import config, load_scorer
from tests.workers.sandbox.processes import in_jails, running, wait_for

SUMS = {"inputs": ["1 2\n", "3 4\n", "10 -4\n"], "outputs": ["3\n", "7", "6\n"]}
RIGHT = "print(sum(map(int, input().split())))"
HALF = "a, b = map(int, input().split())\nprint(a + b if b > 0 else 0)"

Run = Callable[..., float | None]


@pytest.fixture(params=choose.KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if choose.choose(request.param) is None:
        pytest.skip(f"{request.param} does not work here")
    return str(request.param)


@pytest.fixture
def run(kind: str) -> Run:
    def run(source: str, tests: Any = SUMS, **args: Any) -> float | None:
        score = load_scorer(config("code", timeout_s=120, args={"sandbox": kind} | args))
        return score(f"So:\n```python\n{textwrap.dedent(source)}\n```\n", {"prompt": "q", "ground_truth": tests})

    return run


def test_printed(run: Run) -> None:
    assert run(RIGHT) == 1.0
    assert run(HALF) == 0.0
    assert run(HALF, partial=True) == pytest.approx(2 / 3)
    assert run("", partial=True) == 0.0


def test_called(run: Run) -> None:
    tests = json.dumps({"fn_name": "add", "inputs": [[1, 2], [[3], [4]]], "outputs": [3, [3, 4]]})
    assert run("def add(a, b): return a + b", tests) == 1.0
    assert run("class Solution:\n    def add(self, a, b): return a + b", tests) == 1.0
    assert run("def add(a, b): return (*a, *b) if isinstance(a, list) else a + b", tests) == 1.0
    assert run("def add(a, b): return 3", tests, partial=True) == 0.5
    assert run("def sub(a, b): return 3", tests, partial=True) == 0.0


def test_results_as_datasets_wrap_them(run: Run) -> None:
    assert run("def f(x): return [x]", {"fn_name": "f", "inputs": [[1]], "outputs": [[[1]]]}) == 1.0
    lines = [{"input": '"a"\n[1, 2]', "output": '"aa"', "fn_name": "f", "testtype": "functional"}]
    assert run("def f(text, many): return text * len(many)", lines) == 1.0
    assert run(RIGHT, [{"input": "1 2", "output": "3", "testtype": "stdin"}]) == 1.0


def test_asserted(kind: str) -> None:
    score = load_scorer(config("code", args={"sandbox": kind, "partial": True}))
    mbpp = {
        "prompt": "q",
        "test_setup_code": "TWO = 2",
        "test_list": ["assert double(2) == 2 * TWO", "assert double(0) == 0", "assert double(-1) == 2"],
    }
    assert score("```python\ndef double(x): return 2 * x\n```", mbpp) == pytest.approx(2 / 3)
    assert score("def double(x): return 2 * abs(x)", mbpp) == 1.0
    humaneval = {"prompt": "q", "entry_point": "inc", "test": "def check(f):\n    assert f(1) == 2\n"}
    assert score("```python\ndef inc(x):\n    return x + 1\n```", humaneval) == 1.0
    assert score("```python\ndef inc(x):\n    return x\n```", humaneval) == 0.0
    assert score("import sys\ndef inc(x): sys.exit(0)", humaneval) == 0.0
    assert score("import os\nos._exit(0)", humaneval) == 0.0


@pytest.mark.parametrize(
    "source",
    [
        "while True: pass",
        "import time\ntime.sleep(60)",
        "print('x' * (10 << 30))",
        "import ctypes\nctypes.string_at(0)",
        "import sys\nsys.exit(1)",
        "import os\nos._exit(0)",
        "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
        "def f(): return f()\nf()",
        "while True: print('x' * 1000)",
        "import os\nos.close(1)",
        "import os\nos.closerange(0, 100)",
        "raise ValueError('x' * (1 << 28))",
        "this is no Python",
        "import os\nfor _ in range(300):\n    if os.fork() == 0:\n        import time; time.sleep(3); os._exit(0)",
        "open('file', 'wb').write(bytes(100 << 20))",
        "files = [open('/dev/null') for _ in range(100_000)]",
        "import os\nos.write(1, b'\\xff\\xfe')",
    ],
)
def test_a_bad_program_is_wrong_and_no_error(run: Run, source: str) -> None:
    assert run(source, timeout_s=2) == 0.0


def test_a_right_answer_that_was_printed_before_a_loop_is_late(run: Run) -> None:
    assert run(f"{RIGHT}\nimport sys; sys.stdout.flush()\nwhile True: pass", timeout_s=1) == 0.0


def test_one_bad_test_leaves_the_others(run: Run) -> None:
    source = """
        import os, time
        line = open(0).read()
        if line.startswith("1 "):
            while True: pass
        if line.startswith("3 "):
            if os.fork() == 0: time.sleep(60)
            os.abort()
        print(sum(map(int, line.split())))
    """
    assert run(source, timeout_s=5, partial=True) == pytest.approx(1 / 3)


def test_the_network_is_shut_off(run: Run, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = f"""
            import socket
            try: socket.create_connection(("127.0.0.1", {server.getsockname()[1]}), timeout=2); print("open")
            except OSError: print("shut")
        """
        assert run(source, {"inputs": [""], "outputs": ["open" if kind == "rlimits" else "shut"]}) == 1.0


def test_only_its_folder_can_be_written(run: Run, kind: str, tmp_path: Path) -> None:
    if kind == "rlimits":
        pytest.skip("files are not shut off")
    source = f"""
        import os, sys
        places = ["/", "/usr", "/etc", "/root", "/home", "/var", "/proc/self", "/dev", {str(tmp_path)!r}, sys.prefix]
        for place in places:
            try: open(place + "/evil", "w"); print("written", place)
            except OSError: pass
        os.makedirs("deep/er"); open("deep/er/own", "w").write("fine")
        print(open("deep/er/own").read())
    """
    assert run(source, {"inputs": [""], "outputs": ["fine"]}) == 1.0
    assert not list(tmp_path.iterdir())


def test_files_of_this_machine_are_not_there(run: Run, kind: str, tmp_path: Path) -> None:
    if kind == "rlimits":
        pytest.skip("files are not shut off")
    (tmp_path / "secret").write_text("secret")
    paths = [str(tmp_path / "secret"), "/etc/passwd", "/etc/shadow", __file__]
    source = f"import os\nprint([os.path.exists(path) for path in {paths!r}])"
    assert run(source, {"inputs": [""], "outputs": [str([False] * len(paths))]}) == 1.0


def test_processes_of_this_machine_are_not_there(run: Run, kind: str) -> None:
    if kind == "rlimits":
        pytest.skip("processes are not hidden")
    source = f"import os\nprint(os.path.exists('/proc/{os.getpid()}') and {os.getpid()} > 9)\nos.kill(1, 9)"
    assert run(source, {"inputs": [""], "outputs": ["False"]}) == 1.0


def test_no_variable_of_the_worker_is_seen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "secret")
    source = """
        import os
        print(any("SECRET" in text for text in (str(os.environ), open("/proc/self/environ").read())))
    """
    assert run(source, {"inputs": [""], "outputs": ["False"]}) == 1.0


def test_it_has_no_rights(run: Run, kind: str) -> None:
    source = """
        print([line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "CapBnd"))])
        print([line.split()[1] for line in open("/proc/self/status") if line.startswith("NoNewPrivs")])
    """
    none = "0" * 16
    bound = [str([none, none]), "['1']"]
    assert run(source, {"inputs": [""], "outputs": ["\n".join(bound)]}) == 1.0


def test_the_tests_cannot_be_read_by_the_program(run: Run) -> None:
    """Results are compared outside; the driver's memory and pipes are closed to it."""
    source = """
        import os
        found = []
        for pid in (os.getppid(), 1):
            for name in ("mem", "environ"):
                try: open(f"/proc/{pid}/{name}", "rb").read(1); found.append(name)
                except (OSError, ValueError): pass
            try: found += [os.open(f"/proc/{pid}/fd/{fd}", os.O_WRONLY) for fd in os.listdir(f"/proc/{pid}/fd")]
            except OSError: pass
        print(found)
    """
    assert run(source, {"inputs": [""], "outputs": ["[]"]}) == 1.0


def test_a_sandbox_that_does_not_start_is_an_error(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    score = load_scorer(config("code", args={"sandbox": kind}))
    monkeypatch.setattr(choose.sys, "executable", "/bin/false")
    with pytest.raises(RewardError, match=f"sandbox {kind} did not start"):
        score("print(1)", {"prompt": "q", "ground_truth": SUMS})


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"sandbox": "docker"}, "it is one of auto, bubblewrap, rlimits"),
        ({"timeout_s": 0}, "must be a positive number"),
        ({"timeout_s": 60}, "must hold all of a sample"),
        ({"partial": 1}, "must be true or false"),
        ({"memory": 1}, "it takes: timeout_s, memory_mib"),
    ],
)
def test_arguments_are_checked(args: dict[str, Any], message: str) -> None:
    with pytest.raises(RewardError, match=message):
        load_scorer(config("code", args=args))


def test_a_sandbox_that_is_not_there_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "works", lambda one: one.kind == "rlimits")
    monkeypatch.setattr(choose.shutil, "which", lambda *_, **__: None)
    with pytest.raises(RewardError, match="'bubblewrap' does not work here: install bubblewrap"):
        load_scorer(config("code", args={"sandbox": "bubblewrap"}))
    (score,) = load_scorers(config("code")).values()
    assert "resource limits only" in vars(score)["note"]
    assert "no bubblewrap works here: install bubblewrap" in vars(score)["warning"]


def test_limits_that_were_asked_for_are_no_warning() -> None:
    assert "warning" not in vars(load_scorer(config("code", args={"sandbox": "rlimits"})))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "the row has no tests"),
        ({"ground_truth": "{bad"}, "no JSON"),
        ({"ground_truth": {"inputs": ["1"], "outputs": []}}, "as many outputs as inputs"),
        ({"ground_truth": {"inputs": [], "outputs": []}}, "the row has no tests"),
        ({"ground_truth": [{"in": 1}]}, "without input and output"),
        ({"ground_truth": 7}, "cannot be read"),
        ({"ground_truth": {"fn_name": "f", "inputs": ["{"], "outputs": [1]}}, "arguments that are no JSON"),
    ],
)
def test_a_row_without_tests_is_an_error(row: dict[str, Any], message: str) -> None:
    score = load_scorer(config("code", args={"sandbox": "rlimits"}))
    with pytest.raises(RewardError, match=message):
        score("print(1)", {"prompt": "q", **row})


def test_tests_in_verls_place_and_in_a_column_of_ones_own() -> None:
    score = load_scorer(config("code", args={"sandbox": "rlimits"}))
    assert score(RIGHT, {"prompt": "q", "reward_model": {"ground_truth": json.dumps(SUMS)}}) == 1.0
    named = load_scorer(config("code", args={"sandbox": "rlimits", "tests": "mine"}))
    assert named(RIGHT, {"prompt": "q", "mine": SUMS}) == 1.0


def test_the_program_is_the_last_python_block() -> None:
    assert program("```python\none\n```\ntext\n```py\ntwo\n```\n```text\noutput\n```") == "two\n"
    assert program("```\nplain\n```") == "plain\n"
    assert program("no fence") == "no fence"
    assert program("```python\ncut off") == "cut off"
    assert program("```rust\nfn main\n```") == ""


def test_what_counts_as_the_same() -> None:
    assert same_text("1.0 2 \n\n", "1 2")
    assert same_text("a\nb\n", "a\nb")
    assert not same_text("a b", "a\nb")
    assert not same_text("1.01", "1")
    assert same_value([1, {"a": 0.1 + 0.2}], [1, {"a": 0.3}])
    assert not same_value(True, 1)
    assert not same_value([1], [1, 2])


async def test_in_a_cage_the_sandbox_works_and_ends_with_it(kind: str, tmp_path: Path) -> None:
    """Nested: the limits of the jail hold, and its time limit ends the program."""
    chosen = config("code", args={"sandbox": kind, "timeout_s": 2}, timeout_s=60.0, processes_limit=32, processes=1)
    row = {"prompt": "q", "ground_truth": SUMS}
    async with Pool(chosen) as pool:
        assert (await pool.score(item(RIGHT, row))).reward == 1.0
        for source in ("while True: pass", "import os, time\nfor _ in range(11): os.fork()\ntime.sleep(3)"):
            outcome = await pool.score(item(source, row))
            assert outcome.error is None or kind == "rlimits"
        assert (await pool.score(item(RIGHT, row))).reward == 1.0
    assert not in_jails()
    assert await wait_for(lambda: not running("rhymed_workers.sandbox.limits"))
