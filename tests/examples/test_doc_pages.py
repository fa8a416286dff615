"""The code on the documentation pages runs, top to bottom, on a fake clock."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import tyro

import tickrate.clock
from tickrate import errors
from tickrate.__main__ import COMMANDS, ROLES, main
from tickrate.cli.train import TrainOptions, resolve_options
from tickrate.config.experiment import experiment_from_mapping
from tickrate.config.loading import parse_yaml
from tickrate.onnx.names import ACTION, OUTPUTS, leaf_input, state_input, state_output
from tickrate.runtime.environments import DelayConfig, open_environment
from tickrate.testing import FakeClock

DOCS = Path(__file__).parents[2] / "docs"
OWN = "algorithms/your_own.md"


def code(page: str, language: str) -> list[str]:
    """Return the blocks of a page that are written in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.M | re.S)


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    """Files of the pages, ``# NAME.py`` in their first line, go here and can be imported, as the examples."""
    monkeypatch.chdir(tmp_path)
    for folder in (DOCS.parent, tmp_path):
        monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("my_"):
            del sys.modules[name]


def save_files(page: str, folder: Path) -> list[str]:
    """Write the blocks that are files where they can be imported; return those that are to be run."""
    rest = []
    for block in code(page, "python"):
        if name := re.match(r"# (\w+\.py)\n", block):
            (folder / name[1]).write_text(block, encoding="utf-8")
        else:
            rest.append(block)
    return rest


@pytest.mark.parametrize(
    "page", ["tutorial_drone.md", "testing.md", "delays.md", "algorithms/README.md", OWN]
)
def test_the_code_of_a_page_runs(page, monkeypatch, capsys, at_home):
    clock = FakeClock(start=1.0)
    for module in ("realtime.env", "testing.contracts"):
        monkeypatch.setattr(f"tickrate.{module}.make_clock", lambda mode: clock)
    monkeypatch.setattr("tickrate.realtime.dummy_drone.now", clock.now)
    monkeypatch.setattr(tickrate.clock, "sleep", clock.advance)
    blocks = save_files(page, at_home)
    assert len(blocks) >= 3 or page == "algorithms/README.md"
    if page == OWN:
        (at_home / "my_presets").mkdir()
        for name, preset in (("quick", code(page, "yaml")[1]), ("slow", "{}\n")):
            (at_home / "my_presets" / f"{name}.yaml").write_text(preset, encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, page, "exec"), namespace)
    if page == "tutorial_drone.md":
        out = capsys.readouterr().out
        assert "act_buf_len of at least" in out
        assert "target reached" in out or "out of time" in out


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_links_between_the_pages_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target, _, anchor in re.findall(r"\]\(([^)#:\s]*)(#([\w-]+))?\)", text):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.M)
            assert anchor in {anchor_of(title) for title in titles}, (target, anchor)
    for example in re.findall(r"`(examples/[\w.]+)`", text):
        assert (DOCS.parent / example).exists(), example


def anchor_of(title: str) -> str:
    """Return what a link to a title says."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", [DOCS / "cluster.md", DOCS.parent / "README.md"], ids=lambda page: page.name)
def test_the_commands_of_a_page_exist(page):
    blocks = re.findall(r"^```bash\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    names = set(re.findall(r"^(?:srun )?tickrate ([a-z]+)", "".join(blocks), re.M))
    assert {"hub", "keys", "worker", "trainer", "status"} <= names
    assert names <= {*COMMANDS, *ROLES}


def test_the_commands_of_the_page_on_cloning_are_ones_and_its_expert_is_one(at_home, capsys):
    page = "algorithms/cloning.md"
    assert not save_files(page, at_home)
    lines = [shlex.split(line) for block in code(page, "bash") for line in block.splitlines()]
    (recording,) = [line[2:] for line in lines if line[1] == "record"]
    assert main(["record", *recording, "--episodes", "2"]) == 0
    returns = [float(number) for number in re.findall(r"episode: return (-?[\d.]+)", capsys.readouterr().out)]
    assert len(returns) == 2
    assert min(returns) > -500  # random torques earn about -1200
    runs = [tyro.cli(TrainOptions, args=line[2:]) for line in lines if line[1] == "train"]
    made = {run.name: resolve_options(run)[0] for run in runs if run.resume is None}
    assert list(made) == ["mixed", "started", "cloned"]
    assert made["started"].algorithm.settings.cloning_updates == 1000
    cloned = made["cloned"]
    assert cloned.algorithm.settings.cloning_updates == cloned.trainer.offline_updates == 5000
    assert not cloned.algorithm.settings.critic.has_batch_norm  # live clones slowly
    assert [str(run.resume) for run in runs if run.resume] == ["runs/cloned"]


def test_the_code_of_the_page_on_onnx_exports_a_policy_and_acts_with_it(at_home, capsys):
    page = "onnx.md"
    lines = [shlex.split(line, comments=True) for block in code(page, "bash") for line in block.splitlines()]
    (shipped,) = [line for line in lines if line[:3] == ["tickrate", "export", "circuit"]]
    assert main(shipped[1:]) == 0
    blocks = code(page, "python")
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, page, "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.count("action [[") == 3
    named = {end for end in re.findall(r"^\| `([\w/]+)` \|", (DOCS / page).read_text("utf-8"), re.M)}
    assert {leaf_input("PATH"), state_input("NAME"), state_output("NAME"), ACTION, OUTPUTS} <= named


def test_the_table_of_errors_names_every_way_of_not_getting_in():
    text = (DOCS / "cluster.md").read_text(encoding="utf-8")
    named = {getattr(errors, name) for name in re.findall(r"^\| `([A-Z]\w+)` \|", text, re.M)}
    joining = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.WireError) and kind is not errors.MessageError
    }
    assert joining <= named


def test_the_experiments_of_the_page_on_delays_are_ones():
    blocks = code("delays.md", "yaml")
    first, drone, corrected = (experiment_from_mapping(parse_yaml(block, "delays.md")) for block in blocks)
    assert first.environment.delays == DelayConfig(action=(3, 5), observation=0)
    assert drone.serial
    open_environment(drone.environment).close()
    longest = corrected.environment.delays.longest
    assert corrected.algorithm.settings.delay_correction == longest + 1
