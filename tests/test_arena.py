"""The arena: each pair plays with every seat as often; evaluation against an opponent; the command's lines."""

from __future__ import annotations

import importlib
import json
import re

import numpy as np
import pytest

import actor_learner as al
from actor_learner.cli import main
from actor_learner.environments.errors import EnvError
from actor_learner.reports.report import report
from benchmarks.games.players import perfect_tic_tac_toe

pytest.importorskip("pettingzoo")
pytestmark = pytest.mark.usefixtures("without_xla")

GAME = "pettingzoo.classic.tictactoe_v3:raw_env"


def first_field(observation, mask, generator):
    return int(np.flatnonzero(mask)[0])


def not_a_move(observation, mask, generator):
    return 9


def newest_state(run):
    return json.loads((max((run / "checkpoints").glob("0*")) / "run.json").read_text())


@pytest.mark.slow
class TestRuns:
    @pytest.fixture(scope="class")
    def run(self, tmp_path_factory):
        folder = tmp_path_factory.mktemp("run") / "run"
        sizes = {"num_actors": 0, "num_envs": 4, "unroll_length": 16, "total_steps": 640}
        config = al.TrainConfig(
            env=GAME,
            self_play=al.SelfPlay(size=3, every=2),
            algorithm=al.PPO(minibatch_size=64),
            hidden_sizes=(8,),
            run_dir=folder,
            quiet=True,
            checkpoint_updates=1,
            **sizes,
        )
        al.train(config)
        return folder

    def test_metrics_tell_of_the_league(self, run):
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert rows[-1]["league/versions"] == 5
        assert {"league/score", "league/score_random", "league/rating"} <= rows[-1].keys()
        assert not any(name.startswith("episode/") for name in rows[-1])

    def test_the_report_has_the_scores_of_each_version(self, run):
        page = report(run).read_text()
        table = page[page.index("<h2>Self-play</h2>") : page.index("</table>", page.index("<h2>Self-play</h2>"))]
        assert [f"<th>{name}</th>" in table for name in ("random", "version 0", "version 4")] == [True] * 3
        assert re.search(r"<td>version 4</td><td></td><td>\d+% of \d+</td>", table)

    def test_a_resumed_run_has_its_pool_again(self, run):
        config = al.load_config(run / "config.json", total_steps=768, run_dir=run, quiet=True)
        before = newest_state(run)
        assert before["league"]["versions"] == [0, 3, 4]
        al.train(config, resume=True)
        after = newest_state(run)
        assert after["league"]["versions"] == [0, 4, 5]
        games = {tuple(pair[:2]): pair[2] for pair in before["league"]["pairs"]}
        assert all(pair[2] >= games[tuple(pair[:2])] for pair in after["league"]["pairs"] if tuple(pair[:2]) in games)

    def test_evaluation_against_opponents_has_outcomes(self, run):
        against = al.evaluate(run, opponent=perfect_tic_tac_toe, episodes=30, seed=1)
        assert against.info["outcome"].max() <= 0.5
        np.testing.assert_array_equal(against.info["outcome"], 0.5 + 0.5 * against.returns)
        assert len(al.evaluate(run, opponent="random", seat=1, episodes=7).returns) == 7
        own = al.evaluate(run, opponent=run, deterministic=False, episodes=40)
        assert len(own.info["outcome"]) == 40
        again = al.evaluate(run, opponent=run, deterministic=False, episodes=40)
        np.testing.assert_array_equal(own.returns, again.returns)

    def test_the_arena_ranks_players(self, run, capsys, tmp_path):
        players = ["random", perfect_tic_tac_toe, run]
        standings = al.arena(players, games=31)
        assert standings.names == ("random", "perfect_tic_tac_toe", str(run))
        assert (standings.games + 32 * np.eye(3) == 32).all()
        assert standings.ratings[0] == 0
        assert standings.ratings[1] > 200
        assert (standings.intervals[:, 0] <= standings.ratings).all()
        assert (standings.ratings <= standings.intervals[:, 1]).all()
        np.testing.assert_allclose(standings.scores + standings.scores.T, np.where(np.eye(3), np.nan, 1.0))
        assert repr(standings).startswith("Standings(perfect_tic_tac_toe +")
        command = ["arena", f"mine={run}", "random", "--games", "10", "--plot", str(tmp_path / "arena.svg")]
        assert main(command) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == ["player", "rating", "95%", "vs", "1", "vs", "2"]
        assert "mine" in "".join(lines[1:3])
        assert (tmp_path / "arena.svg").read_text().count("random") >= 1
        assert main([*command[:5], "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["names"] == ["mine", "random"]

    def test_evaluate_s_command_takes_opponents(self, run, capsys):
        words = ["evaluate", str(run), "--episodes", "8", "--json", "--opponent"]
        assert main([*words, "benchmarks.games.players:perfect_tic_tac_toe", "--seat", "0"]) == 0
        assert len(json.loads(capsys.readouterr().out)["info"]["outcome"]) == 8
        assert main([*words, "no_such_module:player"]) == 2
        assert "can't import 'no_such_module'" in capsys.readouterr().err
        assert main([*words, "random", "--seat", "2"]) == 2
        assert "`--seat` must be below 2" in capsys.readouterr().err

    def test_a_run_of_another_game_is_refused(self, run):
        connect_four = "pettingzoo.classic.connect_four_v3:raw_env"
        with pytest.raises(ValueError, match="trained for observations of"):
            al.arena([run, "random"], connect_four, games=2)
        with pytest.raises(ValueError, match="trained for observations of"):
            al.evaluate(run, connect_four, opponent="random", episodes=2)

    @pytest.mark.thorough
    @pytest.mark.parametrize("factory", ["raw_env", "env"])
    def test_a_video_shows_each_decision(self, run, factory, tmp_path, capsys):
        words = ["--env", GAME.replace("raw_env", factory), "--video", str(tmp_path / "videos")]
        assert main(["evaluate", str(run), "--episodes", "2", *words]) == 0
        assert len(list((tmp_path / "videos").glob("*.mp4"))) == 2


def test_an_arena_that_waits_for_a_game_says_so(monkeypatch):
    monkeypatch.setattr(importlib.import_module("actor_learner.arena"), "ENDLESS_STEPS", 2)
    with pytest.warns(UserWarning, match="no game of .* has ended in 2 steps, and the arena waits for one: let"):
        al.arena(["random", first_field], env=GAME, games=2)


def test_players_of_one_s_own_need_no_run():
    standings = al.arena({"a": first_field, "b": "random"}, GAME, games=60)
    assert standings.names == ("a", "b")
    assert standings.scores[0, 1] > 0.4
    again = al.arena({"a": first_field, "b": "random"}, GAME, games=60)
    np.testing.assert_array_equal(standings.intervals, again.intervals)


@pytest.mark.parametrize(
    ("players", "message"),
    [
        (["random"], r"at least two players. Received: players=\['random'\]"),
        ("random", "at least two players"),
        (["random", "random"], "different names; a dict gives them. Received: 'random' twice"),
        ([first_field, 3], "a run, a Policy, 'random', or a callable"),
        (["random", "tests.test_arena:GAME"], "the module:function of a player"),
    ],
)
def test_players_that_are_none_are_one_clear_line(players, message):
    with pytest.raises(ValueError, match=message) as error:
        al.arena(players, GAME, games=2)
    assert "\n" not in str(error.value)


def test_an_arena_needs_a_game_and_legal_moves():
    with pytest.raises(ValueError, match="`env` must be given"):
        al.arena(["random", first_field], games=2)
    with pytest.raises(EnvError, match="The player `.*not_a_move` must return an action"):
        al.arena(["random", not_a_move], GAME, games=2)
    with pytest.raises(EnvError, match="`self_play` needs a game"):
        al.arena(["random", first_field], "CartPole-v1", games=2)
